"""The load client keeps its record, whatever a server answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

LOAD = Path(__file__).parents[2] / "serving" / "ray" / "load.py"


class Server(ThreadingHTTPServer):
    """Answers in turn, the last of them again and again."""

    def __init__(self, answers: list[tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = iter(answers)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = next(self.server.answers, (200, '{"model": "m"}'))
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with Server(request.param) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LOAD), "--concurrency", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


ODD = [(200, body) for body in ("{}", "[]", '{"mod', "")]


@pytest.mark.parametrize(
    ("url", "code", "answered", "retries", "lost"),
    [
        ([(503, "")], 0, 4, {"HTTP 503": 1}, 0),
        (ODD[:3], 3, 1, {}, 3),
        ([(404, "{}")], 3, 3, {}, 1),
        (ODD, 3, 0, {}, 4),
    ],
    indirect=["url"],
)
def test_what_comes_of_four_requests(
    url: str, code: int, answered: int, retries: dict[str, int], lost: int, tmp_path: Path
) -> None:
    output = tmp_path / "load.json"
    done = run("--base-url", url, "--requests", "4", "--output", str(output))
    record = json.loads(output.read_text())
    assert done.returncode == code, done.stderr
    assert (record["answered"], record["retries"], record["lost"]) == (answered, retries, lost)
    assert record["answers_by_model"] == ({"m": answered} if answered else {})
