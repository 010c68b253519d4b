"""`evaluate perplexity`: loss on text, in figures that compare across models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_deploy.cli.console import print_error, print_json, print_line, stderr
from grasp_deploy.cli.options import MODEL_HELP, Json, Revision
from grasp_deploy.cli.settings_options import takes_settings
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.settings import PerplexitySettings

if TYPE_CHECKING:
    from torch import Tensor


@takes_settings(PerplexitySettings)
def perplexity_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    settings: PerplexitySettings,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Perplexity on running text, sliding windows or single documents."""
    from grasp_deploy.checkpoint.read.source import resolve_model

    directory = resolve_model(model, revision).directory
    record = measure_perplexity(directory, settings)
    if as_json:
        print_json({"model": model, **record})
    else:
        for line in lines(record, settings.data):
            print_line(line)


def measure_perplexity(directory: Path, settings: PerplexitySettings) -> dict[str, Any]:
    """Load a model, measure it with progress bars, and return the record that `--json` prints."""
    from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
    from grasp_deploy.data import evaluation_source, read_blocks, read_token_documents
    from grasp_deploy.evaluate.perplexity import perplexity
    from grasp_deploy.report.progress import stage_bars

    tokenizer, length = load_tokenizer(directory), _sequence_length(directory, settings)
    source = evaluation_source(settings.data, settings.split, settings.column)
    read = read_token_documents if settings.per_document else read_blocks
    text = read(tokenizer, source, length, settings.sequences)
    calibrated_on = _calibrated_share(directory, text.running_texts)
    loaded = load(directory, device=settings.device, dtype=settings.dtype)
    with stage_bars(stderr) as on_progress:
        result = perplexity(
            loaded,
            text,
            settings.batch_size,
            on_progress,
            stride=settings.stride,
            tokenizer=tokenizer,
        )
    return {**result.as_dict(), "calibrated_on_share": calibrated_on}


def lines(record: dict[str, Any], data: str) -> list[str]:
    """A perplexity record in words."""
    interval = record["perplexity_interval"]
    within = f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    text = [
        f"perplexity {record['perplexity']:.3f}{within} on {record['tokens']:,} tokens of {data}"
    ]
    if record["bits_per_byte"] is not None:
        text.append(f"bits per byte {record['bits_per_byte']:.4f} on {record['bytes']:,} bytes")
    if "mean_over_documents" in record:
        mean = record["mean_over_documents"]["perplexity"]
        text.append(f"each document counted once, however long: {mean:.3f}")
    return [*text, f"counted: {record['tokens_counted']}"]


def _sequence_length(directory: Path, settings: PerplexitySettings) -> int:
    from grasp_deploy.checkpoint.format.shapes import read_config

    length, stride = settings.sequence_length, settings.stride
    if length is None:
        length = min(2048, read_config(directory).get("max_position_embeddings") or 2048)
    if stride is not None and stride > length:
        raise InputError(
            f"--stride {stride} would leave out tokens between windows of {length}: use {length} "
            "or less"
        )
    return length


def _calibrated_share(directory: Path, texts: list[Tensor]) -> float | None:
    """The share of texts in the calibration set, with a warning if large; None if unknown."""
    from grasp_deploy.checkpoint.plan import calibrated_beside
    from grasp_deploy.data.overlap import NOTEWORTHY_SHARE, calibrated_share

    calibrated = calibrated_beside(directory)
    if calibrated is None:
        return None
    share = calibrated_share(texts, calibrated)
    if share >= NOTEWORTHY_SHARE:
        part = "all" if share == 1 else f"at least {int(share * 100)} %"
        print_error(
            "warning",
            f"{part} of this text was calibrated on: the perplexity flatters the pruned model; "
            "evaluate on other text",
        )
    return share
