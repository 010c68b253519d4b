"""`demo`: the whole way on the model inside the package."""

from __future__ import annotations

from rich.markup import escape

from grasp_deploy.cli.console import stderr, stdout


def demo_command() -> None:
    """Compress, verify and serve the small model inside this package; print dense and pruned."""
    from grasp_deploy.demo.run import run_demo
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import comparison_table

    with stage_bars(stderr) as on_progress:
        result = run_demo(on_progress, say=lambda text: stderr.print(text, highlight=False))
    stdout.print(comparison_table(result.dense, result.pruned))
    stdout.print(f"prompt:     {escape(result.prompt)}\ncompletion: {escape(result.completion)}")
