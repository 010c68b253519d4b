"""Calibration text: what is refused, mixtures, chats, and evaluating on it again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.compression.prepare import PreparedRun, prepare
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import SHORT, Ended, assert_refused, grasp_deploy, tree
from tests.tiny import save_tiny, tiny_tokenizer

QUICK: tuple[str, ...] = (
    *("--sequences", "8", "--sequence-length", "64", "--keep", "0.7", "--method", "magnitude"),
    *("--set", "scale-epochs=0", "--set", "compensation-sequences=2", "--device", "cpu"),
)
MIXTURE = ("--calibration", "upper.txt=3", "--calibration", "lower.txt")
CHATS = [
    [{"role": "user", "content": f"What is {n} and {n}?"}, {"role": "assistant", "content": "It."}]
    for n in range(40)
]


@pytest.fixture
def texts(work: Path) -> Path:
    """A folder with texts that share nothing: one of capitals, two of small letters."""
    draw = random.Random(0)
    for name, letters in (
        ("upper.txt", "ABCDEFGH "),
        ("lower.txt", "abcdefgh "),
        ("other.txt", "abcdefgh "),
    ):
        (work / name).write_text("".join(draw.choices(letters, k=2000)))
    (work / "chats.jsonl").write_text("".join(json.dumps({"messages": c}) + "\n" for c in CHATS))
    return work


@pytest.fixture
def mixed(tiny_folder: Path, texts: Path) -> Path:
    """A checkpoint calibrated on the first two of the texts."""
    options = (*MIXTURE, *QUICK)
    ended = grasp_deploy("compress", tiny_folder, "-o", "mixed", *options)
    assert ended.code == 0, ended.stderr
    return texts / "mixed"


def evaluated(model: Path, data: str, *options: str) -> tuple[dict[str, Any], Ended]:
    shape = ("--sequence-length", "48", "--sequences", "8")
    data_options = ("--data", data, *shape, *options, "--json")
    ended = grasp_deploy("evaluate", "perplexity", model, *data_options)
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout), ended


def job(model: Path, **options: Any) -> PreparedRun:
    return prepare(CompressConfig(model=str(model), keep=0.7, device="cpu", **options))


def test_a_mixture_is_recorded_and_told(mixed: Path, tiny_folder: Path) -> None:
    calibration = load_plan(mixed / "plan.safetensors").provenance["calibration"]
    assert calibration["source"] == "upper.txt=3, lower.txt=1"
    assert calibration["heldout_sequences"] == 2  # one of each source
    assert calibration["parts"] == [
        {"source": "upper.txt", "weight": 3, "split": None, "sequences": 6, "documents": 1},
        {"source": "lower.txt", "weight": 1, "split": None, "sequences": 2, "documents": 1},
    ]
    card = " ".join((mixed / "README.md").read_text().split())
    assert "8 sequences of 64 tokens of `upper.txt` (6) and `lower.txt` (2)." in card
    plan, model = mixed / "plan.safetensors", ("--model", tiny_folder)
    assert grasp_deploy("export", plan, *model, "-o", "again").code == 0
    assert Path("again", plan.name).read_bytes() == plan.read_bytes()


@pytest.mark.parametrize(("weights", "sequences"), [("1:1", 5), ("30:1", 49), ("1:50", 65)])
def test_both_sides_of_the_split_see_every_source(
    tiny_folder: Path, texts: Path, weights: str, sequences: int
) -> None:
    first, second = weights.split(":")
    sources = (f"upper.txt={first}", f"lower.txt={second}")
    blocks = job(tiny_folder, calibration=sources, sequences=sequences, sequence_length=16).blocks
    assert len(blocks.train) + len(blocks.heldout) == sequences
    small = [(side > ord("Z")).any(dim=1) for side in (blocks.train, blocks.heldout)]
    in_prefix, counts = small[0][:8], [int(small[0].sum() + small[1].sum())]
    assert in_prefix.any() and not in_prefix.all()
    counts.append(sequences - counts[0])
    for lower, count in zip((True, False), counts, strict=True):
        heldout = int((small[1] == lower).sum())
        assert heldout == (max(1, round(count / 16)) if count > 1 else 0)


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("absent.txt", None, (), ("absent.txt does not exist", "wikitext2", "a file")),
        ("empty.txt", b"", (), ("empty.txt is empty", "give a file")),
        ("short.txt", b"word " * 10, (), ("too short", "give 3 sequences", "more text")),
        ("binary.txt", b"\x80\x02abc", (), ("cannot be read as text", "position 0", "UTF-8")),
        (
            *("some.jsonl", b'{"text": "a"}\n', ("--calibration-column", "body")),
            ("no column 'body'", "text", "--calibration-column"),
        ),
        (
            "good.txt",
            b"word " * 99,
            ("--calibration-split", "train[:9]"),
            ("one document", ".jsonl"),
        ),
        ("good.txt", b"word " * 99, ("--calibration-split", "validation"), ("no split",)),
        ("good.txt", b"word " * 999, ("--sequence-length", "513"), ("513", "512", "--sequence-l")),
    ],
)
def test_text_that_cannot_be_used(
    tiny_folder: Path,
    work: Path,
    name: str,
    content: bytes | None,
    options: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    if content is not None:
        (work / name).write_bytes(content)
    before = tree(work)
    given = ("--keep", "0.6", "--calibration", name, *SHORT, *options)
    assert_refused(grasp_deploy("compress", tiny_folder, "-o", "out", *given), *words)
    assert tree(work) == before


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (("upper.txt=0", "lower.txt=1"), ("'upper.txt=0' lacks", "positive weight")),
        (("upper.txt", "./upper.txt"), ("names ./upper.txt twice",)),
        (("upper.txt", "no.txt"), ("no.txt does not exist",)),
        (("upper.txt", "chats.jsonl"), ("row 0", "chats.jsonl", "no chat template")),
    ],
)
def test_mixtures_that_are_refused(
    tiny_folder: Path, texts: Path, sources: tuple[str, str], words: tuple[str, ...]
) -> None:
    first, second = sources
    options = ("--calibration", first, "--calibration", second, *QUICK)
    assert_refused(grasp_deploy("compress", tiny_folder, "-o", "out", *options), *words)
    assert not Path("out").exists()


def test_a_wrong_mixture_is_refused_before_a_model_is_fetched(texts: Path) -> None:
    options = ("--calibration", "upper.txt=-1", *QUICK)
    assert_refused(
        grasp_deploy("compress", "no-one/nothing", "-o", "out", *options), "positive weight"
    )


def test_conversations_calibrate_and_evaluate(texts: Path) -> None:
    save_tiny("llama", texts / "tuned")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content + '\n' }}{% endfor %}"
    )
    tokenizer.save_pretrained(texts / "tuned")
    options = ("--calibration", "chats.jsonl", "--calibration", "upper.txt", *QUICK)
    ended = grasp_deploy("compress", texts / "tuned", "-o", "chatty", *options)
    assert ended.code == 0, ended.stderr
    tokens = job(texts / "tuned", calibration=("chats.jsonl",), sequences=3).text.token_ids
    assert bytes(tokens.flatten().tolist()).startswith(b"<user>What is 0 and 0?\n<assistant>It.\n")
    record, ended = evaluated(Path("chatty"), "chats.jsonl", "--per-document")
    assert record["data"]["documents"] == 8
    # The template travelled with the checkpoint. Of such short documents few windows are whole.
    assert record["calibrated_on_share"] > 0.2
    assert "of this text was calibrated on" in ended.stderr


def test_evaluating_on_the_calibration_text_warns(mixed: Path) -> None:
    record, ended = evaluated(mixed, "upper.txt")
    # 8 blocks of 48 tokens are the first 384: all that its 6 blocks of 64 hold.
    assert record["calibrated_on_share"] == 1
    assert ended.stderr.splitlines()[0] == (
        "warning: all of this text was calibrated on: the perplexity flatters the pruned model; "
        "evaluate on other text"
    )
    record, ended = evaluated(mixed, "lower.txt", "--sequences", "16", "--stride", "16")
    assert record["calibrated_on_share"] == pytest.approx(128 / (16 * 48))
    assert ended.stderr.startswith("warning: at least 16 % of this text was calibrated on")


def test_other_text_and_other_models_warn_of_nothing(mixed: Path, tiny_folder: Path) -> None:
    record, ended = evaluated(mixed, "other.txt")
    assert record["calibrated_on_share"] == 0
    assert "calibrated" not in ended.stderr
    record, ended = evaluated(tiny_folder, "upper.txt")
    assert record["calibrated_on_share"] is None
    assert "calibrated" not in ended.stderr


def test_a_plan_without_a_fingerprint_is_read(mixed: Path, tiny_folder: Path) -> None:
    path = mixed / "plan.safetensors"
    tensors, record = read_tensors(path)
    fingerprint = tensors.pop("calibrated")
    write_tensors(path, tensors, record)
    assert load_plan(path).calibrated is None
    measured, ended = evaluated(mixed, "upper.txt")
    assert measured["calibrated_on_share"] is None
    assert "calibrated" not in ended.stderr
    write_tensors(path, tensors | {"calibrated": fingerprint.float()}, record)
    ended = grasp_deploy("export", path, "--model", tiny_folder, "-o", "again")
    assert_refused(ended, "plan.safetensors is damaged")
