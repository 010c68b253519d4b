"""The table of a record that has none of its own."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from grasp_deploy.report.tables import PROVENANCE, value_table

COMMON = ("schema_version", "benchmark", *PROVENANCE)


def record_table(record: Mapping[str, Any]) -> Table:
    """All figures of a record by their keys, without what every record has."""
    figures = {key: value for key, value in record.items() if key not in COMMON}
    return value_table(f"Record of {record['benchmark']}", figures)
