"""What a guard makes of signals, and what is left of a command whose own end nobody could see."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from grasp_deploy.engine.child import log_tail
from grasp_deploy.engine.serve import free_port
from tests.cli.command import environment, needs_vllm
from tests.engine.processes import DEAF_FAMILY, assert_gone, descendants, wait_until
from tests.evaluate.tasks.tiny_tasks import needs_lm_eval, write_items
from tests.tiny import save_tiny

POLITE_FAMILY = DEAF_FAMILY.replace('print("told", flush=True)', "sys.exit(7)")


def restore_interrupt() -> None:
    """Take SIGINT again: background jobs of a shell ignore it, and so does all below them."""
    signal.signal(SIGINT, signal.SIG_DFL)


@contextmanager
def begun(log: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A module that runs, or is killed at the end of the block."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            env=environment(),
            stdout=output,
            stderr=output,
            preexec_fn=restore_interrupt,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("program", "grace_seconds", "signals", "status"),
    [
        (POLITE_FAMILY, 60, [SIGTERM], 7),
        (POLITE_FAMILY, 60, [SIGINT], 7),
        (DEAF_FAMILY, 0.3, [SIGTERM], 128 + SIGKILL),
        (DEAF_FAMILY, 60, [SIGTERM, SIGINT], 128 + SIGTERM),
        (DEAF_FAMILY, 60, [SIGKILL], -SIGKILL),
        (DEAF_FAMILY.replace("time.sleep(600)\n", "sys.exit(3)"), 60, [], 3),
    ],
)
def test_whatever_ends_a_guard_ends_its_command(
    program: str,
    grace_seconds: float,
    signals: Sequence[signal.Signals],
    status: int,
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    command = (sys.executable, "-c", program)
    with begun(log, "grasp_deploy.engine.child", grace_seconds, *command) as guard:
        wait_until(lambda: "ready" in log_tail(log))
        pids = descendants(guard.pid)
        for number, words in zip(signals, ("ready", "told"), strict=False):
            wait_until(lambda words=words: words in log_tail(log))  # type: ignore[misc]
            guard.send_signal(number)
        assert guard.wait(30) == status
    assert_gone(pids)
    assert "Traceback" not in log_tail(log)


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
def test_a_server_whose_requests_go_on_ends(tmp_path: Path) -> None:
    log, model, port = tmp_path / "log", tmp_path / "model", free_port()
    save_tiny("llama", model, max_position_embeddings=65536)
    flags = ("--port", port, "--enforce-eager", "--shutdown-timeout", 1)
    body = {"model": str(model), "prompt": "a", "max_tokens": 60000, "ignore_eos": True}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps({**body, "stream": True}).encode())
    request.add_header("Content-Type", "application/json")
    with begun(log, "grasp_deploy", "serve", model, "--", *flags) as server:
        wait_until(lambda: "startup complete" in log_tail(log), seconds=300)
        with urllib.request.urlopen(request) as answer:
            answer.readline()
            pids = descendants(server.pid)
            assert any("EngineCore" in command for command in pids.values())
            server.send_signal(SIGTERM)
            assert server.wait(60) in (0, 128 + SIGKILL)  # vLLM waits for some clients and not all
    assert_gone(pids)


@pytest.mark.all
@pytest.mark.vllm
@needs_vllm
@pytest.mark.parametrize(
    ("command", "awaited"),
    [
        ("serve {model} -- --enforce-eager --port {port}", "EngineCore"),
        ("demo", "EngineCore"),
        ("bench serve {model} --prompt-tokens 64 --new-tokens 64 -- --enforce-eager", "EngineCore"),
        ("bench throughput {model} --prompt-tokens 64 --new-tokens 64", "vllm_child"),
        ("bench kv {model} --gpu-memory 64MiB", "engine.offline"),
        ("verify {pruned} --engine vllm", "engine.offline"),
        pytest.param(
            "evaluate tasks {model} --engine vllm --task-file {items}",
            "tasks.vllm",
            marks=needs_lm_eval,
        ),
    ],
)
def test_a_killed_command_leaves_no_engine_behind(
    command: str, awaited: str, tmp_path: Path, demo_model: Path, demo_checkpoint: Path
) -> None:
    items = write_items(tmp_path)["query"]
    names = {"model": demo_model, "pruned": demo_checkpoint, "port": free_port(), "items": items}
    log, words = tmp_path / "log", command.format(**names).split()
    pids: dict[int, str] = {}
    with begun(log, "grasp_deploy", *words) as process:

        def started() -> bool:
            pids.update(descendants(process.pid))
            assert process.poll() is None, log_tail(log)
            return any(awaited in command for command in pids.values())

        wait_until(started, seconds=300)
    assert_gone(pids)
