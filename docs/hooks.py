"""Take the repository's own pages and records into the site, and fill in the table of options.

Pages in `docs/` link to the rest of the repository as `../benchmarks/LOG.md`, which works wherever
the repository is browsed. In the site those files lie beside the pages of `docs/`.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.option import flag

ROOT = Path(__file__).parents[1]
FROM_THE_REPOSITORY = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "examples/*.py"),
    *("benchmarks/*.md", "benchmarks/results/*.json", "benchmarks/figures/*.png"),
    *("serving/*.md", "serving/Dockerfile", "serving/clients/*", "grasp_deploy/demo/model/*.md"),
    *("serving/kubernetes/*.*", "serving/kubernetes/*/*.yaml", "serving/monitoring/*.*"),
    *("serving/ray/*.*", "serving/ray/Dockerfile"),
)
OPTIONS = "<!-- options of CompressConfig -->"


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
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    markdown = markdown.replace(OPTIONS, "\n".join(option_rows()))
    return re.sub(r"\]\((?:\.\./|docs/)", "](", markdown)


def option_rows() -> Iterator[str]:
    """A Markdown table of all options: as written, default, meaning."""
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for field in dataclasses.fields(CompressConfig):
        if "help" in field.metadata:
            option = flag(CompressConfig, field.name)
            option += "=" * option.startswith("--set")
            value = field.default
            value = ", ".join(value) if isinstance(value, tuple) else value
            default = "" if value in (None, "") else f"`{value}`"
            yield f"| `{option}` | {default} | {field.metadata['help']} |"
