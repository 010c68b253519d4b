"""Where a run writes, what it may replace or continue, and where the next one starts from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from grasp_deploy.compression.resume import Workspace
from grasp_deploy.data import Blocks
from grasp_deploy.files.progress import OnProgress, ignore_progress


@dataclass(frozen=True)
class RunOptions:
    """What a run does with its folder; none of it decides the model.

    `resume` goes on with an unfinished run in `OUTPUT.partial`, if one is there. `overwrite`
    replaces a checkpoint there, or an unfinished run. `on_progress` receives a row of metrics after
    every step.
    """

    output: Path
    resume: bool = False
    overwrite: bool = False
    on_progress: OnProgress = ignore_progress

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", Path(self.output))  # Python's callers may give text

    @property
    def begun(self) -> Path | None:
        """The output whose unfinished run is to go on; None without `resume`."""
        return self.output if self.resume else None

    def into(self, folder: Path, **changes: Any) -> Self:
        """The options for one run of several, into `folder`, which its rows of progress name."""

        def follow(row: dict[str, Any]) -> None:
            self.on_progress({**row, "member": folder.name})

        return replace(self, output=folder, on_progress=follow, **changes)


def options_of(output: RunOptions | str | Path) -> RunOptions:
    """The options given, or those of a new run into a folder."""
    return output if isinstance(output, RunOptions) else RunOptions(Path(output))


@dataclass(frozen=True)
class Start:
    """What a run starts from beside the dense model: what a larger budget left, or a checkpoint.

    One of several runs is given what all of them share.
    """

    mask: Tensor | None = None  # (N,) bool: no other unit is kept
    checkpoint: Path | None = None  # or a pruned model is there already, to be recovered
    text: Blocks | None = None  # as several runs read it once
    dtype: torch.dtype | None = None  # in which all of them compute
    shared: Workspace | None = None  # where all of them find what the first wrote


FROM_DENSE = Start()
