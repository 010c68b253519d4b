"""The example clients talk to a real server, and the image adds nothing but this package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "serving"
CLIENTS = SERVING / "clients"
PROMPT = "Return a list of"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.vllm
@pytest.mark.parametrize("client", ["complete.py", "stream.py"])
def test_a_python_client_continues_the_prompt(demo_server: str, client: str) -> None:
    command = [sys.executable, str(CLIENTS / client), "--base-url", demo_server]
    done = run(*command, "--prompt", PROMPT, "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROMPT)
    assert len(done.stdout.strip()) > len(PROMPT)


@pytest.mark.vllm
def test_the_clients_agree_since_they_decode_greedily(demo_server: str) -> None:
    options = ["--base-url", demo_server, "--prompt", PROMPT, "--max-tokens", "16"]
    outputs = [
        run(sys.executable, str(CLIENTS / client), *options).stdout.strip()
        for client in ("complete.py", "stream.py")
    ]
    assert outputs[0] == outputs[1] != ""


@pytest.mark.vllm
def test_the_curl_client_quotes_its_prompt(demo_server: str) -> None:
    done = run(str(CLIENTS / "complete.sh"), demo_server, "", 'A "quoted\\" prompt')
    assert done.returncode == 0, done.stderr
    assert '"text"' in done.stdout and '"usage"' in done.stdout


@pytest.mark.vllm
def test_a_model_that_is_not_served_is_refused_with_the_servers_words(demo_server: str) -> None:
    options = ["--base-url", demo_server, "--model", "absent"]
    for client in ("complete.py", "stream.py"):
        done = run(sys.executable, str(CLIENTS / client), *options)
        assert done.returncode == 1
        assert "absent" in done.stderr and "Traceback" not in done.stderr


def test_no_server_is_told_in_one_line() -> None:
    done = run(sys.executable, str(CLIENTS / "complete.py"), "--base-url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("No server answers at http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1


def instructions() -> list[str]:
    """The Dockerfile's instructions, each with its continuation lines joined."""
    text = (SERVING / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_the_image_is_one_pinned_vllm_release() -> None:
    sources = [line for line in instructions() if line.startswith("FROM")]
    assert len(sources) == 1
    assert re.fullmatch(r"FROM vllm/vllm-openai:v\d+\.\d+\.\d+", sources[0])


def test_the_image_installs_this_package_and_nothing_else() -> None:
    installs = [line for line in instructions() if re.search(r"\b(pip|apt|apt-get|uv)\b", line)]
    assert len(installs) == 1
    assert "--no-deps" in installs[0] and installs[0].endswith("/source")
    assert not any(line.startswith(("COPY", "ADD")) for line in instructions())


def test_the_build_context_holds_what_the_package_needs_and_no_more() -> None:
    ignore = (SERVING / "Dockerfile.dockerignore").read_text().split()
    assert ignore == ["*", "!grasp_deploy", "!pyproject.toml", "!README.md", "!LICENSE"]


def test_the_container_does_not_run_as_root() -> None:
    users = [line for line in instructions() if line.startswith("USER")]
    assert users and users[-1].split()[1] not in {"root", "0"}
