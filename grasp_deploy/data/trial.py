"""A try of a stranger's tokenizer in a child process, with limits of time and memory.

Its rules may multiply a text without end, and its chat template is a program.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grasp_deploy.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLE = 2 * (
    'The quick brown fox jumps over the lazy dog, and 1234567890 others do; it\'s "done" (once)\n'
    "    def f(x):  return x ** 2 / 3.14 \\ y\t# one\r\n\n_-=+[]{}<>@$%^&~`|!?  \n"
    "été naïve Über Ελλάδα русский عربي 你好世界 こんにちは 한국어 🙂 e\u0301\n"
)
PATIENCE_SECONDS = 10  # of computing
LONGEST_SECONDS = 60  # on the clock: a machine may be busy, and a process may wait
MEMORY_BYTES = 2**31  # that the child may take beside what is there already

Reply = dict[str, Any]


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
