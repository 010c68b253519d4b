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
        self._known = [tensor.untyped_storage() for tensor in known]
        self._counted = {storage._cdata for storage in self._known}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._counted:
            return
        self._counted.add(storage._cdata)
        self.live_bytes += storage.nbytes()
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _drop(self, key: int, size_bytes: int) -> None:
        self._counted.remove(key)
        self.live_bytes -= size_bytes
