"""Memory of one prefill: weights, KV cache and the rest.

The paper's tables of memory: LLaMA-2-7B in bf16 at keep 1.0, 0.8, 0.6 and 0.5, four prompts of 256
to 2,048 tokens. The pruned shapes are random masks that keep the KV share of the paper's own models
where it states that. The paper's peaks stand beside the measured ones.

    python -m benchmarks.prefill_memory --device cuda
    python -m benchmarks.prefill_memory --device cpu  # which is only predicted
"""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.common import output
from benchmarks.common.models import MODEL, synthesized
from grasp_deploy.bench.memory import MemoryRecord, MemorySettings, bench_memory
from grasp_deploy.bench.memory_show import tables
from grasp_deploy.cli.console import stdout
from grasp_deploy.evaluate.models import bench_models
from grasp_deploy.report.tables import figure_table

LLAMA_2_7B = output.CONFIGS / "llama-2-7b.json"
# Share of KV groups that the paper's models keep: their KV cache at 2,048 tokens over dense.
KV_KEEP: dict[float, float | None] = {0.8: 3348 / 4096, 0.6: 2424 / 4096, 0.5: None}
PAPER_BATCH = 4
# The paper's peak in MiB, by prompt length ("Full prefill-stage memory statistics").
PAPER_PEAK_MIB = {
    "llama-2-7b": {256: 13990.8, 512: 15120.9, 1024: 17375.2, 2048: 21889.8},
    "keep-0.6": {256: 8644.5, 512: 9321.2, 1024: 10686.6, 2048: 13425.8},
}


def paper_table(record: MemoryRecord) -> Table:
    """Predicted and measured peaks beside the paper's, where the paper states one."""
    heads = ("model", "prompt", "predicted", "measured", "paper")
    table = figure_table("Prefill peak, MiB, beside the paper's", heads)
    for cell in record.cells:
        paper = PAPER_PEAK_MIB.get(cell.model, {}).get(cell.prompt_tokens)
        table.add_row(
            cell.model,
            f"{cell.prompt_tokens:,}",
            f"{cell.predicted.peak_bytes / 2**20:,.1f}",
            f"{cell.measured.peak_bytes / 2**20:,.1f}" if cell.measured else "-",
            f"{paper:,.1f}" if paper else "-",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = output.new_parser(__doc__)
    parser.add_argument("--config", type=Path, default=LLAMA_2_7B, help="a dense config.json")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=PAPER_BATCH)
    options = output.parsed(parser, arguments, "memory", "the embedded model, in seconds")
    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ratios = dict(KV_KEEP)
    if options.smoke:
        options.config, lengths, ratios = MODEL, (32,), {0.5: None}
    with output.working_folder("prefill-memory") as (folder, on_progress):
        folders = [synthesized(options.config, folder, keep, ratios[keep]) for keep in ratios]
        models = bench_models([str(options.config), *map(str, folders)], random_weights=True)
        settings = MemorySettings(lengths, options.batch, options.device)
        command = output.command_of("prefill_memory", arguments)
        record = bench_memory(models, settings, command, on_progress)
    stdout.print(*tables(record))
    if options.config == LLAMA_2_7B and options.batch == PAPER_BATCH:
        stdout.print(paper_table(record))
    output.write(options.output, record)


if __name__ == "__main__":
    output.run_command(main)
