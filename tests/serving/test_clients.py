"""The example client talks to a real server, and the image adds nothing but this package."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.answering import answering

SERVING = Path(__file__).parents[2] / "serving"
CLIENT = [sys.executable, str(SERVING / "clients" / "complete.py")]
WAYS = [CLIENT, [*CLIENT, "--stream"]] if find_spec("openai") else [CLIENT]
PROMPT = "Return a list of"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.vllm
@pytest.mark.skipif(len(WAYS) == 1, reason="openai is not installed")
def test_both_ways_continue_the_prompt_and_agree_since_they_decode_greedily(
    demo_server: str,
) -> None:
    options = ["--base-url", demo_server, "--prompt", PROMPT, "--max-tokens", "16"]
    done = [run(*way, *options) for way in WAYS]
    assert done[0].returncode == done[1].returncode == 0, done[0].stderr + done[1].stderr
    assert done[0].stdout.strip() == done[1].stdout.strip()
    assert done[0].stdout.startswith(PROMPT) and len(done[0].stdout.strip()) > len(PROMPT)


@pytest.mark.parametrize("way", WAYS)
def test_no_server_is_told_in_one_line(way: list[str]) -> None:
    for url in ("http://127.0.0.1:9", "http://127.0.0.1:x"):
        done = run(*way, "--base-url", url)
        assert done.returncode == 1 and done.stdout == ""
        assert re.match(f"No (OpenAI )?server answers at {url}", done.stderr)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_lists_no_model_is_told_in_one_line(way: list[str]) -> None:
    with answering(lambda _: (200, {"Content-Type": "application/json"}, b'{"data": []}')) as url:
        done = run(*way, "--base-url", url)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"No OpenAI server answers at {url}")


@pytest.mark.parametrize("key", ["", "secret=="])
@pytest.mark.parametrize("way", WAYS)
def test_a_key_in_the_environment_is_sent(
    way: list[str], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key)
    kind, models = {"Content-Type": "application/json"}, b'{"data": [{"id": "m"}], "choices": []}'
    keys: set[str | None] = set()
    with answering(lambda _: (200, kind, models), keys) as url:
        run(*way, "--base-url", url)
    assert keys == {f"Bearer {key}" if key else "Bearer none" if "--stream" in way else None}


@pytest.mark.parametrize("way", WAYS)
def test_text_that_would_act_on_the_terminal(way: list[str]) -> None:
    text = {"choices": [{"text": "a\x1b[2Jb\n\u4f60\u3000\u597d"}]}
    kind, body = "application/json", json.dumps(text, ensure_ascii=False).encode()
    if "--stream" in way:
        kind, body = "text/event-stream", b"data: " + body + b"\n\ndata: [DONE]\n\n"
    with answering(lambda _: (200, {"Content-Type": kind}, body)) as url:
        done = run(*way, "--base-url", url, "--model", "m", "--prompt", "")
    assert done.returncode == 0, done.stderr
    assert "[2Jb" in done.stdout and "\x1b" not in done.stdout
    assert "\u4f60\u3000\u597d" in done.stdout, "what other scripts need stays"


@pytest.mark.skipif(len(WAYS) == 1, reason="openai is not installed")
def test_a_stream_that_breaks_off_leaves_its_text_on_a_line_of_its_own() -> None:
    kind = {"Content-Type": "text/event-stream"}
    body = b'data: {"choices": [{"text": " names"}]}\n\ndata: {broken\n\n'
    with answering(lambda _: (200, kind, body)) as url:
        done = run(*WAYS[1], "--base-url", url, "--model", "m", "--prompt", PROMPT)
    assert done.returncode == 1 and done.stdout == f"{PROMPT} names\n"
    assert "breaks off" in done.stderr and done.stderr.count("\n") == 1


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
