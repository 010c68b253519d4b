"""The typed record of a study of quality, checked once when it is read."""

from pathlib import Path, PurePath
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from grasp_deploy.errors import InputError
from grasp_deploy.files.json_files import typed
from grasp_deploy.files.record import new_record, read_record

ROUNDING = 1e-9  # relative error of shares that add up to 1
REMEDY = "run its command again, or name another"
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1 + ROUNDING)]
Count = Annotated[int, Meta(ge=0)]
Layer = tuple[Count, Count]  # FFN channels, KV groups
ByCorpus = Annotated[dict[str, float], Meta(min_length=1)]
Perplexities = Annotated[dict[str, Positive], Meta(min_length=1)]


class Accuracy(Struct):
    """An accuracy between 0 and 1 and its standard error, if that is known."""

    accuracy: Share
    standard_error: Annotated[float, Meta(ge=0)] | None


class TaskAccuracy(Accuracy, kw_only=True):
    """An accuracy on one task by one of lm-eval's metrics."""

    metric: str


Tasks = Annotated[dict[str, TaskAccuracy], Meta(min_length=1)]


class Row(Struct, kw_only=True, omit_defaults=True):
    """One compression: its variant, budget and seed, what it loses, keeps and costs."""

    variant: str
    keep: Annotated[float, Meta(gt=0, le=1 + ROUNDING)]
    seed: Count
    perplexity: Perplexities
    excess_nats: ByCorpus
    # Older records lack this and the next two.
    excess_error: dict[str, Annotated[float, Meta(ge=0)] | None] = {}  # None of one sequence
    divergence: dict[str, float] = {}  # from the dense model
    dtype: str | UnsetType = UNSET  # in which losses were computed
    kept_cost_share: Share
    kept_ffn_share: Share
    kept_kv_share: Share
    ffn_share_of_kept_cost: Share | UnsetType = UNSET
    kv_share_of_kept_cost: Share | UnsetType = UNSET
    mean_kept_ffn_score: float | UnsetType | None = UNSET
    mean_kept_kv_score: float | UnsetType | None = UNSET
    kept_per_layer: list[Layer]
    seconds: Annotated[dict[str, Annotated[float, Meta(ge=0)]], Meta(min_length=1)]
    options: dict[str, Any]
    heldout_loss: dict[str, float | None] | UnsetType = UNSET
    without_scales: dict[str, Any] | UnsetType = UNSET  # this and `answers`: of older records
    tasks: Tasks | UnsetType = UNSET
    task_average: Accuracy | UnsetType = UNSET
    answers: dict[str, Any] | UnsetType = UNSET

    @property
    def run(self) -> tuple[str, float, int]:
        """The identity of a row within its study: variant, budget, seed."""
        return self.variant, self.keep, self.seed


class Study(Struct, kw_only=True, omit_defaults=True):
    """A record of a study: the dense model's figures, and a row for each compression."""

    schema_version: int
    benchmark: str
    command: str
    created: str
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    study: str
    dense_perplexity: Perplexities
    dense_layers: list[Layer]
    dense_tasks: Tasks | UnsetType = UNSET
    dense_task_average: Accuracy | UnsetType = UNSET
    dense_answers: dict[str, Any] | UnsetType = UNSET
    rows: list[Row] = []

    @property
    def budgets(self) -> list[float]:
        """The shares of the cost that are kept, the largest first."""
        return sorted({row.keep for row in self.rows}, reverse=True)

    @property
    def variants(self) -> list[str]:
        """The ways of compressing, in the order in which they were measured."""
        return list(dict.fromkeys(row.variant for row in self.rows))

    @property
    def model(self) -> str:
        """The last part of its model's path; empty if the settings name no model."""
        return PurePath(str(self.settings.get("model", ""))).name

    def runs(self, variant: str, keep: float) -> list[Row]:
        """The rows of one variant under one budget, one for each seed."""
        return [row for row in self.rows if (row.variant, row.keep) == (variant, keep)]

    def as_record(self) -> dict[str, Any]:
        """The study as JSON holds it."""
        record: dict[str, Any] = to_builtins(self)
        return {**record, "rows": [to_builtins(row) for row in self.rows]}


def new_study(
    title: str,
    command: list[str],
    settings: dict[str, Any],
    dense_perplexity: dict[str, float],
    dense_layers: list[Layer],
) -> Study:
    """A study of a dense model without rows yet."""
    header = new_record("study", command, settings)
    return Study(
        **header, study=title, dense_perplexity=dense_perplexity, dense_layers=dense_layers
    )


def read_study(path: Path) -> Study:
    """Read the record of a study, which may have no row yet; InputError names what is wrong."""
    return _study_of(read_record(path), path)


def study_of(record: dict[str, Any], path: Path) -> Study:
    """The study that a record holds; InputError names the file and what is wrong in it."""
    study = _study_of(record, path)
    if not study.rows:
        raise InputError(f"{path} has no row yet: {REMEDY}")
    return study


def _study_of(record: dict[str, Any], path: Path) -> Study:
    kind = record["benchmark"]
    if kind != "study":
        raise InputError(f"{path} is a record of {kind}, not of a study: name another file")
    study = typed(record, Study, path, REMEDY)
    if problem := _inconsistency(study):
        raise InputError(f"{path} is damaged: {problem}; {REMEDY}")
    return study


def _inconsistency(study: Study) -> str:
    """A contradiction between parts of a study, in words; empty if there is none."""
    runs = [row.run for row in study.rows]
    for index, row in enumerate(study.rows):
        if problem := _row_inconsistency(row, study):
            return f"rows[{index}] {problem}"
        if row.run in runs[:index]:
            return f"rows[{index}] repeats {row.variant} at {row.keep:g} with seed {row.seed}"
    return ""


def _row_inconsistency(row: Row, study: Study) -> str:
    corpora = study.dense_perplexity.keys()
    if row.perplexity.keys() != corpora or row.excess_nats.keys() != corpora:
        return f"has other corpora than {', '.join(corpora)}"
    if len(row.kept_per_layer) != len(study.dense_layers):
        return f"has other layers than the {len(study.dense_layers)} of the dense model"
    layers = zip(row.kept_per_layer, study.dense_layers, strict=True)
    if any(kept[i] > dense[i] for kept, dense in layers for i in range(2)):
        return "keeps more of a layer than it has"
    if (row.tasks is UNSET) != (row.task_average is UNSET):
        return "has only one of tasks and task_average"
    if row.tasks is UNSET:
        return ""
    if study.dense_tasks is UNSET or row.tasks.keys() != study.dense_tasks.keys():
        return "has other tasks than the dense model"
    return ""
