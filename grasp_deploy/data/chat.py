"""Conversations as text, written by the chat template of the model's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grasp_deploy.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHAT_COLUMNS = ("messages", "conversations")
# The names of ShareGPT's speakers, {"from": "human", "value": "…"}, as chat templates know them.
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
MENDED = "mend that row or name another column"


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
    if not conversation:
        raise InputError(f"{where} holds no message; {MENDED}")
    messages = [
        _message(value, f"{where}, message {place}") for place, value in enumerate(conversation)
    ]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # templates are programs: each raises errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"{where} is refused by the chat template of the model's tokenizer ({reason}); {MENDED}"
        ) from error
    assert isinstance(text, str), "not tokenised, and one conversation at a time"
    if not text.strip():
        raise InputError(
            f"the chat template of the model's tokenizer makes no text of {where}: see whether it "
            f"fits its roles, or {MENDED}"
        )
    return text


def _message(value: object, where: str) -> dict[str, Any]:
    """A message as templates take it; keys that only other messages fill are left out."""
    fields = value if isinstance(value, dict) else {}
    if "role" in fields:
        role, content = fields["role"], fields.get("content")
    else:
        role, content = SPEAKERS.get(str(fields.get("from"))), fields.get("value")
    if not (isinstance(role, str) and role and isinstance(content, str)):
        raise InputError(
            f'{where} is {value!r:.60}, not like {{"role": "user", "content": "…"}} or {{"from": '
            f'"human", "value": "…"}}; {MENDED}'
        )
    others = ("role", "content", "from", "value")
    more = {name: held for name, held in fields.items() if name not in others and held is not None}
    return {"role": role, "content": content, **more}
