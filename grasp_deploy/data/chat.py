"""Conversations written as text by the chat template of a tokenizer.

Templates are programs, and of strangers' models too. They run in a child process, so that one that
never ends, or fills the memory, ends in one line.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them
PATIENCE_SECONDS = 10.0  # for one conversation; templates take milliseconds
MEMORY_BYTES = 2**31  # that a template may take
LONGEST_TEXT = 2**20  # characters, beside some for each of the conversation

Write = Callable[[list[object], str], str]  # a conversation, and where it stands, as a text


@contextmanager
def chat_writer(tokenizer: PreTrainedTokenizerBase) -> Iterator[Write]:
    """A function that writes conversations; its child process starts with the first of them.

    Raises InputError for a conversation that is none, and for a template that is missing, refuses,
    or does not end.
    """
    fork = multiprocessing.get_context("fork")  # a new process would import all again
    near, far = fork.Pipe()
    child = fork.Process(target=_answer, args=(near, far, tokenizer), daemon=True)

    def write(conversation: list[object], where: str) -> str:
        if tokenizer.chat_template is None:
            raise InputError(
                f"{where} is a conversation, and the model's tokenizer has no chat template to "
                "write it with; give plain text, or a model that was tuned to chat"
            )
        messages = [
            _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
        ]
        if child.pid is None:
            child.start()
            far.close()  # so that the end of the child is the end of the pipe
        reply = _asked(near, child, messages)
        if "text" in reply:
            return str(reply["text"])
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer "
            f"({reply['refusal']}); mend that row or name another column"
        )

    try:
        yield write
    finally:
        near.close()
        if child.pid is not None:
            child.kill()
            child.join()


def _asked(near: Connection, child: BaseProcess, messages: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        near.send_bytes(json.dumps(messages).encode())
        reply: dict[str, Any] = json.loads(near.recv_bytes())
    except (EOFError, OSError):
        child.join()
        if child.exitcode == -signal.SIGALRM:
            return {"refusal": f"it did not end within {PATIENCE_SECONDS:g} s"}
        return {"refusal": "it ended the process that it ran in"}
    return reply


def _answer(near: Connection, far: Connection, tokenizer: PreTrainedTokenizerBase) -> None:
    """The child: write each conversation that comes, until the parent ends."""
    near.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process, whatever it is at
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with suppress(EOFError):
        while True:
            sent = far.recv_bytes()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
            far.send_bytes(json.dumps(_written(sent, tokenizer)).encode())
            signal.setitimer(signal.ITIMER_REAL, 0)


def _written(sent: bytes, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    try:
        text = str(tokenizer.apply_chat_template(json.loads(sent), tokenize=False))
    except Exception as error:  # templates are programs: each raises errors of its own
        return {"refusal": first_line(error)}
    if len(text) > LONGEST_TEXT + 8 * len(sent):
        return {"refusal": f"it writes {len(text):,} characters"}
    return {"text": text}


def _message(value: object, where: str) -> dict[str, Any]:
    """A message as templates take it; keys that only other messages fill are left out."""
    fields = value if isinstance(value, dict) else {}
    names = ("role", "content") if "role" in fields else ("from", "value")
    role, content = map(fields.get, names)
    if not (isinstance(role, str) and role and isinstance(content, str)):
        raise InputError(
            f'{where} is {value!r:.60}, not like {{"role": "user", "content": "…"}} or {{"from": '
            '"human", "value": "…"}; mend that row or name another column'
        )
    known = ("role", "content", "from", "value")
    more = {name: held for name, held in fields.items() if name not in known and held is not None}
    return {"role": SPEAKERS.get(role, role), "content": content, **more}
