"""Memory of one prefill: weights, KV cache, peak.

Predicted from config.json alone: the stock transformers forward runs on the meta device, where
nothing is computed or stored, and torch's tracker counts the bytes of live tensors as operations
make and drop them. Not counted: scratch memory inside kernels (a BLAS workspace), and what an
allocator holds back. On a GPU the measured figures are the caching allocator's own.
"""

from functools import cache
from itertools import chain

import torch
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: TID251  it counts bytes
from transformers import PreTrainedModel

from grasp_deploy.bench.memory import MemorySettings, Sizes
from grasp_deploy.bench.throughput_child import load_model, memory_errors
from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.checkpoint.read.loading import random_model
from grasp_deploy.evaluate.models import BenchModel

HELD = ("keys", "values", "conv_states", "recurrent_states")  # the last two by linear attention
_built = cache(random_model)


@cache
def predict_prefill(model: BenchModel, batch: int, prompt_tokens: int) -> Sizes:
    """Predict one prefill of `batch` prompts: the bytes at the worst moment, weights included."""
    weights = model.shape.weight_bytes
    built = _built(model.path, "meta", model.shape.dtype)
    kv, peak = live_bytes(built, batch, prompt_tokens)
    return Sizes(weights, kv, weights + peak, peak - kv)


def live_bytes(model: PreTrainedModel, batch: int, prompt_tokens: int) -> tuple[int, int]:
    """Bytes of a prefill's KV cache, and the most bytes of tensors at a time beside the weights."""
    tracker = MemTracker()
    tracker.track_external(model)
    weights = tracker.get_tracker_snapshot()[model.device]["Total"]
    with tracker:
        kv = prefill(model, batch, prompt_tokens)
    return kv, tracker.get_tracker_snapshot("peak")[model.device]["Total"] - weights


def prefill(model: PreTrainedModel, batch: int, prompt_tokens: int) -> int:
    """Run one prefill as a server does, and return the bytes of its KV cache, states included.

    Without a mask (all prompts are full), gradients, or the logits of any position but the last.
    """
    with torch.inference_mode():
        token_ids = torch.zeros((batch, prompt_tokens), dtype=torch.int64, device=model.device)
        output = model(input_ids=token_ids, use_cache=True, logits_to_keep=1)
    held = (getattr(layer, name, {}) for layer in output[CACHE].layers for name in HELD)
    tensors = chain.from_iterable(one.values() if isinstance(one, dict) else [one] for one in held)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def measure_prefills(model: BenchModel, settings: MemorySettings) -> dict[int, Sizes]:
    """Measure a prefill at each length on a GPU; InputError if its memory does not suffice."""
    place = str(model.path), model.shape.dtype, settings.device
    with memory_errors(f"{settings.device} is too small for {model.name}: ask for fewer prompts"):
        loaded = load_model(*place, model.random_weights, seed=0)
        return {n: _measured(loaded, settings.batch, n) for n in settings.prompt_tokens}


def _measured(model: PreTrainedModel, batch: int, prompt_tokens: int) -> Sizes:
    prefill(model, batch, prompt_tokens)  # a warm-up: the first one of a size also sets things up
    weights = sum(parameter.nbytes for parameter in model.parameters())
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    kv = prefill(model, batch, prompt_tokens)
    torch.cuda.synchronize(model.device)
    peak = torch.cuda.max_memory_allocated(model.device)
    return Sizes(weights, kv, peak, peak - weights - kv)
