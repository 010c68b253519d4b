"""Columns of texts, and of conversations, which the template writes, from every kind of file."""

import datetime
import json
import logging
from pathlib import Path
from typing import Any

import pandas
import pytest

from grasp_deploy.data import TextSource
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.table import texts_of, write_chat
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here.') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}"
    "{% if message.name is defined %}({{ message.name }}){% endif %}{{ '\n' }}"
    "{% endfor %}"
)
TOKENIZER = tiny_tokenizer(TEMPLATE)
CHATS = [
    [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello “you”."}],
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}],
]
WRITTEN = ["<user>Hi.\n<assistant>Hello “you”.\n", "<system>Be kind.\n<user>Why?\n"]
SHAREGPT = [
    [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello “you”."}],
    [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Why?"}],
]


def write(path: Path, chats: list[Any], column: str = "messages", **others: Any) -> str:
    rows = [{"id": index, **others, column: chat} for index, chat in enumerate(chats)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("chats", [CHATS, SHAREGPT], ids=["role", "from"])
def test_rows_are_written_by_the_template(tmp_path: Path, suffix: str, chats: list[Any]) -> None:
    for column in ("messages", "conversations"):
        source = write(tmp_path / f"{column}{suffix}", chats, column)
        assert read_documents(TextSource(source), TOKENIZER) == WRITTEN
        assert read_documents(TextSource(source, "train[1:]"), TOKENIZER) == WRITTEN[1:]
    named = write(tmp_path / f"named{suffix}", chats, "chosen", messages="not this", prompt="nor")
    assert read_documents(TextSource(named, column="chosen"), TOKENIZER) == WRITTEN


TURNS = ["Why?", "So.", "Oh?"]
LAYOUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "page": ({"url": "x.org", "content": "Hi.", "title": "A"}, "content", "Hi."),
    "text and chat": ({"messages": CHATS[0], "text": "Hi."}, "text", "Hi."),
    "empty text and chat": ({"text": "", "messages": CHATS[0]}, "messages", WRITTEN[0]),
    "lima": (
        {"conversations": TURNS, "source": "stackexchange"},
        *("conversations", "<user>Why?\n<assistant>So.\n<user>Oh?\n"),
    ),
    "mt-bench": ({"turns": TURNS, "category": "writing"}, "turns", "Why?\n\nSo.\n\nOh?"),
    "sharegpt": ({"id": "a1", "conversations": SHAREGPT[0]}, "conversations", WRITTEN[0]),
    "alone": ({"story": "Hi."}, "story", "Hi."),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_column_that_is_guessed_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    row, column, text = LAYOUTS[layout]
    path = tmp_path / "a\nname.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 2)
    with caplog.at_level(logging.INFO, "grasp_deploy.data"):
        assert read_documents(TextSource(str(path)), TOKENIZER) == [text, text]
    words = " ".join(text.split())[:60]
    assert caplog.messages == [f"text: a name.jsonl, column {column!r}: {words} …"]


@pytest.mark.parametrize(
    ("rows", "prompt"),
    [
        ({"prompt": "Hi.", "text": "Hi. You."}, "Hi."),
        ({"turns": TURNS, "category": "writing"}, "Why?"),
        ({"conversations": SHAREGPT[0]}, "Hi."),
    ],
)
def test_a_prompt_is_what_comes_first(tmp_path: Path, rows: dict[str, Any], prompt: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(rows))
    assert read_documents(TextSource(str(tmp_path / "a.jsonl"))) == [prompt]


CALL = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
PARTS = [{"type": "text", "text": "Hi."}, {"type": "text", "text": "You."}]


def test_calls_of_tools_and_parts_are_written_and_rows_of_nothing_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tiny_tokenizer(
        "{% for m in messages %}{% if m.tool_calls and not m.content %}{{ m.tool_calls | tojson }}"
        "{% else %}<{{ m.content }}{{ m.tool_calls }}>{% endif %}{% endfor %}"
    )
    question, said = {"role": "user", "content": PARTS}, {"role": "assistant", "content": "A."}
    rows = [
        [question, {"role": "assistant", "content": None, "tool_calls": CALL}],
        [question, {"role": "assistant", "tool_calls": CALL}],
        [{**question, "at": datetime.datetime(2026, 1, 1)}, {**said, "tool_calls": []}],
        [{"role": "user", "content": None}, said],
        *([], None, [{"role": "user", "content": None}], [{"from": "human", "value": ""}]),
    ]
    columns = {"messages": rows, "id": range(len(rows))}
    written = texts_of(columns, None, "a.parquet", tokenizer)[1]
    call = json.dumps(CALL)
    assert written[:4] == [f"<Hi.\nYou.>{call}"] * 2 + ["<Hi.\nYou.><A.>", "<><A.>"]
    assert written[4:] == [None] * 4
    columns = {"messages": [[said, {"role": "assistant", "content": None, "tool_calls": CALL}]]}
    assert texts_of(columns, None, "", TOKENIZER)[1] == ["<assistant>A.\n<assistant>\n"]
    source = write(tmp_path / "a.jsonl", [None, *CHATS, []])
    with caplog.at_level(logging.INFO, "grasp_deploy.data"):
        assert read_documents(TextSource(source, "train[:3]"), TOKENIZER) == WRITTEN
    assert "column 'messages', 1 of 3 rows empty and skipped: <user>Hi." in caplog.text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([{"role": "user"}], "message 0 is {'role': 'user'}, not like .*; mend that row"),
        ([*CHATS[0], "and so on"], "message 2 is 'and so on', not like"),
        ([{"from": "human", "content": "a"}], "message 0 is "),
        ([{"role": "user", "content": [{"type": "image"}, *PARTS]}], "message 0 is "),
        (
            [{"role": "tool", "content": "a"}],
            r"is refused by the chat template .*\(no tools here\); mend",
        ),
        (7, "is 7, not a string; mend that row"),
    ],
)
def test_what_is_no_conversation(tmp_path: Path, row: Any, words: str) -> None:
    source = write(tmp_path / "a.jsonl", [*CHATS, row])
    assert read_documents(TextSource(source, "[:-1]"), TOKENIZER) == WRITTEN
    where = r"^row 2 \(counted from 0\) of column 'messages' of .*"
    with pytest.raises(InputError, match=where + words):
        read_documents(TextSource(source, "[1:]"), TOKENIZER)
    words = r"^row 0 .* no chat template .*; give plain text, or"
    with pytest.raises(InputError, match=words):
        read_documents(TextSource(source), tiny_tokenizer())


def test_a_template_that_prints_the_date_writes_the_same_on_every_day() -> None:
    tokenizer = tiny_tokenizer(  # as Llama 3 has it
        "\n{% if strftime_now is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date }} {{ strftime_now('%Y-%m-%d') }}"
        "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    conversation: list[Any] = [{"role": "user", "content": "hello"}]
    assert write_chat(tokenizer, conversation, "") == "\n26 Jul 2024 2024-07-26<hello>"


@pytest.mark.parametrize(
    "template",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_reaches_nothing_outside_itself(template: str) -> None:
    with pytest.raises(InputError, match=r"^row 7 is refused by the chat template"):
        write_chat(tiny_tokenizer(template), CHATS[0], "row 7")
