"""Time and memory of a step of recovery at a true shape, beside the bound and the prediction.

Random weights and tokens: neither time nor memory depends on them. The bound is the multiplications
of the dense model's forward pass, and of the pruned model's forward and backward pass, at the rate
of one large product on this machine; attention and all that is no product come on top.

    python -m benchmarks.recovery_step --config benchmarks/configs/llama-1b.json --device cuda
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedModel

from benchmarks.common import output
from benchmarks.common.models import MODEL
from benchmarks.pipeline import measured, random_job
from grasp_deploy.checkpoint.format.shapes import ModelShape, read_config
from grasp_deploy.checkpoint.read.loading import STANDARD_DEVIATION
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config
from grasp_deploy.cli.console import stdout
from grasp_deploy.compression.budget_options import shape_within
from grasp_deploy.compression.ranks import begun, divided, joined_alone, team
from grasp_deploy.compression.recovery import sequences_in_step
from grasp_deploy.compression.stage_memory import PROCESS_BYTES, Way
from grasp_deploy.pruning.distilling import Distiller
from grasp_deploy.pruning.training import freeze, recompute
from grasp_deploy.report.tables import figure_table

TURNS = 5  # of a product; the fastest counts


@torch.no_grad()
def random_weights(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """The divided model, with weights drawn in place."""
    for weight in model.parameters():
        team().held(weight.detach()).normal_(0, STANDARD_DEVIATION)
    return begun(model, device)


def products(shape: ModelShape, pruned: ModelShape) -> int:
    """Operations for each token: two a weight in a forward pass, four more where it learns."""
    head, learnt = shape.vocab_size * shape.hidden_size, sum(pruned.layer_parameters)
    return 2 * (sum(shape.layer_parameters) + head) + 6 * learnt + 4 * head


def seconds_of(device: torch.device, make: Callable[[], Any], turns: int) -> list[float]:
    """Seconds of some turns, behind one that does not count."""
    return [measured(device, make)[1] for _ in range(turns + 1)][1:]


def step_record(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of a step."""
    learning = ("dtype", "gradient_checkpointing")
    job = random_job(options, recover=1, **{name: getattr(options, name) for name in learning})
    config, shape, device, dtype = job.config, job.base.shape, job.device, job.dtype
    stated, pruned = read_config(options.config), shape_within(job.budget, shape)
    way = Way(config, shape, pruned, on_gpu=device.type == "cuda")
    ids = job.text.token_ids[: sequences_in_step(config)]
    with joined_alone():
        teacher = random_weights(divided(stated, dtype, device), device)
        freeze(teacher)
        apart = pruned_config(stated, pruned)
        student = divided(apart, torch.float32, device, learns_in=dtype)
        distiller = Distiller(teacher, random_weights(student, device), team())
        if config.gradient_checkpointing:
            recompute(student)

        def step() -> None:
            distiller.learn(ids, 1e-4, 0)

        steps = seconds_of(device, step, options.steps)
        *_, peak = measured(device, step)
        rows = torch.ones(ids.numel(), shape.hidden_size, dtype=dtype, device=device)
        wide = torch.ones(shape.hidden_size, 4 * shape.hidden_size, dtype=dtype, device=device)
        fastest = min(seconds_of(device, lambda: rows @ wide, TURNS))
    rate = 2 * rows.numel() * wide.shape[1] / fastest
    return {
        "tokens": ids.numel(),
        "step_seconds": steps,
        "bound_seconds": products(shape, pruned) * ids.numel() / rate,
        "operations_per_second": rate,
        "peak_memory_bytes": peak,
        "predicted_memory_bytes": sum(way.stages["recovery"].values())
        + (0 if way.on_gpu else PROCESS_BYTES),
    }


def step_table(record: dict[str, Any]) -> Table:
    config = Path(record["settings"]["config"])
    name = config.parent.name if config.name == "config.json" else config.stem
    table = figure_table("", ("a step of recovery", name))
    step = min(record["step_seconds"])
    for name, figure in (
        ("tokens", f"{record['tokens']:,}"),
        ("seconds, the fastest", f"{step:.3f}"),
        ("tokens per second", f"{record['tokens'] / step:,.0f}"),
        ("times the bound", f"{step / record['bound_seconds']:.2f}"),
        ("peak memory, GiB", f"{record['peak_memory_bytes'] / 2**30:.2f}"),
        ("predicted", f"{record['predicted_memory_bytes'] / 2**30:.2f}"),
    ):
        table.add_row(name, figure)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument(
        "--config", type=Path, default=output.CONFIGS / "llama-1b.json", help="a dense config.json"
    )
    parser.add_argument("--keep", type=float, default=0.8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=32, help="of random tokens to draw from")
    parser.add_argument("--steps", type=int, default=5, help="that are timed")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    options = output.parsed(parser, arguments, "recovery-step", "the embedded model's shape")
    if options.smoke:
        options.config, options.device, options.steps = MODEL / "config.json", "cpu", 1
        options.sequence_length = 64
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    record = output.new_record("recovery-step", arguments, settings, **step_record(options))
    stdout.print(step_table(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
