"""Calls of tokenizers, whose files may be a stranger's: what is wrong with one is a reason.

Its rules may multiply a text without end, and its chat template is a program. So each is tried
first, in a child process with limits of time and memory.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import resource
import signal
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

JOIN = "\n\n"
PIECE = 2**18  # characters tokenised at once; a token takes some 600 bytes meanwhile
CONTEXT = 2**6  # characters of its neighbours that a piece is read with
LINE = re.compile(r"\n(?=\S)")
WORD = re.compile(r"\w (?=\w)")  # where no line ends in time
SAMPLE = 2 * (
    'The quick brown fox jumps over the lazy dog, and 1234567890 others do; it\'s "done" (once)\n'
    "    def f(x):  return x ** 2 / 3.14 \\ y\t# one\r\n\n_-=+[]{}<>@$%^&~`|!?  \n"
    "été naïve Über Ελλάδα русский عربي 你好世界 こんにちは 한국어 🙂 e\u0301\n"
)
PATIENCE_SECONDS = 10  # of computing
LONGEST_SECONDS = 60  # on the clock: a machine may be busy, and a process may wait
MEMORY_BYTES = 2**31  # that the child may take beside what is there already
Reply = dict[str, Any]


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], needed: int | None
) -> array[int]:
    """Token ids (int64) of the joined text: all of them, or at least its first `needed`.

    Tokenisers take hundreds of bytes for a token, so the text is read in pieces of whole lines.
    Tokenizers of these families split where a line ends: the tokens are those of one call.
    """
    text, ids, start = JOIN.join(documents), array("q"), 0
    while start < len(text) and (needed is None or len(ids) < needed):
        line = LINE.search(text, start + PIECE, start + 2 * PIECE)
        cut = line or WORD.search(text, start + PIECE)
        end, left = cut.end() if cut else len(text), max(0, start - CONTEXT)
        piece = encoded(tokenizer, text[left : end + CONTEXT])
        found = array("q", piece["input_ids"])
        first = _token_at(piece, start - left) if start else 0
        last = _token_at(piece, end - left) if cut else len(found)
        if first is None or last is None:  # it does not say, or drops what begins the line
            return array("q", tokens(tokenizer, text))
        ids += found[first:last]
        start = end
    return ids


def _token_at(piece: BatchEncoding, character: int) -> int | None:
    """Index of a character's first token; tokenizers in Python know none."""
    return piece.char_to_token(character) if piece.is_fast else None


def tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a text; InputError where the tokenizer fails on it."""
    ids: list[int] = encoded(tokenizer, text, add_special_tokens=add_special_tokens)["input_ids"]
    return ids


def encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False
) -> BatchEncoding:
    """Token ids of a text and their places in it; raises as `tokens` does."""
    with readable_failures():
        return tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)


@contextmanager
def readable_failures() -> Iterator[None]:
    """Turn any failure of a tokenizer into one line, and Rust's panics, which print by themselves.

    Nothing reaches the error stream meanwhile.
    """
    stream = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # such as a signal; Rust's class cannot be imported
        raise InputError(
            f"the model's tokenizer cannot read this text ({type(error).__name__}: "
            f"{first_line(error)}): put the tokenizer files that belong to the model in its folder"
        ) from None
    finally:
        os.dup2(stream, 2)
        os.close(stream)


def traits(load: Callable[[], PreTrainedTokenizerBase]) -> Reply:
    """What users see of a tokenizer, tried in a child: its "refusal" if it cannot be used."""
    near, far = multiprocessing.Pipe(duplex=False)
    child = os.fork()  # a new interpreter would import all again
    if not child:
        _reply(far, load)
    far.close()  # so that the end of the child is the end of the pipe
    try:
        if not near.poll(LONGEST_SECONDS):
            return {"refusal": f"a try did not end within {LONGEST_SECONDS} s"}
        return dict(json.loads(near.recv_bytes()))
    except EOFError:
        limits = f"{PATIENCE_SECONDS} s or {MEMORY_BYTES // 2**20} MiB"
        return {"refusal": f"a try took over {limits}, or ended its process"}
    finally:
        near.close()
        with suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _reply(far: Connection, load: Callable[[], PreTrainedTokenizerBase]) -> NoReturn:
    """The child: try within the limits, send what came of it as JSON, and end."""
    gc.disable()  # what it would destroy may wait for threads that this process lacks
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each thread would take address space
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        for kind, most in (
            (resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES),
            (resource.RLIMIT_CPU, PATIENCE_SECONDS),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))
        try:
            reply = _tried(load())
        except BaseException as error:  # these programs raise errors of their own; Rust panics
            reply = {"refusal": first_line(error)}
        far.send_bytes(json.dumps(reply).encode())
    finally:
        os._exit(0)  # without the parent's clean-up


def _tried(tokenizer: Any) -> Reply:
    """What decides a text's tokens; a short chat is written, which a template may refuse."""
    added = " a ".join(sorted(tokenizer.get_added_vocab()))
    ids = [tokenizer(text, verbose=False)["input_ids"] for text in (SAMPLE, added)]
    with suppress(Exception):  # it counts once a chat is to be written
        tokenizer.apply_chat_template([{"role": "user", "content": "Hi."}], tokenize=False)
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else ""
    return {
        "class": type(tokenizer).__name__,
        "tokens": ids,
        "rules": sha256(rules.encode()).hexdigest(),
        "templates": tokenizer.chat_template,  # and all that they can ask a tokenizer for:
        "specials": tokenizer.special_tokens_map,
    }
