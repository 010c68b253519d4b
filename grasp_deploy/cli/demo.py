"""`demo`: the whole way on the model inside the package."""

from __future__ import annotations

from functools import partial

from rich.markup import escape

from grasp_deploy.cli.console import stderr, stdout


def demo_command() -> None:
    """Compress, verify and serve the small model inside this package; print dense and pruned."""
    from grasp_deploy.demo.run import PROMPT, run_demo
    from grasp_deploy.report.progress import stage_bars
    from grasp_deploy.report.tables import comparison_table

    with stage_bars(stderr) as on_progress:
        say = partial(stderr.print, highlight=False)
        dense, pruned, completion = run_demo(on_progress, say)
    stdout.print(comparison_table(dense, pruned))
    stdout.print(f"prompt:     {PROMPT}\ncompletion: {escape(completion)}")
