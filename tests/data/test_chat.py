"""Chats are written by the template, which may refuse them in one line."""

from __future__ import annotations

from typing import Any

import pytest

from grasp_deploy.data.chat import write_chat
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

CONVERSATION: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_templates_that_are_refused(template: str, words: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=rf"^row 7 is refused by the chat template .*\(.*{words}"):
        write_chat(tokenizer, CONVERSATION, "row 7")


def test_a_template_that_prints_the_date_writes_the_same_on_every_day() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (  # as Llama 3 has it
        "{% if strftime_now is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    assert write_chat(tokenizer, CONVERSATION, "") == "26 Jul 2024<hello>"
