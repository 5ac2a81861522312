"""The tables of docs/scale.md are those of the results, and the results say what they must."""

from __future__ import annotations

import json

import pytest

from benchmarks.common import pages as made
from benchmarks.common.folders import RESULTS
from benchmarks.scale import __main__ as scale_report


def test_the_page_shows_the_results() -> None:
    for name, text in scale_report.parts().items():
        shown = made.section(scale_report.PAGE, scale_report.SCRIPT, name)
        assert shown == text.strip(), "run: python -m benchmarks.scale"


def test_a_thousand_reports_take_less_than_three_minutes_and_a_gigabyte() -> None:
    """CPU seconds of two cores: other work slows the clock's."""
    result = json.loads((RESULTS / "thousand.json").read_text())["many"]
    assert result["equal"]
    assert result["reports"] == 1021
    assert result["ranks"] == [509, 512]
    assert result["two"]["cpu_s"] < 180
    assert result["kept"]["cpu_s"] < 0.5 * result["two"]["cpu_s"]
    assert result["one_more"]["cpu_s"] < 1.2 * result["kept"]["cpu_s"]
    ways = [figures for figures in result.values() if isinstance(figures, dict)]
    assert max(figures["parent_mb"] for figures in ways) < 1000
    assert result["page_mb"] < 4


@pytest.mark.parametrize(("rows", "megabytes"), [(10_000_000, 700), (50_000_000, 2000)])
def test_large_reports_take_little_memory(rows: int, megabytes: int) -> None:
    large = json.loads((RESULTS / "large.json").read_text())
    found = [row for row in large["rows"] if row["size"] == rows]
    assert found
    for row in found:
        assert row["perfmodel"]["peak_mb"] < megabytes
        assert row.get("csv_equal", True)
