"""The stages of a compression on a loaded model, each of which a killed run can go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.plan import open_scales
from grasp_deploy.checkpoint.validate import TensorEntry
from grasp_deploy.job import Job
from grasp_deploy.pruning.allocation import allocate, by_rank, per_cost
from grasp_deploy.pruning.compensation import Fit, OutputLayers, compensate
from grasp_deploy.pruning.criteria import ADDITIVE, criterion_scores
from grasp_deploy.pruning.criteria.outliers import outlier_ratios
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.objective import OVERFLOW, LossError, mean_loss
from grasp_deploy.pruning.progressive import cut_in_rounds
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.scales import learn_scales
from grasp_deploy.pruning.training import LearningState, keep_mask, learn_scores
from grasp_deploy.workspace import Workspace

Watcher = Callable[[dict[str, Any]], None]
Look = Callable[[int, Tensor], None]
PROGRESSIVE_CRITERION = "taylor-element"


@dataclass(frozen=True)
class _Way:
    """A mask, and output columns to go with it."""

    loss: float  # on the held-out blocks, nats per token
    mask: Tensor  # (N,) bool
    fits: list[Fit]  # none: the columns are the dense model's
    columns: dict[str, Tensor]


class Stages:
    """One job's stages, bound to its frozen model and to the workspace that remembers them."""

    def __init__(self, job: Job, model: nn.Module, workspace: Workspace, watch: Watcher) -> None:
        self.job, self.model, self.workspace, self.watch = job, model, workspace, watch
        self.seconds: dict[str, float] = {}  # of each stage that is done
        self._outputs = OutputLayers(
            model, job.budget.units, job.group_width, remember=job.config.compensation
        )

    def scores(self, look: Look = lambda step, scores: None) -> tuple[Tensor, list[Tensor]]:
        """`(N,)` scores, learnt or of a criterion, and the `(N,)` masks that they leave to choose.

        The first mask is the scores' own; another is what learning started from, if that was cut
        already. `look(step, scores)` sees the scores before the first step and after each.
        """
        job = self.job
        start, start_mask = self._start()
        schedule = job.gate_schedule
        state = LearningState(start, schedule.learning_rate)
        seconds = self.workspace.restore("gates", state) or 0.0
        look(state.step, state.values.detach())
        steps = learn_scores(
            self.model,
            job.budget,
            job.group_width,
            job.blocks,
            schedule,
            state,
            temperature=job.config.temperature,
            per_cost=self._ranks_per_cost(),
            noisy=job.config.method == "gumbel-topk",
        )
        for row in self.workspace.follow("gates", steps, state, job.budget.units, seconds):
            self.watch(row)
            look(row["step"], state.values.detach())
            seconds = row["seconds"]
        self.seconds["gates"] = seconds
        scores = state.chosen(schedule.select_best)
        masks = [self.mask(scores)] if job.learns or start_mask is None else []
        if start_mask is not None and not any(torch.equal(start_mask, mask) for mask in masks):
            masks.append(start_mask)
        return scores, masks

    def mask(self, scores: Tensor) -> Tensor:
        """`(N,)` mask that scores keep under the budget."""
        config = self.job.config
        if not self.job.learns:  # a criterion's scores have any size: a sigmoid would saturate
            return project(scores, self.job.budget)
        return keep_mask(scores, self.job.budget, config.temperature, self._ranks_per_cost())

    def compensation(self, masks: list[Tensor]) -> tuple[Tensor, list[Fit]]:
        """The mask that does best on held-out text, its output columns solved for; and the fits.

        Little text has more columns than it can tell apart: where the held-out loss of a mask rises
        by solving, its columns stay the dense model's, and there are no fits. Without held-out
        blocks it is the first mask, solved for.
        """
        size = (self.job.budget.units.size,)
        saved = self.workspace.restore_tensors("compensation", {"mask": size})
        if saved is not None:
            tensors, record = saved
            mask = tensors.pop("mask").to(self.job.device)
            self._outputs.restore()
            self._outputs.put(mask, tensors)
            self.seconds["compensation"] = float(record["seconds"])
            return mask, [Fit(**fit) for fit in record["fits"]]
        began = time.perf_counter()
        if not len(self.job.blocks.heldout):  # nothing to compare by
            masks = masks[:1]
        ways = (way for number in range(len(masks)) for way in self._ways(masks, number))
        best = min(ways, key=lambda way: way.loss)
        self._outputs.restore()
        self._outputs.put(best.mask, best.columns)
        self.seconds["compensation"] = time.perf_counter() - began
        self.workspace.save_tensors(
            "compensation",
            {"mask": best.mask, **best.columns},
            {"fits": [asdict(fit) for fit in best.fits], "seconds": self.seconds["compensation"]},
        )
        return best.mask, best.fits

    def scales(self, mask: Tensor) -> Tensor:
        """`(N,)` scales, 1 at the start and wherever a unit is removed."""
        job, schedule = self.job, self.job.scale_schedule
        state = LearningState(open_scales(mask).to(job.device), schedule.learning_rate)
        seconds = self.workspace.restore("scales", state) or 0.0
        units = job.budget.units
        steps = learn_scales(self.model, units, job.group_width, mask, job.blocks, schedule, state)
        for row in self.workspace.follow("scales", steps, state, units, seconds):
            self.watch(row)
            seconds = row["seconds"]
        self.seconds["scales"] = seconds
        return state.chosen(schedule.select_best)

    def heldout_loss(self, gates: Tensor | None = None) -> float | None:
        """Loss on the held-out blocks, nats per token, under `(N,)` gates; None without any.

        Without gates it is the dense model's. Raises LossError if that is no number.
        """
        job = self.job
        if not len(job.blocks.heldout):
            return None
        with self._gated(gates):
            loss = mean_loss(self.model, job.blocks.heldout, job.config.batch_size)
        if gates is None and not math.isfinite(loss):
            raise LossError(f"the dense model's loss on held-out blocks is {loss}: {OVERFLOW}")
        return loss

    def fitted(self, mask: Tensor, scales: Tensor) -> dict[str, TensorEntry]:
        """The compensated tensors as the checkpoint will hold them, scales folded in, on disk."""
        widths = torch.where(self.job.budget.units.is_kv, self.job.group_width, 1)
        of_column = scales.repeat_interleave(widths.to(scales.device)).split(
            [linear.in_features for linear in self._outputs.linears.values()]
        )
        columns = self._outputs.columns(mask)
        tensors = {
            name: kept.float() * column_scales[columns[name]]
            for (name, kept), column_scales in zip(
                self._outputs.kept(mask).items(), of_column, strict=True
            )
        }
        path = self.workspace.save_tensors("fitted", tensors, {})
        return {
            name: TensorEntry(path, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()
        }

    def _ways(self, masks: list[Tensor], number: int) -> Iterator[_Way]:
        """A mask with its columns solved for; then as they are, for which a tie is not enough."""
        mask, layers = masks[number], len(self._outputs.linears)
        blocks = self.job.blocks.train[: self.job.config.compensation_sequences]
        fits = []
        for fit in self._compensate(mask, blocks):
            fits.append(fit)
            step = number * layers + len(fits)
            self.watch({"stage": "compensation", "step": step, "steps": len(masks) * layers})
        yield self._way(mask, fits)
        if len(self.job.blocks.heldout):
            self._outputs.restore()
            yield self._way(mask, [])

    def _way(self, mask: Tensor, fits: list[Fit]) -> _Way:
        """The mask on the model as it is; a loss that is no number, or unknown, is infinite."""
        loss = self.heldout_loss(mask.float())
        loss = math.inf if loss is None or math.isnan(loss) else loss
        return _Way(loss, mask, fits, self._outputs.kept(mask))

    def _compensate(self, mask: Tensor, blocks: Tensor) -> Iterator[Fit]:
        """Solve the columns of a mask, from the dense model's weights."""
        self._outputs.restore()
        job = self.job
        return compensate(
            self.model,
            job.budget.units,
            job.group_width,
            mask,
            blocks,
            batch_size=job.config.batch_size,
            ridge=job.config.ridge,
        )

    def _start(self) -> tuple[Tensor, Tensor | None]:
        """`(N,)` scores to begin with; the mask, if they come of a cut, which the model is fit to.

        Saved as soon as they are there, since a cut in rounds takes minutes.
        """
        job = self.job
        if job.criterion is None:
            return torch.zeros(job.budget.units.size, device=job.device), None
        size = (job.budget.units.size,)
        saved = self.workspace.restore_tensors("start", {"mask": size, "scores": size})
        if saved is None:
            saved = self._made_start(job.criterion)
            self.workspace.save_tensors("start", *saved)
        tensors, record = saved
        self.seconds["start"] = float(record["seconds"])
        scores, mask = (tensors.pop(name).to(job.device) for name in ("scores", "mask"))
        if tensors:
            self._outputs.put(mask, tensors)
        scores = by_rank(scores, job.budget) if job.learns else scores
        return scores, mask if job.criterion == "progressive" else None

    def _made_start(self, criterion: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Scores and mask of a criterion, with the columns of a cut in rounds, and the seconds."""
        began = time.perf_counter()
        columns: dict[str, Tensor] = {}
        if criterion == "progressive":
            scores, mask = self._cut_in_rounds()
            if self.job.config.compensation:
                columns = self._outputs.kept(mask)
        else:
            scores = self._shared_out(self._criterion_scores(criterion, "criterion"))
            mask = project(scores, self.job.budget)
        seconds = time.perf_counter() - began
        return {"scores": scores, "mask": mask, **columns}, {"seconds": seconds}

    def _cut_in_rounds(self) -> tuple[Tensor, Tensor]:
        """`(N,)` scores and mask of the last round; what each round comes to is saved."""
        job, config = self.job, self.job.config
        blocks = job.blocks.train[: config.criterion_sequences]
        per_round = len(blocks) + len(self._outputs.linears)
        done, scores, mask = self._rounds_done()

        def say(step: int) -> None:
            steps = config.rounds * per_round
            row = {"stage": "rounds", "step": done * per_round + step, "steps": steps}
            self.watch(row)

        def score(mask: Tensor) -> Tensor:
            with self._gated(mask.float()):
                return self._criterion_scores(PROGRESSIVE_CRITERION, "rounds", say)

        def repair(mask: Tensor) -> None:
            if config.compensation:
                for number, _ in enumerate(self._compensate(mask, blocks), start=1):
                    say(len(blocks) + number)

        cuts = cut_in_rounds(job.budget, config.rounds, score, repair, done=done, mask=mask)
        for scores, mask in cuts:
            done += 1
            say(0)
            columns = self._outputs.kept(mask) if config.compensation else {}
            tensors = {"scores": scores, "mask": mask, **columns}
            self.workspace.save_tensors("rounds", tensors, {"round": done})
        assert scores is not None and mask is not None, "there is at least one round"
        return scores, mask

    def _rounds_done(self) -> tuple[int, Tensor | None, Tensor | None]:
        """How many rounds a killed run had done, with scores and mask of the last, put in place."""
        size = (self.job.budget.units.size,)
        saved = self.workspace.restore_tensors("rounds", {"mask": size, "scores": size})
        if saved is None:
            return 0, None, None
        tensors, record = saved
        scores, mask = (tensors.pop(name).to(self.job.device) for name in ("scores", "mask"))
        if tensors:
            self._outputs.put(mask, tensors)
        return int(record["round"]), scores, mask

    def _criterion_scores(
        self, name: str, stage: str, say: Callable[[int], None] | None = None
    ) -> Tensor:
        """`(N,)` scores of a criterion on the model as it is, per cost where those compare."""
        job, config = self.job, self.job.config
        blocks = job.blocks.train[: config.criterion_sequences]

        def on_batch(done: int, total: int) -> None:
            if say is not None:
                say(done)
            else:
                self.watch({"stage": stage, "step": done, "steps": total})

        scores = criterion_scores(
            name,
            self.model,
            job.budget.units,
            job.group_width,
            blocks,
            batch_size=config.batch_size,
            seed=config.seed,
            on_batch=on_batch,
        )
        if name in ADDITIVE and (job.learns or self._ranks_per_cost()):
            scores = per_cost(scores, job.budget.costs)
        return scores

    def _shared_out(self, scores: Tensor) -> Tensor:
        """`(N,)` scores whose projection shares the budget out as the allocation asks."""
        job, config = self.job, self.job.config
        if config.allocation != "owl":
            return allocate(config.allocation, scores, job.budget)
        blocks = job.blocks.train[: config.criterion_sequences]
        ratios = outlier_ratios(self.model, blocks, config.batch_size)
        return allocate("owl", scores, job.budget, ratios)

    @contextmanager
    def _gated(self, gates: Tensor | None) -> Iterator[None]:
        """The model under `(N,)` gates; None: all open."""
        with gated(self.model, self.job.budget.units, self.job.group_width) as installed:
            if gates is not None:
                installed.assign(gates)
            yield

    def _ranks_per_cost(self) -> bool:
        config = self.job.config
        if config.ranking == "auto":
            return config.method in (*ADDITIVE, "progressive")
        return config.ranking == "score-per-cost"
