"""The record of `table`: the measured times, with the header of every record."""

from __future__ import annotations

from grasp_deploy.compression.latency_table import LatencyTable


class LatencyRecord(LatencyTable, kw_only=True):
    """Shapes at all batches and contexts; an unfinished one has fewer."""

    schema_version: int
    benchmark: str
    command: str
    created: str
    versions: dict[str, str]
