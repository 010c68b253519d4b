"""Any record can be shown key by key."""

from __future__ import annotations

from grasp_deploy.report.value_tables import provenance_table, value_table
from tests.report.sections import record


def test_values_of_every_type() -> None:
    made = {
        **record(),
        "seconds_per_step": {"median": 0.5, "samples": [i / 9 for i in range(20)]},
        **{"ok": True, "rows": [{}, {}], "counts": [1, 2000], "missing": None},
    }
    names, values = (list(map(str, column.cells)) for column in value_table(made).columns)
    assert dict(zip(names, values, strict=True)) == {
        "seconds per step, median": "0.5",
        "seconds per step, samples": "20 values, median 1.05556",
        "ok": "yes",
        "rows": "2 entries",
        "counts": "1, 2,000",
    }


def test_where_a_record_comes_from() -> None:
    names = list(map(str, provenance_table(record()).columns[0].cells))
    assert names == ["command", "machine, processor", "machine, cores", "settings, seed"]
