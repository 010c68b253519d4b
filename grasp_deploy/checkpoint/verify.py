"""Proof that a checkpoint is the model that was evaluated, link by link.

files      every file has the SHA-256 that the manifest states
shapes     config.json, tensors and plan agree on every layer
weights    every tensor that was not fitted is the plan's cut of the base weights, bit for bit
gated      the gated dense model and the cut one give the same logits in float32
reloaded   `from_pretrained` gives the cut model's logits and greedy tokens
companions tokenizer, configs, code and index are what the export writes beside these weights
served     vLLM gives the reloaded model's greedy tokens
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from grasp_deploy.checkpoint.format.shapes import ModelShape, model_shape, read_config
from grasp_deploy.checkpoint.plan import PLAN_FILE, Plan, load_plan
from grasp_deploy.checkpoint.read.loading import load_checked, with_weights
from grasp_deploy.checkpoint.read.validate import TensorEntry, check_weights
from grasp_deploy.checkpoint.verify_files import (
    Difference,
    check_companions,
    check_files,
    check_shapes,
)
from grasp_deploy.checkpoint.write.export import base_of, cut_tensors, layer_and_tail
from grasp_deploy.checkpoint.write.shards import read_tensor
from grasp_deploy.errors import InputError
from grasp_deploy.files.outputs import MANIFEST_FILE
from grasp_deploy.pruning.gates import gated
from grasp_deploy.pruning.slicing import layer_cut, spread_tensor
from grasp_deploy.pruning.units import UnitTable

TOLERANCE = 1e-4  # of the largest logit (at least 1): float32 sums in another order differ by less
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 16, 32

Tokens = list[list[int]]
Served = Callable[[Path, Tokens, int], Tokens]
Link = tuple[str, Callable[[], str]]  # what it is called, and a look at it that tells what it saw


@dataclass(frozen=True)
class Check:
    """One link of the chain."""

    name: str
    ok: bool
    detail: str


def verify(
    directory: Path,
    model: str | None = None,
    *,
    without_base: bool = False,
    served: Served | None = None,
    device: torch.device | None = None,
) -> Iterator[Check]:
    """Check a checkpoint, link by link, up to the first that breaks.

    `model` names the base model, by default the one that the plan names; `without_base` leaves out
    the links that need it. `served(directory, prompts, new_tokens)` gives the greedy tokens of a
    server; without it that link is left out.

    Raises InputError if `directory` is no checkpoint of ours, or the base model cannot be had or is
    another one than the plan was made for.
    """
    if not any((directory / name).is_file() for name in (PLAN_FILE, MANIFEST_FILE)):
        raise InputError(
            f"{directory} holds no pruned checkpoint: name a folder that compress made"
        )
    intact = yield from _look(
        ("files", lambda: check_files(directory)), ("shapes", lambda: check_shapes(directory))
    )
    if not intact:
        return
    plan = load_plan(directory / PLAN_FILE)
    remedy = ", or look at the files alone with --without-base"
    base = None if without_base else base_of(plan, model, "little is proven", remedy)
    bench = _Bench(directory, plan, base or directory, device or torch.device("cpu"))
    links: list[Link] = []
    if base is not None:
        links += [("weights", bench.weights), ("gated", bench.gated), ("reloaded", bench.reloaded)]
    links.append(("companions", lambda: check_companions(directory, plan, base)))
    if served is not None:
        links.append(("served", lambda: bench.served(served)))
    yield from _look(*links)


def _look(*links: Link) -> Generator[Check, None, bool]:
    """Look at links up to the first that breaks; whether none did."""
    for name, look in links:
        try:
            yield Check(name, True, look())
        except (Difference, InputError) as error:
            yield Check(name, False, str(error))
            return False
    return True


class _Bench:
    """The models that are compared; each is loaded for its link and let go after it."""

    def __init__(self, directory: Path, plan: Plan, base: Path, device: torch.device) -> None:
        self.directory, self.plan, self.base, self.device = directory, plan, base, device
        vocabulary = model_shape(read_config(directory)).vocab_size
        generator = torch.Generator().manual_seed(0)
        self.prompts = torch.randint(vocabulary, (PROMPTS, PROMPT_TOKENS), generator=generator)

    def weights(self) -> str:
        """Every tensor of the checkpoint against the plan's cut of the base weights."""
        dense, entries, names = self._to_cut()
        written, fitted = self._written(), self.plan.fitted
        names = [name for name in names if name not in fitted]
        for name, expected in cut_tensors(self.plan, dense, entries, names, {}):
            found = read_tensor(written[name].path, name)
            if found.dtype != expected.dtype or not torch.equal(found, expected):
                raise Difference(f"{name} is not the plan's cut of the base weights")
        detail = f"{len(names)} tensors are the plan's cut of the base weights, bit for bit"
        healed = "healing" in self.plan.provenance
        how = "fitted or healed" if healed else "fitted to the calibration text"
        if fitted:  # no plan makes them again
            detail += f"; {len(fitted)} more were {how}, and only {MANIFEST_FILE} vouches for them"
        return detail

    def gated(self) -> str:
        """The dense model with the plan's gates against the cut one, scales unrounded in both."""
        dense = model_shape(read_config(self.base))
        model = load_checked(self.base, self.device, "float32", "sdpa")
        units = UnitTable.of_layers(self.plan.dense_layers)
        with gated(model, units, dense.query_heads_per_group * dense.head_dim) as gates:
            gates.assign(self._spread_fitted(model, units, dense).to(self.device))
            expected = self._logits(model)
        del model
        return _compare("gated dense and cut model", expected, self._logits(self._cut_model(False)))

    def _spread_fitted(self, model: nn.Module, units: UnitTable, dense: ModelShape) -> Tensor:
        """Put fitted tensors into the dense model; the `(N,)` gates that then stand before them."""
        plan, written = self.plan, self._written()
        group, width = dense.query_heads_per_group, dense.head_dim
        parameters = dict(model.named_parameters())
        for name in plan.fitted:
            layer, tail = layer_and_tail(name)
            cut = layer_cut(units, layer, plan.mask, plan.scales, group, width)
            tensor, place = read_tensor(written[name].path, name), parameters[name]
            place.data = spread_tensor(tail, tensor, place.data.cpu(), cut).to(place.device)
        return plan.mask.float() if plan.fitted else plan.mask * plan.scales

    def reloaded(self) -> str:
        """The folder as transformers loads it against the cut weights, both as stored."""
        cut = self._cut_model(rounded=True)
        expected, tokens = self._logits(cut), greedy_tokens(cut, self.prompts, NEW_TOKENS)
        del cut
        model = load_checked(self.directory, self.device, "float32", "sdpa")
        detail = _compare("cut and reloaded model", expected, self._logits(model))
        _same_tokens("cut", tokens, "reloaded", greedy_tokens(model, self.prompts, NEW_TOKENS))
        return f"{detail}; {PROMPTS} x {NEW_TOKENS} greedy tokens are equal"

    def served(self, served: Served) -> str:
        """The server's greedy tokens against the reloaded model's."""
        tokens = served(self.directory, self.prompts.tolist(), NEW_TOKENS)
        model = load_checked(self.directory, self.device, "float32", "sdpa")
        _same_tokens("reloaded", greedy_tokens(model, self.prompts, NEW_TOKENS), "served", tokens)
        return f"{PROMPTS} x {NEW_TOKENS} greedy tokens are equal to the reloaded model's"

    def _to_cut(self):  # type: ignore[no-untyped-def]
        """Dense shape, base tensors, and the names that the checkpoint has."""
        dense = model_shape(read_config(self.base))
        pruned: ModelShape = model_shape(read_config(self.directory))
        return dense, check_weights(self.base, dense), list(pruned.tensor_shapes())

    def _written(self) -> dict[str, TensorEntry]:
        """The checkpoint's own tensors."""
        return check_weights(self.directory, model_shape(read_config(self.directory)))

    def _cut_model(self, rounded: bool) -> nn.Module:
        """The pruned model in float32, built in memory from plan and base weights."""
        dense, entries, names = self._to_cut()
        fitted = {name: self._written()[name] for name in self.plan.fitted}
        cut = cut_tensors(self.plan, dense, entries, names, fitted, in_float32=not rounded)
        state = {name: tensor.float() for name, tensor in cut}
        return with_weights(self.directory, state).to(self.device)

    @torch.no_grad()
    def _logits(self, model: nn.Module) -> Tensor:
        """`(prompts, T, V)` float32."""
        return model(input_ids=self.prompts.to(self.device)).logits.float().cpu()


@torch.no_grad()
def greedy_tokens(model: nn.Module, prompts: Tensor, new_tokens: int) -> Tokens:
    """The likeliest continuation of `(n, T)` prompts, token by token with a KV cache."""
    ids = prompts.to(next(model.parameters()).device)
    cache, chosen = None, []
    for _ in range(new_tokens):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        chosen.append(ids)
    return torch.cat(chosen, dim=1).tolist()


def _compare(names: str, expected: Tensor, found: Tensor) -> str:
    difference = float((expected - found).abs().max())
    allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
    if not difference <= allowed:
        place = (expected - found).abs().flatten().argmax().item()
        prompt, position, token = torch.unravel_index(torch.tensor(place), expected.shape)
        raise Difference(
            f"{names}: logits differ by {difference:.3g}, more than {allowed:.3g}, at prompt "
            f"{int(prompt)}, position {int(position)}, token {int(token)}"
        )
    return f"{names}: logits differ by at most {difference:.2g} (allowed {allowed:.2g})"


def _same_tokens(left: str, expected: Tokens, right: str, found: Tokens) -> None:
    for prompt, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one != other:
            place = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            raise Difference(
                f"greedy tokens differ first at prompt {prompt}, token {place}: {left} gives "
                f"{one[place]}, {right} gives {other[place]}"
            )
