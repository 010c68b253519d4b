"""Conversations as text, written by the chat template of the model's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_COLUMNS = ("messages", "conversations")
SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names, as chat templates know them


def chat_text(tokenizer: PreTrainedTokenizerBase, conversation: list[object], where: str) -> str:
    """A conversation as the tokenizer's template writes it, special tokens included.

    Messages are `{"role", "content"}` or ShareGPT's `{"from", "value"}`. Raises InputError, which
    begins with `where`, for a tokenizer without a template, for anything but messages, and for
    messages that the template refuses.
    """
    if tokenizer.chat_template is None:
        raise InputError(
            f"{where} is a conversation, and the model's tokenizer has no chat template to write "
            "it with; give plain text, or a model that was tuned to chat"
        )
    messages = [
        _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
    ]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception as error:  # templates are programs: each raises errors of its own
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer "
            f"({first_line(error)}); mend that row or name another column"
        ) from error


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
