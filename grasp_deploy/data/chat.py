"""Conversations written as text by the chat template of a tokenizer, in transformers' sandbox."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them
# Put before a template: one that prints the date prints the same on every day.
DATE = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"


def write_chat(
    tokenizer: PreTrainedTokenizerBase, conversation: list[Any], where: str, *, asks: bool = False
) -> str | None:
    """A conversation as text; with `asks` it ends where the model is to answer.

    Mere strings are the user's and the assistant's by turns. Where nothing is said, there is no
    text. Raises InputError for a conversation that is none, and for a template that is missing or
    refuses.
    """
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
    try:
        template = DATE + tokenizer.get_chat_template()
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template, add_generation_prompt=asks, tokenize=False
            )
        )
    except Exception as error:  # whatever a template raises
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer "
            f"({first_line(error)}); mend that row or name another column"
        ) from None


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
