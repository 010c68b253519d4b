"""Every example runs on the embedded model, without a network."""

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Gemma3Config, Mistral3Config

from grasp_deploy.checkpoint.plan import load_plan
from grasp_deploy.checkpoint.read.loading import load
from tests.tiny import VARIANTS, logits_of, tiny_config, tiny_tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"


Run = Callable[..., str]


@pytest.fixture
def run(
    demo_text: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run an example in this process; returns its standard output."""
    # Writing the embedded text takes seconds, and the session has written it already.
    monkeypatch.setattr("grasp_deploy.demo.run.write_text", lambda _folder: demo_text)
    monkeypatch.syspath_prepend(EXAMPLES)  # what `python examples/NAME` does

    def run(name: str, *arguments: Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_own_cost_prunes_the_dear_half_more(run: Run, tmp_path: Path) -> None:
    out = run("own_cost.py", tmp_path / "small")
    first, second = (int(line.split(": ")[1].split()[0]) for line in out.splitlines())
    assert 0 < second < first
    assert (tmp_path / "small" / "model.safetensors").is_file()


def test_own_method_keeps_more_of_the_first_layers(run: Run, tmp_path: Path) -> None:
    lines = run("own_method.py", tmp_path / "small").splitlines()
    channels = [int(line.split()[0]) for line in lines]
    middle = len(channels) // 2
    assert 0 < sum(channels[middle:]) < sum(channels[:middle])
    assert (tmp_path / "small" / "model.safetensors").is_file()


def test_generate_continues_the_prompt(run: Run, demo_checkpoint: Path) -> None:
    out = run("generate.py", demo_checkpoint)
    assert out.startswith("Return a new list containing")
    assert len(out.split()) > 5


def test_inspect_plan_lists_every_layer(run: Run, demo_checkpoint: Path) -> None:
    lines = run("inspect_plan.py", demo_checkpoint).splitlines()
    kept, limit = (int(part.replace(",", "")) for part in lines[1][6:].split(" of at most "))
    assert 0 < kept <= limit
    assert [line.split()[0] for line in lines[4:]] == list("012345")


def test_inspect_plan_of_a_model_without_held_out_text(
    run: Run, demo_checkpoint: Path, tmp_path: Path
) -> None:
    plan = load_plan(demo_checkpoint / "plan.grasp")
    losses = {"heldout_dense": None, "heldout_pruned": None}
    replace(plan, provenance={**plan.provenance, "losses": losses}).save(tmp_path / "plan.grasp")
    assert "nothing was held out\n" in run("inspect_plan.py", tmp_path)


def test_export_again_gives_the_same_bytes(run: Run, demo_checkpoint: Path, tmp_path: Path) -> None:
    out = run("export_again.py", demo_checkpoint, tmp_path / "again")
    assert "byte for byte: True" in out
    dense, pruned = (float(line.split()[1]) for line in out.splitlines()[1:])
    assert 1 < dense < pruned


@pytest.mark.parametrize(
    ("name", "config_class"),
    [("gemma3-sliding-tied", Gemma3Config), ("ministral3", Mistral3Config)],
)
def test_the_language_model_of_one_that_sees_is_taken_as_it_is(
    name: str, config_class: Any, run: Run, tmp_path: Path
) -> None:
    sees = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    vision = {**sees, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    words = tiny_config(**VARIANTS[name]).to_dict()
    both = config_class(text_config=words, vision_config=vision)
    whole: Any = AutoModelForImageTextToText.from_config(both)
    whole.save_pretrained(tmp_path / "whole")
    tiny_tokenizer().save_pretrained(tmp_path / "whole")
    run("text_model.py", tmp_path / "whole", tmp_path / "text")
    text, ids = load(tmp_path / "text"), torch.tensor([[5, 6, 7]])
    assert torch.equal(logits_of(text, ids), logits_of(whole.eval(), ids))


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in text for path in EXAMPLES.glob("*.py"))
