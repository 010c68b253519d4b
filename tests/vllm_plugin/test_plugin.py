"""vLLM serves pruned checkpoints through both routes, with transformers' own greedy tokens.

Each route is one process in which the engines run one after another: importing vLLM takes longer
than starting an engine for a model as small as these. The first engine of a route compiles.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import STEMS, VARIANTS, random_kept, slice_by_hand, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm", reason="vLLM is not installed")

HYBRID = VARIANTS["qwen3-5-mha"]
COMPILED = "compiled"  # of two layers: each is a graph of its own to compile
NAMES = [
    *("llama-biases", "mistral-sliding", "qwen2", "qwen2-head-dim", "qwen2-sliding"),
    *("ministral3-sliding", "ministral3-tied"),
    *("qwen3-biases", "qwen3-sliding", "qwen3-tied", "granite-biases", "granite-tied"),
    *("gemma3-sliding-biases", "gemma3-sliding-tied", "gemma3-full"),
    *("qwen3-moe", "qwen3-moe-renormed"),
]
SERVED: dict[str, dict[str, Any]] = {
    COMPILED: {"family": "llama", "num_hidden_layers": 2},
    **{name: VARIANTS[name] for name in NAMES},
}
KV_CACHE_BYTES = 16 * 2**20
NEW_TOKENS = 32
RANDOM = torch.Generator().manual_seed(11)
PROMPTS = [torch.randint(256, (5 + 3 * i,), generator=RANDOM).tolist() for i in range(8)]

# Run in vLLM's process before anything else.
REGISTRATION = """
import sys
from grasp_deploy.vllm_plugin import register
assert "vllm" not in sys.modules
register(), register()
from vllm import ModelRegistry
from vllm.config.model import _is_valid_dtype
assert not _is_valid_dtype("grasp_gemma3_text", __import__("torch").float16)
expected = {f"Grasp{stem}ForCausalLM" for stem in ("Llama", "Mistral", "Qwen2", "Qwen3")}
assert expected <= set(ModelRegistry.get_supported_archs())
assert "grasp_deploy.vllm_plugin.models" not in sys.modules
assert "vllm.model_executor.models.llama" not in sys.modules
"""
# The package is out of reach, so vLLM must get by on the code that travels with the checkpoint.
NO_PACKAGE = """
import sys
sys.modules["grasp_deploy"] = None
"""
# Reads a request from stdin and writes its answer to the file named first.
ENGINES = """
import gc, json, sys
request = json.load(sys.stdin)
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import cleanup_dist_env_and_memory
answer = {}
prompts = [TokensPrompt(prompt_token_ids=ids) for ids in request["prompts"]]
greedy = SamplingParams(temperature=0, max_tokens=request["new_tokens"], ignore_eos=True)
for name, folder in request["folders"].items():
    eager = name != request["compiled"]
    llm = LLM(folder, enforce_eager=eager, **request["engine"])
    cache = llm.llm_engine.vllm_config.cache_config
    model = llm.apply_model(lambda model: type(model).__module__ + "." + type(model).__name__)[0]
    answer[name] = {
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
    for name, arguments in SERVED.items():
        dense = tiny_model(**arguments)
        slice_by_hand(dense, random_kept(dense.config)).save_pretrained(root / name)
        tiny_tokenizer().save_pretrained(root / name)
    return {name: root / name for name in SERVED}


@pytest.fixture(scope="module", params=["plugin", "remote code"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(
    route: str, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Greedy tokens, KV capacity and model class of each variant through one route."""
    folder = tmp_path_factory.mktemp("answers")
    remote_code = route == "remote code"
    request = {
        "folders": {name: str(path) for name, path in checkpoints.items()},
        "compiled": COMPILED,
        "engine": {
            "trust_remote_code": remote_code,
            "dtype": "float32",
            "max_model_len": 128,
            "max_num_seqs": len(PROMPTS),
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
            "disable_log_stats": True,
        },
    }
    environment = {"HF_MODULES_CACHE": str(folder / "modules")}
    if remote_code:
        environment["VLLM_PLUGINS"] = ""
    before = compiled_graphs()
    answer = answered(NO_PACKAGE if remote_code else REGISTRATION, request, environment, folder)
    saved = len(compiled_graphs() - before)
    assert saved == 1, "vLLM compiled nothing, or could not save what it compiled"
    return answer


def answered(
    first: str, request: dict[str, Any], environment: dict[str, str], folder: Path
) -> dict[str, dict[str, Any]]:
    """What the engines of a request answer, in a process that runs a program before them."""
    in_process = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in that process: no second import
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for the function given to apply_model
    }
    done = subprocess.run(
        [sys.executable, "-c", first + ENGINES, str(folder / "answer.json")],
        input=json.dumps({**request, "prompts": PROMPTS, "new_tokens": NEW_TOKENS}),
        env={**os.environ, **in_process, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    answer: dict[str, dict[str, Any]] = json.loads((folder / "answer.json").read_text())
    return answer


def compiled_graphs() -> set[Path]:
    """Files in which vLLM has saved what it compiled in this run."""
    root = Path(os.environ["VLLM_CACHE_ROOT"])
    return set(root.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model"))


BALANCED = """
from types import SimpleNamespace as Config
from grasp_deploy.vllm_plugin.models import GraspQwen3MoeForCausalLM
config = Config(parallel_config=Config(enable_eplb=True))
try:
    GraspQwen3MoeForCausalLM(vllm_config=config)
except ValueError as error:
    assert "--enable-eplb" in str(error), error
else:
    raise AssertionError("layers with different numbers of experts were balanced")
"""


def test_layers_with_different_numbers_of_experts_are_not_balanced() -> None:
    subprocess.run([sys.executable, "-c", BALANCED], check=True, stdin=subprocess.DEVNULL)


@functools.cache  # both routes must give the same
def reference_tokens(name: str) -> list[list[int]]:
    """Tokens with which transformers continues the prompts."""
    dense = tiny_model(**SERVED[name])
    model = slice_by_hand(dense, random_kept(dense.config))
    continued = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output: torch.Tensor = model.generate(  # type: ignore[operator]
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
    stem = STEMS[SERVED[name]["family"]]
    experts = "MoE" if "moe" in name else ""
    expected_class = {
        "plugin": f"grasp_deploy.vllm_plugin.models.Grasp{stem}ForCausalLM",
        "remote code": f"vllm.model_executor.models.transformers.Transformers{experts}ForCausalLM",
    }[route]
    assert served[name]["model"] == expected_class
    assert served[name]["tokens"] == reference_tokens(name)


@pytest.mark.parametrize("name", [name for name in SERVED if "sliding" not in name])
def test_kv_cache_holds_as_many_tokens_as_the_layers_allow(
    name: str, served: dict[str, dict[str, Any]]
) -> None:
    kept = random_kept(tiny_model(**SERVED[name]).config)
    bytes_per_token = sum(2 * len(groups) * 32 * 4 for groups, _ in kept)
    block_tokens = served[name]["block_tokens"]
    blocks = KV_CACHE_BYTES // (block_tokens * bytes_per_token)
    assert served[name]["kv_cache_tokens"] == blocks * block_tokens


# vLLM's Qwen3.5 imports torchvision for pictures: where that is missing, an empty one stands in.
NO_PICTURES = """
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock
class Pictures:
    def find_spec(self, name, path=None, target=None):
        is_asked = "vllm.model_executor.models.qwen3_5" in sys.modules
        if is_asked and name.split(".")[0] == "torchvision":
            return ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return MagicMock(__path__=[], __spec__=spec)
    def exec_module(self, module):
        pass
sys.meta_path.append(Pictures())
"""


def test_linear_attention_is_served_by_the_plugin(tmp_path: Path) -> None:
    """vLLM's kernel for CPUs takes bfloat16 alone, by which near ties fall either way."""
    dense = tiny_model(**HYBRID, dtype=torch.bfloat16)
    kept = random_kept(dense.config)
    model = slice_by_hand(dense, kept)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "sitecustomize.py").write_text(NO_PICTURES)
    engine = {"dtype": "bfloat16", "max_model_len": 128, "max_num_seqs": len(PROMPTS)}
    request = {
        **{"folders": {"hybrid": str(tmp_path / "model")}, "compiled": None},
        "engine": {**engine, "kv_cache_memory_bytes": KV_CACHE_BYTES, "disable_log_stats": True},
    }
    environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    answer = answered(REGISTRATION, request, environment, tmp_path)["hybrid"]
    assert answer["model"] == "grasp_deploy.vllm_plugin.hybrid.GraspQwen3_5ForCausalLM"
    exact = model.float()
    for prompt, tokens in zip(PROMPTS, answer["tokens"], strict=True):
        with torch.no_grad():
            logits = exact(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (logits.max(-1).values - chosen).max() <= 0.1 * logits.std()
    # A page holds a block of the dense model's keys and values in one layer; each of 8 sequences
    # takes a page of both layers with plain attention, and two of the state.
    pages = KV_CACHE_BYTES // (answer["block_tokens"] * 2 * 4 * 32 * 2)
    assert [len(groups) for groups, _ in kept] == [0, 2, 1]
    assert answer["kv_cache_tokens"] == int(pages / 4 * 128)
