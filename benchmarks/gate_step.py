"""Seconds of a gate-learning step against the least that any such step must take.

    python -m benchmarks.gate_step --model ../shared/models/ref-llama-7m --steps 200
    python -m benchmarks.gate_step --config benchmarks/configs/llama-2-7b.json --device cuda

A step is what `learn_scores` does between two records: projection, forward pass, backward pass
through the gates to the scores, AdamW. Held-out checks are left out; they come on top.

Two lower bounds run on a twin of the model that shares its weights and has no hooks. Tokens and
loss are the same. Bounds and step take turns (A B C, B C A, ...):

- `lower_bound`: forward and backward to activations only. The embeddings ask for a gradient, so it
  runs through the activations of every layer; no weight gets one.
- `tight_bound`: the same, but the backward pass ends where the first gate stands, before `o_proj`
  of layer 0. A gate step needs no gradient of the attention below it either.

`ratio` is the median over the rounds of the step's seconds over the bound's in the same round: the
machine's drift cancels. The weights of `--config` are random.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common.models import MODEL
from benchmarks.common.output import (
    CONFIGS,
    add_output_options,
    check_place,
    check_positive,
    command_of,
    new_parser,
    print_table,
    run_command,
    write,
)
from benchmarks.common.spread import spread
from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
from grasp_deploy.checkpoint.read.loading import load_checked, resolve_device
from grasp_deploy.compression.budget_options import budget_for
from grasp_deploy.config.compress_config import CompressConfig
from grasp_deploy.files.record import new_record
from grasp_deploy.pruning.budget import Budget
from grasp_deploy.pruning.layout import decoder_layers
from grasp_deploy.pruning.objective import language_loss
from grasp_deploy.pruning.projection import project
from grasp_deploy.pruning.schedule import CalibrationBlocks, Schedule
from grasp_deploy.pruning.training import LearningState, freeze, learn_scores

WARM_UP_ROUNDS = 3
SCHEDULE_STEPS = 2048  # the paper's: 4 epochs of 512 sequences, one at a time
LLAMA_2_7B = CONFIGS / "llama-2-7b.json"  # 353,280 units


@dataclass(frozen=True)
class Subject:
    """A frozen model, its budget, and the tokens that it is run on."""

    name: str
    model: nn.Module
    twin: nn.Module  # the same weights in other modules, without gates
    budget: Budget
    tokens: Tensor  # (steps, B, T) int64


def twin(model: nn.Module) -> nn.Module:
    """The model once more, on the same weights, so that hooks on one are not on the other."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def lower_bound(model: nn.Module, ids: Tensor) -> None:
    """Forward and backward through the activations of all layers."""
    embeddings = model.get_input_embeddings()(ids).requires_grad_()  # type: ignore[operator]
    logits = model(inputs_embeds=embeddings, use_cache=False).logits[:, :-1]
    F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()


def tight_bound(model: nn.Module, ids: Tensor) -> None:
    """Forward, and backward as far as the first gate."""
    first_gate = decoder_layers(model)[0].self_attn.o_proj
    handle = first_gate.register_forward_pre_hook(
        lambda _module, inputs: (inputs[0].detach().requires_grad_(),)
    )
    language_loss(model, ids).backward()
    handle.remove()


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = new_parser(__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, help="a model folder; default: the embedded model")
    which.add_argument("--config", type=Path, help="a config.json, for random weights")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="default: float32 on the CPU, else bfloat16")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="processor threads")
    add_output_options(parser, "a few seconds; figures of no use")
    options = parser.parse_args(arguments)
    check_place(options.output, "gate_step")
    check_positive(options, "threads", "steps", "batch_size", "sequence_length")
    options.model = None if options.config else options.model or MODEL
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    if options.smoke:
        options.steps, options.sequence_length = 3, 32
    return options


def build(options: argparse.Namespace) -> Subject:
    """Load or make the model, straight on the device and in its dtype."""
    device = resolve_device(options.device)
    if options.config:
        config = read_config(options.config)
        with device:
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**config),
                dtype=getattr(torch, options.dtype),
                attn_implementation=options.attention,
            )
    else:
        config = read_config(options.model)
        model = load_checked(options.model, device, options.dtype, options.attention)
    freeze(model, options.gradient_checkpointing)
    shape = model_shape(config)
    rounds = options.steps + WARM_UP_ROUNDS
    generator = torch.Generator().manual_seed(0)
    size = (rounds, options.batch_size, options.sequence_length)
    return Subject(
        name=(options.config.stem if options.config else options.model.name),
        model=model,
        twin=twin(model),
        budget=budget_for(CompressConfig(model="", keep=options.keep), shape, device),
        tokens=torch.randint(shape.vocab_size, size, generator=generator).to(device),
    )


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def run_rounds(subject: Subject, rounds: int) -> tuple[dict[str, list[float]], Tensor]:
    """Seconds of the step and of both bounds, in turns, and the learnt `(N,)` scores."""
    device = subject.tokens.device
    blocks = CalibrationBlocks(subject.tokens.flatten(0, 1).cpu(), subject.tokens[0, :0].cpu())
    schedule = Schedule(blocks, 1, subject.tokens.shape[1], 0.01, seed=0)
    state = LearningState(torch.zeros(subject.budget.units.size, device=device), 0.01)
    steps = learn_scores(subject.model, subject.budget, schedule, state, temperature=1.5)
    seconds: dict[str, list[float]] = {"step": [], "lower_bound": [], "tight_bound": []}
    for index in range(rounds):
        ids = schedule.batch(index).to(device)
        actions: list[tuple[str, Callable[[], object]]] = [
            ("step", partial(next, steps)),
            ("lower_bound", partial(lower_bound, subject.twin, ids)),
            ("tight_bound", partial(tight_bound, subject.twin, ids)),
        ]
        turn = index % len(actions)
        for name, action in actions[turn:] + actions[:turn]:
            seconds[name].append(seconds_of(action, device))
    return {name: taken[WARM_UP_ROUNDS:] for name, taken in seconds.items()}, state.values.detach()


def projection_alone(device: torch.device, repeats: int) -> dict[str, Any]:
    """Seconds of the projection, and of a bare sort, for LLaMA-2-7B's units."""
    shape = model_shape(json.loads(LLAMA_2_7B.read_text(encoding="utf-8")))
    budget = budget_for(CompressConfig(model="", keep=0.5), shape, device)
    p = torch.rand(budget.units.size, generator=torch.Generator().manual_seed(0)).to(device)
    project(p, budget)
    sort = partial(torch.sort, p, descending=True)
    return {
        "projection_units": budget.units.size,
        "projection_seconds": spread(
            [seconds_of(lambda: project(p, budget), device) for _ in range(repeats)]
        ),
        "sort_seconds": spread([seconds_of(sort, device) for _ in range(repeats)]),
    }


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the figures of a record."""
    subject = build(options)
    device = subject.tokens.device
    seconds, scores = run_rounds(subject, len(subject.tokens))
    peak_memory_bytes = (
        torch.cuda.max_memory_allocated(device)
        if device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    own_projection = [
        seconds_of(lambda: project(torch.sigmoid(scores / 1.5), subject.budget), device)
        for _ in range(options.steps)
    ]
    copied = ("keep", "dtype", "attention", "steps", "batch_size", "sequence_length")
    settings = {
        "model": subject.name,
        "parameters": sum(weight.numel() for weight in subject.model.parameters()),
        "units": subject.budget.units.size,
        "threads": torch.get_num_threads(),
        **{name: getattr(options, name) for name in copied},
        "gradient_checkpointing": options.gradient_checkpointing,
    }
    step = spread(seconds["step"])
    figures = {
        "seconds_per_step": step,
        **ratio_figures(seconds),
        "own_projection_seconds": spread(own_projection),
        "projection_share": spread(own_projection)["median"] / step["median"],
        "extrapolated_schedule_seconds": SCHEDULE_STEPS * step["median"],
        "peak_memory_bytes": peak_memory_bytes,
        **projection_alone(device, repeats=3 if options.smoke else 30),
    }
    return settings, figures


def ratio_figures(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Seconds of both bounds, and the ratios of the step to them in the same round."""
    figures: dict[str, Any] = {}
    for bound, ratio in (("lower_bound", "ratio"), ("tight_bound", "tight_ratio")):
        ratios = spread([a / b for a, b in zip(seconds["step"], seconds[bound], strict=True)])
        figures[f"{bound}_seconds"] = spread(seconds[bound])
        figures[ratio] = ratios["median"]
        figures[f"{ratio}_quartiles"] = ratios["quartiles"]
    return figures


def print_record(record: dict[str, Any]) -> None:
    def milliseconds(name: str) -> str:
        lower, upper = record[name]["quartiles"]
        return f"{1e3 * record[name]['median']:.2f} ms ({1e3 * lower:.2f} - {1e3 * upper:.2f})"

    def ratio(name: str) -> str:
        lower, upper = record[f"{name}_quartiles"]
        return f"{record[name]:.3f} ({lower:.3f} - {upper:.3f})"

    units = f"{record['projection_units']:,} units"
    print_table(
        [
            (record["settings"]["model"], "median (quartiles)"),
            ("gate-learning step", milliseconds("seconds_per_step")),
            ("lower bound", milliseconds("lower_bound_seconds")),
            ("step / lower bound", ratio("ratio")),
            ("tight bound", milliseconds("tight_bound_seconds")),
            ("step / tight bound", ratio("tight_ratio")),
            ("projection's share of a step", f"{record['projection_share']:.2%}"),
            (f"projection of {units}", milliseconds("projection_seconds")),
            (f"sort of {units}", milliseconds("sort_seconds")),
            ("peak memory", f"{record['peak_memory_bytes'] / 2**30:.2f} GiB"),
            (
                f"{SCHEDULE_STEPS:,} steps, extrapolated",
                f"{record['extrapolated_schedule_seconds']:.0f} s",
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    settings, figures = measure(options)
    record = new_record("gate_step", command_of("gate_step", arguments), settings, **figures)
    print_record(record)
    write(options.output, record)


if __name__ == "__main__":
    run_command(main)
