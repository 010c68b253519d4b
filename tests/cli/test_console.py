"""Every way in which the process of a command ends: its exit code, its streams, what it leaves."""

import logging
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from rich.logging import RichHandler
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grasp_deploy.cli.console import PlainConsole
from grasp_deploy.errors import printable
from grasp_deploy.files.tensors import read_tensors
from grasp_deploy.report.progress import stage_bars
from tests.cli.command import SHORT, assert_refused, grasp_deploy, run_process, succeeded

FULL = Path("/dev/full")
# A run that saves its state at each step and gets a signal from itself before one of them.
SIGNALLED = """
import os, signal, sys
import torch
import grasp_deploy.compression.stages as stages
from grasp_deploy.cli import main

stages.SAVE_EVERY_SECONDS = -1.0
steps, number, take_a_step = 0, signal.Signals[sys.argv.pop(1)], torch.optim.AdamW.step
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored

def step(*arguments, **options):
    global steps
    steps += 1
    if steps == 5:
        os.kill(os.getpid(), number)
    return take_a_step(*arguments, **options)

torch.optim.AdamW.step = step
main()
"""
AGAIN = "give the same command again (compress and heal: with --resume)"
GO_ON = f"what was saved is kept; to go on, {AGAIN}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "last"),
    [("SIGINT", 130, [GO_ON, "interrupted"]), ("SIGTERM", 143, [GO_ON])],
)
def test_a_signal_leaves_a_run_that_goes_on(
    tiny_folder: Path, work: Path, name: str, code: int, last: list[str]
) -> None:
    text = ("--calibration", "text.txt", *SHORT, "--calibration-sequences", "8", "--keep", "0.6")
    learning = ("-o", "out", *text, "--method", "grasp", "--json")
    ended = run_process("-c", SIGNALLED, name, "compress", tiny_folder, *learning)
    assert (ended.code, ended.stdout) == (code, ""), ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert lines[len(lines) - len(last) :] == last
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in work.iterdir()) == ["out.partial", "text.txt"]
    assert int(read_tensors(work / "out.partial" / "gates.safetensors")[0]["step"]) == 4
    succeeded("compress", tiny_folder, *learning, "--resume")
    assert sorted(path.name for path in work.iterdir()) == ["out", "text.txt"]


def test_an_interrupt_during_the_imports() -> None:
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupt:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'grasp_deploy.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt)\n"
        "from grasp_deploy.cli import main; main()"
    )
    ended = run_process("-c", program)
    assert (ended.code, ended.stdout, ended.stderr) == (130, "", "")


def test_a_name_that_is_not_utf8_on_a_terminal_that_takes_nothing_else() -> None:
    program = "from grasp_deploy.cli.console import *\nwith tidy_process(): print_line('no\\udcff')"
    ended = run_process("-c", program, PYTHONIOENCODING="utf-8:strict")
    assert (ended.code, ended.stdout) == (0, "no\\udcff\n"), ended.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_stdout(pruned: Path) -> None:
    with FULL.open("w") as full:
        ended = run_process("-m", "grasp_deploy", "inspect", pruned, "--json", stdout=full)
    assert ended.code == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("error: No space left on device")


def test_streams_that_are_closed(work: Path) -> None:
    closed = ["sh", "-c", '"$@" >&- 2>&- <&-', "sh"]
    ended = run_process("-m", "grasp_deploy", "inspect", "./none", wrapped=closed)
    assert (ended.code, ended.stdout, ended.stderr) == (2, "", "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nGPU 0"),
            "CUDA out of memory. T",
        ),
        (RuntimeError("[enforce fail] can't allocate memory: you tried"), "can't allocate memory"),
        (MemoryError(), "out of memory (MemoryError)"),
    ],
    ids=["GPU", "CPU", "Python"],
)
def test_out_of_memory(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grasp_deploy.checkpoint.footprint.inspect_model", Mock(side_effect=error))
    assert_refused(grasp_deploy("inspect", "model"), words, "smaller batch size")


def test_no_text_acts_on_the_terminal_and_brackets_are_brackets() -> None:
    file, escapes = StringIO(), "\x1b[31mred\x9b0m\u202e\r\x7f[bold]b[/bold] [/no]"
    plain: dict[str, Any] = {"markup": False, "highlight": False, "width": 300}
    console = PlainConsole(file=file, force_terminal=True, color_system="truecolor", **plain)
    table = Table(escapes, title=escapes, caption=escapes)
    table.add_row(escapes)
    with stage_bars(console) as follow:
        for step in range(2):
            follow({"stage": escapes, "step": step, "steps": 1})
    console.print(escapes, table, Text(escapes, "green"), Panel(escapes))
    console.rule(escapes)
    log = logging.LogRecord("a", logging.INFO, "a.py", 1, escapes, (), None)
    RichHandler(console=console, show_path=False).handle(log)
    shown = file.getvalue()
    own = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", shown)  # colours and cursor moves of rich
    assert "\x1b[31mred" not in shown
    assert own.count("\u241b[31mred\ufffd0m\ufffd") >= 9 and own.count("[bold]b[/bold] [") >= 9
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", own)
    assert printable("a\u061c\u200e\u200fb") == "a\ufffd\ufffd\ufffdb", "they turn lines too"


def test_warnings_of_libraries_stay_out_of_sight() -> None:
    warn = "warnings.warn('a'); logging.get_logger('transformers.b').warning('b')"
    program = f"import warnings; from transformers.utils import logging; {warn}"
    fresh = "import os; os.environ.pop('TRANSFORMERS_VERBOSITY', '')"
    silence = "from grasp_deploy.cli.console import silence_libraries; silence_libraries()"
    assert run_process("-c", f"{fresh}; {silence}; {program}").stderr == ""
    assert len(run_process("-c", f"{fresh}; {program}").stderr.splitlines()) == 2


def test_no_terminal_is_too_narrow(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    assert grasp_deploy("inspect", tiny_folder).code == 0


@pytest.fixture
def quiet_afterwards() -> Iterator[None]:
    yield
    logging.getLogger("grasp_deploy").handlers = []
    logging.getLogger("grasp_deploy").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("quiet_afterwards")
@pytest.mark.parametrize("place", [0, 2])
def test_verbose_is_accepted_before_and_behind_the_verb(place: int) -> None:
    arguments = ["inspect", "./nowhere"]
    arguments.insert(place, "--verbose")
    assert_refused(grasp_deploy(*arguments), "no such folder")
    assert logging.getLogger("grasp_deploy").isEnabledFor(logging.INFO)
