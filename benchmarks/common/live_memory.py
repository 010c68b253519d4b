"""Bytes of live tensors while real code runs, also on the meta device, whose tensors hold no data.

On the meta device code still asks for values. A number that is read is 1, or True. Where a size
depends on values, a share of all is found (`found_share`), by default all: the largest case.
Attention is the flash kernel's, as on a GPU; its meta kernel makes what the real one makes.
Temporary memory inside a kernel is not seen, nor what an allocator loses between tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from grasp_deploy.bench.prefill import LiveTensors

aten = torch.ops.aten


class LiveMemory(LiveTensors):
    """The live tensors of one device alone; on the meta device of code that asks for values."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.found_share = 1.0
        self._patched = ExitStack()

    def __enter__(self) -> LiveMemory:
        if self.device.type == "meta":
            self._patched.enter_context(patch.object(F, "scaled_dot_product_attention", _flash))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patched.close()

    def peak_of(self, stage: Callable[[], object]) -> int:
        """The peak within a stage, tensors included that were alive before it."""
        self.peak_bytes = self.live_bytes
        stage()
        return self.peak_bytes

    def __torch_dispatch__(self, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        unknown = [x for x in pytree.tree_leaves((args, kwargs)) if _is_meta(x)]
        result = self._without_values(op, args, kwargs) if unknown else op(*args, **kwargs)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device == self.device:
                self._count(tensor.untyped_storage())
        return result

    def _without_values(self, op: Any, args: Any, kwargs: Any) -> Any:
        packet = op.overloadpacket
        if packet is aten._local_scalar_dense:
            return torch.ones((), dtype=args[0].dtype, device="cpu").item()
        if packet is aten.equal:
            return True
        if packet is aten.nonzero:
            return args[0].new_empty(self._found(args[0].numel()), args[0].dim(), dtype=torch.int64)
        if packet is aten._to_copy and kwargs.get("device") == torch.device("cpu"):
            return torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if packet is aten.copy_ and not _is_meta(args[0]):
            return args[0]
        if packet is aten.index:
            indices = [self._places(index) for index in args[1]]
            return op(args[0], indices)
        return op(*args, **kwargs)

    def _places(self, index: Tensor | None) -> Tensor | None:
        if index is None or index.dtype != torch.bool:
            return index
        return index.new_empty(self._found(index.numel()), dtype=torch.int64)

    def _found(self, size: int) -> int:
        return math.ceil(self.found_share * size)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    assert attn_mask is None, "the flash kernel takes no mask"
    # PyTorch would take the naive formula on the meta device.
    attend = aten._scaled_dot_product_flash_attention
    result: Tensor = attend(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return result


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "meta"
