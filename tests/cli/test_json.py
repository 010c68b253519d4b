"""What `--json` puts on stdout, the proof that `verify` gives, and what an interrupt leaves."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from grasp_deploy.files.tensors import read_tensors, write_tensors
from tests.cli.command import (
    ENTRY,
    SHORT,
    assert_refused,
    command_line,
    environment,
    grasp_deploy,
    run_process,
)

INSPECTED = {
    *("parameters", "weight_bytes", "kv_bytes_per_token", "layers", "distinct_shapes"),
    "tensor_parallel_sizes",
}
COMPRESSED = INSPECTED | {
    *("kept_cost", "budget", "total_cost", "kept_ffn_share", "kept_kv_share"),
    *("start_seconds", "gate_learning_seconds", "scale_seconds", "peak_memory_bytes"),
}
LAYER = {"num_attention_heads", "num_key_value_heads", "intermediate_size"}
LINKS = ["files", "shapes", "weights", "gated", "reloaded", "companions"]


def options(output: str) -> list[str]:
    text = ("--calibration", "text.txt", *SHORT, "--set", "scale-epochs=1")
    return ["-o", output, *text, "--keep", "0.6", "--json"]


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """The JSON that a command prints; json.loads takes nothing before it and nothing after it."""
    ended = grasp_deploy(*arguments)
    assert ended.code == code, ended.stderr
    record: dict[str, Any] = json.loads(ended.stdout)
    return record


def test_compress(tiny_folder: Path, work: Path) -> None:
    ended = grasp_deploy("compress", tiny_folder, *options("out"))
    record = json.loads(ended.stdout)
    assert record.keys() >= COMPRESSED
    assert record["kept_cost"] <= record["budget"] <= 0.6 * record["total_cost"] * (1 + 1e-12)
    assert 0 < record["kept_ffn_share"] < 1
    assert record["start_seconds"] > 0
    assert record["scale_seconds"] > 0
    assert record["peak_memory_bytes"] > 2**20
    for stage in ("cutting in rounds", "calibrating scales", "writing tensors", "loss"):
        assert stage in ended.stderr
    inspected = document("inspect", work / "out", "--json")
    assert {key: record[key] for key in INSPECTED} == {key: inspected[key] for key in INSPECTED}


def test_the_config_that_a_run_writes_repeats_it(pruned: Path, work: Path) -> None:
    config = ("--config", pruned / "compress_config.json")
    document("compress", "-o", "again", *config, "--json")
    weights = "model.safetensors"
    assert (work / "again" / weights).read_bytes() == (pruned / weights).read_bytes()
    # What is given on the command line wins, and one kind of budget replaces the other.
    record = document("compress", "-o", "other", *config, "--weights", "500KiB", "--json")
    assert 0.8 * 500 * 2**10 < record["weight_bytes"] <= 500 * 2**10


def test_inspect_tells_what_lies_on_the_disk(tiny_folder: Path, pruned: Path) -> None:
    for folder in (tiny_folder, pruned):
        record = document("inspect", folder, "--json", "--tensor-parallel", "2")
        assert record.keys() >= INSPECTED
        assert all(layer.keys() == LAYER for layer in record["layers"])
        assert record["tensor_parallel"]["fits"] == (2 in record["tensor_parallel_sizes"])
        with safe_open(folder / "model.safetensors", "pt") as file:
            tensors = [file.get_tensor(name) for name in file.offset_keys()]
        assert record["weight_bytes"] == sum(tensor.nbytes for tensor in tensors)
        assert record["parameters"] == sum(tensor.numel() for tensor in tensors)


def test_evaluate_perplexity(pruned: Path) -> None:
    data = ("--data", "text.txt", "--sequence-length", "32", "--sequences", "3")
    record = document("evaluate", "perplexity", pruned, *data, "--json")
    assert record.keys() >= {"perplexity", "tokens", "data"}
    assert record["tokens"] == 3 * 31
    assert record["data"]["source"] == "text.txt"
    assert 1 < record["perplexity"] < 1e9


def test_export_repeats_the_weights(pruned: Path, tiny_folder: Path, work: Path) -> None:
    model = ("--model", tiny_folder)
    record = document("export", pruned / "plan.safetensors", *model, "-o", "again", "--json")
    assert record.keys() >= INSPECTED
    names = {path.name for path in pruned.iterdir()} - {"metrics.jsonl", "manifest.json"}
    assert names == {path.name for path in (work / "again").iterdir()} - {"manifest.json"}
    for name in names:
        assert (work / "again" / name).read_bytes() == (pruned / name).read_bytes(), name


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
    assert grasp_deploy("compress", base, *options("out")).code == 0
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
    """In the last tensor, which the file's header still describes truly."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def change_rotation(folder: Path) -> None:
    edit_config(folder, lambda config: config["rope_parameters"].update(rope_theta=100.0))


def change_width(folder: Path) -> None:
    def widen(config: dict[str, Any]) -> None:
        config["per_layer_config"]["1"]["intermediate_size"] += 1

    edit_config(folder, widen)


def forget_the_classes(folder: Path) -> None:
    edit_config(folder, lambda config: config.update(auto_map=None))


def list_a_token(folder: Path) -> None:
    edit_config(folder, lambda config: config.update(bos_token_id=[3]))


def add_a_layer(folder: Path) -> None:
    def add(config: dict[str, Any]) -> None:
        config["per_layer_config"]["99"] = config["per_layer_config"]["0"]

    edit_config(folder, add)


def name_no_rotation(folder: Path) -> None:
    edit_config(folder, lambda config: config["rope_parameters"].update(rope_type="none"))


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def edit_plan(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors, record = read_tensors(folder / "plan.safetensors")
    change(tensors)
    write_tensors(folder / "plan.safetensors", tensors, record)


def swap_channels(folder: Path) -> None:
    """Keep one channel of the first layer less and another one more."""

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        first = tensors["mask"][:96]
        kept, removed = int(first.nonzero()[0]), int((~first).nonzero()[0])
        first[kept], first[removed] = False, True

    edit_plan(folder, swap)


def close_channel(folder: Path) -> None:
    def close(tensors: dict[str, torch.Tensor]) -> None:
        tensors["mask"][int(tensors["mask"].nonzero()[0])] = False

    edit_plan(folder, close)


def change_scale(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["scales"][int(tensors["mask"].nonzero()[0])] *= 1.01

    edit_plan(folder, change)


def cut_plan(folder: Path) -> None:
    path = folder / "plan.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("tamper", "file", "link", "words"),
    [
        (flip_byte, "model.safetensors", "weights", "is not the plan's cut of the base weights"),
        (change_rotation, "config.json", "gated", "logits differ by"),
        (change_width, "config.json", "shapes", "by config.json"),
        (forget_the_classes, "config.json", "gated", "cannot be loaded (TypeError"),
        (list_a_token, "config.json", "gated", "cannot be loaded (StrictDataclassFieldValidation"),
        (add_a_layer, "config.json", "gated", "cannot be loaded (ValueError"),
        (name_no_rotation, "config.json", "gated", "cannot be loaded (KeyError"),
        (break_config, "config.json", "shapes", "config.json cannot be read"),
        (swap_channels, "plan.safetensors", "weights", "mlp."),
        (close_channel, "plan.safetensors", "shapes", "layer 0"),
        (change_scale, "plan.safetensors", "weights", "layers.0.mlp.down_proj.weight is not"),
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


def test_an_interrupt_leaves_a_run_that_goes_on(tiny_folder: Path, work: Path) -> None:
    longer = ("--method", "grasp", "--sequences", "32", "--set", "epochs=16")
    arguments = ("compress", tiny_folder, *options("out"), *longer)
    frequent = f"import grasp_deploy.compression.resume as w; w.SAVE_EVERY_SECONDS = 0.05; {ENTRY}"
    process = subprocess.Popen(
        [*command_line()[:2], frequent, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for_a_step(work / "out.partial" / "gates.safetensors", process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stdout == ""
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert lines[-2:] == [
        "what was learnt is kept; to go on, give the same command with --resume",
        "interrupted",
    ]
    assert not (work / "out").exists()
    begun = int(read_tensors(work / "out.partial" / "gates.safetensors")[0]["step"])
    assert begun > 0
    resumed = run_process(*arguments, "--resume")
    assert resumed.code == 0, resumed.stderr
    assert json.loads(resumed.stdout).keys() >= COMPRESSED
    assert "Traceback" not in resumed.stderr
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


def wait_for_a_step(
    path: Path, process: subprocess.Popen[str], timeout_seconds: float = 120
) -> None:
    """Until a state is saved that has learnt: the first one holds what learning starts from."""
    end = time.monotonic() + timeout_seconds
    while not (path.exists() and int(read_tensors(path)[0]["step"])):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no step is saved in {path}"
        time.sleep(0.01)
