"""`fit`: compress to a time, measured."""

from __future__ import annotations

import sys
from functools import partial

from grasp_deploy.cli.compress import Resume, print_compressed, run_compress
from grasp_deploy.cli.config_options import takes_config
from grasp_deploy.cli.console import print_json
from grasp_deploy.cli.options import HiddenShardSize, Json, Output, Overwrite
from grasp_deploy.config.compress_config import CompressConfig


@takes_config
def fit_command(
    *,
    config: CompressConfig,
    output: Output,
    shard_size: HiddenShardSize = "4GB",
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compress MODEL to a time, such as --speedup 1.5, and measure it before the last refit.

    `compress` goes by the table's prices alone. Here the chosen shape is timed beside the dense
    model, and where it misses by more than 3 %, the mask is chosen once more.
    """
    from grasp_deploy.fit.timing import fit_time

    fit = partial(fit_time, command=["grasp-deploy", *sys.argv[1:]])
    record = run_compress(config, output, shard_size, resume, overwrite, fit)
    if as_json:
        print_json(record)
    else:
        print_compressed(record)
