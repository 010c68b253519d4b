"""The page: verdicts on top, everything escaped, nothing loaded, and fit for a phone."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from grasp_deploy.bench.kinds import section_of
from grasp_deploy.report.page import page
from tests.bench.records import kv_record, model, serve_record, throughput_record

NASTY = 'a-very-long-name-<script>alert("1")</script>&amp;-that-goes-on-and-on-2026-01-02-b'


class Checker(HTMLParser):
    """The elements that are open where the page ends, and all links."""

    VOID = frozenset({"meta", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for key, value in attrs if key in ("href", "src", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


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


def test_it_is_well_formed_needs_no_network_and_runs_nothing(text: str) -> None:
    found = Checker(text)
    assert found.open == [] and text.startswith("<!doctype html>")
    assert {"main", "img", "table", "h1"} <= found.tags
    assert not found.tags & {"script", "link", "iframe", "object", "image"}
    assert found.links and all(link.startswith("data:image/svg+xml;") for link in found.links)
    assert not re.search(r"@import|url\(", text)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text


def test_verdicts_come_first(text: str) -> None:
    top, rest = text.split("<h2>Figures</h2>")
    assert "<img" not in top and "<table" not in top
    assert "<h2>Verdicts</h2>" in top and "<h2>Tables</h2>" in rest
    assert NASTY not in text and f"<h4>{NASTY}</h4>" in html.unescape(top)
    tones = {"good": "faster", "bad": "9 requests failed", "neutral": "predicted only"}
    for tone, outcome in tones.items():
        assert f'<span class="badge {tone}">{outcome}</span>' in top


def test_every_record_is_there_and_what_layers_keep_once_for_the_same_models(text: str) -> None:
    figures, source = text.split("<h2>Where the figures come from</h2>")
    for name in ("speed-7b", "cache-7b"):
        assert f"<small>{name}</small>" in figures and f"<small>{name}</small>" in source
    assert "Test Processor 9000" in source
    assert "<h3>Load on the live server</h3>" in figures, "as its record's kind"
    assert text.count("What each layer keeps") == 1
    assert text.count("<figure>") == 4 + 4 + 1 + 2, "the benches', and channels and heads of layers"
