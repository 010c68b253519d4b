"""The load client keeps its record, whatever a server answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.answering import Answer, answering

LOAD = Path(__file__).parents[2] / "serving" / "ray" / "load.py"


JSON = {"Content-Type": "application/json"}


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers in turn, and then as it should."""
    answers = iter(request.param)

    def answer(_: str) -> Answer:
        code, body = next(answers, (200, '{"model": "m"}'))
        return code, JSON, body.encode()

    with answering(answer) as url:
        yield url


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
