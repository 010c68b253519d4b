"""One model compressed in several ways, each measured on text that none was calibrated on."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from variant_healing import BRIEF, healed
from variant_tasks import accuracies, average_of

from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.checkpoint.plan import Plan
from grasp_deploy.checkpoint.read.config_file import read_config_at
from grasp_deploy.checkpoint.read.loading import load, load_tokenizer
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.unit_costs import unit_costs
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import TextSource, read_blocks
from grasp_deploy.evaluate.perplexity import perplexity
from grasp_deploy.evaluate.tasks.run import TaskSettings
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.units import UnitTable


@dataclass(frozen=True)
class Variant:
    """One way to compress: options of the config that differ from the study's own."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    healing: dict[str, Any] | None = None  # of HealConfig, for a variant healed after the cut

    def in_brief(self) -> Variant:
        """The same in seconds, as far as the study's settings do not see to that."""
        return self if self.healing is None else replace(self, healing=BRIEF)

    def config(self, settings: dict[str, Any], keep: float, seed: int) -> CompressConfig:
        """Of the study's settings, with what this one differs in."""
        return CompressConfig(**{**settings, "keep": keep, "seed": seed, **self.options})

    def made_with(self, settings: dict[str, Any]) -> dict[str, Any]:
        """All options of a row, less those that its study, budget and seed tell."""
        healing = {} if self.healing is None else {"healing": self.healing}
        return {**options_of(self.config(settings, 1.0, 0)), **healing}


class Bench:
    """Measures compressed models on the same blocks of the same corpora and on the same tasks."""

    def __init__(
        self,
        options: argparse.Namespace,
        corpora: Sequence[TextSource],
        tasks: TaskSettings | None = None,
        on_progress: OnProgress = lambda row: None,
    ) -> None:
        blocks = 2 if options.smoke else options.evaluation_blocks
        length = 64 if options.smoke else options.sequence_length
        tokenizer = load_tokenizer(options.model)
        self.blocks = {
            corpus.label: read_blocks(tokenizer, corpus, length, blocks) for corpus in corpora
        }
        self.directory: Path = options.model
        self.dense = self.perplexities(self.directory)
        self.shape = model_shape(read_config_at(options.model / "config.json"))
        layers = self.shape.layers
        self.dense_layers = [(one.intermediate_size, one.num_key_value_heads) for one in layers]
        self.tasks = tasks
        self.dense_tasks = accuracies(options.model, tasks, on_progress) if tasks else {}

    def perplexities(self, folder: Path) -> dict[str, float]:
        """In float32, by the corpus's name."""
        return self.perplexities_of(load(folder, device=_device(), dtype="float32"))

    def perplexities_of(self, model: PreTrainedModel) -> dict[str, float]:
        """Of a loaded model, by the corpus's name."""
        return {
            name: perplexity(model, b, batch_size=4).perplexity for name, b in self.blocks.items()
        }

    def measure(
        self,
        variant: Variant,
        settings: dict[str, Any],
        keep: float,
        seed: int,
        on_progress: OnProgress,
    ) -> dict[str, Any]:
        """Compress in one way under one budget; what a study records of the result."""
        config = variant.config(settings, keep, seed)
        with tempfile.TemporaryDirectory(prefix="variant-") as folder:
            made = Path(folder) / "pruned"
            plan = compress(config, made, on_progress=on_progress).plan
            seconds, losses = plan.provenance["seconds"], dict(plan.provenance["losses"])
            if variant.healing is not None:
                better = healed(made, config, variant.healing, on_progress)
                made, seconds = better.folder, {**seconds, "healing": better.seconds}
                losses |= {
                    "heldout_before_healing": better.loss_before,
                    "heldout_healed": better.loss_after,
                }
            found = self.perplexities(made)
            tasks = accuracies(made, self.tasks, on_progress) if self.tasks else {}
        return {
            "variant": variant.name,
            "options": variant.made_with(settings),
            **self.row(config, plan, found),
            "heldout_loss": losses,
            "seconds": seconds,
            **({"without_scales": self.mask_alone(plan)} if _only_scaled(config) else {}),
            **({"tasks": tasks, "task_average": average_of(tasks)} if tasks else {}),
        }

    def mask_alone(self, plan: Plan) -> dict[str, Any]:
        """The `losses` of a plan's mask on the uncut model, which gives the cut one's logits."""
        model = load(self.directory, device=_device(), dtype="float32")
        units = UnitTable.of_layers(plan.dense_layers)
        with gated(model, units, self.shape.query_heads_per_group * self.shape.head_dim) as gates:
            gates.assign(plan.mask.float().to(model.device))
            return self.losses(self.perplexities_of(model))

    def losses(self, found: dict[str, float]) -> dict[str, Any]:
        """Perplexities by the corpus's name, and what they are above the dense model's, in nats."""
        excess = {name: math.log(value / self.dense[name]) for name, value in found.items()}
        return {"perplexity": found, "excess_nats": excess}

    def row(self, config: CompressConfig, plan: Plan, found: dict[str, float]) -> dict[str, Any]:
        """What a study records of a plan, and of the perplexities found, by the corpus's name."""
        units = UnitTable.of_layers(plan.dense_layers)
        ffn_share, kv_share = units.kept_shares(plan.mask)
        budget = plan.provenance["budget"]
        return {
            "keep": config.keep,
            "seed": config.seed,
            **self.losses(found),
            "kept_cost_share": budget["kept_cost"] / budget["total_cost"],
            "kept_ffn_share": ffn_share,
            "kept_kv_share": kv_share,
            **allocation(plan, unit_costs(config, self.shape, units), units.is_kv),
            **({} if config.allocation == "global" else NO_SCORES),
            "kept_per_layer": units.kept_per_layer(plan.mask),
        }


def _only_scaled(config: CompressConfig) -> bool:
    """Whether the kept weights are the dense model's, but for scales that were learnt."""
    return config.scale_epochs > 0 and not config.compensation


# Equal shares and OWL's turn scores into ranks, whose mean says nothing of the method.
NO_SCORES = dict.fromkeys(("mean_kept_ffn_score", "mean_kept_kv_score"))


def options_of(config: CompressConfig) -> dict[str, Any]:
    """All options that a row was made with, less those that its study, budget and seed tell."""
    told = ("model", "keep", "seed", "calibration", "calibration_split")
    return {name: value for name, value in config.as_dict().items() if name not in told}


def allocation(plan: Plan, costs: torch.Tensor, is_kv: torch.Tensor) -> dict[str, float | None]:
    """Which kind of unit the kept budget goes to, and the mean score of what is kept of each.

    With the shares by count, what the paper's appendix diagnoses allocations by. Costs and `is_kv`
    are `(N,)` as all of the plan. Scores are the method's own: logits where gates are learnt.
    """
    kept = plan.mask, plan.mask & is_kv, plan.mask & ~is_kv
    every, kv, ffn = (float(costs[units].sum()) for units in kept)
    return {
        "ffn_share_of_kept_cost": ffn / every,
        "kv_share_of_kept_cost": kv / every,
        "mean_kept_ffn_score": _mean(plan.scores[kept[2]]),
        "mean_kept_kv_score": _mean(plan.scores[kept[1]]),
    }


def _mean(scores: torch.Tensor) -> float | None:
    """None where one is infinite: JSON has no such number."""
    mean = float(scores.double().mean())
    return mean if math.isfinite(mean) else None


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
