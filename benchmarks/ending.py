"""How a script ends where something stops it: one line, as on the command line."""

from __future__ import annotations

from collections.abc import Callable

from grasp_deploy.cli.console import readable_ends, tidy_process
from grasp_deploy.errors import InputError
from grasp_deploy.pruning.objective import LossError


def run(main: Callable[[], None]) -> None:
    """Call a script's `main`."""
    with tidy_process(), readable_ends():
        try:
            main()
        except LossError as error:
            raise InputError(str(error)) from None
