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

from grasp_deploy.report.page import page
from grasp_deploy.report.section import Section
from tests.report.sections import NASTY, full_section, table

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# What the page's copy tells the page around it: a frame can be as narrow as a phone, a window not.
PROBE = """<script>onload = () => parent.postMessage({
  widths: [innerWidth, document.documentElement.scrollWidth],
  ground: getComputedStyle(document.body).backgroundColor,
  loaded: performance.getEntriesByType("resource").map(e => e.name).filter(n => !/^data:/.test(n)),
  figures: [...document.querySelectorAll("figure img")].map(img => img.getBoundingClientRect()),
  uncut: [...document.querySelectorAll("li, h1, h2, h3, h4")].every(
    element => element.scrollWidth <= element.clientWidth + 1),
}, "*")</script>"""
FRAME = """<!doctype html><title>waiting</title>
<iframe src="copy.html" style="width: {width}px; height: 800px; border: 0"></iframe>
<script>onmessage = event => document.title = JSON.stringify(event.data)</script>"""


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
    """A page of two records of the same models."""
    return page([full_section(), full_section("speed-again")])


def in_browser(text: str, folder: Path, width: int, *flags: str) -> dict[str, Any]:
    """The look of the page in a headless Chromium, in a frame of this width."""
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
    assert f"1.5 times as fast as {NASTY}." in html.unescape(top)
    reasons = top.split("<p>Short of the ideal. Likely reasons:</p>")[1]
    assert "try <code>--ffn-multiple 32</code>" in reasons
    for tone, outcome in {"good": "faster", "bad": "9 requests failed", "neutral": "mixed"}.items():
        assert f'<span class="badge {tone}">{outcome}</span>' in top


def test_every_record_is_there_and_what_layers_keep_once_for_the_same_models(text: str) -> None:
    figures, source = text.split("<h2>Where the figures come from</h2>")
    for name in ("speed-7b", "speed-again"):
        assert f"<small>{name}</small>" in figures and f"<small>{name}</small>" in source
    assert "Test Processor 9000" in source
    assert "<h3>Throughput</h3>" in page([full_section("made-up")]), "as its record's kind"
    assert text.count("What each layer keeps") == 1
    assert text.count("<figure>") == 4, "one for each record, and channels and heads of layers"


def test_tables_keep_notes_groups_and_sides(text: str) -> None:
    assert "<small>first note<br>second note</small>" in text
    assert "<b>a group</b>" in text
    assert '<td class="right">1,234</td>' in text, "without the markup of a terminal"


def test_a_section_of_tables_alone_makes_a_page() -> None:
    without = Section("methods", "Across models", {}, tables=lambda: [table()])
    alone = page([without])
    assert "Verdicts" not in alone and "<h2>Figures" not in alone and "<td" in alone
    assert alone.count("methods") == 1, "nothing says where it comes from"
    Checker(alone)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "columns", "scheme"), [(390, 1, 0), (1280, 2, 1)])
def test_it_fits_the_screen_and_follows_the_readers_light_or_dark(
    text: str, tmp_path: Path, width: int, columns: int, scheme: int
) -> None:
    seen = in_browser(text, tmp_path, width, f"--blink-settings=preferredColorScheme={scheme}")
    assert seen["widths"] == [width, width] and seen["uncut"] and seen["loaded"] == []
    assert len(seen["figures"]) == text.count("<figure>")
    for place in seen["figures"]:
        assert place["left"] >= 0 and place["right"] <= width and place["width"] > 300
    assert len({round(place["left"]) for place in seen["figures"]}) == columns
    red = int(re.findall(r"\d+", seen["ground"])[0])
    assert (red > 128) == bool(scheme), "0 is dark, 1 is light"
