"""A checked compression: everything that can be refused is refused before weights load."""

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.checkpoint.card.model_card import intact_plan, lasting_files
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.limits import check_positions, refuse_experts
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_layers, load_plan, pruned_shape
from grasp_deploy.checkpoint.read.loading import (
    check_tokens,
    load_tokenizer,
    resolve_device,
    wanted_dtype,
)
from grasp_deploy.checkpoint.read.source import ModelSource, file_hashes, resolve_model
from grasp_deploy.checkpoint.read.validate import StoredModel, read_stored_model
from grasp_deploy.checkpoint.write.export import check_hashes, fitted_beside, fitted_tensor
from grasp_deploy.checkpoint.write.sidecar_files import carried_over, tokenizer_config
from grasp_deploy.compression.budget_options import KV_STAYS, budget_for, shape_within
from grasp_deploy.compression.own_function import METHOD_CALL, source_hash
from grasp_deploy.compression.ranks import by_lead, is_joined, refuse_differences, world
from grasp_deploy.compression.resume import LARGER, Workspace
from grasp_deploy.compression.run_options import FROM_DENSE, Start
from grasp_deploy.compression.split_text import SplitText, check_recovery, split_text
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.config.compress_options import GATE_SEQUENCES, METHODS
from grasp_deploy.config.option import assigned
from grasp_deploy.data import Blocks, calibration_sources, read_calibration
from grasp_deploy.errors import InputError
from grasp_deploy.files.disk import sha256
from grasp_deploy.files.record import versions
from grasp_deploy.files.tensors import digest_of
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule

logger = logging.getLogger(__name__)  # the command line shows what it says

CONFIG = "config.json"
PRUNED = "pruned checkpoint"  # that a recovery starts from


@dataclass(frozen=True)
class PreparedRun:
    """A compression whose input has been checked and whose model is not loaded yet."""

    config: CompressConfig
    source: ModelSource
    base: StoredModel  # the dense model's files
    device: torch.device
    dtype: torch.dtype  # in which the model is computed
    budget: Budget
    text: Blocks
    weight_hashes: dict[str, str]  # SHA-256 by file name
    text_hash: str  # SHA-256 of the text as read, before the model writes its own
    end_token: int | None = None  # with which its tokenizer ends texts
    start: Start = FROM_DENSE
    method_hash: str | None = None  # of the source of the user's own method

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Fingerprints of the files behind the config's names."""
        hashes = {
            "weights": self.weight_hashes,
            "calibration tokens": self.text_hash,
            "costs": digest_of(self.budget.costs),
        }
        if self.method_hash is not None:
            hashes["code of the method"] = self.method_hash
        if self.start.mask is not None:
            hashes[LARGER] = digest_of(self.start.mask)
        if self.start.checkpoint is not None:
            hashes[PRUNED] = lasting_files(self.start.checkpoint)
        return hashes

    @property
    def computed_in(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def identity(self) -> dict[str, Any]:
        """Inputs and software, which a resumed run must share with the run that it continues."""
        releases = versions()
        software = {name: releases[name] for name in ("grasp_deploy", "torch", "transformers")}
        beside = carried_over(self.source.directory)  # the tokenizer's files among them
        stated = {CONFIG: self.source.directory / CONFIG, **beside}
        return {
            **self.inputs,
            **{name: sha256(path) for name, path in stated.items()},
            "device": self.device.type,
            "dtype": str(self.dtype),
            **software,
        }

    @cached_property
    def pruned_before(self) -> tuple[Plan, dict[str, Path]]:
        """The plan of the checkpoint that the run starts from, and the files of fitted tensors.

        Raises InputError for a folder or a fitted tensor that was changed, and for another dense
        model's.
        """
        assert self.start.checkpoint is not None, "the run starts there"
        plan = intact_plan(self.start.checkpoint)
        check_layers(plan, self.base.shape, self.base.files.values())
        check_hashes(plan, self.weight_hashes)
        ours, theirs = map(load_tokenizer, (self.start.checkpoint, self.source.directory))
        if ours.get_vocab() != theirs.get_vocab():
            raise InputError(
                f"the tokens of {self.source.directory} are not those of {self.start.checkpoint}: "
                "put back the tokenizer that the checkpoint came with"
            )
        fitted = fitted_beside(plan, pruned_shape(plan, self.base.shape))
        for name, path in fitted.items():
            fitted_tensor(plan, name, path, getattr(torch, self.base.shape.dtype_of(name)))
        return plan, fitted

    @cached_property
    def healings(self) -> int:
        """Recoveries of the checkpoint that the run starts from."""
        if self.start.checkpoint is None:
            return 0
        return len(load_plan(self.start.checkpoint / PLAN_FILE).provenance.get("healing", []))

    @cached_property
    def start_cost(self) -> float:
        """The cost of what the run starts from."""
        mask, budget = self.start.mask, self.budget
        return budget.total_cost if mask is None else budget.cost_of(mask)

    @property
    def rounds(self) -> int:
        """Rounds to the budget, from a larger one if the run starts there."""
        removed = (self.start_cost - self.budget.limit) / self.budget.total_cost
        return self.config.rounds_for(removed)

    @property
    def predicted(self) -> ModelShape:
        """The shape to expect of the checkpoint, from a mask in which all units tie."""
        if self.start.checkpoint is not None:
            return read_stored_model(self.start.checkpoint).shape
        return shape_within(self.budget, self.base.shape)

    @cached_property
    def split(self) -> SplitText:
        """The text to learn from and to hold out.

        For a bound on the loss, other documents are held out than those that are learnt from.
        """
        return split_text(self.text, apart=self.config.max_loss is not None)

    @property
    def blocks(self) -> CalibrationBlocks:
        """The sequences to learn from and those that are held out."""
        return self.split.blocks

    def read_in(self, stage: str) -> Tensor:
        """`(n, T)` ids that a round's "criterion" reads, or the last "compensation"."""
        return self.blocks.train[: self.config.sequences_of(stage)]

    @property
    def scale_schedule(self) -> Schedule:
        """The steps of learning scales."""
        config = self.config
        return Schedule(
            blocks=self.blocks,
            epochs=config.scale_epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            seed=config.seed,
        )

    @property
    def gate_schedule(self) -> Schedule:
        """The steps of learning gates, over some of the sequences to learn from."""
        most = max(1, GATE_SEQUENCES // self.config.batch_size)
        return replace(self.scale_schedule, epochs=1, most_steps=most)


def prepare(
    config: CompressConfig, resumed: Path | None = None, start: Start = FROM_DENSE
) -> PreparedRun:
    """Check everything before weights load; InputError for an unusable model, budget or text.

    If the output `resumed` has an unfinished run, the text is the one that it has read, and the
    dtype is its own. One of several runs takes both from `start`.
    """
    device = resolve_device(config.device)
    sources = calibration_sources(
        config.calibration, config.calibration_split, config.calibration_column
    )
    source = resolve_model(config.model, config.revision)
    base = read_stored_model(source.directory)
    check_positions(config.context, base.config, "--context")
    begun = start.dtype or by_lead(lambda: resumed and Workspace.saved_dtype(resumed, config))
    dtype = begun or by_lead(lambda: wanted_dtype(base.shape.dtype, device, config.dtype))
    budget = budget_for(config, base.shape, device)
    method_hash = None if config.cuts_in_rounds else _method_hash(config)
    tokenizer = load_tokenizer(source.directory)
    tokenizer_config(source.directory, {})  # what the output cannot take over is refused now

    def given() -> Blocks:
        if start.text is not None:
            return start.text
        if saved := resumed and Workspace.saved_text(resumed, config):
            return Blocks.unpacked(*saved)
        return read_calibration(tokenizer, sources, config.sequence_length, config.sequences)

    text = by_lead(given)
    check_tokens(text.token_ids, base.config)
    for ids in text.beginnings:
        check_tokens(torch.tensor([ids[: config.sequence_length]]), base.config)  # a row cuts it
    known = [text.token_ids.flatten(), *map(torch.tensor, text.beginnings)]
    run = PreparedRun(
        config,
        source,
        base,
        device,
        dtype,
        budget,
        text,
        file_hashes(source.directory),
        digest_of(torch.cat(known)),
        tokenizer.eos_token_id,
        start if start.mask is None else replace(start, mask=start.mask.to(device)),
        method_hash,
    )
    _check_heldout(run)
    if base.shape.experts_per_token:
        _check_experts(run)
    if start.checkpoint is not None:
        by_lead(lambda: run.pruned_before)
    elif base.shape.windows.are_mixed:
        logger.warning("note: only FFN channels are pruned, since %s", KV_STAYS)
    _check_ranks(run)
    return run


def _check_heldout(run: PreparedRun) -> None:
    """Raise InputError if too little text is held out to judge a bound or a recovery."""
    if run.config.max_loss is not None and int(run.split.judges.sum()) < 2:
        raise InputError(
            "a bound on the loss is measured on two held-out sequences at least, of given text "
            "where there is some: give more text, more --calibration-sequences, or --keep"
        )
    if run.config.recover is not None:
        check_recovery(run.text, run.config.recover)


def _check_experts(run: PreparedRun) -> None:
    """Raise InputError for options that do not know experts; warn that a refit leaves them out."""
    if run.config.recover is not None:
        refuse_experts(run.base.shape, "recovery")
    if is_joined():
        refuse_experts(run.base.shape, "a run of several processes")
    if run.config.compensation:
        logger.warning("experts stay as they are: least squares refits o_proj alone")


def _method_hash(config: CompressConfig) -> str:
    """SHA-256 of the source of the user's own method.

    Raises InputError if it cannot be imported, or under several processes.
    """
    option = assigned(config, "method")
    if is_joined():
        raise InputError(
            f"{option} is called with whole weights, which several processes divide: choose "
            f"{' or '.join(METHODS)}, or start without torchrun"
        )
    return source_hash(option, METHOD_CALL)


def _check_ranks(run: PreparedRun) -> None:
    """Raise InputError if inputs of ranks differ, or a stage has too few sequences for them."""
    if not is_joined():
        return
    refuse_differences({**run.identity, **run.weight_hashes})
    if run.start.checkpoint is not None:  # neither stage runs
        return
    fewest = min(len(run.read_in(stage)) for stage in ("criterion", "compensation"))
    if fewest < world():
        raise InputError(
            f"{world()} processes need a sequence each, and a stage has only {fewest}: give more "
            "--calibration-sequences, or start fewer processes"
        )
