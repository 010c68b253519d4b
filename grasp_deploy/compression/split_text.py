"""Calibration text: what is learnt from, what is held out, and what the latter shows of weights."""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import WITNESS_TOKENS
from grasp_deploy.data import Blocks, places_of
from grasp_deploy.errors import InputError
from grasp_deploy.files.memory import memory_bytes
from grasp_deploy.files.sizes import format_bytes
from grasp_deploy.pruning.schedule import CalibrationBlocks
from grasp_deploy.stats.wording import counted, grouped


@dataclass(frozen=True)
class SplitText:
    """Sequences to learn from and to hold out; of several sources a share of each."""

    blocks: CalibrationBlocks
    sources: list[int]  # the number of the source of each held-out sequence
    is_own: Tensor  # (h,) bool: held-out sequences that the model wrote
    learns_own: Tensor  # (t,) bool: the same of those that are learnt from

    @property
    def witness(self) -> Tensor:
        """`(n, T)` ids that the plan states a loss on: the model's own, and if possible held out.

        The plan discloses them, so a user's own text is taken only if there is no other.
        """
        heldout, train = self.blocks.heldout, self.blocks.train
        own = heldout[self.is_own], train[self.learns_own]
        rows = next(rows for rows in (*own, heldout, train) if len(rows))
        return rows[: max(1, WITNESS_TOKENS // rows.shape[1]), :WITNESS_TOKENS]

    @property
    def judges(self) -> Tensor:
        """`(h,)` bool: the held-out sequences that losses are stated on; given text, if any is.

        Own text flatters: its prompts and templates come again, and nobody serves them.
        """
        return self.is_own if bool(self.is_own.all()) else ~self.is_own


def split_text(text: Blocks, *, apart: bool) -> SplitText:
    """Split text; with `apart` other documents are held out than those that are learnt from.

    Each source of a mixture is split from its end, so that one of few sequences holds out its last.
    Criteria and refits read the first sequences alone, and should see some of every source.
    """
    token_ids, parts = text.token_ids, text.parts
    source = torch.full((len(token_ids),), -1)
    is_own = torch.zeros(len(token_ids), dtype=torch.bool)
    for index, places in enumerate(places_of_sources(text)):
        is_own[places] = bool(parts) and parts[index].is_own
        ordered = places.flip(0) if parts and not apart else places
        source[CalibrationBlocks.split(ordered, apart=apart).heldout] = index
    is_heldout = source >= 0
    return SplitText(
        CalibrationBlocks(token_ids[~is_heldout], token_ids[is_heldout]),
        source[is_heldout].tolist(),
        is_own[is_heldout],
        is_own[~is_heldout],
    )


def check_recovery(text: Blocks, tokens: int) -> None:
    """Raise InputError if nothing is held out, or all of `tokens`, or their ids fit no memory.

    Recovery reads each source from its start, where no two sequences in a row are held out.
    """
    if 8 * tokens > (room := memory_bytes()):
        raise InputError(
            f"the token ids of --recover {tokens} take {format_bytes(8 * tokens)}, and this "
            f"machine has {format_bytes(room)} of memory: give fewer"
        )
    places, length = torch.arange(len(text.token_ids)), text.token_ids.shape[1]
    heldout = split_text(replace(text, token_ids=places), apart=False).blocks.heldout
    if not len(heldout):
        raise InputError(
            "recovery is judged on held-out text: give more --calibration-sequences, so that one "
            "of the texts has two"
        )
    firsts = torch.stack([of_source[0] for of_source in places_of_sources(text)])
    if tokens <= len(firsts) * length and torch.isin(firsts, heldout).all():
        reads = counted(len(firsts), "sequence")
        raise InputError(
            f"--recover {tokens} reads {reads}, held out to judge recovery: "
            f"give --recover {(len(firsts) + 1) * length} or more"
        )


@dataclass(frozen=True)
class Heldout:
    """A student on held-out sequences, in nats per token; `kinds` numbers the source of each."""

    kinds: list[int]
    divergences: list[float]  # from the dense model
    loss: float  # on those that losses are stated on
    dense_loss: float

    @property
    def divergence(self) -> float:
        """The mean over kinds of text, each by its own mean."""
        return fmean(self._by_kind().values())

    def is_better(self, first: Self, best: Self) -> bool:
        """True if it is nearer to the dense model than the best, and no kind further than first.

        The text's own loss does not count: it falls where prompts and templates are learnt by
        heart, which the dense model never predicts, and rises where that is unlearnt.
        """
        nearer = first._by_kind()
        return self.divergence < best.divergence and all(
            mean <= nearer[kind] for kind, mean in self._by_kind().items()
        )

    def _by_kind(self) -> dict[int, float]:
        pairs = zip(self.kinds, self.divergences, strict=True)
        alike = grouped(pairs, lambda pair: pair[0])
        return {of_kind[0][0]: fmean(value for _, value in of_kind) for of_kind in alike}


def places_of_sources(text: Blocks) -> list[Tensor]:
    """Positions of each source's sequences, `(n,)` int64 each, in the order of its text."""
    return places_of([part.sequences for part in text.parts] or [len(text.token_ids)])
