"""Text to token blocks: named corpora, datasets of the hub and local files."""

from grasp_deploy.data.blocks import (
    Blocks,
    calibration_split,
    evaluation_split,
    read_blocks,
    read_documents,
    token_blocks,
)
from grasp_deploy.data.documents import Documents, read_token_documents

__all__ = [
    "Blocks",
    "Documents",
    "calibration_split",
    "evaluation_split",
    "read_blocks",
    "read_documents",
    "read_token_documents",
    "token_blocks",
]
