"""Calibration text, split into what is learnt from and what is held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from operator import gt

import torch
from torch import Tensor

from grasp_deploy.checkpoint.plan import WITNESS_TOKENS
from grasp_deploy.data import Blocks, places_of
from grasp_deploy.data.mixture import shares
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.schedule import CalibrationBlocks
from grasp_deploy.stats.wording import counted


@dataclass(frozen=True)
class SplitText:
    """Sequences to learn from and to hold out; of several sources a share of each."""

    blocks: CalibrationBlocks
    sources: list[int]  # the place among the sources of what each held-out sequence comes from
    is_own: Tensor  # (h,) bool: held-out sequences that the model wrote

    @property
    def witness(self) -> Tensor:
        """`(n, T)` ids that the plan states a loss on: held-out ones, that the model wrote, if any.

        They stand in the plan as they are, which a user's own text had better not.
        """
        heldout, train = self.blocks.heldout, self.blocks.train
        rows = next(rows for rows in (heldout[self.is_own], heldout, train) if len(rows))
        return rows[: max(1, WITNESS_TOKENS // rows.shape[1]), :WITNESS_TOKENS]

    @property
    def judges(self) -> Tensor:
        """`(h,)` bool: the held-out sequences that losses are stated on, given text where there is.

        Own text flatters: its prompts and templates come again, and nobody serves them.
        """
        return self.is_own if bool(self.is_own.all()) else ~self.is_own


def split_text(text: Blocks, *, apart: bool) -> SplitText:
    """Split text; with `apart` other documents are held out than those that are learnt from.

    Of a mixture backwards, so that a source of few sequences holds out its last one. Criteria and
    refits read the first sequences alone, and should see some of every source.
    """
    token_ids, parts = text.token_ids, text.parts
    if not parts:
        blocks = CalibrationBlocks.split(token_ids, apart=apart)
        count = len(blocks.heldout)
        return SplitText(blocks, [0] * count, torch.zeros(count, dtype=torch.bool))
    source = torch.full((len(token_ids),), -1)
    for index, places in enumerate(places_of([part.sequences for part in parts])):
        ordered = places if apart else places.flip(0)
        source[CalibrationBlocks.split(ordered, apart=apart).heldout] = index
    is_heldout = source >= 0
    sources = source[is_heldout].tolist()
    return SplitText(
        CalibrationBlocks(token_ids[~is_heldout], token_ids[is_heldout]),
        sources,
        torch.tensor([parts[place].is_own for place in sources], dtype=torch.bool),
    )


def check_recovery(text: Blocks, tokens: int) -> None:
    """InputError where calibration text holds out none, or all of so many tokens of its sources."""
    places, length = torch.arange(len(text.token_ids)), text.token_ids.shape[1]
    heldout = split_text(replace(text, token_ids=places), apart=False).blocks.heldout
    if not len(heldout):
        raise InputError(
            "recovery is judged on held-out text: give more --calibration-sequences, so that one "
            "of the texts has two"
        )
    weights = [part.weight for part in text.parts] or [1.0]
    of_parts = places_of([part.sequences for part in text.parts]) if text.parts else [places]
    # How many of each source are held out before one is learnt from.
    before = [int(torch.isin(each, heldout).cumprod(0).sum()) for each in of_parts]
    asked = max(len(weights), ceil(tokens / length))
    fewest = next(n for n in count(asked) if any(map(gt, shares(weights, n), before)))
    if fewest > asked:
        raise InputError(
            f"--recover {tokens} reads {counted(asked, 'sequence')}, held out to judge recovery: "
            f"give --recover {fewest * length} or more"
        )
