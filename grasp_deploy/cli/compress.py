"""`compress`: a smaller dense checkpoint from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import print_json, print_line, stderr, stdout
from grasp_deploy.cli.options import HiddenShardSize, Json, Output, Overwrite, Resume
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.sizes import parse_bytes


@takes_config
def compress_command(
    *,
    config: CompressConfig,
    output: Output,
    shard_size: HiddenShardSize = "4GB",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compress MODEL under one global budget into a smaller dense checkpoint."""
    go_on = "give the same command with --resume"
    compressed = run_compress(config, output, shard_size, resume, overwrite, go_on)
    if as_json:
        print_json(compressed)
    else:
        print_compressed(compressed, output)


def run_compress(
    config: CompressConfig, output: Path, shard_size: str, resume: bool, overwrite: bool, go_on: str
) -> dict[str, Any]:
    """Compress with progress bars; return the record that `compress --json` prints.

    `go_on` is the advice to a user who interrupts the run.
    """
    from grasp_deploy.compression.compress import compress
    from grasp_deploy.compression.result import compression_record
    from grasp_deploy.compression.resume import Workspace
    from grasp_deploy.report.progress import stage_bars

    shard_bytes = parse_bytes(shard_size, "--shard-size")
    try:
        with stage_bars(stderr) as on_progress:
            compressed = compress(
                config,
                output,
                shard_bytes=shard_bytes,
                resume=resume,
                overwrite=overwrite,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        if Workspace.begun_with(output, config):
            stderr.print(f"what was learnt is kept; to go on, {go_on}", soft_wrap=True)
        raise
    return compression_record(compressed)


def print_compressed(record: dict[str, Any], output: Path) -> None:
    """Print what was kept, its footprint, and the loss on held-out text."""
    from grasp_deploy.report.tables import footprint_table, layer_table, ratio_table

    budget = {
        "kept_cost": record["kept_cost"],
        "limit": record["budget"],
        "cost_model": record["cost_model"],
    }
    sizes = {"dense": record["dense"], "pruned": record}
    stdout.print(layer_table(record["dense"], record), ratio_table(record["ratios"], budget))
    stdout.print(footprint_table(sizes, "What it takes"))
    if record["heldout_loss_pruned"] is not None:
        print_line(
            f"loss on {record['heldout_tokens']:,} held-out calibration tokens, nats per token: "
            f"{record['heldout_loss_dense']:.3f} dense, {record['heldout_loss_pruned']:.3f} "
            "pruned; other text may lose more: grasp-deploy evaluate perplexity"
        )
    print_line(f"wrote {output}; serve it: grasp-deploy serve {output}")
