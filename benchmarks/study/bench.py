"""One model compressed in several ways, each measured on text that none was calibrated on."""

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from transformers import PreTrainedModel

from benchmarks.baselines.moments import add_bias
from benchmarks.common.models import NO_OWN
from benchmarks.common.output import check_positive
from benchmarks.study.record import Layer, Row
from benchmarks.study.tasks import accuracies
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.compression.budget_options import unit_costs
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.config.compress_config import OWN, CompressConfig
from grasp_deploy.data import TextSource, calibration_sources, read_blocks
from grasp_deploy.errors import InputError
from grasp_deploy.evaluate.perplexity import measure, perplexity
from grasp_deploy.evaluate.settings import TaskSettings
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.criteria.batches import CalibrationText
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.units import UnitTable
from grasp_deploy.stats.clustered import paired_error

BRIEF_RECOVERY = 4096  # tokens


@dataclass(frozen=True)
class Variant:
    """One way to compress: options of CompressConfig that differ from the study's own."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    # Share of own text, in place of the study's.
    own: Literal["none", "half", "all"] = "none"
    bias: bool = False  # what removed columns add on average stands in for them, as in FLAP

    def in_brief(self) -> Self:
        """The variant in seconds, as far as the study's settings do not shorten it."""
        options = {**self.options}
        if "recover" in options:
            options["recover"] = BRIEF_RECOVERY
        return replace(self, options=options)

    def config(self, settings: dict[str, Any], keep: float, seed: int) -> CompressConfig:
        """The config of the study's settings with this variant's options."""
        settings = {**settings}
        if self.own == "half":
            texts = [text for text in settings["calibration"] if text != NO_OWN]
            settings["calibration"] = [*texts, OWN]
        elif self.own == "all":
            settings |= {"calibration": [OWN], "calibration_split": None}
        return CompressConfig(**{**settings, "keep": keep, "seed": seed, **self.options})

    def recorded_options(self, settings: dict[str, Any]) -> dict[str, Any]:
        """All options of a row, except those that its study, budget and seed name."""
        own: dict[str, Any] = {} if self.own == "none" else {"own": self.own}
        if self.bias:
            own |= {"bias": True}
        return {**recorded_options(self.config(settings, 1.0, 0)), **own}


class Bench:
    """Measures compressed models on the same sequences of the same corpora and on tasks."""

    def __init__(
        self,
        options: argparse.Namespace,
        corpora: Sequence[TextSource],
        tasks: TaskSettings | None = None,
    ) -> None:
        if options.smoke:
            options.evaluation_blocks, options.sequence_length = 2, 64
        check_positive(options, "evaluation_blocks")
        count, length = options.evaluation_blocks, options.sequence_length
        if length < 2:
            raise InputError(f"--sequence-length {length} leaves no token to predict: give more")
        tokenizer = load_tokenizer(options.model)
        self.sequences = {
            corpus.label: read_blocks(tokenizer, corpus, length, count) for corpus in corpora
        }
        self.directory: Path = options.model
        self.dense = self.perplexities(loaded(self.directory))
        self.shape = model_shape(read_config(options.model / "config.json"))
        self.dense_layers: list[Layer] = [
            (layer.ffn_units, layer.num_key_value_heads) for layer in self.shape.layers
        ]
        self.tasks = tasks

    def perplexities(self, model: PreTrainedModel) -> dict[str, float]:
        """Perplexity of a model by corpus."""
        return {
            name: perplexity(model, sequences, batch_size=4).perplexity
            for name, sequences in self.sequences.items()
        }

    def measure(
        self,
        variant: Variant,
        settings: dict[str, Any],
        keep: float,
        seed: int,
        on_progress: OnProgress,
    ) -> Row:
        """Compress in one way under one budget, and measure the result."""
        config = variant.config(settings, keep, seed)
        with tempfile.TemporaryDirectory(prefix="variant-") as folder:
            made = Path(folder) / "pruned"
            plan = compress(config, RunOptions(made, on_progress=on_progress)).plan
            row = self.row(variant.name, config, plan)
            row.options = variant.recorded_options(settings)
            row.seconds = dict(plan.provenance["seconds"])
            heldout_loss = dict(plan.provenance["losses"])
            for won in plan.provenance.get("healing", []):
                heldout_loss["recovered"] = won["loss_after"]
            row.heldout_loss = heldout_loss
            if variant.bias:  # a checkpoint has no place for it, so there are no accuracies
                self.set_biased_losses(row, plan, config)
                return row
            self.set_losses(row, loaded(made))
            if self.tasks:
                row.tasks, row.task_average = accuracies(made, self.tasks, on_progress)
        return row

    def set_biased_losses(self, row: Row, plan: Plan, config: CompressConfig) -> None:
        """Note the losses of a plan's mask on the uncut model, which gives the cut model's logits.

        The text of the config decides the biases that stand in for removed columns.
        """
        model, units = loaded(self.directory), UnitTable.of_layers(plan.dense_layers)
        given = config.calibration, config.calibration_split, config.calibration_column
        count, length = config.sequences_of("criterion"), config.sequence_length
        tokenizer, text = load_tokenizer(self.directory), calibration_sources(*given)[0]
        blocks = read_blocks(tokenizer, text, length, count)
        add_bias(model, units, plan.mask, CalibrationText(blocks.token_ids, 4))
        with gated(model, units) as gates:
            gates.assign(plan.mask.float().to(model.device))
            self.set_losses(row, model)

    def set_losses(self, row: Row, model: PreTrainedModel) -> None:
        """Note by corpus perplexity, and nats per token above the dense model and from it.

        The error of the excess is paired: both models read the same sequences.
        """
        dense = loaded(self.directory)
        for name, blocks in self.sequences.items():
            first, found = measure([dense, model], blocks, batch_size=4)
            row.dtype = found.dtype
            row.perplexity[name] = found.perplexity
            row.excess_nats[name] = math.log(found.perplexity / self.dense[name])
            row.excess_error[name] = paired_error(first.losses, found.losses)
            row.divergence[name] = statistics.fmean(found.divergences)

    def row(self, variant: str, config: CompressConfig, plan: Plan) -> Row:
        """The row of a plan, without losses and seconds, which are measured elsewhere."""
        assert config.keep is not None, "studies name budgets as shares"
        units = UnitTable.of_layers(plan.dense_layers)
        ffn_share, kv_share = units.kept_shares(plan.mask)
        budget = plan.provenance["budget"]
        one_ranking = ".shares:" not in config.method
        scores = mean_scores(plan, units.is_kv) if one_ranking else (None, None)
        ffn_cost, kv_cost = cost_shares(plan, unit_costs(config, self.shape, units), units.is_kv)
        return Row(
            variant=variant,
            options=recorded_options(config),
            keep=config.keep,
            seed=config.seed,
            perplexity={},
            excess_nats={},
            kept_cost_share=budget["kept_cost"] / budget["total_cost"],
            kept_ffn_share=ffn_share,
            kept_kv_share=kv_share,
            ffn_share_of_kept_cost=ffn_cost,
            kv_share_of_kept_cost=kv_cost,
            mean_kept_ffn_score=scores[0],
            mean_kept_kv_score=scores[1],
            kept_per_layer=units.kept_per_layer(plan.mask),
            seconds={},
        )


def recorded_options(config: CompressConfig) -> dict[str, Any]:
    """All options of a config, except those that a row's study, budget and seed name."""
    elsewhere = {"model", "keep", "seed", "calibration", "calibration_split"}
    return {name: value for name, value in config.as_dict().items() if name not in elsewhere}


def cost_shares(plan: Plan, costs: torch.Tensor, is_kv: torch.Tensor) -> tuple[float, float]:
    """Shares of the kept cost that FFN channels and KV groups take; `(N,)` costs and `is_kv`."""
    kept, kv = float(costs[plan.mask].sum()), float(costs[plan.mask & is_kv].sum())
    return (kept - kv) / kept, kv / kept


def mean_scores(plan: Plan, is_kv: torch.Tensor) -> tuple[float | None, float | None]:
    """Mean scores of the kept FFN channels and KV groups in the method's own unit.

    Comparable only if one ranking spans all layers: shares of layers turn scores into ranks.
    """
    return _mean(plan.scores[plan.mask & ~is_kv]), _mean(plan.scores[plan.mask & is_kv])


def _mean(scores: torch.Tensor) -> float | None:
    """The mean; None if it is infinite, which JSON cannot hold."""
    mean = float(scores.double().mean())
    return mean if math.isfinite(mean) else None


def loaded(folder: Path) -> PreTrainedModel:
    """A model in the dtype that its device prefers, on a GPU if there is one."""
    return load(folder, device="cuda" if torch.cuda.is_available() else "cpu")
