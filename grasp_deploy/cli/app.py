"""The commands of `grasp-deploy`."""

from typing import Annotated

import typer

from grasp_deploy.cli import checkpoint, compress, convert, deploy, heal
from grasp_deploy.cli.bench import bench_app
from grasp_deploy.cli.console import (
    ErrorBoundary,
    is_under_torchrun,
    log_to_stderr,
    silence_libraries,
)
from grasp_deploy.cli.evaluate import evaluate_app
from grasp_deploy.cli.report import report_command
from grasp_deploy.errors import InputError
from grasp_deploy.version import __version__

app = typer.Typer(
    cls=ErrorBoundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Make a Llama- or Qwen-style language model smaller, and serve it with vLLM.",
)
app.command("up")(deploy.up_command)
app.command("compress")(compress.compress_command)
app.command("fit")(deploy.fit_command)
app.command("inspect")(checkpoint.inspect_command)
app.command("verify")(checkpoint.verify_command)
# vLLM's flags are understood with or without -- before them.
app.command("serve", context_settings={"ignore_unknown_options": True})(checkpoint.serve_command)
app.command("export")(convert.export_command)
app.command("quantize")(convert.quantize_command)
app.command("gguf")(convert.gguf_command)
app.command("adapter")(convert.adapter_command)
app.command("heal")(heal.heal_command)
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(bench_app, name="bench")
app.command("report")(report_command)
app.command("synthesize")(compress.synthesize_command)
app.command("demo")(compress.demo_command)


@app.callback(invoke_without_command=True)
def _global_options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the release.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log stages, files and engines to stderr.")
    ] = False,
) -> None:
    if version:
        print(f"grasp-deploy {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise InputError("no command is named: see grasp-deploy --help")
    if is_under_torchrun() and context.invoked_subcommand not in ("compress", "heal"):
        raise InputError(
            f"{context.invoked_subcommand} runs in one process: start it without torchrun, which "
            "only compress and heal can use"
        )
    if verbose:
        log_to_stderr()
    else:
        silence_libraries()
