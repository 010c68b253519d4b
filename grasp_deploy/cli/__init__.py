"""The command line: parse, build a config, call the package, print the result.

Whatever is heavy is imported inside the commands, so that `--help` is instant.
"""

from grasp_deploy.cli.console import tidy_process


def main() -> None:
    """Entry point of the console script."""
    with tidy_process():
        from grasp_deploy.cli.app import app  # takes a while, in which signals may come

        app(prog_name="grasp-deploy")
