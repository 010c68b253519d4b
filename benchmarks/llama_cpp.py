"""Size, speed and exactness of GGUF files in llama.cpp, of several models in turns.

Log-probabilities are those of the five likeliest tokens at each of 200 greedy tokens, beside what
transformers says in float32: they tell whether a file holds the same model, not how good it is.

    python -m benchmarks.llama_cpp --model build/models/smollm2-135m --model smaller
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import torch
from rich.table import Table

from benchmarks.common import output
from benchmarks.common.models import MODEL
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.write.gguf_file import write_gguf
from grasp_deploy.cli.console import stdout

TYPES = ("f32", "f16", "q8_0", "q4_0")
TEXT = Path(__file__).parents[1] / "README.md"


def answer(path: Path, prompt: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    """What a fresh server of a file answers, greedily, with its own times."""
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.verbosity = str(path), -1
    wanted.n_parallel, wanted.n_ctx = 1, len(prompt) + options.new_tokens + 1
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = options.threads
    # Attention in float32, as transformers has it here; flash attention rounds to float16.
    wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(wanted)
    asked = {"prompt": list(prompt), "n_predict": options.new_tokens, "temperature": 0}
    body = json.dumps({**asked, "n_probs": 5, "ignore_eos": True}).encode()
    with urlopen(Request(f"{server.listening_address}/completion", body)) as response:
        found: dict[str, Any] = json.load(response)
    return found


@torch.no_grad()
def worst_difference(folder: Path, prompt: Sequence[int], said: Sequence[dict[str, Any]]) -> float:
    """Between log-probabilities of llama.cpp and transformers, as far as whole characters go."""
    whole = [each["top_logprobs"] for each in said]
    ids = torch.tensor([[*prompt, *(each["id"] for each in said)]])
    rows = load(folder, device="cpu", dtype="float32")(input_ids=ids).logits[0].log_softmax(-1)
    places = range(len(prompt) - 1, ids.shape[1] - 1)
    return max(
        abs(each["logprob"] - float(rows[place, each["id"]]))
        for place, likeliest in zip(places, whole, strict=True)
        for each in likeliest
    )


def measured(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row for each model and type; every turn goes once through all of them."""
    rows: list[dict[str, Any]] = []
    for model in options.model:
        ids = load_tokenizer(model)(TEXT.read_text(encoding="utf-8"))["input_ids"]
        prompt = ids[: options.prompt_tokens]
        for kind in TYPES:
            path = folder / f"{len(rows)}.gguf"
            write_gguf(model, path, kind)
            said = answer(path, prompt, options)["completion_probabilities"]
            row = {"model": model.name, "type": kind, "file_bytes": path.stat().st_size}
            row["worst_logprob_difference"] = worst_difference(model, prompt, said)
            rows.append({**row, "path": path, "prompt": prompt, "timings": []})
    for _ in range(options.repetitions):
        for row in rows:
            timings = answer(row["path"], row["prompt"], options)["timings"]
            names = ("prompt_per_second", "predicted_per_second")
            row["timings"].append({name: timings[name] for name in names})
    return [{k: v for k, v in row.items() if k not in ("path", "prompt")} for row in rows]


def speed_table(record: dict[str, Any]) -> Table:
    table = Table("model", "type", title="llama.cpp")
    for name in ("MiB", "prompt tokens/s", "new tokens/s", "worst, nats"):
        table.add_column(name, justify="right")
    for row in record["rows"]:
        prompt, new = (
            median(each[name] for each in row["timings"])
            for name in ("prompt_per_second", "predicted_per_second")
        )
        size, worst = row["file_bytes"] / 2**20, row["worst_logprob_difference"]
        figures = (f"{size:,.0f}", f"{prompt:,.0f}", f"{new:.1f}", f"{worst:.4f}")
        table.add_row(row["model"], row["type"], *figures)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("--model", type=Path, action="append", help="a folder; again for more")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = output.parsed(parser, arguments, "llama-cpp", "the embedded model")
    options.model = options.model or [MODEL]
    if options.smoke:
        options.model, options.repetitions, options.new_tokens = [MODEL], 1, 16
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    with TemporaryDirectory() as folder:
        rows = measured(options, Path(folder))
    record = output.new_record("llama-cpp", arguments, settings, rows=rows)
    stdout.print(speed_table(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
