"""KV-cache capacity of a running vLLM engine, measured in a child process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.limits import Platform, check_head_size
from grasp_deploy.engine.child import answer_requests, child
from grasp_deploy.engine.vllm_process import engine_environment, installed_platform

BLOCK_TOKENS: dict[Platform, int] = {"cpu": 128, "cuda": 16}  # block size of vLLM 0.32


@dataclass(frozen=True)
class KvCapacity:
    """Tokens that a KV cache holds in all, and full sequences that fit beside each other."""

    cached_tokens: int
    sequences: int


def predict_capacity(
    pool_bytes: int, bytes_per_token: int, context_tokens: int, block_tokens: int
) -> KvCapacity:
    """Predict what a cache of `pool_bytes` holds in blocks of `block_tokens`.

    A block holds keys and values of all layers. A sequence takes whole blocks.
    """
    blocks = pool_bytes // (bytes_per_token * block_tokens)
    blocks_per_sequence = -(-context_tokens // block_tokens)
    return KvCapacity(blocks * block_tokens, blocks // blocks_per_sequence)


def kv_capacity(
    directory: Path,
    pool_bytes: int,
    context_tokens: int,
    *,
    dtype: str,
    random_weights: bool = False,
    seed: int = 0,
    timeout_seconds: float = 600.0,
) -> KvCapacity:
    """Start vLLM on a model with a KV cache of `pool_bytes` and read its capacity.

    Raises ChildError with the end of vLLM's log. Raises InputError if vLLM is not installed or does
    not support the model's head size.
    """
    platform = installed_platform()
    check_head_size(model_shape(read_config(directory)), platform)
    engine = {
        "model": str(directory),
        "dtype": dtype,
        "kv_cache_memory_bytes": pool_bytes,
        "max_model_len": context_tokens,
        "max_num_seqs": 1,  # the batch size does not change the cache
        "load_format": "dummy" if random_weights else "auto",
        "seed": seed,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    environment = engine_environment(platform, workers=1)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with child(__name__, environment, name="vLLM", timeout_seconds=timeout_seconds) as ask:
        return KvCapacity(**ask({"engine": engine}))


def _capacity(engine: dict[str, Any]) -> KvCapacity:
    from vllm import LLM

    llm = LLM(**engine)  # must live while its configuration is read
    cache = llm.llm_engine.vllm_config.cache_config
    return KvCapacity(
        cached_tokens=cache.num_gpu_blocks * cache.block_size,
        sequences=int(cache.kv_cache_max_concurrency),
    )


if __name__ == "__main__":
    answer_requests(lambda request: asdict(_capacity(**request)))
