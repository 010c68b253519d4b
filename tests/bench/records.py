"""Records as the benches write them, with made-up figures of a realistic size: test data only."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grasp_deploy.bench.kinds import typed_record
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape

Record = dict[str, Any]
DENSE = {  # LLaMA-2-7B's sizes
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
OPERATIONS_PER_SECOND, BYTES_PER_SECOND, START_SECONDS = 400e12, 2.2e12, 2e-4


def model(
    name: str, keep: float = 1.0, multiple: int = 1, seed: int = 0, **sizes: Any
) -> dict[str, Any]:
    """A model of a record: the dense one, or one that keeps about `keep` of every layer."""
    config = {**DENSE, **sizes}
    if keep < 1:
        config |= {"model_type": "grasp_llama", "architectures": ["GraspLlamaForCausalLM"]}
        rows = _layers(config, keep, multiple, random.Random(seed))
        config["per_layer_config"] = {str(i): row for i, row in enumerate(rows)}
    return {"name": name, "footprint": footprint(model_shape(config)).as_dict()}


def typed(document: Record) -> Any:
    """The typed record of a JSON document of a bench."""
    return typed_record(document, Path("one.json"))


def _layers(
    config: dict[str, Any], keep: float, multiple: int, draw: random.Random
) -> list[dict[str, int]]:
    rows = []
    for _ in range(config["num_hidden_layers"]):
        shares = [min(1.0, max(0.05, draw.gauss(keep, 0.12))) for _ in range(2)]
        heads = max(1, round(shares[0] * config["num_key_value_heads"]))
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        channels = max(1, round(shares[1] * config["intermediate_size"] / multiple)) * multiple
        rows.append(
            {
                "num_attention_heads": heads * group,
                "num_key_value_heads": heads,
                "intermediate_size": min(channels, config["intermediate_size"]),
            }
        )
    return rows


def lines_of(table: Table, width: int = 100) -> list[str]:
    """A table as a terminal of this width shows it."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def row_of(lines: Sequence[str], *words: str) -> str:
    """The first line that has all of these words."""
    return next(line for line in lines if all(word in line for word in words))


def record(benchmark: str, models: Sequence[dict[str, Any]], **figures: Any) -> Record:
    """What every record has, with the machine of nobody."""
    names = " ".join(model["name"] for model in models)
    return {
        "schema_version": 1,
        "benchmark": benchmark,
        "command": f"grasp-deploy bench {benchmark} {names}",
        "created": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "Test Processor 9000", "cores": 16, "gpu": "Test GPU 80GB"},
        "versions": {"grasp_deploy": "0.0.0", "python": "3.11.0", "torch": "2.13.0"},
        "settings": {"seed": 0, "repetitions": 3, "device": "cuda", "dtype": "bfloat16"},
        "models": list(models),
        **figures,
    }


def throughput_record(
    models: Sequence[dict[str, Any]],
    *,
    gains: Mapping[str, float] | None = None,
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    repetitions: int = 3,
    noise: float = 0.01,
    seed: int = 0,
    overhead_seconds: float = START_SECONDS,
    **settings: Any,
) -> Record:
    """Interleaved rounds; time follows bytes and operations, or the first model's over `gains`.

    `noise` is the standard deviation of a repetition's time, as a share of it. A machine that
    slows down by a third of the way through is added to every round alike.
    """
    draw = random.Random(seed)
    cells = []
    for batch in batches:
        rounds = [1 + 0.3 * draw.random() for _ in range(repetitions)]
        for entry in models:
            gain = gains.get(entry["name"], 1.0) if gains is not None else None
            timed = (models[0] if gain else entry)["footprint"]
            ttft, tpot = _times(timed, batch, 2048, 256, overhead_seconds)
            samples = [
                _sample(ttft, tpot, slow * math.exp(draw.gauss(0, noise)) / (gain or 1))
                for slow in rounds
            ]
            point = {"batch": batch, "prompt_tokens": 2048, "new_tokens": 256}
            cells.append({"model": entry["name"], "engine": "vllm", **point, "samples": samples})
    made = record("throughput", models, cells=cells)
    made["settings"] |= {"engine": "vllm", "repetitions": repetitions, **settings}
    return made


def _times(
    figures: dict[str, Any], batch: int, prompt: int, new: int, overhead_seconds: float
) -> tuple[float, float]:
    width = figures["weight_bytes"] / figures["parameters"]
    ttft = 2 * figures["parameters"] * batch * prompt / OPERATIONS_PER_SECOND + overhead_seconds
    cached = batch * (prompt + new / 2) * figures["kv_bytes_per_token"]
    table = figures["vocab_size"] * figures["hidden_size"] * width
    tpot = (figures["weight_bytes"] - table + cached) / BYTES_PER_SECOND + overhead_seconds
    return ttft, tpot


def _sample(ttft: float, tpot: float, factor: float, new_tokens: int = 256) -> dict[str, Any]:
    seconds = ttft + tpot * (new_tokens - 1)
    return {
        "seconds": seconds * factor,
        "ttft_seconds": ttft * factor,
        "tpot_seconds": tpot * factor,
        "joules": 350.0 * seconds * factor,
    }


def memory_record(
    models: Sequence[dict[str, Any]],
    prompt_tokens: Sequence[int] = (256, 512, 1024, 2048),
    batch: int = 4,
    weight_error: float = 0.0,
) -> Record:
    """Weights and cache as predicted (the weights off by `weight_error`), and some activations."""
    cells = []
    for entry in models:
        figures = entry["footprint"]
        for tokens in prompt_tokens:
            weights, kv = figures["weight_bytes"], figures["kv_bytes_per_token"] * tokens * batch
            other = int(0.15 * 2**20 * tokens * batch)
            predicted = _sizes(weights, kv, int(0.95 * other))
            measured = _sizes(int(weights * (1 + weight_error)), kv, other)
            cells.append(
                {
                    "model": entry["name"],
                    "prompt_tokens": tokens,
                    "batch": batch,
                    "predicted": predicted,
                    "measured": {
                        **measured,
                        "reserved_bytes": measured["peak_bytes"] + 2**28,
                        "device_bytes": measured["peak_bytes"] + 2**29,
                    },
                    "samples": [{k: v for k, v in measured.items() if k != "other_bytes"}] * 3,
                }
            )
    made = record("memory", models, cells=cells)
    made["settings"]["batch"] = batch
    return made


def _sizes(weights: int, kv: int, other: int) -> dict[str, int]:
    peak = weights + kv + other
    return {"weight_bytes": weights, "kv_bytes": kv, "peak_bytes": peak, "other_bytes": other}


def kv_record(
    models: Sequence[dict[str, Any]],
    context: int = 2048,
    memory_bytes: int = 20 * 2**30,
    measured: bool = True,
) -> Record:
    """What the weights leave of the memory, in blocks of 16 tokens."""
    cells = []
    for entry in models:
        figures = entry["footprint"]
        pool_bytes = memory_bytes - figures["weight_bytes"]
        tokens = pool_bytes // figures["kv_bytes_per_token"]
        blocks = tokens // 16 * 16
        vllm = {"cached_tokens": blocks, "sequences": blocks // context}
        cells.append(
            {
                "model": entry["name"],
                "memory_bytes": pool_bytes,
                "context_tokens": context,
                "kv_bytes_per_token": figures["kv_bytes_per_token"],
                "layer_kv_bytes_per_token": [
                    2 * layer["num_key_value_heads"] * figures["head_dim"] * 2
                    for layer in figures["layers"]
                ],
                "predicted": {"cached_tokens": tokens, "sequences": tokens // context},
                "measured": vllm if measured else None,
            }
        )
    made = record("kv", models, cells=cells)
    made["settings"]["memory_bytes"] = memory_bytes
    return made


def serve_record(
    models: Sequence[dict[str, Any]],
    gains: Mapping[str, float] | None = None,
    failed: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Record:
    """Three loads, three repetitions; latency grows with the load."""
    draw = random.Random(seed)
    cells = []
    for entry in models:
        gain = (gains or {}).get(entry["name"], 1.0)
        lost = (failed or {}).get(entry["name"], 0)
        for load in (8, 32, 128):
            samples = [
                _served(load, gain * math.exp(draw.gauss(0, 0.01)), 500 - lost, lost)
                for _ in range(3)
            ]
            cells.append(
                {
                    "model": entry["name"],
                    "load": {"max_concurrency": load, "request_rate": None},
                    "requests": 500,
                    "samples": samples,
                }
            )
    return record("serve", models, cells=cells)


def _served(load: int, gain: float, completed: int, failed: int) -> dict[str, Any]:
    def percentiles(seconds: float) -> dict[str, float]:
        spread = {"mean": 1.05, "p50": 1.0, "p90": 1.6, "p99": 2.7}
        return {name: factor * seconds / gain for name, factor in spread.items()}

    tokens_per_second = 90 * load**0.8 * gain
    return {
        "completed": completed,
        "failed": failed,
        "seconds": 128 * completed / tokens_per_second,
        "requests_per_second": tokens_per_second / 128,
        "output_tokens_per_second": tokens_per_second,
        "output_tokens": 128 * completed,
        "ttft_seconds": percentiles(0.03 * load**0.7),
        "tpot_seconds": percentiles(0.008 * load**0.25),
        "itl_seconds": percentiles(0.0075 * load**0.25),
        "e2e_seconds": percentiles(0.03 * load**0.7 + 127 * 0.008 * load**0.25),
        "goodput_requests_per_second": None,
    }
