"""Text that the model writes itself: drawn as it should be, and the same after a kill."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.checkpoint.read.loading import end_tokens, load
from grasp_deploy.checkpoint.verify_answers import greedy_tokens
from grasp_deploy.compression import own_text
from grasp_deploy.compression.own_text import with_own_text, write_rows
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.stages import OWN_TEXT, Stages
from grasp_deploy.data import TextSource, beginnings, calibration_sources
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.objective import LossError
from tests.compression.conftest import MakeConfig
from tests.tiny import tiny_model, tiny_tokenizer

ENDS, LENGTH = 0, 64


def written(head: float = 1.0, seed: int = 0, rows: int = 8, length: int = LENGTH) -> Tensor:
    """Text of a model whose logits are `head` times as large, as at a temperature of 1 / `head`."""
    model = tiny_model("llama")
    model.lm_head.weight.data *= head
    return write_rows(
        model,
        cycle([[65, 66, 67]]),
        rows,
        length,
        ends={ENDS},
        generator=torch.Generator().manual_seed(seed),
        on_step=lambda _: None,
    )


def test_the_coldest_text_is_the_greedy_one() -> None:
    prompt = torch.tensor([[65, 66, 67]])
    expected = greedy_tokens(tiny_model("llama"), prompt, 40)[0]
    expected = expected[: expected.index(ENDS)] if ENDS in expected else expected
    assert len(expected) > 8, "long enough for a wrong cache or position to show"
    row = written(head=1e4, rows=1)[0].tolist()
    assert row[: 3 + len(expected)] == [65, 66, 67, *expected]


def test_a_model_that_overflows_is_told() -> None:
    with pytest.raises(LossError, match=r"no probabilities: the model overflows in this dtype"):
        written(head=1e38)


def test_a_row_goes_on_with_the_next_beginning_where_a_text_ends() -> None:
    rows = written(head=0.05, length=256)  # next to uniform: ends are drawn often enough
    ends = [place for place in (rows == ENDS).nonzero().tolist() if place[1] < 252]
    assert rows.shape == (8, 256) and len(ends) > 3
    assert all(rows[row, at + 1 : at + 4].tolist() == [65, 66, 67] for row, at in ends)


def test_tokens_are_drawn_by_their_chances() -> None:
    drawn = written(head=1 / 0.3, rows=8192, length=4)[:, 3]
    found = torch.bincount(drawn, minlength=256) / len(drawn)
    logits = tiny_model("llama")(torch.tensor([[65, 66, 67]])).logits[0, -1]
    chances = torch.softmax(logits / 0.3, dim=-1)
    assert chances.max() > 0.1, "a wrong draw shows"
    assert (found - chances).abs().max() < 0.02  # four standard errors


def test_what_ends_a_text() -> None:
    model = tiny_model("llama")
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [7, 9]
    assert end_tokens(model, 0) == {0, 7, 9}
    model.generation_config.eos_token_id = None
    assert end_tokens(model, None) == set()


@pytest.fixture
def run(make_config: MakeConfig, tmp_path: Path) -> PreparedRun:
    (tmp_path / "text.txt").write_text("Once upon a time. " * 200)
    texts = (f"{tmp_path / 'text.txt'}=2", "self=3")
    return prepare(make_config(keep=0.6, calibration=texts, sequences=10, sequence_length=24))


def test_a_killed_run_goes_on_with_the_same_text(
    run: PreparedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = load(run.source.directory, device="cpu")
    monkeypatch.setattr(own_text, "MOST_ROWS", 2)
    rows: list[dict[str, Any]] = []

    def stages_in(folder: Path) -> Stages:
        return Stages(Workspace(folder, ""), run.budget.units, rows.append)

    (tmp_path / "whole").mkdir()
    whole = with_own_text(run, lambda: model, stages_in(tmp_path / "whole"))
    own, given = whole.text.token_ids, run.text.token_ids
    is_own = (given == 0).all(dim=1)
    assert is_own.sum() == 6 and (own[is_own] != 0).any(dim=1).all()
    assert torch.equal(own[~is_own], given[~is_own])
    written = {tuple(row) for row in own[is_own].tolist()}
    assert len(written) == 6
    assert {tuple(row) for row in whole.split.witness.tolist()} <= written, "the plan shows these"
    stated = whole.split.blocks.heldout[whole.split.judges].tolist()
    assert stated and not {tuple(row) for row in stated} & written, "losses are of given text"
    assert (rows[-1]["step"], rows[-1]["steps"]) == (6 * 24, 6 * 24)

    first = Workspace(tmp_path / "whole", "").load(OWN_TEXT)[0]["token_ids"][:4]
    (tmp_path / "cut").mkdir()
    cut = Workspace(tmp_path / "cut", "")
    cut.save(OWN_TEXT, {"token_ids": first}, {"seconds": 60.0})
    again = with_own_text(run, lambda: model, stages_in(tmp_path / "cut"))
    assert torch.equal(again.text.token_ids, own)
    assert cut.load(OWN_TEXT)[1]["seconds"] > 60, "the seconds of before count too"
    assert again.inputs == run.inputs, "what identifies the run does not wait for its own text"


@pytest.mark.parametrize("weights", [(9, 1), (1, 9)])
def test_a_plan_shows_own_text_though_none_is_held_out(
    weights: tuple[int, int], make_config: MakeConfig, tmp_path: Path
) -> None:
    """A source of one sequence holds nothing out. Own rows are zeros until they are written."""
    (tmp_path / "text.txt").write_text("Once upon a time. " * 200)
    texts = (f"{tmp_path / 'text.txt'}={weights[0]}", f"self={weights[1]}")
    split = prepare(make_config(keep=0.6, calibration=texts, sequences=10)).split
    assert len(split.witness) and not split.witness.any()
    assert bool(split.is_own[split.judges].all()) == (weights[0] == 1)


def test_what_texts_begin_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tokenizer = tiny_tokenizer()
    assert beginnings(tokenizer, TextSource("self")) == [[ENDS]]
    (tmp_path / "prompts.jsonl").write_text('{"text": "Hi"}\n{"text": "Why?"}\n')
    prompts = TextSource(f"self:{tmp_path / 'prompts.jsonl'}")
    given = [tokenizer.decode(ids) for ids in beginnings(tokenizer, prompts)]
    assert given == ["Hi", "Why?"]
    plain = tmp_path / "a@b=2.txt"  # a line is a prompt, whatever the path looks like
    plain.write_text("Hi\n\nWhy?\n" + "word " * 40)
    lines = calibration_sources([f"self:{plain}"], column="body")[0]
    assert [tokenizer.decode(ids) for ids in beginnings(tokenizer, lines, 16)] == ["Hi", "Why?"]
    assert "1 of 3 prompts" in caplog.text
    with pytest.raises(InputError, match="more than half of a sequence of 2 tokens"):
        beginnings(tokenizer, lines, 2)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    asked = [tokenizer.decode(ids) for ids in beginnings(tokenizer, prompts)]
    assert asked == ["<user>Hi<assistant>", "<user>Why?<assistant>"]
    ours = beginnings(tokenizer, TextSource("self"))
    chats = ["<assistant>" in str(tokenizer.decode(ids)) for ids in ours]
    half = len(ours) // 2
    assert half > 50 and chats == [True] * half + [False] * half, "prompts, and tokens drawn"
    tokenizer.chat_template = f"{'Be kind. ' * 30}{tokenizer.chat_template}"
    assert beginnings(tokenizer, TextSource("self"), 512) == ours[half:], "no prompt has room"
    assert f"{half} of {half} prompts" in caplog.text
    tokenizer.chat_template = tokenizer.eos_token = None
    with pytest.raises(InputError, match=r"begins with: give text alone .* self=0"):
        beginnings(tokenizer, TextSource("self"))


def test_what_is_drawn_is_a_whole_word_behind_the_first_token() -> None:
    tokenizer: Any = tiny_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.add_tokens([f"<unused{n}>" for n in range(500)])
    tokenizer.needs_first_token = True
    drawn = beginnings(tokenizer, TextSource("self"))[-64:]
    assert all(first == tokenizer.bos_token_id for first, _ in drawn)
    words = [word for _, word in drawn]
    assert max(words) < 128 and ENDS not in words, "no piece of a character, nothing added"
    assert words[:3] == [108, 67, 104], "the same in every version"
