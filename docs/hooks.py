"""Take the repository's own pages and records into the site, and keep their links right.

Pages in `docs/` link to the rest of the repository as `../benchmarks/LOG.md`, which works wherever
the repository is browsed. In the site those files lie beside the pages of `docs/`.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FROM_THE_REPOSITORY = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "examples/*.py"),
    *("benchmarks/*.md", "benchmarks/results/*.json", "benchmarks/figures/*.png"),
    *("serving/*.md", "serving/Dockerfile", "serving/clients/*", "grasp_deploy/demo/model/*.md"),
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to."""
    for pattern in FROM_THE_REPOSITORY:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of a page as they are in the site, where `docs/` and the repository's root are one."""
    if page.file.src_uri.count("/"):
        return markdown
    return re.sub(r"\]\((?:\.\./|docs/)", "](", markdown)
