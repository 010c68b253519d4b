"""Calibration text of several sources and of chats, and evaluating on it again."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.read.validate import read_folder
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.evaluate.settings import CompareSettings
from grasp_deploy.evaluate.texts import calibrated_on, heldout_corpora, read_texts
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import Ended, grasp_deploy, succeeded
from tests.tiny import MAGNITUDE, save_tiny, tiny_tokenizer

QUICK: tuple[str, ...] = (
    *("--calibration-sequences", "8", "--sequence-length", "64", "--keep", "0.7"),
    *("--method", MAGNITUDE, "--set", "scale-epochs=0", "--device", "cpu"),
)
CHATS = [
    [{"role": "user", "content": f"What is {n} and {n}?"}, {"role": "assistant", "content": "It."}]
    for n in range(40)
]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content + '\n' }}{% endfor %}"
)


@pytest.fixture
def texts(work: Path) -> Path:
    """A folder with texts that share nothing: one of capitals, two of small letters."""
    draw = random.Random(0)
    for name, letters in {"upper": "ABCDEFGH ", "lower": "abcdefgh ", "other": "abcdefgh "}.items():
        (work / f"{name}.txt").write_text("".join(draw.choices(letters, k=2000)))
    (work / "chats.jsonl").write_text("".join(json.dumps({"messages": c}) + "\n" for c in CHATS))
    return work


@pytest.fixture
def mixed(tiny_folder: Path, texts: Path) -> Path:
    """A checkpoint calibrated on the first two of the texts."""
    texts_alone = ("upper.txt=3", "lower.txt", "self=0")
    mixture = [f"--calibration={text}" for text in texts_alone]
    succeeded("compress", tiny_folder, "-o", "mixed", *mixture, *QUICK)
    return texts / "mixed"


def evaluated(model: Path, data: str, *options: str) -> tuple[dict[str, Any], Ended]:
    shape = ("--sequence-length", "48", "--sequences", "8")
    data_options = ("--data", data, *shape, *options, "--json")
    ended = succeeded("evaluate", "compare", model, *data_options)
    return json.loads(ended.stdout)["cells"][0], ended


def job(model: Path, **options: Any) -> PreparedRun:
    return prepare(CompressConfig(model=str(model), keep=0.7, device="cpu", **options))


def test_half_is_the_models_own_text(tiny_folder: Path, texts: Path) -> None:
    options = ("--calibration", "upper.txt=3", "--calibration", "lower.txt", *QUICK)
    succeeded("compress", tiny_folder, "-o", "half", *options)
    config = json.loads((texts / "half" / "compress_config.json").read_text())
    assert config["calibration"] == ["upper.txt=3", "lower.txt", "self"]
    parts = load_plan(texts / "half" / "plan.grasp").provenance["calibration"]["parts"]
    assert [(part["source"], part["weight"], part["sequences"]) for part in parts] == [
        ("upper.txt", 3, 3),
        ("lower.txt", 1, 1),
        ("self", 4, 4),
    ]
    card = " ".join((texts / "half" / "README.md").read_text().split())
    assert "`upper.txt` (3), `lower.txt` (1) and the model's own text (4)" in card
    # The text alone is what releases before read, and a single text has no parts.
    alone = job(tiny_folder, calibration=("upper.txt", "self=0"), sequences=3).text
    assert (alone.source.what, alone.parts) == ("upper.txt", ())
    read = tiny_tokenizer()((texts / "upper.txt").read_text(), add_special_tokens=False).input_ids
    assert alone.token_ids.flatten().tolist() == read[: alone.token_ids.numel()]


@pytest.mark.parametrize(("weights", "sequences"), [("1:1", 5), ("30:1", 49), ("1:50", 65)])
def test_both_sides_of_the_split_see_every_source(
    tiny_folder: Path, texts: Path, weights: str, sequences: int
) -> None:
    first, second = weights.split(":")
    sources = (f"upper.txt={first}", f"lower.txt={second}", "self=0")
    blocks = job(tiny_folder, calibration=sources, sequences=sequences, sequence_length=16).blocks
    assert len(blocks.train) + len(blocks.heldout) == sequences
    small = [(side > ord("Z")).any(dim=1) for side in (blocks.train, blocks.heldout)]
    in_prefix, counts = small[0][:8], [int(small[0].sum() + small[1].sum())]
    assert in_prefix.any() and not in_prefix.all()
    counts.append(sequences - counts[0])
    for lower, count in zip((True, False), counts, strict=True):
        heldout = int((small[1] == lower).sum())
        assert heldout == (max(1, round(count / 16)) if count > 1 else 0)


def test_conversations_calibrate_and_evaluate(texts: Path) -> None:
    save_tiny("llama", texts / "tuned")
    tiny_tokenizer(TEMPLATE).save_pretrained(texts / "tuned")
    alone = [f"--calibration={text}" for text in ("chats.jsonl", "upper.txt", "self=0")]
    succeeded("compress", texts / "tuned", "-o", "chatty", *alone, *QUICK)
    tokens = job(texts / "tuned", calibration=("chats.jsonl",), sequences=3).text.token_ids
    assert bytes(tokens.flatten().tolist()).startswith(b"<user>What is 0 and 0?\n<assistant>It.\n")
    # The template travelled with the checkpoint.
    assert evaluated(Path("chatty"), "chats.jsonl")[0]["calibrated_on_share"] > 0.2


def test_evaluating_on_the_calibration_text_is_told(mixed: Path, tiny_folder: Path) -> None:
    # 8 sequences of 48 tokens are the first 384: all that its 6 sequences of 64 hold.
    assert evaluated(mixed, "upper.txt")[0]["calibrated_on_share"] == 1
    share, ended = evaluated(mixed, "lower.txt", "--sequences", "16")
    assert share["calibrated_on_share"] == pytest.approx(128 / (16 * 48))
    Path("own.json").write_text(ended.stdout)
    shown = grasp_deploy("report", "own.json", "--html", "page.html").stdout
    for text in (shown, Path("page.html").read_text()):
        assert "mixed†" in text and "calibrated on this text or a part of it" in text
    assert evaluated(mixed, "other.txt")[0]["calibrated_on_share"] == 0
    assert evaluated(tiny_folder, "upper.txt")[0]["calibrated_on_share"] is None
    plan = mixed / "plan.grasp"
    tensors, provenance = read_tensors(plan)
    tensors.pop("calibrated")  # as older releases wrote it
    write_tensors(plan, tensors, provenance)
    for text, named in (("upper.txt", True), ("other.txt", False)):
        cell = evaluated(mixed, text)[0]
        assert (cell["calibrated_on"], cell["calibrated_on_share"]) == (named, None)


def test_what_a_model_may_have_learnt_from_is_not_denied(mixed: Path) -> None:
    plan, shape = load_plan(mixed / "plan.grasp"), read_folder(mixed).shape
    four_bits = replace(shape, quantization="compressed-tensors", group_columns=32)
    text = {**plan.provenance["calibration"], "sequence_length": 16}
    short = replace(plan, provenance={**plan.provenance, "calibration": text})  # then recovered
    corpora = heldout_corpora(["upper.txt", "other.txt"])
    texts = read_texts(mixed, corpora, CompareSettings(sequence_length=48, sequences=8))
    for *model, told in (
        (plan, shape, [(True, 1.0), (False, 0.0)]),
        (plan, four_bits, [(True, 1.0), (False, None)]),
        (short, shape, [(True, None), (False, None)]),
        (None, shape, [(False, None), (False, None)]),
    ):
        assert [calibrated_on(*text, *model) for text in texts.items()] == told
