"""Conversations written as text by the chat template of a tokenizer.

Templates are programs, and of strangers' models too. They run in a child process, so that one that
never ends, or fills the memory, ends in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from grasp_deploy.data.bounded import Reply, bounded
from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them
LONGEST_TEXT = 2**20  # characters, beside some for each of the conversation
# Put before a template: one that prints the date prints the same on every day.
DATE = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"

Write = Callable[[list[object], str], str | None]  # a conversation, and where it stands, as a text


@contextmanager
def chat_writer(tokenizer: PreTrainedTokenizerBase, *, asks: bool = False) -> Iterator[Write]:
    """A function that writes conversations; its child process starts with the first of them.

    With `asks` the text ends where the model is to answer. Mere strings are the user's and the
    assistant's by turns. Where nothing is said, there is no text.

    Raises InputError for a conversation that is none, and for a template that is missing, refuses,
    or does not end.
    """

    def write(conversation: list[object], where: str) -> str | None:
        if are_strings(conversation):
            roles = cycle(("user", "assistant"))
            conversation = [{"role": next(roles), "content": turn} for turn in conversation]
        messages = [
            _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
        ]
        if not any(message["content"] or message.get("tool_calls") for message in messages):
            return None
        if tokenizer.chat_template is None:
            raise InputError(
                f"{where} is a conversation, and the model's tokenizer has no chat template to "
                "write it with; give plain text, or a model that was tuned to chat"
            )
        if "tool_calls" not in str(tokenizer.chat_template):  # then null is no text to it
            messages = [{**message, "content": message["content"] or ""} for message in messages]
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
    given: dict[str, Any] = {"chat_template": DATE + tokenizer.get_chat_template()}
    given |= {"add_generation_prompt": asks, "tokenize": False}
    text = str(tokenizer.apply_chat_template(messages, **given))
    if len(text) > LONGEST_TEXT + 8 * len(json.dumps(messages)):
        raise InputError(f"it writes {len(text):,} characters")
    return {"text": text}


def first_prompt(values: list[Any], where: str) -> Any:
    """The first of strings, or what the user of a conversation says first; None for neither."""
    if not values or isinstance(values[0], str):
        return next(iter(values), None)
    messages = (_message(value, f"{where}, message {n}") for n, value in enumerate(values))
    return next((message["content"] for message in messages if message["role"] == "user"), None)


def are_strings(values: list[Any]) -> bool:
    """True if a list holds strings alone."""
    return all(isinstance(value, str) for value in values)


def _message(value: object, where: str) -> dict[str, Any]:
    """A message as templates take it; keys that only other messages fill are left out."""
    fields = value if isinstance(value, dict) else {}
    names = ("role", "content") if "role" in fields else ("from", "value")
    role, content, calls = (fields.get(name) for name in (*names, "tool_calls"))
    if isinstance(content, list):  # of parts, whose texts are lines to vLLM
        texts: list[Any] = [part.get("text") if isinstance(part, dict) else 0 for part in content]
        content = "\n".join(texts) if are_strings(texts) else content
    if content is None and names[1] in fields and not calls:  # beside calls templates look for null
        content = ""
    if not (isinstance(role, str) and role and (isinstance(content, str) or calls)):
        raise InputError(
            f'{where} is {value!r:.60}, not like {{"role": "user", "content": "…"}} or {{"from": '
            '"human", "value": "…"}; mend that row or name another column'
        )
    known = ("role", "content", "from", "value")
    more = {n: held for n, held in fields.items() if n not in known and held not in (None, [])}
    return {"role": SPEAKERS.get(role, role), "content": content, **more}
