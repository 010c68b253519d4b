"""Train a LoRA adapter of a dense model, cut it for pruned ones, and measure all with it. By PEFT.

    python -m benchmarks.adapters smaller --model build/models/smollm2-135m --text code.txt \
        --evaluate code-heldout.txt
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import output
from benchmarks.common.models import MODEL, demo_texts
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.checkpoint.write.adapter import cut_adapter
from grasp_deploy.cli.console import stdout
from grasp_deploy.data import Blocks, evaluation_source, read_blocks
from grasp_deploy.evaluate.perplexity import measure
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.report.tables import figure_table
from grasp_deploy.stats.clustered import standard_error

FIGURES = ("loss", "adapted_loss", "gain", "gain_standard_error")  # nats per token
RATE = 1e-3  # of learning, at the start; it falls to 0 step by step


def train(model: Path, text: Blocks, folder: Path, on_progress: OnProgress) -> None:
    """Write an adapter of rank 8 that has seen each sequence once."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    wanted = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    adapted, steps = get_peft_model(load(model), wanted), len(text.token_ids)
    optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=RATE)
    for step, ids in enumerate(text.token_ids.to(adapted.device)):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        loss = adapted(input_ids=ids[None], labels=ids[None]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_progress({"stage": "train", "step": step + 1, "steps": steps, "loss": loss.item()})
    adapted.save_pretrained(str(folder))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("pruned", nargs="*", type=Path, help="folders of pruned checkpoints")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the dense model")
    parser.add_argument("--text", help="to learn from, 128 x 512; default: the embedded model's")
    parser.add_argument("--evaluate", help="held out, 40 x 512 tokens; default: the same")
    parser.add_argument("--work", type=Path, help="keep the adapters here, or take those there")
    options = output.parsed(parser, arguments, "adapters", "8 sequences of 64 tokens of both")
    from peft import PeftModel

    tokenizer, rows = load_tokenizer(options.model), []
    sizes = [(64, 8)] * 2 if options.smoke else [(512, 128), (512, 40)]
    table = figure_table("Loss on held-out text", ("model", "without", "with", "gain", "error"))
    with output.working_folder("adapters") as (folder, on_progress):
        names = options.text or demo_texts(folder)[0], options.evaluate or demo_texts(folder)[1]
        text, heldout = (
            read_blocks(tokenizer, evaluation_source(str(name)), length, count)
            for name, (length, count) in zip(names, sizes, strict=True)
        )
        work = options.work or folder
        if not (work / "dense").exists():
            train(options.model, text, work / "dense", on_progress)
        for place in (options.model, *options.pruned):
            adapter = work / ("dense" if place == options.model else place.name)
            if not adapter.exists():
                cut_adapter(work / "dense", place, adapter)
            adapted: Any = PeftModel.from_pretrained(load(place), adapter).get_base_model()
            measured = measure([load(place), adapted], heldout, 1, on_progress)
            plain, taught = (each.losses for each in measured)
            gains = [one - other for one, other in zip(plain, taught, strict=True)]
            row = [*map(statistics.fmean, (plain, taught, gains)), standard_error(gains) or 0.0]
            rows.append({"model": place.name, **dict(zip(FIGURES, row, strict=True))})
            table.add_row(place.name, *(f"{figure:.3f}" for figure in row))
    stdout.print(table)
    settings = {"text": text.as_dict(), "evaluate": heldout.as_dict()}
    output.write(options.output, output.new_record("adapters", arguments, settings, rows=rows))


if __name__ == "__main__":
    output.run_command(main)
