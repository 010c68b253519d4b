"""Write the documentation text inside Python's standard library, a kind of text for studies.

    python -m benchmarks.python_docs python-docs.txt

The topics of `help()`, by name: half a million characters. A file that ends in `.jsonl` has a row
for each topic. Another release of Python has other text, so a record is compared by the hash of its
tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.common.output import new_parser, run_command
from grasp_deploy.files.disk import write_text


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("output", type=Path, help="text file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    output = options_of(arguments).output
    documents = [topics[name].strip() for name in sorted(topics)]
    if output.suffix == ".jsonl":
        write_text(output, "".join(json.dumps({"text": text}) + "\n" for text in documents))
    else:
        write_text(output, "\n\n".join(documents))


if __name__ == "__main__":
    run_command(main)
