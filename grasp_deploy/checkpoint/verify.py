"""Proof that a checkpoint is the model that was evaluated, link by link.

files      every file has the SHA-256 that the manifest states
shapes     config.json, tensors and plan agree on every layer
weights    every tensor is the plan's cut of the base weights, bit for bit, or of its own SHA-256
gated      the gated dense model and the cut one give the same logits in float32
reloaded   `from_pretrained` gives the cut model's logits and greedy tokens
loss       of a fitted model, on tokens in the plan, is what the plan states; beside the dense one's
companions tokenizer, configs, remote code and index are what the export writes beside these weights
served     vLLM gives the reloaded model's greedy tokens; of a quantised one, the plain one's
quantised  quantising the plain checkpoint again gives this one, bit for bit; or, not proven, a
           rounding that was learnt, within a step of each plain weight

A link is proven, wrong, or not proven: nobody here can vouch for it, without the base model or for
files beside the weights that another release wrote. A checkpoint that is proven is what its own
plan says, given the base model, and no proof of who made it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.limits import Platform, check_vllm_runs
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, check_pruned, load_plan
from grasp_deploy.checkpoint.read.loading import check_tokens, load_checked, with_weights
from grasp_deploy.checkpoint.read.validate import StoredModel, read_folder, read_stored_model
from grasp_deploy.checkpoint.verify_answers import (
    NEW_TOKENS,
    PROMPTS,
    Tokens,
    compare_logits,
    greedy_tokens,
    logits_of,
    prompts_for,
    same_tokens,
)
from grasp_deploy.checkpoint.verify_files import (
    Difference,
    NotProven,
    check_companions,
    check_files,
    check_shapes,
)
from grasp_deploy.checkpoint.write.export import base_of, cut_tensors, layer_and_tail
from grasp_deploy.checkpoint.write.quantize import difference
from grasp_deploy.checkpoint.write.shards import read_tensor, same_bits
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.gates import gated, scaled_norms
from grasp_deploy.pruning.objective import mean_loss
from grasp_deploy.pruning.slicing import layer_cut, spread_tensor
from grasp_deploy.pruning.units import UnitTable

LOSS_TOLERANCE = 0.02  # of the loss, or of 1 if less: the run measured it before rounding
PROVEN, NOT_PROVEN, WRONG = "proven", "not proven", "wrong"

Served = Callable[[Path, Tokens, int], Tokens]
Link = tuple[str, Callable[[], str]]  # name, and a check that returns the detail to print


@dataclass(frozen=True)
class Check:
    """One link of the chain."""

    name: str
    outcome: str  # PROVEN, NOT_PROVEN or WRONG
    detail: str

    @property
    def ok(self) -> bool:
        return self.outcome == PROVEN


def worst(outcomes: Iterable[str]) -> str:
    """The outcome of a whole chain."""
    return max(outcomes, key=(PROVEN, NOT_PROVEN, WRONG).index)


def verify(
    directory: Path,
    model: str | None = None,
    *,
    without_base: bool = False,
    plain: Path | None = None,
    served: Served | None = None,
    platform: Platform | None = None,
    device: torch.device | None = None,
) -> Iterator[Check]:
    """Check a checkpoint, link by link, up to the first that is wrong.

    `model` names the base model, by default the one that the plan names; `without_base` leaves out
    the links that need it, so that the weights are not proven. A quantised checkpoint is proven
    behind the `plain` one that it was made from. `served(directory, prompts,
    new_tokens)` gives the greedy tokens of a server on `platform`; without it that link is left
    out. Raises InputError if `directory` holds no pruned checkpoint, the platform cannot run it, or
    the base model is out of reach or not the one that the plan was made for.
    """
    if without_base and model is not None:
        raise InputError("--model and --without-base exclude each other: leave one of them out")
    check_pruned(directory)
    _check_plain(directory, plain)
    behind, name_served = list[Link](), "served"
    if plain is not None:
        check_pruned(plain)
        _check_plain(plain, None)
        behind = [
            ("files, quantised", partial(check_files, directory)),
            ("quantised", partial(_check_quantised, directory, plain)),
        ]
        directory, name_served = plain, "served, plain"
    intact = yield from _run(
        ("files", lambda: check_files(directory)), ("shapes", lambda: check_shapes(directory))
    )
    if not intact:
        return
    plan, pruned = load_plan(directory / PLAN_FILE), read_stored_model(directory)
    if platform is not None:
        check_vllm_runs(pruned.shape, platform)
    device = device or torch.device("cpu")
    links: list[Link] = []
    base: StoredModel | None = None
    if without_base:
        links.append(("weights", _unproven_weights))
    else:
        remedy = ", or look at the files alone with --without-base"
        base = base_of(plan, model, "little is proven", remedy)
        proof = _Proof(plan, base, pruned, device)
        links += [("weights", proof.weights), ("gated", proof.gated), ("reloaded", proof.reloaded)]
        links += [("loss", proof.loss)] if plan.fitted else []
    links.append(("companions", lambda: check_companions(pruned, plan, base)))
    if served is not None:
        links.append((name_served, lambda: _check_served(pruned, device, served)))
    yield from _run(*links, *behind)


def _run(*links: Link) -> Generator[Check, None, bool]:
    for name, check in links:
        try:
            outcome, detail = PROVEN, check()
        except NotProven as doubt:
            outcome, detail = NOT_PROVEN, str(doubt)
        except (Difference, InputError) as error:
            outcome, detail = WRONG, str(error)
        yield Check(name, outcome, detail)
        if outcome == WRONG:
            return False
    return True


def _unproven_weights() -> str:
    raise NotProven("without the base model nobody vouches for the tensors")


@dataclass(frozen=True)
class _Proof:
    """The links from base to checkpoint; a model is loaded for its link only."""

    plan: Plan
    base: StoredModel
    pruned: StoredModel
    device: torch.device

    @property
    def fitted(self) -> dict[str, Path]:
        """The file of each fitted tensor, which no plan remakes; Difference if one is missing."""
        if missing := self.plan.fitted.keys() - self.pruned.files.keys():
            raise Difference(f"the plan names fitted tensors that are not there: {min(missing)}")
        return {name: self.pruned.files[name] for name in self.plan.fitted}

    def weights(self) -> str:
        for name, expected in cut_tensors(self.plan, self.base, self.fitted):
            stored = read_tensor(self.pruned.files[name], name)
            if not same_bits(stored, expected):
                raise Difference(f"{name} is not the plan's cut of the base weights")
        cut = len(self.pruned.files) - len(self.fitted)
        detail = f"{cut} tensors are the plan's cut of the base weights, bit for bit"
        more = "refitted or recovered ones have the SHA-256 that the plan states"
        return f"{detail}; {len(self.fitted)} {more}" if self.fitted else detail

    def gated(self) -> str:
        """Compare the gated dense model with the cut one, scales unrounded in both."""
        model = self._loaded(self.base)
        units = UnitTable.of_layers(self.plan.dense_layers)
        with gated(model, units) as gates, scaled_norms(model) as norms:
            gates.assign(self._spread_fitted(model, units).to(self.device))
            if self.plan.norm_scales is not None:
                norms.assign(self.plan.norm_scales.flatten().to(self.device))
            expected = logits_of(model, prompts_for(self.pruned))
        del model
        cut = self._cut_model(rounded=False)
        return compare_logits(
            "gated dense and cut model", expected, logits_of(cut, prompts_for(self.pruned))
        )

    def _spread_fitted(self, model: nn.Module, units: UnitTable) -> Tensor:
        """Put fitted tensors into the dense model; return the `(N,)` gates for their inputs."""
        plan, parameters = self.plan, dict(model.named_parameters())
        for name, path in self.fitted.items():
            parameter, dense = parameters[name], read_tensor(path, name)
            if dense.shape != parameter.shape:
                layer, tail = layer_and_tail(name)
                cut = layer_cut(units, layer, plan.mask, plan.scales)
                dense = spread_tensor(tail, dense, parameter.data.cpu(), cut)
            parameter.data = dense.to(parameter)
        has_experts = bool(self.base.shape.experts_per_token)  # none of which is fitted
        is_fitted = (units.is_kv | (not has_experts)) & bool(plan.fitted)
        return plan.mask * torch.where(is_fitted, 1.0, plan.scales)

    def reloaded(self) -> str:
        """Compare the folder as transformers loads it with the cut weights, both as stored."""
        prompts = prompts_for(self.pruned)
        cut = self._cut_model(rounded=True)
        expected, tokens = logits_of(cut, prompts), greedy_tokens(cut, prompts, NEW_TOKENS)
        del cut
        model = self._loaded(self.pruned)
        detail = compare_logits("cut and reloaded model", expected, logits_of(model, prompts))
        same_tokens("cut", tokens, "reloaded", greedy_tokens(model, prompts, NEW_TOKENS))
        return f"{detail}; {PROMPTS} x {NEW_TOKENS} greedy tokens are equal"

    def loss(self) -> str:
        """Measure the loss that the plan states, and the dense model's for a person to compare."""
        witness, stated = self.plan.witness, self.plan.provenance["losses"].get("witness")
        if witness is None or stated is None:
            raise NotProven("the plan states none, by which noise in fitted tensors would show")
        check_tokens(witness, self.pruned.config)
        dense, found = (mean_loss(self._loaded(m), witness, 1) for m in (self.base, self.pruned))
        computed_in = self.plan.provenance.get("computed_in") or "float32"
        most = LOSS_TOLERANCE * max(1.0, stated)
        if abs(found - stated) > most and computed_in != "float32":
            # Rounding sends some tokens to other experts. The run's dtype is slow on many CPUs.
            found = mean_loss(self._loaded(self.pruned, computed_in), witness, 1)
        detail = f"{found:.3f} nats per token on {witness.numel()} tokens in the plan, which states"
        if not abs(found - stated) <= most:
            raise Difference(f"{detail} {stated:.3f}")
        allowed = f"(allowed: {LOSS_TOLERANCE:.0%}); the dense model has {dense:.3f}"
        return f"{detail} {stated:.3f} {allowed}; this proves the weights, not their quality"

    def _loaded(self, model: StoredModel, dtype: str = "float32") -> nn.Module:
        return load_checked(model.directory, self.device, dtype)

    def _cut_model(self, rounded: bool) -> nn.Module:
        """The pruned model in float32, built in memory from plan and base weights."""
        cut = cut_tensors(self.plan, self.base, self.fitted, in_float32=not rounded)
        state = {name: tensor.float() for name, tensor in cut}
        return with_weights(self.pruned.directory, state).to(self.device)


def _check_plain(directory: Path, plain: Path | None) -> None:
    """Raise InputError unless `plain` is given for a quantised folder, and for no other."""
    quantised = False
    with suppress(InputError) if plain is None else nullcontext():  # a link reports what is broken
        quantised = read_folder(directory).shape.quantization is not None
    if quantised != (plain is not None):
        raise InputError(
            f"the weights of {directory} were quantised, and no plan makes those again: name the "
            "plain checkpoint that they were made from with --plain"
            if quantised
            else f"{directory} is not quantised, so it comes from no plain one: leave --plain out"
        )


def _check_quantised(directory: Path, plain: Path) -> str:
    found, rounded = difference(directory, plain)
    if found:
        raise Difference(f"{found} is not what quantising {plain} gives")
    if rounded:
        raise NotProven(
            f"each weight is within a step of {plain}'s, or clipped by half at most; {rounded} "
            "matrices were rounded as text taught, and nobody vouches for which way"
        )
    return f"all tensors are those of {plain}, quantised again, bit for bit; the plan is its own"


def _check_served(pruned: StoredModel, device: torch.device, served: Served) -> str:
    prompts = prompts_for(pruned)
    tokens = served(pruned.directory, prompts.tolist(), NEW_TOKENS)
    model = load_checked(pruned.directory, device, "float32")
    logits_of(model, prompts)  # raises an InputError where config.json makes a forward fail
    same_tokens("reloaded", greedy_tokens(model, prompts, NEW_TOKENS), "served", tokens)
    return f"{PROMPTS} x {NEW_TOKENS} greedy tokens are equal to the reloaded model's"
