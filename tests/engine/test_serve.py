"""Checks before serving, the command that follows, and the end of a failing server."""

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

from grasp_deploy.checkpoint import cpu
from grasp_deploy.checkpoint.limits import Platform
from grasp_deploy.checkpoint.read.validate import config_and_shape
from grasp_deploy.checkpoint.write.quantize import quantize
from grasp_deploy.engine import serve as module
from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import (
    check_before_serving,
    check_port,
    cpu_cache_bytes,
    free_port,
    running_server,
)
from grasp_deploy.errors import ChildError, InputError
from tests.cli.command import edit_json
from tests.installed import pretend
from tests.tiny import VARIANTS, random_kept, save_tiny, slice_by_hand, tiny_config

GIBIBYTE = 2**30
VLLM = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve"]
READS = ["--config-format", "hf", "--load-format", "safetensors", "--tokenizer-mode", "hf"]
FORMAT = [*READS, "--runner", "generate", "--dtype", "float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return directory


@pytest.fixture(autouse=True)
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the installed vLLM is its CPU build."""
    pretend(monkeypatch, lambda _: "0.32.0+cpu")
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)


def refusal(directory: Path, *arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        check_before_serving(directory, arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(directory), "DIR")


def serve_command(directory: Path, arguments: list[str], platform: Platform) -> list[str]:
    return module.serve_command(directory, read_flags(arguments), arguments, platform)


def with_port(*arguments: str) -> list[str]:
    return ["--port", str(free_port()), *arguments]


def test_the_command_binds_to_this_machine_and_bounds_the_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "memory_bytes", lambda free: 64 * GIBIBYTE)
    own = ["--host", "127.0.0.1", *FORMAT]
    for gibibytes, given in ((4, []), (2, ["-tp", "2"]), (4, ["-dp", "4"]), (1, ["-dp", "16"])):
        size = ["--kv-cache-memory-bytes", str(gibibytes * GIBIBYTE)]
        assert serve_command(model, given, "cpu") == [*VLLM, str(model), *own, *size, *given]
    monkeypatch.chdir(shutil.copytree(model, tmp_path / "-x").parent)
    assert "./-x" in serve_command(Path("./-x"), [], "cpu"), "pathlib drops the dot"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # the older way to size it
    assert serve_command(model, [], "cpu") == [*VLLM, str(model), *own]


def test_the_command_adds_nothing_that_the_user_says(model: Path) -> None:
    for arguments in (
        ["--host", "0.0.0.0", "--gpu-memory-utilization=0.3"],
        ["--uds", "socket", "--kv_cache_memory_bytes", "9"],
    ):
        assert serve_command(model, arguments, "cpu") == [*VLLM, str(model), *FORMAT, *arguments]
    own = ["--host", "127.0.0.1", *FORMAT]
    assert serve_command(model, [], "cuda") == [*VLLM, str(model), *own]


def test_another_format_is_the_users_choice(model: Path) -> None:
    chosen = [
        *("--config-format=mistral", "--load_format", "mistral", "--tokenizer-mode", "mistral"),
        *("--runner", "pooling", "--dtype", "half"),
    ]
    for arguments, left in (
        (chosen, []),
        (["--tokenizer", "T", "--convert", "embed", "-q", "fp8"], READS[:4]),
    ):
        ours = ["--host", "127.0.0.1", *left]
        assert serve_command(model, arguments, "cuda") == [*VLLM, str(model), *ours, *arguments]


def test_what_is_served_has_the_weights_dtype_unless_they_are_quantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a CPU takes a hundred times as long for it."""
    save_tiny("llama", tmp_path / "dense", dtype=torch.bfloat16)
    edit_json(tmp_path / "dense" / "config.json", dtype="float32")
    assert serve_command(tmp_path / "dense", [], "cuda")[-2:] == ["--dtype", "bfloat16"]
    quantize(tmp_path / "dense", "int8", tmp_path / "int8")
    assert "INT8" in refusal(tmp_path / "int8", "--enable-lora")
    assert "--dtype" not in serve_command(tmp_path / "int8", [], "cuda")
    for rate, served in ((0.005, "float32"), (0.5, "bfloat16")):
        monkeypatch.setattr(cpu, "bfloat16_rate", lambda rate=rate: rate)
        command = serve_command(tmp_path / "dense", [], "cpu")
        assert command[command.index("--dtype") + 1] == served
        assert served not in serve_command(tmp_path / "dense", ["--dtype", "half"], "cpu")


def cache_bytes(config: Path, available_bytes: int, *flags: str) -> int:
    return cpu_cache_bytes(config, read_flags(flags), available_bytes)


def test_the_cpu_cache_takes_a_full_context_if_memory_allows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long and in the dtype as the flags say."""
    config = Path(shutil.copyfile(model / "config.json", tmp_path / "config.json"))
    per_token = 3 * 2 * 2 * 32 * 4  # layers, K and V, KV heads, head size, float32
    edit_json(config, max_position_embeddings=8 * GIBIBYTE // per_token)
    assert cache_bytes(config, 64 * GIBIBYTE) == 8 * GIBIBYTE // per_token * per_token
    assert cache_bytes(config, 20 * GIBIBYTE) == 5 * GIBIBYTE
    tokens = 6 * GIBIBYTE // per_token
    short = cache_bytes(config, 64 * GIBIBYTE, "--max-model-len", str(tokens))
    assert short == tokens * per_token
    edit_json(config, dtype="bfloat16", max_position_embeddings=2 * tokens)
    monkeypatch.setattr(cpu, "bfloat16_rate", lambda: 0.5)
    for dtype, size in (("auto", 1), ("half", 1), ("float", 2), ("float32", 2)):
        assert cache_bytes(config, 64 * GIBIBYTE, "--dtype", dtype) == size * tokens * per_token
    edit_json(config, dtype="float32", max_position_embeddings=64)
    assert cache_bytes(config, 64 * GIBIBYTE) == 4 * GIBIBYTE
    tokens = 8 * GIBIBYTE // (2 * per_token // 3)  # one layer of three has linear attention
    stated = tiny_config("qwen3_5_text", dtype="float32", max_position_embeddings=tokens)
    stated.to_json_file(config)
    shape = config_and_shape(config)[1]
    expected = tokens * shape.kv_bytes_per_token() + shape.state_bytes_per_sequence
    assert cache_bytes(config, 64 * GIBIBYTE) == expected


def test_a_sound_model_passes_and_others_are_refused(model: Path, tmp_path: Path) -> None:
    check_before_serving(model, with_port("-tp", "2"))
    assert "no such folder: DIR" in refusal(tmp_path / "absent")
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    assert "512 positions" in refusal(tmp_path, "--max-model-len", "600")
    (tmp_path / "tokenizer.json").unlink()
    assert "no tokenizer" in refusal(tmp_path)
    check_before_serving(tmp_path, with_port("--tokenizer", str(model)))
    check_before_serving(tmp_path, with_port("--skip-tokenizer-init"))


def test_a_build_for_gpus_needs_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda _: "0.32.0")
    for visible in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda visible=visible: visible)
        if visible:
            check_before_serving(model, with_port())
    assert "needs a GPU and none is visible here: look at nvidia-smi" in refusal(model)


def test_shapes_that_vllm_cannot_serve_are_refused(tmp_path: Path) -> None:
    dense = save_tiny("llama", tmp_path)
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    for flags, culprit in (
        ("-tp 2", "the FFN channels of layer 1:"),
        ("-pp 4", "4 pipeline stages"),
        *((f"-pp 2 {f}", "compiled") for f in ("--enforce-eager", "--enable-lora", "-O0")),
        ("--enable-expert-parallel", "no experts"),
    ):
        assert culprit in refusal(tmp_path, *flags.split())
    check_before_serving(tmp_path, with_port("-pp", "2"))
    check_before_serving(tmp_path, with_port("-dp", "2", "--no-enable-expert-parallel"))
    save_tiny("llama", tmp_path, head_dim=16)
    assert "heads are 16 wide" in refusal(tmp_path)
    dense = save_tiny(directory=tmp_path, **VARIANTS["qwen3-moe"])
    check_before_serving(tmp_path, with_port("--enable-expert-parallel"))
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    assert "different numbers of experts" in refusal(tmp_path, "--enable-expert-parallel")
    assert "the experts of layer 2:" in refusal(tmp_path, "-tp", "4")
    assert "experts of 32 channels" in refusal(tmp_path, "-tp", "2", "-dp", "3")
    check_before_serving(tmp_path, with_port("-dp", "4"))


def test_a_pruned_model_wants_the_plugin_or_remote_code(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = save_tiny("llama", tmp_path)
    slice_by_hand(dense, random_kept(dense.config)).save_pretrained(tmp_path)
    for plugins in ("", "other, grasp_deploy"):  # vLLM takes a space as part of the name
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
        assert "VLLM_PLUGINS" in refusal(tmp_path)
    check_before_serving(tmp_path, with_port("--trust_remote_code"))
    check_before_serving(model, with_port())
    monkeypatch.setenv("VLLM_PLUGINS", "other,grasp_deploy")
    check_before_serving(tmp_path, with_port())


def test_a_port_in_use_is_refused_with_a_free_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = refusal(model, "--port", str(port))
        assert f"port {port} of 127.0.0.1 is in use" in told
        monkeypatch.setattr(module, "PORT", port)
        assert "is in use" in refusal(model), "vLLM's own where none is named"
        check_before_serving(model, ["--port", "0"])  # any that is free
        check_before_serving(model, ["--uds", "socket"])
    check_port("127.0.0.1", int(told.rpartition(" ")[2]))


@pytest.mark.parametrize(
    ("given", "added", "grace"),
    [
        (["--api-key", "secret1", "secret2="], ["--shutdown-timeout", "20"], "24"),
        (["--shutdown_timeout=3", "--hf-token", "secret4"], [], "7"),
        (["--hf_token=secret5", "--hf-token"], ["--shutdown-timeout", "20"], "24"),
        (["--watermark-config", '{"key": "secret6"}'], ["--shutdown-timeout", "20"], "24"),
        (["--watermark_config.key=secret7"], ["--shutdown-timeout", "20"], "24"),
    ],
)
def test_serve_becomes_a_guard_of_the_server(
    given: list[str],
    added: list[str],
    grace: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, command, __: calls.append(command))
    arguments = with_port("--kv-cache-memory-bytes", "9", "--api_key=secret3==", *given)
    with pytest.raises(InputError, match="no such folder"):
        module.serve(model / "absent", arguments)
    assert not calls, "refused before anything starts"
    module.serve(model, arguments)
    server = [*serve_command(model, arguments, "cpu"), *added]
    assert calls == [[sys.executable, "-P", "-m", "grasp_deploy.engine.child", grace, *server]]
    printed = capsys.readouterr().err
    assert f"starting {sys.executable} -P -m vllm.entrypoints." in printed
    assert "secret" not in printed


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ('{"verdict": {"outcome": "broken", "sentence": "broken: it loses 1 nat."}}', True),
        ('{"verdict": {"outcome": "usable as a drop-in", "sentence": "usable."}}', False),
        ('{"verdict": []}', False),
    ],
)
def test_serving_repeats_what_the_card_objects_to(
    text: str,
    warns: bool,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: None)
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "quality.json").write_text(text)
    module.serve(folder, with_port("--kv-cache-memory-bytes", "9"))
    assert ("by its card this model is broken: it loses 1 nat." in capsys.readouterr().err) is warns


def test_an_ipv6_address_has_brackets_in_a_url(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "check_port", lambda *_: None)  # not every machine has ::1
    monkeypatch.setattr(module, "_wait_until_ready", lambda *_: None)
    with running_server(model, ["--host=::1", "--port=8000"], tmp_path / "log") as url:
        assert url == "http://[::1]:8000"
    with running_server(model, ["--port", "0"], tmp_path / "log") as url:
        assert not url.endswith(":0")
    for flags in ("--uds=socket", "--api-key=k", "--ssl-certfile=c", "--grpc", "--headless"):
        with pytest.raises(InputError, match=f"leave {flags.split('=')[0]} out"):
            running_server(model, [flags], tmp_path / "log").__enter__()


@pytest.mark.parametrize(
    ("program", "patience_seconds", "words"),
    [
        ("raise SystemExit('no luck')", 30, "vLLM stopped with exit status 1 while starting"),
        ("import time; time.sleep(600)", 0.5, "vLLM did not answer within 0.5 s"),
        (
            "import os; raise SystemExit('VLLM_API_KEY' in os.environ and 7)",
            *(30, "vLLM stopped with exit status 0 while starting"),
        ),
    ],
)
def test_a_server_that_fails_is_told_with_the_end_of_its_log(
    program: str,
    patience_seconds: float,
    words: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "failing_server.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "one that our clients do not send")
    monkeypatch.setattr(module, "server_module", lambda: ["failing_server"])
    log = tmp_path / "log"
    with pytest.raises(ChildError) as caught, running_server(model, [], log, patience_seconds):
        pass
    assert str(caught.value) == f"{words}; its log {log} ends:\n{log.read_text().strip()}"
