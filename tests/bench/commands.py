"""The two commands that measure speed, by themselves."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from grasp_deploy.cli.bench.serve import serve_bench_command
from grasp_deploy.cli.bench.throughput import throughput_command
from grasp_deploy.cli.console import ErrorBoundary
from tests.cli.command import Ended

app = typer.Typer(cls=ErrorBoundary, pretty_exceptions_enable=False)
app.command("throughput")(throughput_command)
app.command("serve")(serve_bench_command)


def bench(*arguments: str | Path | int) -> Ended:
    """Run a command in this process; whatever is no exit of ours goes up as it is."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="bench")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)
