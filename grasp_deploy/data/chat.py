"""Conversations written as text by the chat template of a tokenizer.

Templates are programs, and of strangers' models too. They run in a child process, so that one that
never ends, or fills the memory, ends in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.bounded import Reply, bounded
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them
LONGEST_TEXT = 2**20  # characters, beside some for each of the conversation

Write = Callable[[list[object], str], str]  # a conversation, and where it stands, as a text


@contextmanager
def chat_writer(tokenizer: PreTrainedTokenizerBase, *, asks: bool = False) -> Iterator[Write]:
    """A function that writes conversations; its child process starts with the first of them.

    With `asks` the text ends where the model is to answer.

    Raises InputError for a conversation that is none, and for a template that is missing, refuses,
    or does not end.
    """

    def write(conversation: list[object], where: str) -> str:
        if tokenizer.chat_template is None:
            raise InputError(
                f"{where} is a conversation, and the model's tokenizer has no chat template to "
                "write it with; give plain text, or a model that was tuned to chat"
            )
        messages = [
            _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
        ]
        reply = ask(messages)
        if "text" in reply:
            return str(reply["text"])
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer "
            f"({reply['refusal']}); mend that row or name another column"
        )

    with bounded(partial(_written, tokenizer, asks)) as ask:
        yield write


def _written(
    tokenizer: PreTrainedTokenizerBase, asks: bool, messages: list[dict[str, Any]]
) -> Reply:
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks))
    if len(text) > LONGEST_TEXT + 8 * len(json.dumps(messages)):
        raise InputError(f"it writes {len(text):,} characters")
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
