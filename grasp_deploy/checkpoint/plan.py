"""The plan: everything that a compression decided, without any weight of the model.

A plan is a safetensors file, whatever its name: tensors on the flat axis of units, with a JSON
record of provenance. `scores` `(N,)` are float32, `mask` `(N,)` bool and `scales` `(N,)` float32.
It may hold `calibrated` `(w,)` int64 too, a fingerprint of the text of calibration and of recovery
(`data.overlap`), and `witness` `(n, T)` int64, the tokens that the checkpoint's loss is stated on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from torch import Tensor

from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.config.option import LARGEST_NUMBER, HubId, describe
from grasp_deploy.config.option import CountOrZero as Count
from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.outputs import PLAN_FILE as PLAN_FILE
from grasp_deploy.files.outputs import manifest_of
from grasp_deploy.files.tensors import read_tensors, write_tensors
from grasp_deploy.pruning.layout import OUTPUT_PROJECTIONS
from grasp_deploy.pruning.units import UnitTable

PLAN_VERSION = 2
WITNESS_TOKENS = 2048  # the most that a plan discloses: enough to tell noise, scored in seconds
RECOVERED = ("model.layers.", "model.norm.")  # tensors that recovery trains: no embeddings or head
TENSORS = ("scores", "mask", "scales", "calibrated", "norm_scales", "witness")
Name = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]  # of a file, a folder or a hub model
Cost = Annotated[float, Meta(ge=0)]  # a kept cost is 0 where only free units are kept


class TextPart(Struct):
    """One source of a mixture."""

    source: Name
    sequences: Count


class Text(TextPart):
    """Text that was learnt from."""

    sequence_length: Count
    parts: list[TextPart] = []
    heldout_sequences: Count = 0


class Versions(Struct):
    grasp_deploy: str


class Healing(Struct):
    """One recovery: its text; held-out loss, and divergence from the dense model, nats a token."""

    text: Text
    tokens: Count
    loss_before: float
    loss_after: float
    divergence_before: float
    divergence_after: float
    config: dict[str, Any] = {}
    inputs: dict[str, Any] = {}
    versions: Versions | UnsetType = UNSET  # unset in older plans


class Budget(Struct):
    """Costs on the flat axis of units, in the unit of the cost model."""

    limit: Cost
    kept_cost: Cost
    total_cost: Annotated[float, Meta(gt=0)]

    def __post_init__(self) -> None:
        if self.kept_cost > self.limit:
            raise ValueError("kept_cost is over the limit")


class Losses(Struct):
    """Held-out loss in nats per token; null where nothing was held out."""

    heldout_dense: float | None
    heldout_pruned: float | None
    witness: float | None = None  # of the finished model; absent in older plans

    def __post_init__(self) -> None:
        if (self.heldout_dense is None) != (self.heldout_pruned is None):
            raise ValueError("one loss is null and the other is not")


class Options(Struct):
    """The options of a compression that an export, a model card and `quantize` read."""

    model: Name
    method: str
    base_model_id: HubId | None = None
    tensor_parallel: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] = 1


class Provenance(Struct, kw_only=True):
    """The origin of a plan. Checked where a plan is loaded, except for keys that are never read."""

    model: Name
    revision: str | None
    weight_hashes: dict[str, str]  # SHA-256 by file name
    # FFN channels or experts, KV groups; no model is as deep as the bound
    dense_layers: Annotated[list[tuple[Count, Count]], Meta(max_length=10_000)]
    cost_model: str
    budget: Budget
    config: Options
    inputs: dict[str, Any] = {}
    calibration: Text
    computed_in: Literal["float32", "bfloat16", "float16"] | None = None  # unknown of older plans
    losses: Losses
    versions: Versions
    seconds: dict[str, float] = {}  # by stage
    fitted: dict[str, str] = {}  # SHA-256 by name
    healing: list[Healing] = []

    def __post_init__(self) -> None:
        """Refuse fitted tensors that no release fits: `verify` cannot prove those."""
        names, outputs = set(self.fitted), [set[str](), set[str]()]
        for layer, sizes in enumerate(self.dense_layers):
            for kind, name, size in zip(outputs, OUTPUT_PROJECTIONS, sizes, strict=True):
                kind.update([f"model.layers.{layer}.{name}.weight"] if size else [])
        learns = all(name.startswith(RECOVERED) for name in names)
        fits = (set[str](), outputs[0] | outputs[1], outputs[1])  # of experts none is fitted
        if not (learns if self.healing else names in fits):
            raise ValueError("fitted names other tensors than those that are fitted or recovered")


@dataclass(frozen=True)
class Plan:
    """Scores, mask and scales on the flat axis, and their provenance."""

    scores: Tensor  # (N,) float32
    mask: Tensor  # (N,) bool
    scales: Tensor  # (N,) float32; 1 where a unit is removed
    provenance: dict[str, Any]  # base model and hashes, cost model, budget, config, versions
    calibrated: Tensor | None = None  # (w,) int64, ascending; None for short text
    norm_scales: Tensor | None = None  # (2L + 1, d) float32, folded into norms; None: all 1
    witness: Tensor | None = None  # (n, T) int64 tokens, held out if possible; None in older plans
    path: Path | None = field(default=None, compare=False)  # the file that it was loaded from

    def save(self, path: Path) -> None:
        """Write the plan in one move; the same plan gives the same bytes."""
        held = {n: tensor for n in TENSORS if (tensor := getattr(self, n)) is not None}
        write_tensors(path, held, {"version": PLAN_VERSION, **self.provenance})

    @property
    def dense_layers(self) -> list[tuple[int, int]]:
        """`(FFN channels, KV groups)` of the dense model's layers."""
        return [tuple(pair) for pair in self.provenance["dense_layers"]]

    @property
    def release(self) -> str:
        """The release that made the checkpoint: that of its last recovery, if it states one."""
        made = [self.provenance, *self.provenance.get("healing", [])]
        stated = [each["versions"] for each in made if "versions" in each]
        return str(stated[-1]["grasp_deploy"])

    @property
    def fitted(self) -> dict[str, str]:
        """SHA-256 by name of fitted tensors, which the checkpoint alone holds, scales folded in."""
        fitted: dict[str, str] = self.provenance.get("fitted", {})
        return fitted

    def with_base_model_id(self, name: str) -> Self:
        """The plan with its base model's id on the hub; InputError for what is no valid id."""
        try:
            config = {**self.provenance["config"], "base_model_id": convert(name, HubId)}
        except ValidationError:
            raise InputError(
                f"--base-model-id {name!r:.80} is not allowed: give {describe(HubId)}"
            ) from None
        return replace(self, provenance={**self.provenance, "config": config})


def load_plan(path: str | Path) -> Plan:
    """Read a plan; InputError if the file is not a plan, damaged, or of another version."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the plan in it, {path / PLAN_FILE}")
    tensors, record = read_tensors(path, f"name the {PLAN_FILE} that compress wrote")
    if "version" not in record or {"scores", "mask", "scales"} - tensors.keys():
        raise InputError(f"{path} is not a plan: name the {PLAN_FILE} that compress wrote")
    version = record.pop("version")
    if version != PLAN_VERSION:
        raise InputError(
            f"{path} is a plan of version {version}, and this release reads {PLAN_VERSION}: use "
            "the release that wrote it, or compress again"
        )
    typed(record, Provenance, path, "fetch it again, or compress again")
    known: dict[str, Any] = {name: tensors.get(name) for name in TENSORS}
    plan = Plan(**known, provenance=record, path=path)
    if not _is_whole(plan):
        raise InputError(f"{path} is damaged: its tensors do not fit its layers; fetch it again")
    return plan


def check_pruned(directory: Path) -> None:
    """Raise InputError if a folder is no pruned checkpoint."""
    if not (directory / PLAN_FILE).is_file() and PLAN_FILE not in manifest_of(directory):
        raise InputError(
            f"{directory} holds no pruned checkpoint: name a folder that compress made"
        )


def sources_of(provenance: Mapping[str, Any]) -> list[str]:
    """The distinct texts that a model was calibrated or recovered on, as they were given."""
    texts = [provenance["calibration"], *(h["text"] for h in provenance.get("healing", []))]
    parts = (part for text in texts for part in text.get("parts") or [text])
    return list(dict.fromkeys(part["source"] for part in parts))


def plan_beside(directory: Path) -> Plan | None:
    """The plan in a model's folder; None without a readable one."""
    try:
        return load_plan(directory / PLAN_FILE)
    except InputError:
        return None


def _is_whole(plan: Plan) -> bool:
    units = UnitTable.of_layers(plan.dense_layers)
    norms = torch.ones(2 * units.layers + 1, 1) if plan.norm_scales is None else plan.norm_scales
    learnt = (plan.scores, plan.scales, norms)
    if any(part.dtype != torch.float32 or not part.isfinite().all() for part in learnt):
        return False
    if any(part.shape != (units.size,) for part in (plan.scores, plan.mask, plan.scales)):
        return False
    if plan.mask.dtype != torch.bool or norms.dim() != 2 or len(norms) != 2 * units.layers + 1:
        return False
    for ids, dimensions in ((plan.calibrated, 1), (plan.witness, 2)):
        if ids is not None and (ids.dtype != torch.int64 or ids.dim() != dimensions):
            return False
    if (ids := plan.witness) is not None and not (
        0 < ids.numel() <= WITNESS_TOKENS and int(ids.min()) >= 0
    ):
        return False
    kept = [number for pair in units.kept_per_layer(plan.mask) for number in pair]
    return all(n > 0 or not dense for n, dense in zip(kept, units.segment_sizes, strict=True))


def check_layers(plan: Plan, shape: ModelShape, files: Iterable[Path] = ()) -> None:
    """Raise InputError, before weights are read, if sizes or file names are not the plan's."""
    layers = [(layer.ffn_units, layer.num_key_value_heads) for layer in shape.layers]
    names = {path.name for path in files}
    same_width = plan.norm_scales is None or plan.norm_scales.shape[1] == shape.hidden_size
    same_files = names <= plan.provenance["weight_hashes"].keys()
    if layers != plan.dense_layers or not same_width or not same_files:
        raise InputError(
            f"the plan was made for {plan.provenance['model']}, whose layers have other sizes, or "
            "weight files other names, than this model's: name the model that it was made for"
        )


def shape_keeping(dense: ModelShape, kept: Iterable[tuple[int, int]]) -> ModelShape:
    """The shape after keeping `(FFN channels or experts, KV groups)` in each layer."""
    layers = tuple(dense.layer_of(groups, ffn_units) for ffn_units, groups in kept)
    return replace(dense, layers=layers, pruned=True)


def pruned_shape(plan: Plan, dense: ModelShape) -> ModelShape:
    """The shape that a plan leaves of its base model's."""
    return shape_keeping(dense, UnitTable.of_layers(plan.dense_layers).kept_per_layer(plan.mask))
