"""What a script refuses of its options before anything is measured."""

from __future__ import annotations

import argparse

from grasp_deploy.errors import InputError


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """InputError for the first of these numbers that is not above 0."""
    for name in names:
        value = getattr(options, name)
        if not value > 0:  # so that a float that is no number is refused too
            raise InputError(f"--{name.replace('_', '-')} {value} is not above 0: give more")
