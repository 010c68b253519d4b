"""The documentation names only commands, options, modules and files that exist, and it builds."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import grasp_deploy
from grasp_deploy.cli.app import app
from grasp_deploy.cli.bench import add_bench
from tests.tiny import VARIANTS, tiny_model

ROOT = Path(__file__).parents[2]
SERVING = ("serving", "serving/kubernetes", "serving/monitoring", "serving/ray")
FOLDERS = (".", "docs", "benchmarks", *SERVING)
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
PROSE = [path for path in PAGES if path.name != "LOG.md"]
INVENTED = ("bench/load", "criteria/activation", "bench/NAME")  # the how-tos' own examples


def code_lines(text: str) -> Iterator[str]:
    """Shell lines of fenced blocks, continued lines joined."""
    for block in re.findall(r"```(?:bash)?\n(.*?)```", text, flags=re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of every `grasp-deploy` line, up to what goes to vLLM."""
    inline = re.findall(r"`(grasp-deploy [^`\n]+)`", text)
    for line in (*code_lines(text), *inline):
        if re.match(r"(\w+=\S+ )*grasp-deploy ", line.strip()):
            words = shlex.split(line.partition("  #")[0])
            words = words[words.index("grasp-deploy") + 1 :]
            yield words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("page", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        command: Any = typer.main.get_command(app)
        for word in words:
            options = {option for parameter in command.params for option in parameter.opts}
            if word.startswith("--"):
                assert word.partition("=")[0] in {*options, "--help"}, " ".join(words)
            elif word in getattr(command, "commands", {}):
                command = command.commands[word]
        assert not getattr(command, "commands", None) or words[0].startswith("--"), words


@pytest.mark.parametrize("page", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_modules_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\b((?:grasp_deploy|benchmarks|tests|serving|examples)/[\w./-]*\w)", text)
    modules = re.findall(r"-m (benchmarks\.\w+)", text)
    modules += re.findall(r"\b(grasp_deploy(?:\.[a-z_]+)+)", text)
    for name in named:
        if not any(invented in name for invented in INVENTED):
            assert (ROOT / name).exists() or "<" in name, name
    for name in modules:
        if name.removeprefix("grasp_deploy.") in dir(grasp_deploy):
            continue  # a public name
        path = ROOT / name.replace(".", "/")
        stem = path.with_suffix(".py")
        function = path.parent.with_suffix(".py")  # package.module.function
        assert path.is_dir() or stem.exists() or function.exists(), name
    for module, function_name in re.findall(r"\b(benchmarks(?:\.[a-z_]+)+):(\w+)", text):
        assert hasattr(import_module(module), function_name), function_name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if target.startswith("https://"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """Anchors that headings get."""
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def test_examples_of_the_how_tos_run(demo_model: Path) -> None:
    import torch

    from grasp_deploy.checkpoint.format.shapes import model_shape, read_config
    from grasp_deploy.checkpoint.read.loading import load
    from grasp_deploy.compression.budget_options import unit_table
    from grasp_deploy.pruning.budget import make_budget
    from grasp_deploy.pruning.criteria.batches import CalibrationText

    shape = model_shape(read_config(demo_model))
    units = unit_table(shape)
    cost = python_of("add-a-cost.md")["fast_kv_bytes"](units, shape)
    assert cost.shape == (units.size,)
    assert cost[units.is_kv].min() * 10 == cost[units.is_kv].max()

    text = CalibrationText(torch.randint(shape.vocab_size, (2, 16)), batch_size=1)
    model = load(demo_model, device="cpu")
    budget = make_budget(units, torch.ones(units.size), 0.5 * units.size)
    activation = python_of("add-a-method.md")["activation"]
    scores = activation(model, budget, text)
    assert scores.shape == (units.size,)
    assert bool((scores > 0).all())
    small = replace(budget, costs=budget.costs / units.size)
    assert torch.allclose(activation(model, small, text), scores * units.size)

    model = tiny_model(**VARIANTS["qwen3-moe"], vocab_size=shape.vocab_size)
    units = unit_table(model_shape(model.config.to_dict()))
    budget = make_budget(units, torch.ones(units.size), 0.5 * units.size)
    assert len(activation(model, budget, text)) < units.size, "experts have no scores: refused"


def test_the_examples_of_the_python_api_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tiny model, with options that take seconds."""
    from tests.tiny import save_tiny

    code = "\n".join(python_blocks("api.md"))
    for shown, stands_in in (
        ('"Qwen/Qwen3-0.6B"', '"model"'),
        ('calibration=("wikitext2",)', "**quick"),
        ("max_loss=0.05", "max_loss=90.0"),
    ):
        assert shown in code
        code = code.replace(shown, stands_in)
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", Path("model"))
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    text = {"calibration": ("text.txt", "self=0"), "sequences": 64, "sequence_length": 16}
    exec(code, {"quick": {**text, "rounds": 1, "scale_epochs": 0, "method": "progressive"}})
    made = {str(path.parent) for path in Path().rglob("plan.grasp")}
    assert made == {"smaller", "again", "family/keep-0.8", "family/keep-0.6", "bounded"}


@pytest.mark.parametrize("options", [[], ["--random-weights"]])
def test_the_bench_of_the_how_to_is_a_command(
    options: list[str], demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, names = typer.Typer(callback=lambda: None), python_of("add-a-bench.md")
    monkeypatch.setattr("grasp_deploy.cli.bench.bench_app", added)
    add_bench("load", names["LoadSettings"], names["bench_load"], "Measure the time to load.")
    words = ["load", str(demo_model), "--repetitions", "2", "--json", *options]
    ended = CliRunner().invoke(added, words, catch_exceptions=False)
    (cell,) = json.loads(ended.stdout)["cells"]
    assert cell["model"] == "model" and len(cell["seconds"]) == 2


def python_blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def python_of(page: str) -> dict[str, Any]:
    """The names that the Python block of a page defines."""
    (block,) = python_blocks(page)
    names: dict[str, Any] = {"__name__": "how_to"}
    sys.modules["how_to"] = type(sys)("how_to")  # dataclasses look their module up
    exec(block, names)
    del sys.modules["how_to"]
    return names


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is missing: install .[docs]")
def test_the_site_builds_and_fetches_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    asset = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\bsrc=.?https?:|<link[^>]*href=.?https?:"
    )
    for page in tmp_path.rglob("*.html"):
        assert not asset.search(page.read_text(encoding="utf-8")), page.name
