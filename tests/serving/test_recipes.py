"""The recipes for vLLM's own features, on real servers: a draft model, and adapters."""

import json
import re
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.write.adapter import cut_adapter
from grasp_deploy.engine.serve import running_server
from tests.answering import posted
from tests.cli.command import needs_vllm

pytestmark = [pytest.mark.vllm, needs_vllm]
SMALL = ("--max-model-len", "512", "--enforce-eager", "--dtype", "float32")
PROMPTS = ("Return a list of", "def main(", "import", "The first line")


def complete(url: str, prompt: str, model: str) -> str:
    """The greedy continuation by 48 tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": 48, "temperature": 0}
    return str(posted(f"{url}/v1/completions", body)["choices"][0]["text"])


def served(directory: Path, flags: Sequence[str], log: Path) -> tuple[list[str], str]:
    """What a server of a folder answers to PROMPTS, and its metrics then."""
    with running_server(directory, [*SMALL, *flags], log) as url:
        texts = [complete(url, prompt, str(directory)) for prompt in PROMPTS]
        with urllib.request.urlopen(f"{url}/metrics") as response:
            return texts, response.read().decode()


def counter(metrics: str, name: str) -> float:
    (value,) = re.findall(rf"^vllm:{name}_total{{.*}} (\S+)$", metrics, flags=re.MULTILINE)
    return float(value)


@pytest.mark.all
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


def test_cut_adapters_and_the_pruned_base_itself_in_one_batch(
    demo_model: Path, demo_checkpoint: Path, tmp_path: Path
) -> None:
    """Each answers as alone, and as PEFT does: adapters of the dense model, cut by the plan."""
    peft = pytest.importorskip("peft")
    names = ("one", "two", "three")
    shape = {"lora_alpha": 16, "target_modules": "all-linear", "init_lora_weights": False}
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(load(demo_model), peft.LoraConfig(**shape))
        adapted.save_pretrained(tmp_path / "dense" / name)
        cut_adapter(tmp_path / "dense" / name, demo_checkpoint, tmp_path / name)
    flags = [*SMALL, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "4"]
    flags += ["--lora-modules", *(f"{name}={tmp_path / name}" for name in names)]
    with running_server(demo_checkpoint, flags, tmp_path / "log") as url:
        models = (*names, str(demo_checkpoint))
        asked = [(prompt, model) for prompt in PROMPTS[:2] for model in models]
        alone = [complete(url, *one) for one in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(partial(complete, url), *zip(*asked, strict=True)))
    assert together == alone
    assert len(set(alone[:4])) == 4, "adapters change the answer"
    tokenizer = load_tokenizer(demo_checkpoint)
    prompt = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    for name, answer in zip(names, alone, strict=False):
        model = peft.PeftModel.from_pretrained(
            load(demo_checkpoint, dtype="float32"), tmp_path / name
        )
        continued = model.generate(input_ids=prompt, max_new_tokens=48, do_sample=False)
        assert tokenizer.decode(continued[0, prompt.shape[1] :], skip_special_tokens=True) == answer
