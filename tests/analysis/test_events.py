"""Event tables: parts add up, rows are those of the file, every column is documented."""

from __future__ import annotations

import lzma
import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

import perfmodel
from benchmarks.common.folders import BASE, PROFILES, ROOT
from perfmodel.analysis.events import TABLES, documented, events
from perfmodel.base.errors import ModelError
from perfmodel.readers import read
from perfmodel.readers.trace import NULL
from support import build_kineto
from support.build_operators import operators_report
from support.once import analysis_of, run_of

PROGRAMS = PROFILES / "programs"
LATE = PROGRAMS / "straggler_p2_b32.sqlite.xz"
HALO = PROGRAMS / "halo.sqlite.xz"
CPU = ROOT / "tests" / "reports" / "cpu_2ranks_nsys2024.2.3.sqlite"


@pytest.fixture(scope="module")
def late() -> perfmodel.Report:
    return perfmodel.read(LATE)


@cache
def of_torch_profiler() -> dict[str, Any]:
    """The trace of rank 0 of training with operators."""
    with TemporaryDirectory() as folder:
        return build_kineto.document(read(operators_report(Path(folder) / "r.sqlite")))


@pytest.mark.parametrize("path", [BASE, LATE, HALO, None, CPU], ids=lambda p: p and p.name[:12])
def test_every_table_of_every_kind_of_report(path: Path | None, tmp_path: Path) -> None:
    path = path or build_kineto.write(tmp_path / "trace.json", of_torch_profiler())
    analysis = analysis_of(path, whole=True)
    run = analysis.fitted
    for name in TABLES:
        table = events(run, name)
        assert [*table.columns] == [*documented()[name]], name
        assert {len(column) for column in table.columns.values()} == {len(table)}
        assert table.complete
        assert len(table) or name in ("operations", "gaps")
    steps = perfmodel.Results(analysis).steps
    parts = steps[["compute_s", "exposed_s", "copy_s", "idle_s"]].sum(axis=1)
    known = steps["period_s"].notna()
    assert known.any()
    assert parts[known].to_numpy() == pytest.approx(steps["period_s"][known].to_numpy(), abs=2e-9)
    assert steps["step_s"].notna().any()
    timed_by_gpu = run.run_steps.clock == "gpu" or steps["gpu"].isna().all()
    assert timed_by_gpu == steps["step_s"].equals(steps["period_s"])
    first, last = run.run_steps.counted.start, run.run_steps.counted.stop
    medians = steps[steps["step"].between(first, last - 1)].groupby("rank")["step_s"].median()
    assert medians.max() == pytest.approx(run.run_steps.step_s, rel=1e-12)


def test_frames_of_a_report(late: perfmodel.Report) -> None:
    assert late.results is late.results
    for name in (*TABLES, "operators", "findings"):
        frame = getattr(late, name)
        assert isinstance(frame, pd.DataFrame), name
        assert name == "operators" or len(frame)
    steps = late.steps
    assert steps.attrs["columns"]["step_s"].startswith("length")
    assert steps["rank"].dtype == "Int64"
    medians = steps[steps["counted"]].groupby("rank")["step_s"].median()
    ranks = late.results.ranks.set_index("rank")["recorded_step_s"]
    assert medians.to_numpy() == pytest.approx(ranks.to_numpy(), rel=1e-12)


def test_the_late_rank_is_seen_in_the_exchanges(late: perfmodel.Report) -> None:
    waited = late.exchanges.groupby("cause_rank")["waiting_s"].sum()
    assert waited.idxmax() == 1
    exchanging = late.operations[late.operations["category"] == "communication"]
    assert len(exchanging) == len(late.exchanges)


def test_operations_are_the_rows_of_the_file(late: perfmodel.Report, tmp_path: Path) -> None:
    file = tmp_path / "r.sqlite"
    file.write_bytes(lzma.decompress(LATE.read_bytes()))
    with sqlite3.connect(file) as connection:
        rows = connection.execute(
            "SELECT k.start, k.end, k.correlationId, s.value, r.start FROM "
            "CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName "
            "LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
            "AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000"
        ).fetchall()
    frame = late.operations
    kernels = frame[frame["table"] == "CUPTI_ACTIVITY_KIND_KERNEL"]
    found = kernels[["start_ns", "end_ns", "correlation", "name", "launch_ns"]]
    assert sorted(map(tuple, found.to_numpy().tolist())) == sorted(rows)
    assert (kernels["kind"] == "kernel").all()


def test_gaps_add_up_to_the_idle_time_of_steps(late: perfmodel.Report) -> None:
    gaps = late.gaps.groupby(["rank", "step"])["seconds"].sum()
    steps = late.steps.set_index(["rank", "step"])
    idle = (steps["step_s"] - steps["busy_s"]).dropna()
    both = idle.index.intersection(gaps.index)
    assert len(both) >= 10
    assert gaps[both].to_numpy() == pytest.approx(idle[both].to_numpy(), abs=1e-6)


def test_spans_hold_steps_and_ranges(late: perfmodel.Report) -> None:
    spans = late.spans
    assert spans["span"].is_unique
    assert {"step", "range"} <= set(spans["level"])
    inside = spans[spans["parent"].notna()].merge(
        spans, left_on="parent", right_on="span", suffixes=("", "_of")
    )
    assert (inside["start_ns"] >= inside["start_ns_of"]).all()


def test_choosing_rows() -> None:
    table = events(run_of(LATE, whole=True), "gaps")
    some = table.where({"rank": 1, "cause": ["launch_bound", "host_compute"], "counted": True})
    assert 0 < len(some) < len(table)
    assert set(some.columns["cause"]) <= {"launch_bound", "host_compute"}
    seconds = some.sorted_by("seconds").columns["seconds"]
    assert (np.diff(seconds) <= 0).all()
    starts = table.sorted_by("start_ns", descending=False).columns["start_ns"]
    assert (np.diff(starts[starts != NULL]) >= 0).all()
    causes = table.sorted_by("cause", descending=False).columns["cause"].tolist()
    assert causes == sorted(causes)
    none = table.where({"line": None})
    assert len(none) == len(table)
    assert none.records(0, 1)[0]["line"] is None
    assert len(table.where({"rank": []})) == 0
    with pytest.raises(ModelError, match="expected a column of gaps"):
        table.where({"nosuch": 1})
    with pytest.raises(ModelError, match="expected a table"):
        events(run_of(LATE), "nosuch")


def test_what_an_analysis_left_out_is_said() -> None:
    run = run_of(LATE)
    assert not events(run, "operations").complete
    assert events(run, "exchanges").complete


def test_every_column_is_on_the_page_of_notebooks() -> None:
    page = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
    for table, columns in documented().items():
        rows = "\n".join(f"| `{name}` | {text} |" for name, text in columns.items())
        assert rows in page, f"the table of {table} in docs/notebook.md"
