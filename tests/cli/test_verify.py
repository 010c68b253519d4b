"""`verify`: the chain from files to logits holds, and names its first broken link."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import SHORT, assert_refused, document, grasp_deploy
from tests.tiny import save_tiny

LINKS = ["files", "shapes", "weights", "gated", "reloaded", "companions"]


def test_verify(pruned: Path, tiny_folder: Path) -> None:
    record = document("verify", pruned, "--json")
    assert record.keys() >= {"ok", "checks"}
    assert record["ok"] is True
    assert [check["name"] for check in record["checks"]] == LINKS
    assert all(check.keys() == {"name", "ok", "detail"} for check in record["checks"])
    assert all(check["ok"] is True and check["detail"] for check in record["checks"])
    assert document("verify", pruned, "--model", tiny_folder, "--json") == record


def test_a_base_model_that_is_gone_or_another(tiny_folder: Path, work: Path) -> None:
    base = Path(shutil.copytree(tiny_folder, work / "base"))
    options = ("-o", "out", "--calibration", "text.txt", *SHORT, "--keep", "0.6")
    assert grasp_deploy("compress", base, *options).code == 0
    flip_byte(base)
    other = grasp_deploy("verify", work / "out", "--json")
    assert_refused(other, "other weights", "SHA-256", "name the same model and revision")
    shutil.rmtree(base)
    gone = grasp_deploy("verify", work / "out", "--json")
    assert_refused(gone, "base model that the plan names is out of reach", "--model")
    record = document("verify", work / "out", "--without-base", "--json")
    assert record["ok"] is True
    assert [check["name"] for check in record["checks"]] == [*LINKS[:2], "companions"]
    assert document("verify", work / "out", "--model", tiny_folder, "--json")["ok"] is True


def flip_byte(folder: Path) -> None:
    """Flip a bit of the last tensor, so that the file's header is still true."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def cut_plan(folder: Path) -> None:
    path = folder / "plan.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def with_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A function that changes the config.json of a folder."""

    def tamper(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return tamper


def with_plan(change: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[Path], None]:
    """A function that changes mask and scales in the plan of a folder."""

    def tamper(folder: Path) -> None:
        tensors, record = read_tensors(folder / "plan.safetensors")
        change(tensors["mask"], tensors["scales"])
        write_tensors(folder / "plan.safetensors", tensors, record)

    return tamper


def swap_channels(mask: torch.Tensor, scales: torch.Tensor) -> None:
    """Keep one channel of the first layer less and another one more."""
    first = mask[:96]
    kept, removed = int(first.nonzero()[0]), int((~first).nonzero()[0])
    first[kept], first[removed] = False, True


def close_channel(mask: torch.Tensor, scales: torch.Tensor) -> None:
    mask[int(mask.nonzero()[0])] = False


def change_scale(mask: torch.Tensor, scales: torch.Tensor) -> None:
    scales[int(mask.nonzero()[0])] *= 1.01


def widen(config: dict[str, Any]) -> None:
    config["per_layer_config"]["1"]["intermediate_size"] += 1


def add_a_layer(config: dict[str, Any]) -> None:
    config["per_layer_config"]["99"] = config["per_layer_config"]["0"]


@pytest.mark.parametrize(
    ("tamper", "file", "link", "words"),
    [
        (flip_byte, "model.safetensors", "weights", "is not the plan's cut of the base weights"),
        (
            with_config(lambda c: c["rope_parameters"].update(rope_theta=100.0)),
            *("config.json", "gated", "logits differ by"),
        ),
        (with_config(widen), "config.json", "shapes", "by config.json"),
        (
            with_config(lambda c: c.update(auto_map=None)),
            *("config.json", "gated", "cannot be loaded (TypeError"),
        ),
        (
            with_config(lambda c: c.update(bos_token_id=[3])),
            *("config.json", "gated", "cannot be loaded (StrictDataclassFieldValidation"),
        ),
        (with_config(add_a_layer), "config.json", "gated", "cannot be loaded (ValueError"),
        (
            with_config(lambda c: c["rope_parameters"].update(rope_type="none")),
            *("config.json", "gated", "cannot be loaded (KeyError"),
        ),
        (break_config, "config.json", "shapes", "config.json cannot be read"),
        (with_plan(swap_channels), "plan.safetensors", "weights", "mlp."),
        (with_plan(close_channel), "plan.safetensors", "shapes", "layer 0"),
        (
            with_plan(change_scale),
            *("plan.safetensors", "weights", "layers.0.mlp.down_proj.weight is not"),
        ),
        (cut_plan, "plan.safetensors", "shapes", "plan.safetensors cannot be read"),
    ],
)
def test_a_tampered_checkpoint(
    pruned: Path, tamper: Callable[[Path], None], file: str, link: str, words: str
) -> None:
    tamper(pruned)
    assert_broken(pruned, "files", file, "another SHA-256")
    manifest = json.loads((pruned / "manifest.json").read_text())
    manifest["sha256"][file] = hashlib.sha256((pruned / file).read_bytes()).hexdigest()
    (pruned / "manifest.json").write_text(json.dumps(manifest))
    assert_broken(pruned, link, words)


def assert_broken(folder: Path, link: str, *words: str) -> None:
    """Exit code 1; the link is the first that breaks and the last that is looked at."""
    record = document("verify", folder, "--json", code=1)
    assert record["ok"] is False
    assert [check["name"] for check in record["checks"]] == LINKS[: LINKS.index(link) + 1]
    assert [check["ok"] for check in record["checks"]] == [True] * LINKS.index(link) + [False]
    for word in words:
        assert word in record["checks"][-1]["detail"]


def test_missing_files_and_a_broken_manifest(pruned: Path, work: Path) -> None:
    for name in ("model.safetensors", "plan.safetensors", "tokenizer.json", "modeling_grasp.py"):
        copy = Path(shutil.copytree(pruned, work / f"without-{name}"))
        (copy / name).unlink()
        assert_broken(copy, "files", f"{name} is missing")
    for content in ("{", "[]", '{"sha256": 1}'):
        (pruned / "manifest.json").write_text(content)
        assert_broken(pruned, "files", "manifest.json cannot be read")


def test_a_manifest_that_does_not_cover_the_folder(pruned: Path) -> None:
    (pruned / "extra.py").write_text("")
    assert_broken(pruned, "files", "extra.py is there and manifest.json does not name it")
    (pruned / "manifest.json").write_text('{"sha256": {}}')
    assert_broken(pruned, "files", "manifest.json cannot be read, or names no file")


def test_the_table_names_the_broken_link_too(pruned: Path) -> None:
    flip_byte(pruned)
    ended = grasp_deploy("verify", pruned)
    assert ended.code == 1
    assert "another SHA-256" in " ".join(ended.stdout.split())
    assert "Traceback" not in ended.stderr


def test_a_plan_of_another_model(pruned: Path, work: Path) -> None:
    save_tiny("llama", work / "same-shape", seed=1)
    verified = grasp_deploy("verify", pruned, "--model", work / "same-shape")
    assert_refused(verified, "the plan was made for", "other weights", "name the same model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("MODEL",), ("no pruned checkpoint", "that compress made")),
        (("nowhere",), ("no pruned checkpoint", "that compress made")),
        (("MODEL", "--engine", "onnx"), ("--engine onnx", "transformers or vllm")),
    ],
)
def test_what_it_refuses(
    tiny_folder: Path, work: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    named = [tiny_folder if argument == "MODEL" else argument for argument in arguments]
    assert_refused(grasp_deploy("verify", *named), *words)
