"""Counts the bytes of all tensors that are alive, as operations make them and drop them."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """While this is entered: the live bytes of tensors made since, and the most there ever were.

    Kernels' own scratch memory is not seen. Works on the meta device, where nothing is computed.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self.at_peak: dict[int, tuple[str, int]] = {}
        self._counted: dict[int, tuple[str, int]] = {}
        self._known = [tensor.untyped_storage() for tensor in known]
        self._known_ids = {storage._cdata for storage in self._known}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage(), str(function))
        return result

    def _count(self, storage: torch.UntypedStorage, maker: str) -> None:
        key = storage._cdata
        if key in self._counted or key in self._known_ids:
            return
        self._counted[key] = (maker, storage.nbytes())
        self.live_bytes += storage.nbytes()
        weakref.finalize(storage, self._drop, key)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live_bytes, dict(self._counted)

    def _drop(self, key: int) -> None:
        self.live_bytes -= self._counted.pop(key)[1]
