"""The comparison with TraceLens: what of its table counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tracelens import covered_share


def test_the_share_is_of_kernel_time(tmp_path: Path) -> None:
    table = tmp_path / "unified_perf_summary.csv"
    table.write_text(
        "name,Kernel Time (µs)_sum,has_perf_model\n"
        "aten::mm,30.0,True\n"
        '"experts, fused",60.0,False\n'
        "aten::add,10.0,True\n",
        encoding="utf-8",
    )
    assert covered_share(table) == pytest.approx(0.4)
