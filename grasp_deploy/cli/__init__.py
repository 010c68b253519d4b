"""The command line: parse, build a config, call the package, print the result.

Whatever is heavy is imported inside the commands, so that `--help` is instant.
"""

from grasp_deploy.cli.app import main

__all__ = ["main"]
