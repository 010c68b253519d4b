"""The recipes for vLLM's own features, on real servers: a draft model, and adapters."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.engine.serve import running_server
from tests.cli.command import needs_vllm

pytestmark = [pytest.mark.all, pytest.mark.vllm, needs_vllm]
SMALL = ("--max-model-len", "512", "--enforce-eager", "--dtype", "float32")
PROMPTS = ("Return a list of", "def main(", "import", "The first line")


def complete(url: str, prompt: str, model: str) -> str:
    """The greedy continuation by 48 tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": 48, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as response:
        text: str = json.load(response)["choices"][0]["text"]
        return text


def served(directory: Path, flags: Sequence[str], log: Path) -> tuple[list[str], str]:
    """What a server of a folder answers to PROMPTS, and its metrics then."""
    with running_server(directory, [*SMALL, *flags], log) as url:
        texts = [complete(url, prompt, str(directory)) for prompt in PROMPTS]
        with urllib.request.urlopen(f"{url}/metrics") as response:
            return texts, response.read().decode()


def counter(metrics: str, name: str) -> float:
    (value,) = re.findall(rf"^vllm:{name}_total{{.*}} (\S+)$", metrics, flags=re.MULTILINE)
    return float(value)


def test_the_pruned_copy_drafts_for_its_dense_model(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    draft = {"method": "draft_model", "model": str(demo_checkpoint), "num_speculative_tokens": 4}
    alone, _ = served(demo_model, [], tmp_path / "alone.log")
    flags = ["--speculative-config", json.dumps(draft)]
    drafted, metrics = served(demo_model, flags, tmp_path / "drafted.log")
    assert drafted == alone
    steps, accepted = (
        counter(metrics, f"spec_decode_num_{name}") for name in ("drafts", "accepted_tokens")
    )
    assert accepted > steps


def test_adapters_over_the_pruned_base_and_the_base_itself_in_one_batch(
    demo_checkpoint: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    targets = ["q_proj", "v_proj", "gate_proj", "down_proj"]
    settings = peft.LoraConfig(r=8, lora_alpha=64, target_modules=targets, init_lora_weights=False)
    peft.get_peft_model(load(demo_checkpoint), settings).save_pretrained(tmp_path / "adapter")
    flags = [*SMALL, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"]
    flags += ["--lora-modules", f"style={tmp_path / 'adapter'}"]
    with running_server(demo_checkpoint, flags, tmp_path / "log") as url:
        asked = [(prompt, model) for prompt in PROMPTS for model in ("style", str(demo_checkpoint))]
        alone = [complete(url, *one) for one in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(partial(complete, url), *zip(*asked, strict=True)))
    assert together == alone
    assert alone[0] != alone[1], "the adapter changes the answer"
