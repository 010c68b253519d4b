"""Chat templates are programs of strangers: each ends, in a text or in one line."""

from __future__ import annotations

import os

import pytest

from grasp_deploy.data import bounded
from grasp_deploy.data.chat import chat_writer
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

LOOP = "{% for i in range(99999) %}"
CONVERSATION: list[object] = [{"role": "user", "content": "hello"}]


def assert_no_child() -> None:
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (LOOP * 3 + "{% endfor %}" * 3, "did not end within 0.5 s"),
        ("{{ 9 ** (9 ** 9) }}", "did not end within 0.5 s"),
        ("{{ 'x' * 10 ** 11 }}", "MemoryError"),
        (LOOP + "{{ 'x' * 99 }}{% endfor %}", "it writes 9,899,901 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_templates_that_are_refused(
    template: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "PATIENCE_SECONDS", 0.5 if "within" in words else 60.0)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with (
        pytest.raises(InputError, match=rf"^row 7 is refused by the chat template .*\(.*{words}"),
        chat_writer(tokenizer) as write,
    ):
        write(CONVERSATION, "row 7")
    assert_no_child()


def test_a_template_that_prints_the_date_writes_the_same_on_every_day() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (  # as Llama 3 has it
        "{% if strftime_now is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    with chat_writer(tokenizer) as write:
        assert write(CONVERSATION, "") == "26 Jul 2024<hello>"


def test_one_child_writes_all_and_ends() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    with chat_writer(tokenizer) as write:
        assert [write(CONVERSATION, "") for _ in range(3)] == ["<user>hello"] * 3
        assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None  # one runs
    assert_no_child()
