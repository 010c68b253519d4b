"""The text that a recovery reads: that of the calibration, and more of it."""

import math
from dataclasses import replace
from functools import partial

import torch

from grasp_deploy.checkpoint.read.loading import check_tokens, load_tokenizer
from grasp_deploy.compression.frozen_model import load_for
from grasp_deploy.compression.own_text import with_own_text
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import by_lead
from grasp_deploy.compression.resume import START_OVER
from grasp_deploy.compression.split_text import places_of_sources
from grasp_deploy.compression.stages import MORE_TEXT, Stages
from grasp_deploy.data import (
    Blocks,
    TextSource,
    calibration_sources,
    own_places,
    places_of,
    read_calibration,
)
from grasp_deploy.errors import InputError

TEXT = "recovery-sequences"  # its file


def saved_text(run: PreparedRun, stages: Stages) -> Blocks:
    """The text to recover on, read once, for all members of a family.

    A killed run goes on with what was read at its start.
    """
    workspace = run.start.shared or stages.workspace
    if workspace.has(TEXT):
        if stages.workspace.has(MORE_TEXT):
            stages.recall(MORE_TEXT)  # its seconds count
        return Blocks.unpacked(*workspace.load(TEXT))
    text = text_of(run, stages)
    workspace.save(TEXT, *text.packed())
    return text


def text_of(run: PreparedRun, stages: Stages) -> Blocks:
    """As many tokens as recovery asks for, of the run's sources by their weights, shuffled.

    Given text is read from its start, and begins again where it ends. What the model wrote for
    calibration is read first, and the dense model writes more. What is held out is left out.
    Raises InputError for a text whose beginning, which the run has read, is another by now: nobody
    could tell then.
    """
    config, length = run.config, run.text.token_ids.shape[1]
    sources = calibration_sources(
        config.calibration, config.calibration_split, config.calibration_column
    )
    count = max(len(sources), math.ceil((config.recover or 0) / length))
    tokenizer = load_tokenizer(run.source.directory)
    text = by_lead(lambda: read_calibration(tokenizer, sources, length, count, repeats=True))
    _check_unchanged(run.text, text, sources)
    check_tokens(text.token_ids, run.base.config)
    known = run.text.token_ids[own_places(run.text.parts)]
    told = replace(run, text=text)
    load = partial(load_for, run, False)
    text = with_own_text(told, load, stages, stage=MORE_TEXT, known=known).text
    rows, heldout = text.token_ids, run.blocks.heldout
    kept = torch.tensor([not bool((heldout == row).all(dim=1).any()) for row in rows])
    if not kept.any():
        raise InputError("all text to recover on is held out: give more text")  # a repeated text
    of_parts = places_of([part.sequences for part in text.parts])
    parts = tuple(
        replace(part, sequences=int(kept[of_part].sum()))
        for part, of_part in zip(text.parts, of_parts, strict=True)
    )
    order = torch.randperm(int(kept.sum()), generator=torch.Generator().manual_seed(config.seed))
    return replace(text, token_ids=rows[kept][order], parts=parts, beginnings=())


def _check_unchanged(before: Blocks, now: Blocks, sources: list[TextSource]) -> None:
    """Raise InputError if a given text does not begin with what was read of it before."""
    places = zip(sources, places_of_sources(before), places_of_sources(now), strict=True)
    for source, first, again in places:
        count = min(len(first), len(again))
        rows = before.token_ids[first[:count]], now.token_ids[again[:count]]
        if not source.is_own and not torch.equal(*rows):
            raise InputError(
                f"{source.what} has changed since the run read it, and recovery could learn from "
                "what is held out: put the old text back and give the same command again, or "
                f"{START_OVER}"
            )
