"""The child that measures the memory of a prefill: loads one model, then runs nothing else.

On a GPU the figures are the caching allocator's own. On the CPU the peak is that of the process's
resident memory, above the loaded model: the kernel keeps that mark and resets it on request. The
growth must be the prefill's alone. So all weights are read once beforehand, since they may be pages
of a file that nobody has touched. A tiny prefill starts thread pools and kernel libraries, and what
it freed is given back. Small tensors must come from the kernel and return to it too: see
`ALLOCATOR_SETTINGS` of the bench.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from grasp_deploy.bench.engines.transformers_child import load_model, memory_errors
from grasp_deploy.checkpoint.cache import CACHE
from grasp_deploy.engine.child import answer_requests
from grasp_deploy.errors import InputError

RESET_PEAK = "5"  # to /proc/self/clear_refs, see proc(5)


def answer(
    model: str, dtype: str, random_weights: bool, prompt_tokens: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Samples of the prefills of a batch of random prompts of `prompt_tokens` each.

    Raises InputError if the device's memory does not suffice, or this system cannot measure.
    """
    device, size = settings["device"], (settings["batch"], prompt_tokens)
    generator = torch.Generator().manual_seed(settings["seed"])
    too_small = f"{device} is too small for {size[0]} prompts of {size[1]} tokens: ask for fewer"
    with memory_errors(too_small):
        loaded = load_model(model, dtype, device, random_weights, settings["seed"])
        warm_up(loaded, torch.zeros(size, dtype=torch.int64))
        vocabulary = loaded.config.vocab_size
        return {
            "samples": [
                measured(loaded, torch.randint(vocabulary, size, generator=generator))
                for _ in range(settings["repetitions"])
            ]
        }


def warm_up(model: PreTrainedModel, token_ids: torch.Tensor) -> None:
    """Read all weights once and start whatever the first prefill of this size starts."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().sum()
    prefill(model, token_ids)


def prefill(model: PreTrainedModel, token_ids: torch.Tensor) -> Any:
    """One prefill as for serving: `(B, T)` tokens in, a KV cache and the last logits out.

    Without a mask (all prompts are full), gradients, or the logits of any position but the last.
    """
    with torch.inference_mode():
        return model(input_ids=token_ids.to(model.device), use_cache=True, logits_to_keep=1)


def measured(model: PreTrainedModel, token_ids: torch.Tensor) -> dict[str, int]:
    """Bytes of one prefill: weights (tied ones once), KV cache and peak."""
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    gc.collect()
    if model.device.type == "cuda":  # the allocator counts from an empty device on
        torch.cuda.synchronize(model.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(model.device)
        output = prefill(model, token_ids)
        torch.cuda.synchronize(model.device)
        peak_bytes = torch.cuda.max_memory_allocated(model.device)
    else:
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        reset_peak()
        before = _status_bytes("VmRSS")
        output = prefill(model, token_ids)
        peak_bytes = weight_bytes + _status_bytes("VmHWM") - before
    return {"weight_bytes": weight_bytes, "kv_bytes": kv_bytes(output), "peak_bytes": peak_bytes}


def kv_bytes(output: Any) -> int:
    """Bytes of the tensors that the KV cache holds on to."""
    tensors = [tensor for layer in output[CACHE].layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def reset_peak() -> None:
    """Reset the kernel's mark of this process's peak; InputError where there is none."""
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    except OSError as error:
        raise InputError(
            f"the peak of resident memory cannot be measured here ({error}): it takes Linux with "
            "/proc/self/clear_refs; use --device cuda, or grasp-deploy inspect to predict"
        ) from None


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    answer_requests(lambda request: answer(**request))
