"""The page: verdicts on top, everything escaped, nothing loaded, and fit for a phone."""

import html
import re

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.report.page import page
from tests.bench.records import kv_record, model, serve_record, throughput_record

NASTY = 'a-very-long-name-<script>alert("1")</script>&amp;-that-goes-on-and-on-2026-01-02-b'


@pytest.fixture(scope="module")
def text() -> str:
    """A page of three records of the same models."""
    models = [model("dense"), model(NASTY, 0.6)]
    records = {
        "speed-7b": throughput_record(models, gains={NASTY: 1.3}),
        "serve": serve_record(models, failed={NASTY: 1}),
        "cache-7b": kv_record(models, measured=False),
    }
    return page([section_of(name, record) for name, record in records.items()])


def test_it_needs_no_network_and_runs_nothing(text: str) -> None:
    assert text.startswith("<!doctype html>") and text.endswith("</html>")
    assert not re.search(r"<(script|link|iframe|object|image)\b|@import|url\(", text)
    links = re.findall(r'\b(?:href|src|srcset)="([^"]*)', text)
    assert links and all(link.startswith("data:image/svg+xml;") for link in links)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text


def test_verdicts_come_first(text: str) -> None:
    top, rest = text.split("<h2>Figures</h2>")
    assert "<img" not in top and "<table" not in top
    assert "<h2>Verdicts</h2>" in top and "<h2>Tables</h2>" in rest
    assert NASTY not in text and f"<h4>{NASTY}</h4>" in html.unescape(top)
    tones = {"good": "faster", "bad": "9 requests failed", "neutral": "predicted only"}
    for tone, outcome in tones.items():
        assert f'<span class="badge {tone}">{outcome}</span>' in top
    assert top.count("predicted only") == 2, "in the badge of each model, and not again"


def test_every_record_is_there_and_what_layers_keep_once_for_the_same_models(text: str) -> None:
    figures, source = text.split("<h2>Where the figures come from</h2>")
    for name in ("speed-7b", "cache-7b"):
        assert f"<small>{name}</small>" in figures and f"<small>{name}</small>" in source
    assert "Test Processor 9000" in source
    assert "<h3>Load on the live server</h3>" in figures, "as its record's kind"
    assert text.count("<h3>What each layer keeps <small>") == 1, "with the name of its record"
    assert "and 0 more" not in text
    assert "<title>dense and " in text and ": 3 records</title>" in text
    assert text.count("<figure>") == 4 + 4 + 1 + 2, "the benches', and channels and heads of layers"
