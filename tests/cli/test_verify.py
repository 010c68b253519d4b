"""`verify`: the chain from files to logits holds, and names its first broken link."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.checkpoint.read.damages import config, rope
from tests.cli.command import assert_refused, compress, document, edit_json, grasp_deploy
from tests.documents import HEALING
from tests.tiny import save_tiny

LINKS = ["files", "shapes", "weights", "gated", "reloaded", "companions"]
WEIGHTS, PLAN, CONFIG = "model.safetensors", "plan.grasp", "config.json"
Tamper = Callable[[Path], object]


def test_verify(pruned: Path, tiny_folder: Path) -> None:
    record = document("verify", pruned, "--json")
    assert (record["ok"], record["outcome"]) == (True, "proven")
    assert [check["name"] for check in record["checks"]] == LINKS
    assert all(check.keys() == {"name", "outcome", "ok", "detail"} for check in record["checks"])
    assert all(check["outcome"] == "proven" and check["detail"] for check in record["checks"])
    assert document("verify", pruned, "--model", tiny_folder, "--json") == record


def test_a_base_model_that_is_gone_or_another(tiny_folder: Path, work: Path) -> None:
    base = Path(shutil.copytree(tiny_folder, work / "base"))
    assert compress(base).code == 0
    flip_bit(base)
    other = grasp_deploy("verify", "out", "--json")
    assert_refused(other, "other weights")
    shutil.rmtree(base)
    assert_refused(grasp_deploy("verify", "out", "--json"), "--model")
    record = document("verify", "out", "--without-base", "--json", code=3)
    assert (record["ok"], record["outcome"]) == (False, "not proven")
    outcomes = {check["name"]: check["outcome"] for check in record["checks"]}
    doubtful = {"weights": "not proven", "companions": "not proven"}
    assert outcomes == {"files": "proven", "shapes": "proven", **doubtful}
    assert document("verify", "out", "--model", tiny_folder, "--json")["ok"] is True
    save_tiny("llama", work / "same-shape", seed=1)
    verified = grasp_deploy("verify", "out", "--model", work / "same-shape")
    assert_refused(verified, "other weights")


def flip_bit(folder: Path) -> None:
    """Change the last tensor, so that the file's header is still true."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def widen(folder: Path) -> None:
    layers = json.loads((folder / CONFIG).read_text())["per_layer_config"]
    layers["1"]["intermediate_size"] += 1
    edit_json(folder / CONFIG, per_layer_config=layers)


def with_plan(change: Callable[..., object]) -> Tamper:
    """A function that changes mask, scales or record of the plan of a folder."""

    def tamper(folder: Path) -> None:
        tensors, record = read_tensors(folder / PLAN)
        change(tensors["mask"], tensors["scales"], record)
        write_tensors(folder / PLAN, tensors, record)

    return tamper


def swap_channels(mask: Any, *_: object) -> None:
    """Keep one channel of the first layer less and another one more."""
    first = mask[:96]
    kept, removed = int(first.nonzero()[0]), int((~first).nonzero()[0])
    first[kept], first[removed] = False, True


def change_scale(mask: Any, scales: Any, _: object) -> None:
    scales[int(mask.nonzero()[0])] *= 1.01


def name_more(_: object, __: object, record: dict[str, Any]) -> None:
    """Name a fitted tensor of a layer that is not there, as after a recovery."""
    name = "model.layers.9.self_attn.q_proj.weight"
    record |= {"healing": [HEALING], "fitted": {name: "0" * 64}}


@pytest.mark.parametrize(
    ("tamper", "file", "link", "words"),
    [
        (flip_bit, WEIGHTS, "weights", "is not the plan's cut of the base weights"),
        (rope(rope_theta=100.0), CONFIG, "gated", "logits differ by"),
        (rope(rope_type="none"), CONFIG, "shapes", "Invalid enum value"),
        (widen, CONFIG, "shapes", "by config.json"),
        (config(pad_token_id=10**9), CONFIG, "shapes", "pad_token_id is 1000000000, of"),
        (config(use_cache="yes"), CONFIG, "gated", "Field 'use_cache' expected bool, got str"),
        (config(layer_types=["x"]), CONFIG, "companions", "config.json is not what an export"),
        (
            lambda folder: (folder / CONFIG).write_text("{"),
            *(CONFIG, "shapes", "config.json cannot be read"),
        ),
        (with_plan(swap_channels), PLAN, "weights", "mlp."),
        (
            with_plan(name_more),
            PLAN,
            "weights",
            "fitted tensors that are not there: model.layers.9",
        ),
        (with_plan(change_scale), PLAN, "weights", "layers.0.mlp.down_proj.weight is not"),
        (
            lambda folder: (folder / PLAN).write_bytes((folder / PLAN).read_bytes()[:-1]),
            *(PLAN, "shapes", "plan.grasp cannot be read"),
        ),
    ],
)
def test_a_tampered_checkpoint(
    pruned: Path, tamper: Tamper, file: str, link: str, words: str
) -> None:
    tamper(pruned)
    assert_broken(pruned, "files", file, "another SHA-256")
    state_anew(pruned)
    assert_broken(pruned, link, words)


def test_minus_zero_is_not_zero(tiny_folder: Path, work: Path) -> None:
    def with_first(folder: Path, value: float) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensors["model.norm.weight"][0] = value
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    base = Path(shutil.copytree(tiny_folder, work / "base"))
    with_first(base, 0.0)
    assert compress(base).code == 0
    with_first(work / "out", -0.0)
    state_anew(work / "out")
    assert_broken(work / "out", "weights", "model.norm.weight is not the plan's cut")


def state_anew(folder: Path) -> None:
    """Write a manifest that fits the files, as anybody can."""
    files = [path for path in folder.iterdir() if path.name != "manifest.json"]
    sha256 = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    edit_json(folder / "manifest.json", sha256=sha256)


def assert_broken(folder: Path, link: str, *words: str) -> None:
    """Exit code 1; the link is the first that breaks and the last that is looked at."""
    record = document("verify", folder, "--json", code=1)
    assert (record["ok"], record["outcome"]) == (False, "wrong")
    assert [check["name"] for check in record["checks"]] == LINKS[: LINKS.index(link) + 1]
    assert [check["ok"] for check in record["checks"]] == [True] * LINKS.index(link) + [False]
    for word in words:
        assert word in record["checks"][-1]["detail"]


def test_files_and_manifest(pruned: Path) -> None:
    (pruned / "extra.py").write_text("")
    assert_broken(pruned, "files", "extra.py is there and manifest.json does not name it")
    (pruned / "extra.py").rename(pruned / "modeling_grasp.py")
    assert "another SHA-256" in " ".join(grasp_deploy("verify", pruned).stdout.split())
    (pruned / "modeling_grasp.py").unlink()
    first, *_ = document("verify", pruned, "--json", code=3)["checks"]
    assert first["outcome"] == "not proven" and "modeling_grasp.py" in first["detail"]
    (pruned / "tokenizer.json").unlink()
    assert_broken(pruned, "files", "tokenizer.json is missing")
    for content in ("{", '{"sha256": 1}', '{"sha256": {}}'):
        (pruned / "manifest.json").write_text(content)
        assert_broken(pruned, "files", "manifest.json cannot be read")
