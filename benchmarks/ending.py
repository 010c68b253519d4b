"""How a script ends where its input is wrong: one line, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable

from grasp_deploy.errors import InputError
from grasp_deploy.pruning.objective import LossError


def run(main: Callable[[], None]) -> None:
    """Call a script's `main`."""
    try:
        main()
    except (InputError, LossError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
