"""The dense model's own text: what it writes by itself is what it knows.

Calibration text that never exercises a part of what a model knows lets that part be pruned away.
Tokens drawn from the model's own distribution exercise all of it, and need no data.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grasp_deploy.checkpoint.cache import CACHE, empty_cache, one_token_steps
from grasp_deploy.checkpoint.format.shapes import ModelShape
from grasp_deploy.checkpoint.read.loading import end_tokens
from grasp_deploy.compression.prepare import PreparedRun
from grasp_deploy.compression.ranks import team
from grasp_deploy.compression.stages import MOST_ROWS, MOST_ROWS_ON_GPU, OWN_TEXT, Stages
from grasp_deploy.data import own_places
from grasp_deploy.pruning.layout import device_of
from grasp_deploy.pruning.objective import OVERFLOW, LossError

STEPS_A_TRIM = 16
# Of keys and values of rows written together, in the checkpoint's dtype: float32 takes up to twice.
CACHE_BYTES = 4 * 2**30


def with_own_text(
    run: PreparedRun,
    load: Callable[[], PreTrainedModel],
    stages: Stages,
    *,
    stage: str = OWN_TEXT,
    known: Tensor | None = None,
) -> PreparedRun:
    """Fill a run's empty sequences with text that the model writes; `load` it only if it writes.

    Rows are saved batch by batch, as `stage`. Each batch has a random state of its own, so that a
    killed run goes on with the same text, and a second recovery learns other text than the first.
    `(n, T)` rows that are `known` are not written again; several runs share what the first wrote.
    """
    places, length = own_places(run.text.parts), run.text.token_ids.shape[1]
    if not len(places):
        return run
    rows, seconds, workspace = torch.empty(0, length, dtype=torch.int64), 0.0, stages.workspace
    if known is None:
        workspace = run.start.shared or workspace
    elif not workspace.has(stage):
        workspace.save(stage, {"token_ids": known[: len(places)]}, {"seconds": 0.0})
    if workspace.has(stage):
        tensors, record = workspace.load(stage)
        rows = tensors["token_ids"]
        seconds = record["seconds"] if run.start.mask is None else 0.0  # they count once
    at_once = rows_at_once(run.base.shape, length, on_gpu=run.device.type == "cuda")
    model = load() if len(rows) < len(places) else None
    while model is not None and len(rows) < len(places):
        began = time.perf_counter()
        batch, count = len(rows), min(at_once, len(places) - len(rows))
        seed = (run.config.seed + 7919 * run.healings) * 1_000_003 + batch
        generator = torch.Generator().manual_seed(seed)

        def show(tokens: int, done: int = batch, more: int = count) -> None:
            stages.report(stage, done * length + more * tokens, len(places) * length)

        order = torch.randperm(len(run.text.beginnings), generator=generator).tolist()
        with one_token_steps(model):
            written = write_rows(
                model,
                cycle(run.text.beginnings[place] for place in order),
                count,
                length,
                ends=end_tokens(model, run.end_token),
                generator=generator,
                on_step=show,
            )
        rows, seconds = torch.cat([rows, written]), seconds + time.perf_counter() - began
        workspace.save(stage, {"token_ids": rows}, {"seconds": seconds})
    stages.records[stage] = {"seconds": seconds}
    token_ids = run.text.token_ids.clone()
    token_ids[places] = rows
    return replace(run, text=replace(run.text, token_ids=token_ids))


def rows_at_once(shape: ModelShape, length: int, *, on_gpu: bool) -> int:
    """Rows of so many tokens that are written together, by all ranks."""
    most = MOST_ROWS_ON_GPU if on_gpu else MOST_ROWS
    row_bytes = shape.kv_bytes_per_token() * length + shape.state_bytes_per_sequence
    return max(1, min(most, CACHE_BYTES // row_bytes))


@torch.no_grad()
def write_rows(
    model: PreTrainedModel,
    beginnings: Iterator[list[int]],
    count: int,
    length: int,
    *,
    ends: set[int],
    generator: torch.Generator,
    on_step: Callable[[int], None],
) -> Tensor:
    """`(count, length)` int64 on the CPU: rows of texts that a model writes, one after the other.

    Where one of `ends` ends a text, its row goes on with the next beginning, token by token. So
    rows stay equally long, and none waits for another. Ranks share the rows. `on_step` is told the
    tokens of each row. `generator` is the CPU's.
    """
    mine, share = team().deal(torch.arange(count))
    device, cache = device_of(model), empty_cache(model, len(mine), length)
    waiting = [list(next(beginnings)) for _ in range(count)]
    drawn = torch.zeros(count, 1, dtype=torch.int64)
    rows: list[Tensor] = []
    for step in range(length):
        for row, forced in enumerate(waiting):
            if forced:
                drawn[row] = forced.pop(0)
            elif int(drawn[row]) in ends:
                forced.extend(next(beginnings))
        rows.append(drawn)
        ids = drawn[mine].to(device)
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE: cache})
        chances = torch.softmax(output.logits[:, -1].float(), dim=-1)
        bounds = chances.cumsum(dim=-1)
        if not bounds[:, -1].isfinite().all():
            raise LossError(f"the model's own text has no probabilities: {OVERFLOW}")
        # A row's number comes from the CPU: a seed draws alike on every device.
        numbers = torch.rand(count, 1, generator=generator)[mine].to(device) * bounds[:, -1:]
        drawn = torch.zeros_like(drawn)
        if share:
            drawn[mine] = torch.searchsorted(bounds, numbers, right=True).cpu()
        team().add_up(drawn)  # each row is zero but on the rank that it was dealt to
        if step % STEPS_A_TRIM == 0:
            trim_heap()
        on_step(step + 1)
    return torch.cat(rows, dim=1)


def trim_heap() -> None:
    """Give freed memory back to the system, where glibc allocates.

    Attention's scores grow with every step, so they never fit where the last ones were.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
