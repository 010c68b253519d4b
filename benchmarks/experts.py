"""Experts under one budget: what each way to choose them loses, on a toy that is trained here.

For each seed a Qwen3 of 8 experts a layer, of which a token takes two, is trained on the first text
and cut to the same cost by each way. The loss is that of the other text. Nothing is refitted.

    python -m benchmarks.experts --train ../shared/data/tinystories/train.txt \
        --heldout ../shared/data/tinystories/heldout.txt --steps 400
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.common import output
from benchmarks.train_demo_model import (
    VOCABULARY,
    Recipe,
    batches,
    heldout_blocks,
    train,
    train_tokenizer,
)
from grasp_deploy.checkpoint.read.loading import load
from grasp_deploy.checkpoint.read.validate import read_stored_model
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.compress import compress
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.demo.text import documents, split
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.report.tables import figure_table

SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 4, "head_dim": 32},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 128},
    **{"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    **{"max_position_embeddings": 512, "tie_word_embeddings": True},
    **{"output_router_logits": True, "router_aux_loss_coef": 0.01},
}
CUT: dict[str, Any] = {
    **{"targets": "ffn", "compensation": False, "scale_epochs": 0},
    **{"sequences": 128, "sequence_length": 128, "device": "cpu"},
}
WAYS = {
    "uniform, REAP's score": "benchmarks.baselines.shares:reap_uniform",
    "uniform, our score": "benchmarks.baselines.shares:obs_layerwise",
    "one ranking, REAP's score": "benchmarks.baselines.reap:reap",
    "one ranking, our score": "benchmarks.baselines.one_shot:obs",
    "one ranking, in rounds": "progressive",
    "one ranking, learnt gates": "grasp",
}


def trained(text: str, steps: int, seed: int, folder: Path) -> Any:
    """Train a toy on the paragraphs of a text and save it; returns its tokenizer."""
    torch.manual_seed(seed)
    parts = [part for part in text.split("\n\n") if part.strip()]
    tokenizer = train_tokenizer(parts)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen3MoeConfig(**SIZES, **ends)
    model = Qwen3MoeForCausalLM(config)
    recipe = Recipe(1e6, 8, 3e-3, 1000, seed=seed)
    train(model, batches(tokenizer(parts)["input_ids"], [0], recipe), steps, recipe)
    model.config.output_router_logits = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """Each way's losses above dense, their mean, and the experts that layers kept."""
    seeds = range(len(rows[0]["nats"]))
    heads = ("way", *(f"seed {s}" for s in seeds), "mean", "experts by layer, seed 0")
    table = figure_table("Held-out nats above dense", heads)
    for row in rows:
        cells = [f"{loss:+.3f}" for loss in [*row["nats"], statistics.fmean(row["nats"])]]
        kept = ", ".join(map(str, row["experts"][0]))
        table.add_row(row["way"], *cells, kept)
    return table


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The share of its experts that each layer keeps, a line for each way, of seed 0."""
    from grasp_deploy.report.figure_style import our_style
    from grasp_deploy.report.figures import kept_drawing

    def layers(counts: Sequence[int]) -> list[dict[str, float]]:
        return [{"num_experts": count} for count in counts]

    dense = layers([SIZES["num_experts"]] * SIZES["num_hidden_layers"])
    kept = {place: (row["way"], layers(row["experts"][0])) for place, row in enumerate(rows)}
    with our_style():
        note = f"each layer has {SIZES['num_experts']}"
        output.write_png(path, kept_drawing("experts", note, dense, kept).figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("--train", type=Path, help="text; default: that of Python, for both")
    parser.add_argument("--heldout", type=Path, help="text that measures")
    parser.add_argument("--steps", type=int, default=400, help="of training, 2,048 tokens each")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--png", type=Path, help="where to draw the experts of layers, of seed 0")
    options = output.parsed(parser, arguments, "experts", "two steps, one seed")
    output.check_positive(options, "steps", "seeds")
    steps, seeds = (2, 1) if options.smoke else (options.steps, options.seeds)
    rows: list[dict[str, Any]] = [
        {"way": way, "keep": options.keep, "nats": [], "experts": []} for way in WAYS
    ]
    dense: list[float] = []
    if (options.train is None) != (options.heldout is None):
        raise InputError("--train and --heldout go together: give both, or none")
    if options.train:
        learnt, heldout = (path.read_text("utf-8") for path in (options.train, options.heldout))
    else:
        learnt, heldout = map("\n\n".join, split(documents()))
    with output.working_folder("experts") as (folder, _):
        (folder / "text.txt").write_text(learnt, "utf-8")
        for seed in range(seeds):
            model = folder / f"model-{seed}"
            tokenizer = trained(learnt, steps, seed, model)
            text = heldout_blocks(tokenizer, [heldout]).token_ids
            dense.append(mean_loss(load(model, device="cpu"), text, 8))
            texts = (str(folder / "text.txt"), "self=0")
            given = CUT | {"calibration": texts, "keep": options.keep, "seed": seed}
            given |= {"sequences": 32, "sequence_length": 32} if options.smoke else {}
            shared = CompressConfig(str(model), **given)
            for number, row in enumerate(rows):
                cut = folder / f"{seed}-{number}"
                compress(replace(shared, method=WAYS[row["way"]]), cut)
                row["nats"].append(mean_loss(load(cut, device="cpu"), text, 8) - dense[-1])
                layers = read_stored_model(cut).shape.layers
                row["experts"].append([layer.num_experts for layer in layers])
            settings = asdict(shared) | {"model": "trained here", "steps": steps}
            record = output.new_record("experts", arguments, settings)
            output.write(options.output, {**record, "dense": dense, "rows": rows})
            stdout.print(f"dense loss {dense[-1]:.3f}", table_of(rows))
    if options.png:
        draw(rows, options.png)


if __name__ == "__main__":
    output.run_command(main)
