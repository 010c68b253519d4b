"""English text that comes with Python: the language reference and the docstrings."""

import ast
import hashlib
import inspect
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MINIMUM_CHARACTERS = 80  # shorter docstrings ("Return the value.") teach a model nothing
HELDOUT_ONE_IN = 20
FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documents() -> list[str]:
    """The reference topics and the standard library's docstrings of the running Python.

    The order is fixed for one Python version. Only the first copy of a paragraph is kept: topics
    and sibling functions repeat each other, and held-out text must not occur in training text.
    """
    kept, seen = [], set[str]()
    for text in (*_topics(), *_docstrings()):
        fresh = [part for part in text.split("\n\n") if part.strip() and part not in seen]
        seen.update(fresh)
        document = "\n\n".join(fresh).strip()
        if len(document) >= MINIMUM_CHARACTERS:
            kept.append(document)
    return kept


def split(documents: list[str]) -> tuple[list[str], list[str]]:
    """Part documents into (training, held-out), about one in twenty held out.

    The document's first line alone decides, so sides stay the same across Python versions.
    """
    sides: tuple[list[str], list[str]] = [], []
    for text in documents:
        digest = hashlib.sha256(text.partition("\n")[0].encode()).digest()
        is_heldout = int.from_bytes(digest[:8], "big") % HELDOUT_ONE_IN == 0
        sides[is_heldout].append(text)
    return sides


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics  # half a megabyte

    for name in sorted(topics):
        yield inspect.cleandoc(topics[name])


def _docstrings() -> Iterator[str]:
    """Docstrings read from source, because imports have side effects."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if FOREIGN_FOLDERS.isdisjoint(path.relative_to(library).parts):
            with suppress(SyntaxError, ValueError, OSError):  # templates and broken fixtures
                for node in ast.walk(ast.parse(path.read_bytes())):
                    if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
                        yield docstring
