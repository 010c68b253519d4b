"""Walking over calibration blocks, once: what all criteria that read text have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

OnBatch = Callable[[int, int], None]  # blocks done, blocks in all (and layers, where it says so)


def batches(
    model: nn.Module, blocks: Tensor, batch_size: int, on_batch: OnBatch | None
) -> Iterator[Tensor]:
    """`(B, T)` batches of `(n, T)` blocks on the model's device; `on_batch` hears of each."""
    assert len(blocks), "a criterion that reads text was given none"
    device, done = next(model.parameters()).device, 0
    for batch in blocks.split(batch_size):
        yield batch.to(device)
        done += len(batch)
        if on_batch:
            on_batch(done, len(blocks))


@contextmanager
def at_inputs(
    linears: Sequence[nn.Module], action: Callable[[int, Tensor], Tensor]
) -> Iterator[None]:
    """Pass the inputs of linear layers through `action(index, x) -> x` within the `with` block."""

    def hook(index: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
        return lambda _module, inputs: (action(index, inputs[0]),)

    handles = []
    try:
        for index, linear in enumerate(linears):
            handles.append(linear.register_forward_pre_hook(hook(index)))
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def run_inputs(
    model: nn.Module,
    linears: Sequence[nn.Module],
    look: Callable[[int, Tensor], None],
    blocks: Tensor,
    batch_size: int,
    on_batch: OnBatch | None,
) -> None:
    """Show `look(index, x)` the `(B, T, width)` inputs of linear layers, batch after batch."""

    def action(index: int, x: Tensor) -> Tensor:
        look(index, x)
        return x

    with at_inputs(linears, action):
        for batch in batches(model, blocks, batch_size, on_batch):
            model.model(input_ids=batch, use_cache=False)  # type: ignore[operator]
