"""Text to sequences of tokens: named corpora, datasets of the hub and local files."""

from grasp_deploy.data.blocks import Blocks, Part, read_blocks
from grasp_deploy.data.mixture import beginnings, own_places, places_of, read_calibration
from grasp_deploy.data.source import TextSource, calibration_sources, evaluation_source

__all__ = [
    "Blocks",
    "Part",
    "TextSource",
    "beginnings",
    "calibration_sources",
    "evaluation_source",
    "own_places",
    "places_of",
    "read_blocks",
    "read_calibration",
]
