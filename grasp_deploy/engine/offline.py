"""vLLM's engine in a child process: greedy tokens, and the capacity of its KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, convert

from grasp_deploy.checkpoint.limits import check_vllm_runs, installed_platform
from grasp_deploy.engine.child import answer_requests, child
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.vllm_process import vllm_child_environment

GREEDY_CACHE_BYTES = 64 * 2**20
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class KvCapacity:
    """Tokens that a KV cache holds in all, and full sequences that fit beside each other."""

    cached_tokens: Annotated[int, Meta(ge=1, le=2**62)]
    sequences: Annotated[int, Meta(ge=0, le=2**62)]


def predict_capacity(
    pool_bytes: int,
    bytes_per_token: int,
    blocks_each: Fraction | int,
    block_tokens: int,
    state_bytes: int = 0,
) -> KvCapacity:
    """Predict what a cache of `pool_bytes` holds in blocks of `block_tokens`.

    A block holds keys and values of all layers. A sequence takes so many blocks, of which those
    that it leaves in some layers serve others, and `state_bytes` whatever its length.
    """
    block_bytes = bytes_per_token * block_tokens
    sequences = int(pool_bytes // (blocks_each * block_bytes + state_bytes))
    blocks = (pool_bytes - sequences * state_bytes) // block_bytes
    return KvCapacity(blocks * block_tokens, sequences)


def measured_capacity(directory: Path, engine: dict[str, Any]) -> KvCapacity:
    """Start an engine with vLLM's own arguments, and ask what its cache holds.

    Raises like greedy_tokens.
    """
    return convert(_ask(directory, engine)["capacity"], KvCapacity)


def greedy_tokens(directory: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Continue prompts (lists of token ids) by exactly `new_tokens` tokens each, in float32.

    A quantised model computes in the dtype of its plain weights.
    Raises ChildError with the end of vLLM's log. Raises InputError if vLLM is not installed, or
    does not support the model's head size.
    """
    engine = {
        "dtype": "float32",
        "kv_cache_memory_bytes": GREEDY_CACHE_BYTES,
        "max_model_len": max(map(len, prompts)) + new_tokens,
        "max_num_seqs": len(prompts),
    }
    tokens: list[list[int]] = _ask(directory, engine, prompts, new_tokens)["tokens"]
    return tokens


def _ask(
    directory: Path,
    engine: dict[str, Any],
    prompts: Sequence[list[int]] = (),
    new_tokens: int = 1,
) -> dict[str, Any]:
    import torch  # help needs neither

    from grasp_deploy.checkpoint.read.validate import config_and_shape

    environment = vllm_child_environment()
    shape = config_and_shape(directory)[1]
    if shape.quantization is not None:  # whose kernels give other tokens in float32
        engine = {**engine, "dtype": shape.dtype}
    check_vllm_runs(shape, installed_platform())
    request = {
        # The cache has a size of its own, but vLLM would refuse to start unless 92 % are free.
        "engine": {**FORMAT, "gpu_memory_utilization": 0.01, **engine, "model": str(directory)},
        "prompts": prompts,
        "new_tokens": new_tokens,
    }
    torch.cuda.empty_cache()  # of the models that this process has loaded and dropped
    with child(__name__, environment, name="vLLM", timeout_seconds=PATIENCE_SECONDS) as ask:
        return ask(request)


def _answer(engine: dict[str, Any], prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(**engine, enforce_eager=True, skip_tokenizer_init=True, disable_log_stats=True)
    greedy = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
    outputs = llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], greedy)
    config = llm.llm_engine.vllm_config
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "capacity": {
            "cached_tokens": cached_tokens(llm),
            "sequences": int(config.cache_config.kv_cache_max_concurrency),
        },
    }


def cached_tokens(llm: Any) -> int:
    """Tokens that the cache of a running `vllm.LLM` holds, where every layer keeps all of them.

    Layers of different attention are groups that draw their blocks from one pool.
    """
    cache, groups = llm.llm_engine.vllm_config.cache_config, llm.collective_rpc(_cache_groups)
    return cache.num_gpu_blocks // max(groups) * cache.block_size


def _cache_groups(worker: Any) -> int:
    return len(worker.model_runner.kv_cache_config.kv_cache_groups)


if __name__ == "__main__":
    answer_requests(lambda request: _answer(**request))
