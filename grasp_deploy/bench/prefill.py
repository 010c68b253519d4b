"""Memory of one prefill, predicted from config.json alone: weights, KV cache, peak.

The stock transformers forward runs on the meta device, where nothing is computed or stored, and the
bytes of all live tensors are counted as operations make and drop them. Not counted: scratch memory
inside kernels (a BLAS workspace), and what an allocator rounds up or holds back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PreTrainedModel

from grasp_deploy.bench.engines.memory_child import kv_bytes, prefill
from grasp_deploy.bench.memory import Sizes
from grasp_deploy.checkpoint.format.shapes import read_config
from grasp_deploy.checkpoint.read.loading import class_config
from grasp_deploy.evaluate.models import BenchModel


@cache
def predict_prefill(model: BenchModel, batch: int, prompt_tokens: int) -> Sizes:
    """Predict one prefill of `batch` prompts: the bytes at the worst moment, weights included."""
    built, weights = _without_data(model), model.shape.weight_bytes
    with LiveTensors([*built.parameters(), *built.buffers()]) as tensors:
        token_ids = torch.zeros((batch, prompt_tokens), dtype=torch.int64, device="meta")
        kv = kv_bytes(prefill(built, token_ids))
    return Sizes(weights, kv, weights + tensors.peak_bytes, tensors.peak_bytes - kv)


@cache
def _without_data(model: BenchModel) -> PreTrainedModel:
    config = class_config(read_config(model.path))
    dtype = getattr(torch, model.shape.dtype)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return built.eval()


class LiveTensors(TorchDispatchMode):
    """While this is entered: the live bytes of tensors made since, and the most there ever were."""

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
