"""Memory of one prefill: weights, KV cache, peak.

Predicted from config.json alone: the stock transformers forward runs on the meta device, where
nothing is computed or stored, and the bytes of all live tensors are counted as operations make and
drop them. Not counted: scratch memory inside kernels (a BLAS workspace), and what an allocator
rounds up or holds back. On a GPU the measured figures are the caching allocator's own.
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

from grasp_deploy.bench.engines.transformers_child import load_model, memory_errors
from grasp_deploy.bench.memory import MemorySettings, Sizes
from grasp_deploy.checkpoint.cache import CACHE
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


def prefill(model: PreTrainedModel, token_ids: torch.Tensor) -> Any:
    """One prefill as for serving: `(B, T)` tokens in, a KV cache and the last logits out.

    Without a mask (all prompts are full), gradients, or the logits of any position but the last.
    """
    with torch.inference_mode():
        return model(input_ids=token_ids.to(model.device), use_cache=True, logits_to_keep=1)


def kv_bytes(output: Any) -> int:
    """Bytes of the tensors that the KV cache holds on to."""
    tensors = [tensor for layer in output[CACHE].layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def measure_prefills(model: BenchModel, settings: MemorySettings) -> dict[int, Sizes]:
    """Measure a prefill at each length on a GPU; InputError if its memory does not suffice."""
    place = str(model.path), model.shape.dtype, settings.device
    with memory_errors(f"{settings.device} is too small for {model.name}: ask for fewer prompts"):
        loaded = load_model(*place, model.random_weights, seed=0)
        return {n: _measured(loaded, settings.batch, n) for n in settings.prompt_tokens}


def _measured(model: PreTrainedModel, batch: int, prompt_tokens: int) -> Sizes:
    token_ids = torch.zeros((batch, prompt_tokens), dtype=torch.int64)
    prefill(model, token_ids)  # starts whatever the first one of this size starts
    weights = sum(parameter.nbytes for parameter in model.parameters())
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    kv = kv_bytes(prefill(model, token_ids))
    torch.cuda.synchronize(model.device)
    peak = torch.cuda.max_memory_allocated(model.device)
    return Sizes(weights, kv, peak, peak - weights - kv)


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
