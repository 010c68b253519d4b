"""The example clients talk to a real server, and the image adds nothing but this package."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.answering import answering

SERVING = Path(__file__).parents[2] / "serving"
CLIENTS = SERVING / "clients"
PROMPT = "Return a list of"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.vllm
def test_the_clients_continue_the_prompt_and_agree_since_they_decode_greedily(
    demo_server: str,
) -> None:
    options = ["--base-url", demo_server, "--prompt", PROMPT, "--max-tokens", "16"]
    done = [
        run(sys.executable, str(CLIENTS / client), *options)
        for client in ("complete.py", "stream.py")
    ]
    assert done[0].returncode == done[1].returncode == 0, done[0].stderr + done[1].stderr
    assert done[0].stdout.strip() == done[1].stdout.strip()
    assert done[0].stdout.startswith(PROMPT) and len(done[0].stdout.strip()) > len(PROMPT)


@pytest.mark.vllm
def test_the_curl_client_quotes_its_prompt(demo_server: str) -> None:
    done = run(str(CLIENTS / "complete.sh"), demo_server, "", 'A "quoted\\" prompt')
    assert done.returncode == 0, done.stderr
    assert '"text"' in done.stdout and '"usage"' in done.stdout


def test_no_server_is_told_in_one_line() -> None:
    done = run(sys.executable, str(CLIENTS / "complete.py"), "--base-url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("No server answers at http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("client", ["complete.py", "complete.sh"])
def test_a_server_that_lists_no_model_is_told_in_one_line(client: str) -> None:
    with answering(lambda _: (200, {"Content-Type": "application/json"}, b'{"data": []}')) as url:
        is_python = client.endswith(".py")
        before = [sys.executable] if is_python else []
        done = run(*before, str(CLIENTS / client), *["--base-url"] * is_python, url)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"No OpenAI server answers at {url}")


@pytest.mark.parametrize("key", ["", "secret=="])
@pytest.mark.parametrize("client", ["complete.py", "stream.py", "complete.sh"])
def test_a_key_in_the_environment_is_sent(
    client: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if client == "stream.py":
        pytest.importorskip("openai")
    monkeypatch.setenv("VLLM_API_KEY", key)
    kind, models = {"Content-Type": "application/json"}, b'{"data": [{"id": "m"}], "choices": []}'
    keys: set[str | None] = set()
    with answering(lambda _: (200, kind, models), keys) as url:
        given = [url] if client == "complete.sh" else ["--base-url", url]
        with_python = [] if client == "complete.sh" else [sys.executable]
        run(*with_python, str(CLIENTS / client), *given)
    assert keys == {f"Bearer {key}" if key else "Bearer none" if client == "stream.py" else None}


@pytest.mark.parametrize("client", ["complete.py", "stream.py", "complete.sh"])
def test_text_that_would_act_on_the_terminal(client: str) -> None:
    text = {"choices": [{"text": "a\x1b[2Jb\n\u4f60\u3000\u597d"}]}
    kind, body = "application/json", json.dumps(text, ensure_ascii=False).encode()
    if client == "complete.sh":  # which prints the server's own bytes
        body = body.replace(b"\\u001b", b"\x1b")
    if client == "stream.py":
        pytest.importorskip("openai")
        kind, body = "text/event-stream", b"data: " + body + b"\n\ndata: [DONE]\n\n"
    with answering(lambda _: (200, {"Content-Type": kind}, body)) as url:
        if client == "complete.sh":
            done = run(str(CLIENTS / client), url, "m", "")
        else:
            words = ("--base-url", url, "--model", "m", "--prompt", "")
            done = run(sys.executable, str(CLIENTS / client), *words)
    assert done.returncode == 0, done.stderr
    assert "[2Jb" in done.stdout and "\x1b" not in done.stdout
    assert "\u4f60\u3000\u597d" in done.stdout, "what other scripts need stays"


def test_the_image_is_one_pinned_vllm_release_with_this_package_and_nothing_else() -> None:
    text = (SERVING / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    (source,) = (line for line in lines if line.startswith("FROM"))
    assert re.fullmatch(r"FROM vllm/vllm-openai:v\d+\.\d+\.\d+", source)
    (install,) = (line for line in lines if re.search(r"\b(pip|apt|apt-get|uv)\b", line))
    assert "--no-deps" in install and install.endswith("/source")
    assert not any(line.startswith(("COPY", "ADD")) for line in lines)
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users and users[-1] not in {"root", "0"}
    ignore = (SERVING / "Dockerfile.dockerignore").read_text().split()
    assert ignore == ["*", "!grasp_deploy", "!pyproject.toml", "!README.md", "!LICENSE"]
