"""Text to token blocks: named corpora, datasets of the hub and local files."""

from grasp_deploy.data.blocks import (
    Blocks,
    calibration_split,
    evaluation_split,
    read_blocks,
    read_documents,
    token_blocks,
)

__all__ = [
    "Blocks",
    "calibration_split",
    "evaluation_split",
    "read_blocks",
    "read_documents",
    "token_blocks",
]
