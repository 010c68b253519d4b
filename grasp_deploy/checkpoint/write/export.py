"""Export of a plan: find its base model, check that both belong together, write the checkpoint."""

from __future__ import annotations

from pathlib import Path

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_hashes, check_layers
from grasp_deploy.checkpoint.read.source import file_hashes, resolve_model
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.checkpoint import SHARD_BYTES as SHARD_BYTES
from grasp_deploy.checkpoint.write.checkpoint import write_checkpoint
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.outputs import MANIFEST_FILE, manifest_of, refuse_existing
from grasp_deploy.files.progress import OnCount


def export(
    plan: Plan,
    model: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    on_progress: OnCount = lambda done, total: None,
) -> ModelShape:
    """Write the checkpoint that a plan makes of its base model; returns its shape.

    `model` is the base model's folder or hub id, by default at the plan's revision. Fitted tensors
    come from the checkpoint that the plan was loaded from. `on_progress` receives the tensors
    written and the tensors in all. Memory stays near the largest tensor (section 3.5). The output
    appears whole or not at all. Raises InputError if the plan is another model's, weights are
    damaged, or the output exists.
    """
    output = Path(output)
    refuse_existing(output, overwrite=overwrite)
    base = read_stored_model(resolve_base(plan, str(model), revision))
    check_layers(plan, base)
    return write_checkpoint(
        plan,
        base,
        output,
        fitted=_fitted_beside(plan),
        check_base=True,
        shard_bytes=shard_bytes,
        overwrite=overwrite,
        on_progress=on_progress,
    )


def resolve_base(plan: Plan, model: str, revision: str | None = None) -> Path:
    """The folder of a plan's base model; from the hub at the plan's own revision by default."""
    if not Path(model).is_dir():
        revision = revision or plan.provenance["revision"]
    return resolve_model(model, revision).directory


def base_of(plan: Plan, model: str | None, loss: str, remedy: str = "") -> StoredModel:
    """Read the model that a plan was made for, from `model` or by default where the plan says.

    Raises InputError for another model, and if the default is out of reach: `loss` says what
    cannot be done then, and `remedy` what else than --model would help.
    """
    try:
        directory = resolve_base(plan, model or plan.provenance["config"]["model"])
    except InputError as error:
        if model is not None:
            raise
        raise InputError(
            f"the base model that the plan names is out of reach, and without it {loss} ({error}): "
            f"name it with --model{remedy}"
        ) from None
    base = read_stored_model(directory)
    check_layers(plan, base)
    check_hashes(plan, file_hashes(directory))
    return base


def _fitted_beside(plan: Plan) -> dict[str, Path]:
    """The file of each fitted tensor of a loaded plan, in the checkpoint that it belongs to.

    Raises InputError if there are any, and the plan's file lies in no whole checkpoint.
    """
    if not plan.fitted:
        return {}
    folder = (plan.path or Path(PLAN_FILE)).parent
    try:
        stored, stated = read_stored_model(folder).files, manifest_of(folder)
        fitted = {name: stored[name] for name in plan.fitted}
        for path in sorted(set(fitted.values())):
            if sha256(path) != stated.get(path.name):
                raise InputError(f"{path.name} has another SHA-256 than {MANIFEST_FILE} states")
    except (InputError, KeyError) as error:
        raise InputError(
            f"{len(plan.fitted)} tensors of this plan were fitted and lie in its checkpoint alone, "
            f"which {folder} is not ({error}): name the {PLAN_FILE} in the checkpoint's own folder"
        ) from None
    return fitted
