"""Records as the benches write them, with made-up figures of a realistic size: test data only."""

import io
import math
import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from grasp_deploy.bench.kinds import KINDS
from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.files import json_files
from grasp_deploy.report.section import REMEDY

Record = dict[str, Any]
Models = Sequence[dict[str, Any]]
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


def model(name: str, keep: float = 1.0, multiple: int = 1, **sizes: Any) -> dict[str, Any]:
    """A model of a record: the dense one, or one that keeps about `keep` of every layer."""
    config: dict[str, Any] = {**DENSE, **sizes}
    if keep < 1:
        draw = random.Random(0)
        rows = {}
        for index in range(config["num_hidden_layers"]):
            shares = [min(1.0, max(0.05, draw.gauss(keep, 0.12))) for _ in range(2)]
            heads = round(shares[0] * config["num_key_value_heads"])
            channels = round(shares[1] * config["intermediate_size"] / multiple) * multiple
            rows[str(index)] = {
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "intermediate_size": min(channels, config["intermediate_size"]),
            }
        config |= {"model_type": "grasp_llama", "architectures": ["GraspLlamaForCausalLM"]}
        config["per_layer_config"] = rows
    return {"name": name, "footprint": footprint(model_shape(config)).as_dict()}


def typed(document: Record) -> Any:
    """The typed record of a JSON document of a bench."""
    return json_files.typed(document, KINDS[document["benchmark"]].record, "one.json", REMEDY)


def lines_of(table: Table, width: int = 100) -> list[str]:
    """A table as a terminal of this width shows it; nothing of it is cut."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
    return lines


def row_of(lines: Sequence[str], *words: str) -> str:
    """The first line that has all of these words."""
    return next(line for line in lines if all(word in line for word in words))


def record(benchmark: str, models: Models, **figures: Any) -> Record:
    """What every record has, with the machine of nobody."""
    return {
        "schema_version": 1,
        "benchmark": benchmark,
        "command": f"grasp-deploy bench {benchmark}",
        "created": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "Test Processor 9000", "cores": 16, "gpu": "Test GPU 80GB"},
        "versions": {"grasp_deploy": "0.0.0", "python": "3.11.0", "torch": "2.13.0"},
        "settings": {"seed": 0, "repetitions": 3, "device": "cuda", "dtype": "bfloat16"},
        "models": list(models),
        **figures,
    }


def throughput_record(
    models: Models,
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
            ttft, tpot = (seconds + overhead_seconds for seconds in _times(timed, batch))
            times = {"seconds": ttft + 255 * tpot, "ttft_seconds": ttft, "tpot_seconds": tpot}
            factors = [slow * math.exp(draw.gauss(0, noise)) / (gain or 1) for slow in rounds]
            samples = [{key: t * factor for key, t in times.items()} for factor in factors]
            point = {"batch": batch, "prompt_tokens": 2048, "new_tokens": 256}
            cells.append({"model": entry["name"], **point, "samples": samples})
    made = record("throughput", models, cells=cells)
    made["settings"] |= {"engine": "vllm", "repetitions": repetitions, **settings}
    return made


def _times(figures: dict[str, Any], batch: int) -> tuple[float, float]:
    """Seconds of a prefill of 2,048 tokens, and of each of 256 new ones."""
    width = figures["weight_bytes"] / figures["parameters"]
    table = figures["vocab_size"] * figures["hidden_size"] * width
    cached = batch * (2048 + 128) * figures["kv_bytes_per_token"]
    ttft = 2 * figures["parameters"] * batch * 2048 / OPERATIONS_PER_SECOND
    return ttft, (figures["weight_bytes"] - table + cached) / BYTES_PER_SECOND


def memory_record(models: Models, prompt_tokens: Sequence[int] = (256, 512, 1024, 2048)) -> Record:
    """Weights and cache as predicted, and some activations."""
    cells = []
    for entry, tokens in product(models, prompt_tokens):
        weights = entry["footprint"]["weight_bytes"]
        kv = entry["footprint"]["kv_bytes_per_token"] * tokens * 4
        other = 2**20 * tokens // 2
        predicted = _sizes(weights, kv, int(0.95 * other))
        sizes = {"predicted": predicted, "measured": _sizes(weights, kv, other)}
        point = {"model": entry["name"], "prompt_tokens": tokens, "batch": 4}
        cells.append({**point, **sizes})
    return record("memory", models, cells=cells)


def _sizes(weights: int, kv: int, other: int) -> dict[str, int]:
    peak = weights + kv + other
    return {"weight_bytes": weights, "kv_bytes": kv, "peak_bytes": peak, "other_bytes": other}


def kv_record(models: Models, measured: bool = True) -> Record:
    """What the weights leave of 20 GiB, in blocks of 16 tokens."""
    cells = []
    for entry in models:
        figures = entry["footprint"]
        pool_bytes = 20 * 2**30 - figures["weight_bytes"]
        tokens = pool_bytes // figures["kv_bytes_per_token"]
        held = [{"cached_tokens": n, "sequences": n // 2048} for n in (tokens, tokens // 16 * 16)]
        cells.append(
            {
                "model": entry["name"],
                "memory_bytes": pool_bytes,
                "context_tokens": 2048,
                "kv_bytes_per_token": figures["kv_bytes_per_token"],
                "predicted": held[0],
                "measured": held[1] if measured else None,
            }
        )
    made = record("kv", models, cells=cells)
    made["settings"]["memory_bytes"] = 20 * 2**30
    return made


def serve_record(
    models: Models,
    gains: Mapping[str, float] | None = None,
    failed: Mapping[str, int] | None = None,
) -> Record:
    """Three loads, three repetitions."""
    draw = random.Random(0)
    cells = []
    for entry, load in product(models, (8, 32, 128)):
        gain = (gains or {}).get(entry["name"], 1.0)
        lost = (failed or {}).get(entry["name"], 0)
        rates = [90 * load**0.8 * gain * math.exp(draw.gauss(0, 0.01)) for _ in range(3)]
        point = {"model": entry["name"], "load": {"max_concurrency": load, "request_rate": None}}
        cells.append({**point, "requests": 500, "samples": [served(rate, lost) for rate in rates]})
    return record("serve", models, cells=cells)


def served(tokens_per_second: float, failed: int = 0) -> dict[str, Any]:
    """A sample of 500 requests."""
    spread = {"mean": 0.105, "p50": 0.1, "p90": 0.16, "p99": 0.27}
    return {
        "failed": failed,
        "output_tokens_per_second": tokens_per_second,
        **{f"{name}_seconds": dict(spread) for name in ("ttft", "tpot", "e2e")},
        "goodput_requests_per_second": None,
    }
