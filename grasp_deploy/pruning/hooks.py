"""Hooks that are gone when a `with` block ends, whatever happens in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

OnTensor = Callable[[int, Tensor], Tensor | None]


@contextmanager
def installed(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the block; a lazy iterable installs them one by one."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        yield


def on_inputs(modules: Iterable[nn.Module], action: OnTensor) -> AbstractContextManager[None]:
    """Call `action(index, x)` with the first input of modules; a tensor returned replaces it."""
    return installed(
        module.register_forward_pre_hook(lambda _, inputs, i=index: action(i, inputs[0]))
        for index, module in enumerate(modules)
    )


def on_outputs(modules: Iterable[nn.Module], action: OnTensor) -> AbstractContextManager[None]:
    """Call `action(index, y)` with the output of modules; a tensor returned replaces it."""
    return installed(
        module.register_forward_hook(lambda _, _inputs, output, i=index: action(i, output))
        for index, module in enumerate(modules)
    )
