"""A device that is not the CPU, on the CPU: it refuses what an NVIDIA GPU would refuse.

It is a device of PyTorch's own kind for strangers, PrivateUse1. A tensor on it holds a CPU tensor,
on which the CPU's kernels run. So results are the CPU's, bit for bit. Tensors of two devices do not
meet:

- a number (no dimensions) may enter an elementwise operation from the CPU, as on CUDA;
- indices may lie on the CPU, and are copied;
- `copy_` and `to` copy from one device to the other;
- a random generator draws on its own device.

What would make a real device wait for the CPU, or the CPU for it, is counted in `noted`: copies,
numbers that are read, sizes that depend on values. Not shown are a GPU's kernels with their own
rounding and errors that come late, its memory, and its speed.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import grasp_deploy

NAME = "standin"
PACKAGE = str(Path(grasp_deploy.__file__).parent)
aten = torch.ops.aten
COPIES = (aten.copy_, aten._to_copy)
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
NUMBERS = (aten._local_scalar_dense, aten.equal, aten._linalg_check_errors, aten.is_nonzero)
SIZES = (aten.nonzero, aten.masked_select, aten._unique2)

noted: Counter[str] = Counter()  # "what: function of the package that asked for it"


class StandInTensor(Tensor):
    """A tensor that says it lies on the device, and holds its values on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> StandInTensor:
        tensor: StandInTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.held = held
        return tensor

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"StandInTensor({self.held})"

    def tolist(self) -> Any:
        """As PyTorch's own, which refuses subclasses."""
        return self.cpu().tolist()

    @property
    def data(self) -> Any:
        """As PyTorch's own; values that are assigned are held from then on."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, values: Tensor) -> None:
        assert isinstance(values, StandInTensor), "the values of another device"
        Tensor.data.__set__(self, values)  # type: ignore[attr-defined]
        self.held = values.held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if _is_composite(op):  # as it comes in inference mode
            return op.decompose(*args, **kwargs or {})
        return _run(op, *args, **kwargs or {})


@cache
def _is_composite(op: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(op.name(), "CompositeImplicitAutograd") and not has_kernel(op.name(), "CPU")


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU, if the device would run it."""
    ours: list[Tensor] = []
    foreign: list[Tensor] = []
    held = [_held(arg, ours, foreign) for arg in args]
    held_named = {name: _held(arg, ours, foreign) for name, arg in kwargs.items()}
    target = kwargs.get("device")
    on_device = bool(ours) if target is None else torch.device(target).type == NAME
    if ours and foreign and op.overloadpacket not in COPIES:
        _check_one_device(op, args, foreign)
    generator = kwargs.get("generator")
    if on_device and generator is not None:
        raise RuntimeError(f"{op}: a generator of {generator.device} cannot draw on {NAME}")
    _note(op, args, to_host=not on_device, copies=bool(foreign) or on_device != bool(ours))
    if target is not None:
        held_named["device"] = torch.device("cpu")
    result = op(*held, **held_named)
    if not on_device:
        return result
    written = kwargs.get("out", args[0]) if op._schema.is_mutable else None
    if isinstance(written, Tensor):  # in place: the tensor that was given, not one of its values
        assert written.shape == result.shape, f"{op} resizes a tensor, which no stand-in shows"
        return written
    return _wrapped(result)


def _held(value: Any, ours: list[Tensor], foreign: list[Tensor]) -> Any:
    """An argument as the CPU's kernels take it; its tensors are sorted by device."""
    if isinstance(value, StandInTensor):
        ours.append(value)
        return value.held
    if isinstance(value, Tensor):
        foreign.append(value)
    elif isinstance(value, (list, tuple)):
        return [_held(item, ours, foreign) for item in value]
    return value


def _wrapped(result: Any) -> Any:
    if isinstance(result, Tensor):
        return StandInTensor(result)
    return type(result)(map(_wrapped, result)) if isinstance(result, (list, tuple)) else result


def _check_one_device(op: Any, args: Any, foreign: list[Tensor]) -> None:
    """RuntimeError unless CUDA would let these tensors of the CPU in."""
    written_here = not op._schema.is_mutable or isinstance(args[0], StandInTensor)
    if op.overloadpacket in INDEXED and isinstance(args[0], StandInTensor):
        indices = {id(index) for index in args[1]}
        foreign = [tensor for tensor in foreign if id(tensor) not in indices]
    if written_here and (op.overloadpacket in INDEXED or torch.Tag.pointwise in op.tags):
        foreign = [tensor for tensor in foreign if tensor.dim()]
    if foreign and not op.name().startswith("aten::_foreach_add"):  # of an optimiser's step counts
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in foreign)
        raise RuntimeError(f"{op}: {shapes} on the CPU meets a tensor on {NAME}")


def _note(op: Any, args: Any, *, to_host: bool, copies: bool) -> None:
    """Count what makes one side wait for the other, and which function asked for it."""
    packet = op.overloadpacket
    if packet in COPIES and copies:
        written = args[0] if packet is aten.copy_ else None
        leaves = to_host if written is None else not isinstance(written, StandInTensor)
        what = "copy to the CPU" if leaves else "copy to the device"
    elif packet in NUMBERS:
        what = "number"
    elif packet in SIZES:
        what = "size"
    elif packet in INDEXED and any(
        index is not None and (index.dtype == torch.bool or not isinstance(index, StandInTensor))
        for index in args[1]
    ):
        what = "index"
    else:
        return
    noted[f"{what}: {_asker()}"] += 1


def _asker() -> str:
    """The innermost function of the package on the stack."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere" if frame is None else frame.f_code.co_qualname


class _Module(_DummyBackendModule):
    """What PyTorch asks of a device's module, here for gradient checkpointing."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def install() -> str:
    """Make the device known to this process; returns its name."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    fallback = torch.library.Library("_", "IMPL", "PrivateUse1")
    fallback.fallback(_run)
    # By name too: `torch.tensor` shuts Python's dispatch off, by which fallbacks are found; without
    # a kernel of its own a device gets a formula for the second that rounds otherwise; and the rest
    # begin empty and grow.
    named = torch.library.Library("aten", "IMPL", "PrivateUse1")
    ops = [aten._to_copy.default, aten.silu_backward.default, aten.eye.default, aten.eye.m]
    ops += [aten.arange.default, aten.arange.start, aten.arange.start_step]
    for op in ops:
        named.impl(op.name(), partial(_run, op))
    _libraries.extend((fallback, named))
    return NAME


_libraries: list[torch.library.Library] = []  # one that is collected takes its kernels along
