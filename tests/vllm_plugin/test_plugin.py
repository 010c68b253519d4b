"""vLLM serves pruned checkpoints through both routes, with transformers' own greedy tokens.

Each route is one process in which the engines run one after another: importing vLLM takes longer
than starting an engine for a model as small as these.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import VARIANTS, random_kept, slice_by_hand, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm", reason="vLLM is not installed")

SERVED = [
    "llama",
    "llama-biases",
    "mistral-sliding",
    "qwen2",
    "qwen2-sliding",
    "qwen3",
    "qwen3-biases",
    "qwen3-tied",
]
KV_CACHE_BYTES = 16 * 2**20
NEW_TOKENS = 32
RANDOM = torch.Generator().manual_seed(11)
PROMPTS = [torch.randint(256, (5 + 3 * i,), generator=RANDOM).tolist() for i in range(8)]

# Reads a request from stdin and writes its answer to the file named first. With the package
# out of reach, vLLM must get by on the code that travels with the checkpoint.
ENGINES = """
import gc, json, sys
request = json.load(sys.stdin)
if request["remote_code"]:
    sys.modules["grasp_deploy"] = None
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import cleanup_dist_env_and_memory
answer = {}
prompts = [TokensPrompt(prompt_token_ids=ids) for ids in request["prompts"]]
greedy = SamplingParams(temperature=0, max_tokens=request["new_tokens"], ignore_eos=True)
for folder in request["folders"]:
    llm = LLM(folder, trust_remote_code=request["remote_code"], **request["engine"])
    cache = llm.llm_engine.vllm_config.cache_config
    model = llm.apply_model(lambda model: type(model).__module__ + "." + type(model).__name__)[0]
    answer[folder] = {
        "tokens": [list(o.outputs[0].token_ids) for o in llm.generate(prompts, greedy)],
        "kv_cache_tokens": cache.kv_cache_size_tokens,
        "block_tokens": cache.block_size,
        "model": model,
    }
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
json.dump(answer, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pruned checkpoint of every variant that is served."""
    root = tmp_path_factory.mktemp("served")
    for name in SERVED:
        dense = tiny_model(**VARIANTS[name])
        slice_by_hand(dense, random_kept(dense.config)).save_pretrained(root / name)
        tiny_tokenizer().save_pretrained(root / name)
    return {name: root / name for name in SERVED}


def run_engines(
    folders: list[Path], answer: Path, *, remote_code: bool, **engine: Any
) -> dict[str, dict[str, Any]]:
    """Greedy tokens, KV capacity and model class of each folder, by its name."""
    request = {
        "folders": list(map(str, folders)),
        "remote_code": remote_code,
        "prompts": PROMPTS,
        "new_tokens": NEW_TOKENS,
        "engine": {
            "dtype": "float32",
            "max_model_len": 128,
            "max_num_seqs": len(PROMPTS),
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "enforce_eager": True,
            "disable_log_stats": True,
            **engine,
        },
    }
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: no second import
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for the function given to apply_model
        "HF_MODULES_CACHE": str(answer.parent / "modules"),
    }
    if remote_code:
        environment["VLLM_PLUGINS"] = ""
    done = subprocess.run(
        [sys.executable, "-c", ENGINES, str(answer)],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    by_folder = json.loads(answer.read_text())
    return {Path(folder).name: result for folder, result in by_folder.items()}


@pytest.fixture(scope="module", params=["plugin", "remote code"])
def route(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def served(
    route: str, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    answer = tmp_path_factory.mktemp("answers") / "answer.json"
    return run_engines([*checkpoints.values()], answer, remote_code=route == "remote code")


@functools.cache  # both routes must give the same
def reference_tokens(name: str) -> list[list[int]]:
    """What transformers continues the prompts with."""
    dense = tiny_model(**VARIANTS[name])
    model = slice_by_hand(dense, random_kept(dense.config))
    continued = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        continued.append(output[0, len(prompt) :].tolist())
    return continued


@pytest.mark.parametrize("name", SERVED)
def test_greedy_tokens_are_those_of_transformers(
    name: str, route: str, served: dict[str, dict[str, Any]]
) -> None:
    stem = VARIANTS[name]["family"].capitalize()
    expected_class = {
        "plugin": f"grasp_deploy.vllm_plugin.models.Grasp{stem}ForCausalLM",
        "remote code": "vllm.model_executor.models.transformers.TransformersForCausalLM",
    }[route]
    assert served[name]["model"] == expected_class
    assert served[name]["tokens"] == reference_tokens(name)


@pytest.mark.parametrize("name", [name for name in SERVED if "sliding" not in name])
def test_kv_cache_holds_as_many_tokens_as_the_layers_allow(
    name: str, served: dict[str, dict[str, Any]]
) -> None:
    kept = random_kept(tiny_model(**VARIANTS[name]).config)
    bytes_per_token = sum(2 * len(groups) * 32 * 4 for groups, _ in kept)
    block_tokens = served[name]["block_tokens"]
    blocks = KV_CACHE_BYTES // (block_tokens * bytes_per_token)
    assert served[name]["kv_cache_tokens"] == blocks * block_tokens


@pytest.mark.slow
@pytest.mark.parametrize("remote_code", [False, True], ids=["plugin", "remote code"])
def test_compiled_graph_is_saved_and_gives_the_same_tokens(
    remote_code: bool,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    result = run_engines(
        [checkpoints["llama"]],
        tmp_path / "answer.json",
        remote_code=remote_code,
        enforce_eager=False,
    )
    assert result["llama"]["tokens"] == reference_tokens("llama")
    saved = list(
        (tmp_path / "cache").glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model")
    )
    assert len(saved) == 1, "vLLM compiled nothing, or could not save what it compiled"


def test_register_may_be_called_again_and_imports_no_model() -> None:
    code = """
import sys
from grasp_deploy.vllm_plugin import register
assert "vllm" not in sys.modules
register(), register()
from vllm import ModelRegistry
expected = {f"Grasp{stem}ForCausalLM" for stem in ("Llama", "Mistral", "Qwen2", "Qwen3")}
assert expected <= set(ModelRegistry.get_supported_archs())
assert "grasp_deploy.vllm_plugin.models" not in sys.modules
assert "vllm.model_executor.models.llama" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
