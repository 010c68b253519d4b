"""A function of the user's own: what it may change, and what its failures say."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grasp_deploy.cli.console import tidy_process
from grasp_deploy.compression.compress import compress
from grasp_deploy.compression.own_function import own_values, source_hash
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.objective import LossError
from tests.compression.conftest import MakeConfig

MODULE = """
import functools, os, signal, torch
from grasp_deploy.pruning.objective import LossError

@torch.no_grad()
def wrapped(): return {}["x"]
def lines(): raise ValueError("first\\nsecond")
def inside(): return torch.ones(2) + torch.ones(3)
def of_two(one, two): return [1.0]
partly = functools.partial(of_two, 1, 2)
def memory(): raise MemoryError
def device(): raise torch.OutOfMemoryError("CUDA out of memory")
def infinite(): raise LossError("the loss is nan")
def stopped(): os.kill(os.getpid(), signal.SIGTERM)

def fair(model, budget, text): return range(budget.units.size)
def foul(model, budget, text):
    for given in (budget.costs, budget.tie_order, text.sequences): given.zero_()
    return fair(model, budget, text)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's in the working folder."""
    path = tmp_path / "my_own.py"
    path.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    return path


def values(name: str) -> Tensor:
    return own_values(f"--method my_own:{name}", "function()", 1)


@pytest.mark.parametrize(
    ("name", "place", "cause"),
    [
        ("wrapped", r"my_own.py:6 \(KeyError: 'x'\)", KeyError),
        ("lines", r"my_own.py:7 \(ValueError: first\)", ValueError),
        ("inside", r"my_own.py:8 \(RuntimeError: ", RuntimeError),
        ("of_two", r"\(TypeError: of_two\(\) .* called as function\(\)", TypeError),
    ],
)
def test_a_failure_has_its_place_in_the_users_code_and_its_cause(
    name: str, place: str, cause: type[Exception]
) -> None:
    with pytest.raises(InputError, match=place) as refusal:
        values(name)
    assert type(refusal.value.__cause__) is cause and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("memory", MemoryError),
        ("device", torch.OutOfMemoryError),
        ("infinite", LossError),
    ],
)
def test_what_has_a_remedy_of_its_own_is_let_through(name: str, error: Any) -> None:
    with pytest.raises(error):
        values(name)


def test_a_signal_is_not_the_functions_failure() -> None:
    with tidy_process(), pytest.raises(SystemExit) as ended:
        values("stopped")
    assert ended.value.code == 128 + signal.SIGTERM


def test_what_a_method_does_to_its_budget_and_text_is_not_done_to_the_run(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    fair, foul = (
        compress(make_config(keep=0.6, scale_epochs=0, method=f"my_own:{name}"), tmp_path / name)
        for name in ("fair", "foul")
    )
    for part in ("budget", "fitted", "losses"):
        assert foul.plan.provenance[part] == fair.plan.provenance[part]


@pytest.mark.parametrize("name", ["wrapped", "lines", "partly"])
def test_the_code_of_a_function_is_its_file(name: str, module: Path) -> None:
    def now() -> str:
        return source_hash(f"--method my_own:{name}", "function()")

    before = now()
    module.write_text(f"{MODULE}# changed")
    assert before != now()
    module.write_text(MODULE)
    assert before == now()
    assert before != source_hash("--method math:sqrt", "function()") == ""
