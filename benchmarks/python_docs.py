"""Write text inside Python's standard library, kinds of text for studies: documentation and code.

    python -m benchmarks.python_docs python-docs.txt
    python -m benchmarks.python_docs python-code.txt --of held-out-code
    python -m benchmarks.python_docs code.jsonl --of code

Documentation is the topics of `help()`, by name: half a million characters. Held-out code is every
tenth module, and code the others, shuffled; of each its first 20,000 characters. A file that ends
in `.jsonl` has a row for each topic or module. Another release of Python has other text, so a
record is compared by the hash of its tokens.
"""

import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.common.output import new_parser, run_command
from grasp_deploy.files.disk import write_text

NO_LIBRARY = (  # folders of tests, tables, demonstrations and other people's packages
    *("test", "tests", "idlelib", "lib2to3", "encodings", "ensurepip", "pydoc_data"),
    *("turtledemo", "site-packages", "__phello__"),
)
LEAST, MOST = 1_000, 20_000  # characters of a module
HELD_OUT = 10  # every tenth module


def modules() -> list[str]:
    """The source of each module of the standard library, in the order of their paths."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = []
    for path in sorted(library.rglob("*.py")):
        if not set(NO_LIBRARY).intersection(path.relative_to(library).parts):
            sources.append(path.read_text(encoding="utf-8", errors="replace"))
    return [source[:MOST] for source in sources if len(source) > LEAST]


def documents(kind: str) -> list[str]:
    """The texts of a kind."""
    if kind == "documentation":
        return [topics[name].strip() for name in sorted(topics)]
    sources = modules()
    if kind == "held-out-code":
        return sources[::HELD_OUT]
    del sources[::HELD_OUT]
    random.Random(0).shuffle(sources)
    return sources


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("output", type=Path, help="text file to write")
    kinds = ("documentation", "code", "held-out-code")
    parser.add_argument("--of", choices=kinds, default=kinds[0], help="what to write")
    options = parser.parse_args(arguments)
    texts = documents(options.of)
    if options.output.suffix == ".jsonl":
        write_text(options.output, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        write_text(options.output, "\n\n".join(texts))


if __name__ == "__main__":
    run_command(main)
