"""The commands of `grasp-deploy`, and its entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from grasp_deploy import __version__
from grasp_deploy.cli.bench.kv import kv_command
from grasp_deploy.cli.bench.memory import memory_command
from grasp_deploy.cli.bench.serve import serve_bench_command
from grasp_deploy.cli.bench.throughput import throughput_command
from grasp_deploy.cli.compress import compress_command, export_command
from grasp_deploy.cli.console import ErrorBoundary, tidy_process
from grasp_deploy.cli.evaluate import perplexity_command
from grasp_deploy.cli.evaluate_card import card_command
from grasp_deploy.cli.heal import heal_command
from grasp_deploy.cli.inspect import inspect_command, verify_command
from grasp_deploy.cli.report import report_command
from grasp_deploy.cli.serve import demo_command, serve_command, up_command
from grasp_deploy.cli.synthesize import synthesize_command
from grasp_deploy.cli.tasks import tasks_command

app = typer.Typer(
    cls=ErrorBoundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make a Llama- or Qwen-style language model smaller, and serve it with vLLM.",
)
app.command("up")(up_command)
app.command("compress")(compress_command)
app.command("inspect")(inspect_command)
app.command("verify")(verify_command)
# A flag of vLLM's means what it says, with or without -- before it.
app.command("serve", context_settings={"ignore_unknown_options": True})(serve_command)
app.command("export")(export_command)
app.command("heal")(heal_command)

evaluate_app = typer.Typer(no_args_is_help=True, help="Measure what a model can do.")
evaluate_app.command("perplexity")(perplexity_command)
evaluate_app.command("tasks")(tasks_command)
evaluate_app.command("card")(card_command)
app.add_typer(evaluate_app, name="evaluate")

bench_app = typer.Typer(no_args_is_help=True, help="Measure what compression wins, side by side.")
bench_app.command("memory")(memory_command)
bench_app.command("kv")(kv_command)
bench_app.command("throughput")(throughput_command)
bench_app.command("serve")(serve_bench_command)
app.add_typer(bench_app, name="bench")
app.command("report")(report_command)
app.command("synthesize")(synthesize_command)
app.command("demo")(demo_command)


def main() -> None:
    """Entry point of the console script."""
    with tidy_process():
        app(prog_name="grasp-deploy")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the release.")] = False,
) -> None:
    if version:
        print(f"grasp-deploy {__version__}")
        raise typer.Exit
