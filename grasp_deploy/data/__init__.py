"""Text to sequences of tokens: named corpora, datasets of the hub and local files."""

from grasp_deploy.data.blocks import Blocks, Part, read_blocks, read_documents, token_blocks
from grasp_deploy.data.documents import Documents, read_token_documents
from grasp_deploy.data.mixture import places_of, read_calibration
from grasp_deploy.data.source import TextSource, calibration_sources, evaluation_source

__all__ = [
    "Blocks",
    "Documents",
    "Part",
    "TextSource",
    "calibration_sources",
    "evaluation_source",
    "places_of",
    "read_blocks",
    "read_calibration",
    "read_documents",
    "read_token_documents",
    "token_blocks",
]
