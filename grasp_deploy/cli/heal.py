"""The command `heal`: recovery of a checkpoint that is there."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from grasp_deploy.cli.compress import Resume, run_compress, show_dry_run
from grasp_deploy.cli.compressed import print_recovered, text_options
from grasp_deploy.cli.console import print_json
from grasp_deploy.cli.options import Json, OutputUnlessDry, Overwrite, running_option, takes_fields
from grasp_deploy.cli.ranks import joined_ranks
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.errors import InputError

RECOVER_TOKENS = 10**6
OF_TEXTS = ("calibration", "calibration_split", "calibration_column")
FROM_PLAN = ("sequences", "sequence_length", "seed")
RECOVERY_FIELDS = (
    *("recover", *OF_TEXTS),
    *("sequences", "sequence_length", "seed", "device", "dtype", "gradient_checkpointing"),
)


@takes_fields(
    "given",
    RECOVERY_FIELDS,
    defaults=False,
    recover="Tokens of recovery, such as 2M. Default: 1M.",
    calibration="Text to learn from: a file, an hf: data set, c4, or self, what the dense model "
    "writes. Default: that of its calibration.",
    sequences="Number of sequences of text. Default: that of its calibration.",
    sequence_length="Tokens in a sequence of text. Default: that of its calibration.",
    seed="Seed of the order of text. Default: that of its calibration.",
)
def heal_command(
    directory: Annotated[Path, typer.Argument(help="Folder of a pruned checkpoint.")],
    *,
    given: dict[str, Any],
    output: OutputUnlessDry = None,
    model: Annotated[
        str | None, typer.Option(help="Dense model to learn from. Default: the plan's base model.")
    ] = None,
    dry_run: Annotated[
        bool,
        running_option("--dry-run", help="Predict memory and time, before a weight is loaded."),
    ] = False,
    gpu_memory: Annotated[
        str | None,
        running_option(help="Memory of GPUs that --dry-run predicts for, such as 80GiB."),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Recover a pruned checkpoint: its weights learn the dense model's predictions.

    As `compress --recover` does. Text, its number of sequences and the seed are by default those of
    its calibration. Shapes stay, so memory and speed stay too. The weights that come nearest to the
    dense model on held-out text are written; if none come nearer, nothing is.
    """
    from grasp_deploy.checkpoint.card.model_card import intact_plan
    from grasp_deploy.checkpoint.limits import refuse_experts
    from grasp_deploy.checkpoint.read.validate import read_stored_model
    from grasp_deploy.checkpoint.write.export import reach_base
    from grasp_deploy.compression.run_options import Start

    if not directory.is_dir():
        raise InputError(f"there is no folder {directory}: name a checkpoint that compress made")
    if output is None and not dry_run:
        raise InputError("heal writes a checkpoint: give --output, or --dry-run to predict")
    if gpu_memory is not None and not dry_run:
        raise InputError("--gpu-memory predicts, and bounds no recovery: give --dry-run too")
    if output is not None and output.resolve() == directory.resolve():
        raise InputError(f"{output} is what is recovered: name another folder to write")
    plan = intact_plan(directory)
    refuse_experts(read_stored_model(directory).shape, "heal")
    base = reach_base(plan, model, "there is nothing to learn from", weights=not dry_run)
    config = _config_of(directory, plan.provenance["config"], base, given)
    if output is None or dry_run:
        show_dry_run(config, gpu_memory, as_json, plan)
        return
    start = Start(checkpoint=directory)
    with joined_ranks(config, output=output, resume=resume, overwrite=overwrite):
        record = run_compress(config, output, resume, overwrite, start)
    if as_json:
        print_json(record)
    else:
        print_recovered(record)


def _config_of(
    directory: Path, made: dict[str, Any], base: Path, given: dict[str, Any]
) -> CompressConfig:
    """The options of a recovery; what is not given is as it was when the checkpoint was `made`.

    Raises InputError for text on this machine that the plan alone names.
    """
    from grasp_deploy.data import calibration_sources

    inherited = FROM_PLAN if "calibration" in given else (*OF_TEXTS, *FROM_PLAN)
    stored = {name: made[name] for name in inherited if name in made}
    values = {"keep": 1.0, "recover": RECOVER_TOKENS, **stored, **given}
    config = CompressConfig.from_dict({"model": str(base), **values}, "the plan")
    is_local = any(text.is_local for text in calibration_sources(config.calibration))
    if "calibration" not in given and is_local:  # a stranger's plan may name any file
        raise InputError(
            f"repeat {shlex.join(text_options(config))}, or name other text: the plan of "
            f"{directory}, which may be a stranger's, does not make heal read files"
        )
    return config
