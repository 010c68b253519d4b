"""Text to token blocks: named corpora, datasets of the hub and local files."""

from grasp_deploy.data.blocks import (
    Blocks,
    Part,
    calibration_split,
    evaluation_split,
    read_blocks,
    read_documents,
    token_blocks,
)
from grasp_deploy.data.documents import Documents, read_token_documents
from grasp_deploy.data.mixture import places_of, read_calibration

__all__ = [
    "Blocks",
    "Documents",
    "Part",
    "calibration_split",
    "evaluation_split",
    "places_of",
    "read_blocks",
    "read_calibration",
    "read_documents",
    "read_token_documents",
    "token_blocks",
]
