"""Recovery: the pruned model's own weights learn the dense model's predictions on more text.

It runs after the scales and before the checkpoint is written. Of all weights that are no further
from the dense model on any kind of held-out text, those that came nearest are kept.
"""

import gc
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import Plan, pruned_shape
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
from grasp_deploy.compression.recovery_text import saved_text
from grasp_deploy.compression.resume import COLUMNS, Workspace
from grasp_deploy.compression.split_text import Heldout
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.data import Blocks
from grasp_deploy.data.overlap import fingerprint
from grasp_deploy.errors import InputError
from grasp_deploy.files.progress import OnProgress
from grasp_deploy.files.record import versions
from grasp_deploy.files.tensors import digest_of, write_tensors
from grasp_deploy.pruning.distilling import Distiller
from grasp_deploy.pruning.objective import OVERFLOW, LossError
from grasp_deploy.pruning.schedule import checks_of
from grasp_deploy.pruning.training import freeze, recompute

STAGE, WEIGHTS = stages.RECOVERY, "recovered"  # files of the state, and of the result
TOKENS_A_STEP = 1024
RATE = 1.5e-3  # of a weight's size in a step; by 2 % Qwen2.5-Coder-0.5B forgets what it knew
WARMUP_SHARE = 0.05  # of the steps, in which the learning rate rises; then it falls to 0
STATE_BYTES = 12  # for each weight that learns: itself and two moments; the best come on top
logger = logging.getLogger(__name__)

Recovered = tuple[Plan, dict[str, Path]]


def state_room(run: PreparedRun, workspace: Workspace) -> int:
    """Bytes of disk that the state will take beside what is saved; two lie there at times."""
    shape, path = run.predicted, workspace.path(STAGE)
    learnt = sum(shape.layer_parameters)
    state_bytes = 2 * (STATE_BYTES + shape.bytes_per_parameter) * learnt
    return state_bytes - (path.stat().st_size if path.exists() else 0)


def recover(
    run: PreparedRun,
    workspace: Workspace,
    plan: Plan,
    fitted: dict[str, Path],
    on_progress: OnProgress,
) -> Recovered:
    """Recover; return the plan and the file of each fitted tensor, unchanged if nothing was won."""
    told = stages.Stages(workspace, run.budget.units, on_progress)
    with explained_failures(run):
        text = saved_text(run, told)
    with explained_failures(run), nullcontext() if is_joined() else joined_alone():
        steps = len(text.token_ids.split(sequences_in_step(run.config)))
        told.report(STAGE, 0, steps)  # two models load, and are measured, before the first step
        gc.collect()  # what is left of models that other stages loaded
        if run.device.type == "cuda":
            torch.cuda.empty_cache()
        recovery = _Recovery(run, workspace, plan, fitted)
        recovery.learn(text.token_ids, on_progress)
        return recovery.result(text, told.records)


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
        teacher = load_divided(run.source.directory, run.device, run.computed_in)
        freeze(teacher)
        student = learner(stated, tensors, run.device, computed)
        if config.gradient_checkpointing:
            recompute(student)
        self.distiller = Distiller(teacher, student, team())
        self.best: dict[str, Tensor] = {}
        # `failure`: why it ended before the last step.
        self.record: dict[str, Any] = {"step": 0, "seconds": 0.0, "metrics": [], "failure": ""}
        if workspace.has(STAGE):
            self._go_on()
        else:
            self._check()

    def learn(self, rows: Tensor, on_progress: OnProgress) -> None:
        """Learn from `(n, T)` rows, once and in order, from where a killed run stopped."""
        batches = rows.split(sequences_in_step(self.run.config))
        record, steps, saved_at, saving = self.record, len(batches), time.monotonic(), 0.0
        record["steps"] = steps
        while record["step"] < steps and not record["failure"]:
            began, step = time.perf_counter(), record["step"]
            warmed = min(1.0, (step + 1) / (WARMUP_SHARE * steps))
            row: dict[str, Any] = {"stage": STAGE, "step": step + 1, "steps": steps}
            try:
                rate = RATE * warmed * (1 - step / steps)
                row["divergence"] = self.distiller.learn(batches[step], rate, step)
                record["step"] += 1
                if step + 1 in checks_of(steps):
                    row["heldout_divergence"] = self._check()
            except LossError as error:
                record["failure"] = f"{error}"
                if record["best_step"]:
                    logger.warning("%s; recovery ends here, with the best weights so far", error)
            record["seconds"] += time.perf_counter() - began
            if "divergence" not in row:
                break  # nothing was learnt; a failed check has learnt its step
            record["metrics"].append(row)
            if stages.must_save(saved_at, saving):  # all save together
                saving = self._save()
                saved_at = time.monotonic()
            on_progress(row)
        self._save()

    def result(self, text: Blocks, before: dict[str, dict[str, Any]]) -> Recovered:
        """The plan that names the best weights, and the file that they were saved in.

        `before` has the records of stages that the recovery took before it learnt.
        """
        run, record, plan = self.run, self.record, self.plan
        took = {STAGE: record["seconds"]}
        took |= {s: before[s]["seconds"] for s in before if s == stages.MORE_TEXT}
        seconds = plan.provenance.get("seconds", {}) | took
        plan = replace(plan, provenance={**plan.provenance, "seconds": seconds})
        if not record["best_step"]:
            first, last = (Heldout(**record[name]) for name in ("first", "last"))
            why = record["failure"] or (
                "on held-out text the divergence from the dense model went "
                f"from {first.divergence:.4f} to {last.divergence:.4f} nats, and only weights that "
                "are nearer, and further away on no kind of text, are kept: give more tokens or "
                "more text"
            )
            nothing = f"recovery won nothing: {why}"
            if run.start.checkpoint is not None:
                self.workspace.drop()
                raise InputError(f"{nothing}; nothing was written")
            logger.warning("%s; the weights stay as they were", nothing)
            return plan, self.fitted
        is_whole, path = self.distiller.whole, self.workspace.path(WEIGHTS)
        whole = {n: p if n in is_whole else rows_at_lead(p) for n, p in self.best.items()}
        if is_lead():
            write_tensors(path, whole, {})
        with self._replaced(self.best):
            witness = float(self.distiller.measure(run.split.witness).loss.mean())
        losses = {**plan.provenance["losses"], "witness": witness}
        seen = [t for t in (plan.calibrated, fingerprint(text.token_ids)) if t is not None]
        digests = by_lead(lambda: {name: digest_of(whole[name]) for name in sorted(whole)})
        healings = [*plan.provenance.get("healing", []), self._summary(text)]
        more = {"losses": losses, "fitted": digests, "healing": healings}
        return replace(
            plan,
            provenance={**plan.provenance, **more},
            norm_scales=None,  # the norms' weights have them
            calibrated=torch.cat(seen).unique() if seen else None,
            witness=run.split.witness,
        ), dict.fromkeys(digests, path)

    def _summary(self, text: Blocks) -> dict[str, Any]:
        """What the plan says of the recovery; losses and divergences in nats per token."""
        record, config = self.record, self.run.config
        first, best = (Heldout(**record[name]) for name in ("first", "best"))
        learnt = text.token_ids[: record["step"] * sequences_in_step(config)]
        return {
            "config": config.as_dict(),
            "computed_in": self.run.computed_in,
            "inputs": self.run.inputs,
            "versions": versions(),
            "text": text.as_dict(),
            "tokens": learnt.numel(),  # fewer where it ended early
            "heldout_tokens": int(self.run.split.judges.sum()) * (config.sequence_length - 1),
            "loss_dense": first.dense_loss,
            "loss_before": first.loss,
            "loss_after": best.loss,
            "divergence_before": first.divergence,
            "divergence_after": best.divergence,
            **{name: record[name] for name in ("steps", "best_step", "seconds")},
        }

    def _check(self) -> float:
        """Measure on held-out text, keep the weights if they are best; return the divergence."""
        parts, dtype_of = self.distiller.parts, self.run.base.shape.dtype_of
        dtypes = {name: getattr(torch, dtype_of(name)) for name in parts}
        rounded = {n: p.to("cpu", dtypes[n], copy=True) for n, p in parts.items()}
        with self._replaced(rounded):  # as they would be written
            measured = self.distiller.measure(self.run.blocks.heldout)
        judges = self.run.split.judges
        found = Heldout(
            self.run.split.sources,
            measured.divergence.tolist(),
            float(measured.loss[judges].mean()),
            float(measured.dense_loss[judges].mean()),
        )
        if not math.isfinite(found.divergence):
            raise LossError(f"the divergence on held-out text is {found.divergence}: {OVERFLOW}")
        self.record["last"] = asdict(found)
        first = Heldout(**self.record.setdefault("first", asdict(found)))
        best = Heldout(**self.record.get("best", asdict(found)))
        if "best" not in self.record or found.is_better(first, best):
            self.record |= {"best": asdict(found), "best_step": self.record["step"]}
            self.best = rounded
        return found.divergence

    @contextmanager
    def _replaced(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """Within the `with` block, hold other weights in the model; its own wait on the CPU."""
        parts = self.distiller.parts
        exact = {name: part.to("cpu", copy=True) for name, part in parts.items()}
        for name, part in parts.items():
            part.copy_(weights[name])
        yield
        for name, part in parts.items():
            part.copy_(exact[name])

    def _save(self) -> float:
        """Save all state, and return the seconds that it took."""
        began = time.monotonic()
        state = self.distiller.state() | {("best", n): w for n, w in self.best.items()}
        self.workspace.save(STAGE, {self._key(*k): t for k, t in state.items()}, self.record)
        return time.monotonic() - began

    def _go_on(self) -> None:
        """Restore the state that was saved."""
        tensors, self.record = self.workspace.load(STAGE)
        # The file of views takes room until they go, though it has been replaced.
        self.best = {n: tensors[self._key("best", n)].clone() for n in self.distiller.parts}
        state = {key: tensors[self._key(*key)] for key in self.distiller.state()}
        self.distiller.restore(state, self.record["step"])

    def _key(self, kind: str, name: str) -> str:
        """A tensor's name in the stage's file; by COLUMNS in it, `Workspace` gathers its rows."""
        if name in self.distiller.whole:
            return f"{kind} {name.replace(COLUMNS, '')}"
        return f"{kind}{COLUMNS} {name}"
