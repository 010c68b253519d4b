"""The page: verdicts on top, everything escaped, nothing loaded, and fit for a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is in the plot extra")

from tests.report.study_records import study_record, with_tasks

from grasp_deploy.bench.verdicts import headlines
from grasp_deploy.report.page import page
from grasp_deploy.report.records import NamedRecord
from tests.report.records import (
    kv_record,
    memory_record,
    model,
    quality_record,
    record,
    serve_record,
    throughput_record,
)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NASTY = 'a-very-long-name-<script>alert("1")</script>&amp;-that-goes-on-and-on-2026-01-02-b'
# What the page's copy tells the page around it: a frame can be as narrow as a phone, a window not.
PROBE = """<script>onload = () => parent.postMessage({
  width: innerWidth,
  scrollWidth: document.documentElement.scrollWidth,
  bodyWidth: document.body.scrollWidth,
  ground: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector("svg [style*='fill: var(--plot-1)']")).fill,
  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  figures: [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect()),
  boxes: [...document.querySelectorAll(".box")].map(box => box.getBoundingClientRect()),
  uncut: [...document.querySelectorAll("li, h1, h2, h3, h4")].every(
    element => element.scrollWidth <= element.clientWidth + 1),
}, "*")</script>"""
FRAME = """<!doctype html><title>waiting</title>
<iframe src="copy.html" style="width: {width}px; height: 800px; border: 0"></iframe>
<script>onmessage = event => document.title = JSON.stringify(event.data)</script>"""


class Checker(HTMLParser):
    """The elements that are open where the page ends, all links, and all ids."""

    VOID = frozenset({"meta", "br", "wbr", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src", "xlink:href", "srcset")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def records() -> list[NamedRecord]:
    models = [model("llama-2-7b"), model(NASTY, 0.6), model("pruned-0.5", 0.5, multiple=128)]
    gate_step = record("gate_step", [], seconds={"samples": [0.5 + i / 99 for i in range(20)]})
    made = {
        "throughput-7b": throughput_record(models, overhead_seconds=2e-3),
        "memory-7b": memory_record(models),
        "kv-7b": kv_record(models),
        "serve-7b": serve_record(models, failed={NASTY: 1}),
        "quality-7b": quality_record(models, ["wikitext2"]),
        "study-7b": study_record({NASTY: {0.8: [0.1], 0.5: [0.3]}}),
        "gate-step": gate_step,
    }
    return [NamedRecord(name, one) for name, one in made.items()]


@pytest.fixture(scope="module")
def text(records: list[NamedRecord]) -> str:
    return page(records)


def in_browser(text: str, folder: Path, width: int, *flags: str) -> dict[str, Any]:
    """What the page looks like in a headless Chromium, in a frame of this width."""
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH")
    without_policy = re.sub(r"<meta http-equiv=[^>]*>", "", text)
    (folder / "copy.html").write_text(without_policy.replace("</body>", f"{PROBE}</body>"))
    (folder / "frame.html").write_text(FRAME.format(width=width))
    profile = f"--user-data-dir={folder / 'profile'}"
    address = (folder / "frame.html").as_uri()
    done = subprocess.run(
        [CHROMIUM, *FLAGS, profile, *flags, "--virtual-time-budget=10000", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None and found[1] != "waiting", done.stdout[:500] + done.stderr[-500:]
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


def test_it_is_well_formed(text: str) -> None:
    found = Checker(text)
    assert found.open == []
    assert text.startswith("<!doctype html>")
    assert {"main", "svg", "table", "h1"} <= found.tags
    assert len(found.ids) == len(set(found.ids))


def test_it_needs_no_network_and_runs_nothing(text: str) -> None:
    found = Checker(text)
    assert not found.tags & {"script", "link", "img", "iframe", "object", "image"}
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_verdicts_come_first(text: str, records: list[NamedRecord]) -> None:
    top, rest = text.split("<h2>Figures</h2>")
    assert "<svg" not in top and "<table" not in top
    assert "<h2>Verdicts</h2>" in top and "<h2>Tables</h2>" in rest
    for named in records:
        for line in headlines(named.record):
            assert html.escape(line["sentence"]) in re.sub(r"</?code>", "`", top)


def test_every_record_is_there_with_where_it_comes_from(
    text: str, records: list[NamedRecord]
) -> None:
    figures, source = text.split("<h2>Where the figures come from</h2>")
    for named in records:
        assert f"<small>{named.name}</small>" in figures
        assert f"<small>{named.name}</small>" in source
        assert html.escape(named.record["command"]) in source
    assert "Test Processor 9000" in source and "Test GPU 80GB" in source
    assert "20 values, median" in figures  # of a record that nothing else is known about


def test_names_are_escaped(text: str) -> None:
    assert "<script" not in text
    assert html.escape(NASTY) in text


def test_outcomes_have_their_colours(text: str) -> None:
    assert '<span class="badge good">faster</span>' in text
    assert '<span class="badge good">no request failed</span>' in text
    assert '<span class="badge bad">9 requests failed</span>' in text


def test_records_without_verdicts_or_figures_make_a_page() -> None:
    alone = page([NamedRecord("gate", record("gate_step", [], ok=True))])
    assert "Verdicts" not in alone and "Figures" not in alone and "<td" in alone
    Checker(alone)


def test_a_study_makes_a_page_alone() -> None:
    alone = page([NamedRecord("methods", study_record())])
    assert "Verdicts" not in alone and "What each layer keeps" not in alone
    assert alone.count("<figure>") == 3 and "Studies of quality" in alone
    assert "8.24 ±0.08" in alone and "56.7%" in alone
    Checker(alone)


def test_one_study_of_two_models_lies_side_by_side() -> None:
    records = [study_record(), with_tasks(study_record(), {"arc_challenge": "acc"}, [0.7, 0.5])]
    for name, one in zip(("<a>", "b"), records, strict=True):
        one["settings"] = {"model": f"models/{name}"}
    both = page([NamedRecord(f"methods-{index}", one) for index, one in enumerate(records)])
    tables = both.split("<h2>Tables</h2>")[1].split("<h2>Where the figures come from</h2>")[0]
    across = tables.split("<h3>Across models <small>methods</small></h3>")[1]
    assert "&lt;a&gt;" in across and "0.030 ±0.010" in across
    assert "arc_<wbr>challenge" in tables and "70.0 ± 3.0" in tables
    assert "<b>keep 0.8</b>" in tables, "budgets stand out among the variants"
    assert "as in the paper" not in tables, "of one task there is no average"
    assert "<br>dense perplexities: &lt;a&gt; 8.00 on c4" in across
    Checker(both)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen(text: str, tmp_path: Path, width: int) -> None:
    seen = in_browser(text, tmp_path, width)
    assert seen["width"] == width
    assert seen["scrollWidth"] == width and seen["bodyWidth"] <= width
    assert seen["uncut"]
    assert seen["loaded"] == []
    assert len(seen["figures"]) == text.count("<figure>")
    for place in [*seen["figures"], *seen["boxes"]]:
        assert place["left"] >= 0 and place["right"] <= width
        assert place["width"] > 300 and place["height"] > 20
    columns = {round(place["left"]) for place in seen["figures"]}
    assert len(columns) == (1 if width == 390 else 2)


@pytest.mark.slow
def test_it_follows_the_readers_light_or_dark(text: str, tmp_path: Path) -> None:
    dark = in_browser(text, tmp_path, 390, "--blink-settings=preferredColorScheme=0")
    light = in_browser(text, tmp_path, 390, "--blink-settings=preferredColorScheme=1")
    for seen, ground_is_bright in ((dark, False), (light, True)):
        assert (brightness(seen["ground"]) > 128) == ground_is_bright
        assert (brightness(seen["ink"]) > 128) != ground_is_bright


@pytest.mark.slow
def test_the_probe_sees_what_is_too_wide(tmp_path: Path) -> None:
    wide = '<!doctype html><body><svg><path style="fill: var(--plot-1)"/></svg><figure>'
    wide += '<svg style="width: 600px"></svg></figure><img src="http://127.0.0.1:9/x.png"></body>'
    seen = in_browser(wide, tmp_path, 390)
    assert seen["scrollWidth"] > 600
    assert len(seen["loaded"]) == 1


def brightness(color: str) -> float:
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue
