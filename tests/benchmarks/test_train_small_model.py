"""A small model of a family is trained from scratch and can be used by every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import train_small_model as script
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.data import TextSource, beginnings
from tests.benchmarks.commands import refused


@pytest.mark.slow
def test_a_qwen3_is_trained_and_loads(
    texts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "small"
    options = ["--family", "qwen3", "--output", str(folder), "--text", str(texts[0])]
    sizes = ["--epochs", "1", "--vocabulary", "300", "--batch-sequences", "16"]
    script.main([*options, *sizes, "--evaluate", f"held-out={texts[1]}"])
    assert "perplexity on held-out: " in capsys.readouterr().out
    assert "held-out" in (folder / "README.md").read_text()

    shape = model_shape(read_config(folder / "config.json"))
    assert (shape.family.model_type, len(shape.layers)) == ("qwen3", 8)
    tokenizer = load_tokenizer(folder)
    assert beginnings(tokenizer, TextSource("self"))[0] == [tokenizer.bos_token_id]
    weights = load_file(folder / "model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.bfloat16}
    assert "exists" in refused("train_small_model", capsys, *options)


def test_documents_are_parted_and_every_fourth_batch_is_longer(tmp_path: Path) -> None:
    stories = tmp_path / "stories.txt"
    stories.write_text("One.\n<|endoftext|>\nTwo.\n<|endoftext|>\n")
    assert script.documents_of([TextSource(str(stories))]) == ["One.", "Two."]
    batches = (torch.arange(32).view(4, 8) for _ in range(5))
    shapes = [tuple(tokens.shape) for tokens in script.some_longer(batches)]
    assert shapes == [(2, 16), (4, 8), (4, 8), (4, 8), (2, 16)]
