"""Conversations: what the template writes is the document, from every kind of file and the hub."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest

from grasp_deploy.data import TextSource, read_blocks, read_token_documents
from grasp_deploy.data.blocks import read_documents
from grasp_deploy.data.corpora import Corpus, remote_documents
from grasp_deploy.errors import InputError
from tests.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here.') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}"
    "{% if message.name is defined %}({{ message.name }}){% endif %}{{ '\n' }}"
    "{% endfor %}"
)
TOKENIZER = tiny_tokenizer()
TOKENIZER.chat_template = TEMPLATE
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


def test_keys_of_other_messages_are_left_out(tmp_path: Path) -> None:
    # Parquet gives every message all keys: None where it has none.
    chats = [[{"role": "user", "content": "Hi.", "name": "Ann"}, {"role": "user", "content": "?"}]]
    source = TextSource(write(tmp_path / "a.parquet", chats))
    assert read_documents(source, TOKENIZER) == ["<user>Hi.(Ann)\n<user>?\n"]


def test_what_is_tokenised_is_what_the_template_wrote(tmp_path: Path) -> None:
    source = TextSource(write(tmp_path / "a.jsonl", CHATS))
    text = "\n\n".join(WRITTEN).encode()
    blocks = read_blocks(TOKENIZER, source, 4, None)
    assert bytes(blocks.token_ids.flatten().tolist()) == text[: len(text) // 4 * 4]
    documents = read_token_documents(TOKENIZER, source, 4, None)
    assert [bytes(ids.tolist()).decode() for ids in documents.running_texts] == WRITTEN


def test_a_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # leaves out the look at the host
    files = {"train": write(tmp_path / "a.parquet", SHAREGPT)}
    for streamed in (None, 5):
        corpus = Corpus("parquet", data_files=files, streamed_documents=streamed)
        assert remote_documents(corpus, "hf:x", "train", None, TOKENIZER) == WRITTEN


def test_text_comes_before_conversations_and_these_before_other_strings(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", CHATS, text="plain")
    assert read_documents(TextSource(source), TOKENIZER) == ["plain", "plain"]
    assert read_documents(TextSource(source, column="messages"), TOKENIZER) == WRITTEN
    source = write(tmp_path / "b.jsonl", CHATS, source="a name")
    assert read_documents(TextSource(source), TOKENIZER) == WRITTEN
    source = write(tmp_path / "c.jsonl", [["no", "messages"]] * 2, body="plain")
    assert read_documents(TextSource(source), TOKENIZER) == ["plain", "plain"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([{"role": "user"}], "message 0 is {'role': 'user'}, not like .*; mend that row"),
        ([*CHATS[0], "and so on"], "message 2 is 'and so on', not like"),
        ([{"from": "human", "content": "a"}], "message 0 is "),
        (
            [{"role": "tool", "content": "a"}],
            r"is refused by the chat template .*\(no tools here\); mend",
        ),
        (None, "is None, not a string; mend that row"),
    ],
)
def test_what_is_no_conversation(tmp_path: Path, row: Any, words: str) -> None:
    source = write(tmp_path / "a.jsonl", [*CHATS, row])
    where = r"^row 2 \(counted from 0\) of column 'messages' of .*"
    with pytest.raises(InputError, match=where + words):
        read_documents(TextSource(source), TOKENIZER)
    words = r"^row 0 .* no chat template .*; give plain text, or"
    with pytest.raises(InputError, match=words):
        read_documents(TextSource(source), tiny_tokenizer())
