"""A function of the user's own: a cost or a method, named package.module:function."""

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grasp_deploy.errors import InputError, first_line, is_out_of_memory, is_signal
from grasp_deploy.pruning.objective import LossError

METHOD_CALL = "function(model, budget, text)"


def own_function(option: str, call: str) -> Callable[..., Any]:
    """The function that `--cost NAME` or `--method NAME` names, imported from the working folder.

    `call` is how it is called, such as `function(units, shape)`. Raises InputError.
    """
    module, name = _named(option)
    with _users_code(option, call):
        function = getattr(importlib.import_module(module), name)
        if not callable(function):
            raise TypeError(f"{name} is no function")
    return function


def own_values(option: str, call: str, size: int, *arguments: Any) -> Tensor:
    """`(N,)` float64 numbers, on the CPU, that the user's function returns for some arguments.

    Raises InputError, or the function's own LossError or lack of memory.
    """
    function = own_function(option, call)
    with _users_code(option, call):
        values = torch.as_tensor(function(*arguments), dtype=torch.float64).detach()
        values = values.to_dense().cpu()
    if tuple(values.shape) != (size,):
        raise InputError(
            f"{option} returned shape {tuple(values.shape)}: one number for each of the {size} "
            f"units is needed, shape ({size},)"
        )
    return values


def source_hash(option: str, call: str) -> str:
    """SHA-256 of the file that the user's function is written in; "" where none can be read."""
    function = own_function(option, call)
    for written in (inspect.unwrap(function), sys.modules[_named(option)[0]]):
        with suppress(OSError, TypeError):  # such as a functools.partial, which only a module holds
            return hashlib.sha256("".join(inspect.findsource(written)[0]).encode()).hexdigest()
    return ""


def _named(option: str) -> tuple[str, str]:
    """Module and function in `--method module:function`."""
    module, _, name = option.split(" ", 1)[1].partition(":")
    return module, name


@contextmanager
def _users_code(option: str, call: str) -> Iterator[None]:
    """Run the user's code from the working folder; turn what it raises into an InputError.

    What it prints goes to stderr, since stdout is reserved for results.
    """
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr), torch.enable_grad():
            yield
    except LossError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error) or is_signal(error):
            raise
        reason = f"({type(error).__name__}: {first_line(error)})"
        if place := _place_in(_named(option)[0], error):
            raise InputError(f"{option} failed at {place} {reason}: mend it there") from error
        raise InputError(
            f"{option} cannot be called {reason}: give package.module:function, importable "
            f"from here, which is called as {call} and returns one number per unit"
        ) from error
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(folder)


def _place_in(module: str, error: BaseException) -> str:
    """`FILE:LINE` of an error's last frame in the package of the user's module, or ""."""
    package, place = module.partition(".")[0], ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            place = f"{frame.f_code.co_filename}:{line}"
    return place
