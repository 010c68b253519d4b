"""What vLLM itself says of text with plain and quantised models, and what they take.

The log-probabilities that the engine gives to each token of some blocks, and to the five likeliest
ones at its place, beside those of the first model; bytes on the disk; tokens of its KV cache.

    python -m benchmarks.served smaller smaller-fp8 --data c4
"""

import sys
from collections.abc import Sequence
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from benchmarks.common import output
from benchmarks.common.models import MODEL
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.cli.console import stdout
from grasp_deploy.data import evaluation_source, read_blocks
from grasp_deploy.engine.child import answer_requests, child
from grasp_deploy.engine.flags import FORMAT
from grasp_deploy.engine.offline import cached_tokens
from grasp_deploy.engine.vllm_process import vllm_child_environment
from grasp_deploy.files.sizes import parse_bytes

LIKELIEST = 5


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities of each block's tokens but the first, and of the likeliest beside them."""
    from vllm import LLM, SamplingParams

    llm, asked = LLM(**request["engine"]), SamplingParams(max_tokens=1, prompt_logprobs=LIKELIEST)
    prompts = [{"prompt_token_ids": ids} for ids in request["blocks"]]
    said = [each.prompt_logprobs[1:] for each in llm.generate(prompts, asked, use_tqdm=False)]
    return {
        "cached_tokens": cached_tokens(llm),
        "places": [
            {str(token): found.logprob for token, found in place.items()}
            for block in said
            for place in block
        ],
    }


def figures(model: str, blocks: list[list[int]], engine: dict[str, Any]) -> dict[str, Any]:
    """What a fresh engine says of the blocks, and the model's bytes."""
    own = {**vllm_child_environment(), "PYTHONPATH": str(output.FOLDER.parent)}
    shape = config_and_shape(Path(model))[1]
    with child("benchmarks.served", own, name="vLLM", timeout_seconds=900) as ask:
        found = ask({"engine": engine | {"model": model}, "blocks": blocks})
    return {"model": Path(model).name, "weight_bytes": shape.weight_bytes, **found}


def compared(rows: list[dict[str, Any]], blocks: list[list[int]]) -> list[dict[str, Any]]:
    """The rows with figures in place of the log-probabilities."""
    ids = [str(token) for block in blocks for token in block[1:]]
    made = []
    for row in rows:
        pairs = list(zip(rows[0]["places"], row["places"], strict=True))
        apart = [abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys()]
        first = [max(a, key=a.get) == max(b, key=b.get) for a, b in pairs]
        nats = -fmean(place[token] for place, token in zip(row["places"], ids, strict=True))
        made.append({k: v for k, v in row.items() if k != "places"})
        made[-1] |= {"tokens": len(ids), "loss": nats, "perplexity": exp(nats)}
        made[-1] |= {"mean_difference": fmean(apart), "same_likeliest": fmean(first)}
    return made


def served_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"vLLM's own log-probabilities of {rows[0]['tokens']:,} tokens")
    names = ("MiB", "KV tokens", "perplexity", "apart, nats", "same first, %")
    table.add_column("model", overflow="fold", min_width=max(len(row["model"]) for row in rows))
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            f"{row['weight_bytes'] / 2**20:,.0f}",
            f"{row['cached_tokens']:,}",
            f"{row['perplexity']:.2f}",
            f"{row['mean_difference']:.3f}",
            f"{100 * row['same_likeliest']:.1f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("models", nargs="*", help="folders; the others are compared with the first")
    parser.add_argument("--data", default=__file__, help="text, as evaluate compare takes it")
    parser.add_argument("--sequences", type=int, default=10)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--cache", default="128MiB", help="for the KV cache of each")
    parser.add_argument("--dtype", default="bfloat16", help="of activations")
    options = output.parsed(parser, arguments, "served", "the embedded model, twice")
    if options.smoke or not options.models:
        options.models, options.sequences, options.sequence_length = 2 * [str(MODEL)], 2, 64
    engine = {**FORMAT, "dtype": options.dtype, "skip_tokenizer_init": True, "enforce_eager": True}
    engine |= {"max_num_seqs": 4, "max_model_len": options.sequence_length + 1}
    engine["kv_cache_memory_bytes"] = parse_bytes(options.cache, "--cache")
    tokenizer, text = load_tokenizer(Path(options.models[0])), evaluation_source(options.data)
    read = read_blocks(tokenizer, text, options.sequence_length, options.sequences)
    blocks = read.token_ids.tolist()
    rows = compared([figures(model, blocks, engine) for model in options.models], blocks)
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    stdout.print(served_table(rows))
    output.write(options.output, output.new_record("served", arguments, settings, rows=rows))


if __name__ == "__main__":
    is_child = sys.argv[1:] and sys.argv[1].isdecimal()  # it is given a pipe's number
    answer_requests(answer) if is_child else output.run_command(main)
