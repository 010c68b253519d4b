"""Recovery: the pruned model's own weights learn the dense model's predictions on more text.

Behind the scales and before the checkpoint. What is written did best on held-out text, and no worse
than the start on any kind of it.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import Plan, pruned_shape
from grasp_deploy.checkpoint.read.loading import load_tokenizer
from grasp_deploy.checkpoint.write.export import cut_tensors
from grasp_deploy.checkpoint.write.sidecar_files import pruned_config
from grasp_deploy.compression import stages
from grasp_deploy.compression.frozen_model import explained_failures
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import (
    by_lead,
    is_joined,
    is_lead,
    joined_alone,
    learner,
    load_divided,
    rows_at_lead,
    team,
)
from grasp_deploy.compression.resume import COLUMNS, Workspace
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import (
    Blocks,
    calibration_sources,
    own_places,
    places_of,
    read_calibration,
)
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.tensors import digest_of, write_tensors
from grasp_deploy.pruning.distilling import Distiller
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.schedule import HELDOUT_CHECKS
from grasp_deploy.pruning.training import freeze, recompute

STAGE, WEIGHTS = stages.RECOVERY, "recovered"  # files of what goes on, and of its result
TOKENS_A_STEP = 1024
RATE = 3e-4
WARMUP_SHARE = 0.05  # of the steps, in which the learning rate rises; then it falls to 0
SAVING_PAUSES = 4  # usual pauses for each second that saving takes: a twentieth of the time
logger = logging.getLogger(__name__)

Recovered = tuple[Plan, dict[str, Path]]


def recover(
    run: PreparedRun,
    workspace: Workspace,
    plan: Plan,
    fitted: dict[str, Path],
    on_progress: OnProgress,
) -> Recovered:
    """The plan with recovered weights, and the file of each; as they were where nothing was won."""
    with explained_failures(run), nullcontext() if is_joined() else joined_alone():
        text = _text_of(run)
        recovery = _Recovery(run, workspace, plan, fitted)
        recovery.learn(text.token_ids, on_progress)
        return recovery.result(text)


@dataclass(frozen=True)
class Heldout:
    """A student on held-out sequences, in nats per token; `kinds` numbers the source of each."""

    kinds: list[int]
    divergences: list[float]  # from the dense model
    losses: list[float]
    dense_loss: float  # of all

    @property
    def divergence(self) -> float:
        """The mean over kinds."""
        return fmean(self._by_kind(self.divergences).values())

    @property
    def loss(self) -> float:
        """The mean over sequences."""
        return fmean(self.losses)

    def is_better(self, first: Heldout, best: Heldout) -> bool:
        """True if it is nearer to the dense model than the best, and no kind is worse than first.

        Of the loss only what is beyond noise counts as worse. It counts at all since what refits
        and scales learnt of the text may go first, while the divergence falls.
        """
        nearer = first._by_kind(first.divergences)
        if self.divergence >= best.divergence or any(
            mean > nearer[kind] for kind, mean in self._by_kind(self.divergences).items()
        ):
            return False
        rises = [now - then for now, then in zip(self.losses, first.losses, strict=True)]
        return not any(is_rise(of_kind) for of_kind in self._lists(rises).values())

    def _by_kind(self, values: list[float]) -> dict[int, float]:
        return {kind: fmean(of_kind) for kind, of_kind in self._lists(values).items()}

    def _lists(self, values: list[float]) -> dict[int, list[float]]:
        lists: dict[int, list[float]] = {kind: [] for kind in self.kinds}
        for kind, value in zip(self.kinds, values, strict=True):
            lists[kind].append(value)
        return lists


def is_rise(changes: list[float]) -> bool:
    """True if the mean of changes is above 0 by more than two standard errors; not of one alone."""
    if len(changes) < 2:
        return False
    return fmean(changes) > 2 * stdev(changes) / math.sqrt(len(changes))


def sequences_in_step(config: CompressConfig) -> int:
    """Sequences that a step of learning reads."""
    return max(config.batch_size, TOKENS_A_STEP // config.sequence_length, 1)


class _Recovery:
    """A recovery under way: the model that learns, its best weights, and the record of its checks.

    The record holds the divergence of each kind of held-out text, at the start and at the best.
    """

    def __init__(
        self, run: PreparedRun, workspace: Workspace, plan: Plan, fitted: dict[str, Path]
    ) -> None:
        self.run, self.workspace, self.plan, self.fitted = run, workspace, plan, fitted
        config = run.config
        stated = pruned_config(run.base.config, pruned_shape(plan, run.base.shape))
        tensors = cut_tensors(plan, run.base, fitted, in_float32=True)
        computed = torch.bfloat16 if run.dtype == torch.float16 else run.dtype  # without overflow
        dtype = str(run.dtype).removeprefix("torch.")
        teacher = load_divided(run.source.directory, run.device, dtype, config.attention)
        freeze(teacher)
        student = learner(stated, tensors, run.device, computed, config.attention)
        if config.gradient_checkpointing:
            recompute(student)
        self.distiller = Distiller(teacher, student, team())
        self.kept_in = getattr(torch, run.base.shape.dtype)
        self.best: dict[str, Tensor] = {}
        self.record: dict[str, Any] = {"step": 0, "seconds": 0.0, "metrics": []}
        if workspace.has(STAGE):
            self._go_on()
        else:
            self._check()

    def learn(self, rows: Tensor, on_progress: OnProgress) -> None:
        """Learn from `(n, T)` rows, once and in order, from where a killed run stopped."""
        batches = rows.split(sequences_in_step(self.run.config))
        record, steps, saved_at, saving = self.record, len(batches), time.monotonic(), 0.0
        checks = {steps * n // HELDOUT_CHECKS for n in range(1, HELDOUT_CHECKS + 1)}
        record["steps"] = steps
        while record["step"] < steps:
            began, step = time.perf_counter(), record["step"]
            warmed = min(1.0, (step + 1) / (WARMUP_SHARE * steps))
            row: dict[str, Any] = {"stage": STAGE, "step": step + 1, "steps": steps}
            try:
                rate = RATE * warmed * (1 - step / steps)
                row["distance"] = self.distiller.learn(batches[step], rate, step)
                record["step"] += 1
                if step + 1 in checks:
                    row["heldout_divergence"] = self._check()
            except LossError as error:
                logger.warning("%s; recovery ends here, with the best weights so far", error)
                break
            record["seconds"] += time.perf_counter() - began
            record["metrics"].append(row)
            pause = stages.SAVE_EVERY_SECONDS * max(1.0, SAVING_PAUSES * saving)
            if time.monotonic() - saved_at > pause:
                saving = self._save()
                saved_at = time.monotonic()
            on_progress(row)
        self._save()

    def result(self, text: Blocks) -> Recovered:
        """The plan that names the best weights, and the file that they were saved in."""
        run, record, plan = self.run, self.record, self.plan
        seconds = {**plan.provenance["seconds"], STAGE: record["seconds"]}
        plan = replace(plan, provenance={**plan.provenance, "seconds": seconds})
        if not record["best_step"]:
            first, last = (Heldout(**record[name]) for name in ("first", "last"))
            nothing = (
                "recovery won nothing on held-out text: from the dense model it was "
                f"{first.divergence:.4f} nats and is {last.divergence:.4f}, its loss was "
                f"{first.loss:.4f} and is {last.loss:.4f}, and no kind of text may get worse: give "
                "more tokens or more text"
            )
            if run.start.checkpoint is not None:
                self.workspace.drop()
                raise InputError(f"{nothing}; nothing was written")
            logger.warning("%s; the weights stay as they were", nothing)
            return plan, self.fitted
        is_whole, path = self.distiller.whole, self.workspace.path(WEIGHTS)
        whole = {n: p if n in is_whole else rows_at_lead(p) for n, p in self.best.items()}
        if is_lead():
            write_tensors(path, whole, {})
        for name, part in self.distiller.parts.items():
            part.copy_(self.best[name])
        losses = plan.provenance["losses"]
        losses = {**losses, "witness": float(self.distiller.measure(run.witness).loss.mean())}
        seen = [t for t in (plan.calibrated, fingerprint(text.token_ids)) if t is not None]
        digests = by_lead(lambda: {name: digest_of(whole[name]) for name in sorted(whole)})
        healings = [*plan.provenance.get("healing", []), self._summary(text)]
        more = {"losses": losses, "fitted": digests, "healing": healings}
        return replace(
            plan,
            provenance={**plan.provenance, **more},
            norm_scales=None,  # the norms' weights have them
            calibrated=torch.cat(seen).unique() if seen else None,
            witness=run.witness,
        ), dict.fromkeys(digests, path)

    def _summary(self, text: Blocks) -> dict[str, Any]:
        """What the plan says of the recovery; losses and divergences in nats per token."""
        record, config = self.record, self.run.config
        first, best = (Heldout(**record[name]) for name in ("first", "best"))
        told = ("steps", "best_step", "seconds")
        return {
            "config": config.as_dict(),
            "inputs": self.run.inputs,
            "text": text.as_dict(),
            "tokens": text.token_ids.numel(),
            "heldout_tokens": self.run.blocks.heldout.numel(),
            "loss_dense": first.dense_loss,
            "loss_before": first.loss,
            "loss_after": best.loss,
            "divergence_before": first.divergence,
            "divergence_after": best.divergence,
            **{name: record[name] for name in told},
        }

    def _check(self) -> float:
        """Measure on held-out text, keep the weights if they are the best; the divergence."""
        measured = self.distiller.measure(self.run.blocks.heldout)
        found = Heldout(
            self.run.heldout_sources,
            measured.divergence.tolist(),
            measured.loss.tolist(),
            float(measured.dense_loss.mean()),
        )
        if not math.isfinite(found.divergence):
            raise LossError(f"the divergence on held-out text is {found.divergence}: {OVERFLOW}")
        self.record["last"] = asdict(found)
        first = Heldout(**self.record.setdefault("first", asdict(found)))
        best = Heldout(**self.record.get("best", asdict(found)))
        if "best" not in self.record or found.is_better(first, best):
            self.record |= {"best": asdict(found), "best_step": self.record["step"]}
            self.best = {n: p.to(self.kept_in).cpu() for n, p in self.distiller.parts.items()}
        return found.divergence

    def _save(self) -> float:
        """Save all state; the seconds that it took."""
        began = time.monotonic()
        state = {**self.distiller.state(), "best": self.best}
        tensors = {
            self._key(kind, name): tensor.cpu()
            for kind, of_kind in state.items()
            for name, tensor in of_kind.items()
        }
        self.workspace.save(STAGE, tensors, self.record)
        return time.monotonic() - began

    def _go_on(self) -> None:
        """Return to the state that was saved."""
        tensors, self.record = self.workspace.load(STAGE)
        kinds = [*self.distiller.state(), "best"]
        state = {
            kind: {name: tensors[self._key(kind, name)] for name in self.distiller.parts}
            for kind in kinds
        }
        self.best = state.pop("best")
        self.distiller.restore(state, self.record["step"])

    def _key(self, kind: str, name: str) -> str:
        """A tensor's name in the file of the stage, by which `Workspace` gathers rows."""
        if name in self.distiller.whole:
            return f"{kind} {name.replace(COLUMNS, '')}"
        return f"{kind}{COLUMNS} {name}"


def _text_of(run: PreparedRun) -> Blocks:
    """As many tokens as recovery asks for, of the run's sources by their weights, in any order.

    Given text goes on behind what was calibrated on, and begins again where it ends; so does what
    the model wrote for calibration. What is held out is left out.
    """
    config, length, given = run.config, run.text.token_ids.shape[1], run.text.token_ids
    sources = calibration_sources(
        config.calibration, config.calibration_split, config.calibration_column
    )
    count = max(len(sources), math.ceil((config.recover or 0) / length))
    tokenizer = load_tokenizer(run.source.directory)
    text = by_lead(lambda: read_calibration(tokenizer, sources, length, count, repeats=True))
    rows, places = text.token_ids, own_places(text.parts)
    if len(places):
        own = given[own_places(run.text.parts)]
        rows[places] = own[torch.arange(len(places)) % len(own)]
    heldout = run.blocks.heldout
    kept = torch.tensor([not bool((heldout == row).all(dim=1).any()) for row in rows])
    of_parts = places_of([part.sequences for part in text.parts])
    parts = tuple(
        replace(part, sequences=int(kept[of_part].sum()))
        for part, of_part in zip(text.parts, of_parts, strict=True)
    )
    order = torch.randperm(int(kept.sum()), generator=torch.Generator().manual_seed(config.seed))
    return replace(text, token_ids=rows[kept][order], parts=parts, beginnings=())
