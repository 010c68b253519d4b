"""What a run saved is what it reads again, or it is refused in one line."""

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from grasp_deploy.checkpoint.write.export import write_checkpoint
from grasp_deploy.compression import compress as compress_module
from grasp_deploy.compression.frozen_model import FrozenModel, explained_failures
from grasp_deploy.compression.prepare import prepare
from grasp_deploy.compression.resume import Workspace
from grasp_deploy.compression.run_options import RunOptions
from grasp_deploy.errors import InputError
from grasp_deploy.files.tensors import read_tensors, write_tensors
from grasp_deploy.pruning.objective import LossError
from tests.compression.conftest import MakeConfig
from tests.pruning.tiny_units import UNITS, frozen, token_ids

Damage = Callable[[dict[str, Tensor], dict[str, Any]], object]
DAMAGES: dict[str, Damage] = {
    "a NaN": lambda tensors, _: tensors["scores"][1].fill_(torch.nan),
    "another shape": lambda tensors, _: tensors.update(scores=tensors["scores"][None]),
    "an odd value": lambda _, record: record.update(round="two"),
    "no checksum": lambda _, record: record.pop("sha256"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path, "run")
    tensors = {
        "scores": torch.rand(3).bfloat16(),
        "step": torch.tensor(4),
        "mask": torch.ones(2) > 0,
    }
    workspace.save("start", tensors, {"round": 2, "loss": None, "fits": [{"layer": 0}]})
    return workspace


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_stage_is_refused(saved: Workspace, damage: Damage) -> None:
    path = saved.directory / "start.safetensors"
    tensors, record = read_tensors(path)
    damage(tensors, record)
    write_tensors(path, tensors, record)
    with pytest.raises(InputError, match=r"saved stage 'start' of .* is damaged: start over with"):
        saved.load("start")


def test_a_stage_of_another_name_or_run_or_cut_short_is_refused(saved: Workspace) -> None:
    path = saved.directory / "start.safetensors"
    path.with_name("gates.safetensors").write_bytes(path.read_bytes())
    for workspace, stage in ((saved, "gates"), (Workspace(saved.directory, "other"), "start")):
        with pytest.raises(InputError, match=f"saved stage '{stage}' of .* is damaged"):
            workspace.load(stage)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"start.safetensors cannot be read .*: start over with"):
        saved.load("start")


def test_metrics_need_no_tensor_of_a_large_state(
    saved: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.save("recovery", {"weights": torch.ones(2)}, {"metrics": [{"step": 1}]})
    monkeypatch.delattr("grasp_deploy.compression.resume.checksum")  # of all tensors
    assert saved.metrics() == '{"step": 1}\n'


def test_failures_that_are_no_bugs() -> None:
    run: Any = SimpleNamespace(device=torch.device("cpu"))
    for error, words in (
        (torch.OutOfMemoryError("CUDA out of memory"), "is out of memory"),
        (LinAlgError("singular"), r"cannot be solved \(singular\): use more text"),
        (LossError("the loss is nan"), "the loss is nan"),
    ):
        with pytest.raises(InputError, match=words), explained_failures(run):
            raise error
    with pytest.raises(RuntimeError, match="a bug"), explained_failures(run):
        raise RuntimeError("a bug")


@pytest.mark.parametrize(("gates", "which"), [(None, "dense"), (torch.ones(UNITS.size), "pruned")])
def test_a_loss_on_heldout_text_is_finite(gates: Tensor | None, which: str) -> None:
    config = SimpleNamespace(gradient_checkpointing=False, batch_size=4, compensation=False)
    run: Any = SimpleNamespace(config=config, budget=SimpleNamespace(units=UNITS))
    model: Any = frozen()
    model.model.layers[1].mlp.up_proj.weight[3] = torch.inf
    with pytest.raises(LossError, match=f"the {which} model's loss on held-out sequences is nan"):
        FrozenModel(run, model).heldout_losses(token_ids(2, 16), gates)


def test_a_refit_starts_from_the_dense_weights_whatever_was_refitted_before() -> None:
    """Rounds refit again and again, and a run that was killed refits what is left to do."""
    config = {"gradient_checkpointing": False, "compensation": True, "batch_size": 4, "ridge": 0.1}
    run: Any = SimpleNamespace(
        config=SimpleNamespace(**config), budget=SimpleNamespace(units=UNITS)
    )
    model, every = FrozenModel(run, frozen()), torch.ones(UNITS.size, dtype=torch.bool)
    mask, other = every.clone(), every.clone()
    mask[UNITS.ffn(0)][::2] = other[UNITS.ffn(1)][::3] = False

    def refitted(mask: Tensor) -> dict[str, Tensor]:
        deque(model.refit(mask, token_ids(8, 16)), maxlen=0)
        return model.outputs.extract(mask)

    first, _, again = refitted(mask), refitted(other), refitted(mask)
    assert all(torch.equal(again[name], columns) for name, columns in first.items())
    dense = frozen().state_dict()
    with model.as_dense(mask):
        assert all(torch.equal(x.weight, dense[n]) for n, x in model.outputs.linears.items())
    back = model.outputs.extract(mask)
    assert all(torch.equal(back[name], columns) for name, columns in first.items())


def test_chat_templates_belong_to_a_run(make_config: MakeConfig, tmp_path: Path) -> None:
    """Named ones, too, and the one that lies beside them."""
    model = Path(shutil.copytree(make_config(keep=0.6).model, tmp_path / "model"))
    templates = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    for name in templates:
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("{{ messages }}")
    run = prepare(make_config(keep=0.6, model=str(model)))
    for name in templates:
        before = run.identity
        (model / name).write_text("{{ tools }}")
        after = run.identity
        assert {key for key in before if before[key] != after[key]} == {name}


def test_a_run_asks_for_the_disk_that_it_takes(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns it counts those kept at the end, and of the files no headers."""
    asked: list[int] = []
    monkeypatch.setattr(compress_module, "check_room", lambda _, needed, __: asked.append(needed))
    monkeypatch.setattr("grasp_deploy.compression.stages.SAVE_EVERY_SECONDS", 0.0)

    def write_and_count(*arguments: Any, **options: Any) -> None:
        write_checkpoint(*arguments, **options)
        sizes = {path: path.stat().st_size for path in tmp_path.glob("*/*.safetensors")}
        vectors = ("gates", "scales", "text")
        asked.append(sum(size for path, size in sizes.items() if path.stem not in vectors))
        raise KeyboardInterrupt

    monkeypatch.setattr(compress_module, "write_checkpoint", write_and_count)
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            options = RunOptions(tmp_path / "out", resume=resume)
            compress_module.compress(make_config(keep=0.6), options)
    needed, taken, needed_again, taken_again = asked
    assert needed == pytest.approx(taken, rel=0.2) and taken == taken_again
    assert needed_again < 0.6 * needed, "the columns are there already"
