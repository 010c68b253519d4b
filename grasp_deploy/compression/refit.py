"""Refitting: the kept output columns make up for what was removed, and held-out text decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from grasp_deploy.compression.frozen_model import FrozenModel, StageResult
from grasp_deploy.pruning.compensation import Fit


@dataclass(frozen=True)
class Candidate:
    """A mask with output columns to go with it."""

    loss: float  # on the held-out sequences, nats per token
    mask: Tensor  # (N,) bool
    fits: list[Fit]  # empty: the columns are the dense model's
    columns: dict[str, Tensor]


def refit_best(frozen: FrozenModel, masks: list[Tensor]) -> tuple[Tensor, list[Fit]]:
    """The `(N,)` mask with the lowest held-out loss, its columns put into the model; its fits.

    Little text cannot tell many columns apart. Where refitting raises the held-out loss of a mask,
    its columns stay the dense model's, without fits. Without held-out sequences the first mask is
    refitted.
    """
    if not len(frozen.run.blocks.heldout):
        masks = masks[:1]
    if not frozen.run.config.compensation:
        return (masks[0] if len(masks) == 1 else min(masks, key=frozen.mask_loss)), []
    result = frozen.once("compensation", ("mask",), lambda: _best_of(frozen, masks))
    return result.vectors["mask"], [Fit(**fit) for fit in result.record["fits"]]


def _best_of(frozen: FrozenModel, masks: list[Tensor]) -> StageResult:
    best = min(_candidates(frozen, masks), key=lambda candidate: candidate.loss)
    frozen.outputs.reset()
    frozen.outputs.load(best.mask, best.columns)
    fits = {"fits": [asdict(fit) for fit in best.fits]}
    return StageResult({"mask": best.mask}, best.columns, fits)


def _candidates(frozen: FrozenModel, masks: list[Tensor]) -> Iterator[Candidate]:
    """Two for each mask: refitted columns first, then the dense ones, which must win strictly."""
    layers = len(frozen.outputs.linears)
    sequences = frozen.run.blocks.train[: frozen.run.config.compensation_sequences]
    for number, mask in enumerate(masks):
        fits = []
        for fit in frozen.refit(mask, sequences):
            fits.append(fit)
            step = number * layers + len(fits)
            frozen.on_progress(
                {"stage": "compensation", "step": step, "steps": len(masks) * layers}
            )
        yield Candidate(frozen.mask_loss(mask), mask, fits, frozen.outputs.extract(mask))
        if len(frozen.run.blocks.heldout):
            frozen.outputs.reset()
            yield Candidate(frozen.mask_loss(mask), mask, [], frozen.outputs.extract(mask))


def fold_scales(frozen: FrozenModel, mask: Tensor, scales: Tensor) -> dict[str, Path]:
    """The refitted tensors as the checkpoint will hold them, scales folded in, on disk."""
    run, outputs = frozen.run, frozen.outputs
    sizes = run.budget.units.segment_sizes
    parts = zip(scales.cpu().split(sizes), mask.cpu().split(sizes), strict=True)
    kept_scales = [part[kept] for part, kept in parts]
    tensors = {
        name: columns.float() * kept.repeat_interleave(columns.shape[1] // len(kept))
        for (name, columns), kept in zip(outputs.extract(mask).items(), kept_scales, strict=True)
    }
    path = frozen.workspace.save_tensors("fitted", tensors, {})
    return dict.fromkeys(tensors, path)
