"""Large reports are measured one process after the other: what is kept is that of the whole."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.folders import BASE, PROFILES, unpacked
from perfmodel.analysis.runs import has_parts, read_large, time_one, time_streamed
from perfmodel.base.arrays import Arena
from perfmodel.programs.program import Options
from perfmodel.readers.nsys import read_by_process, read_sqlite
from perfmodel.readers.packed import Packed
from perfmodel.readers.trace import NULL
from perfmodel.timing import by_process
from perfmodel.timing.run import TimedReport
from perfmodel.timing.trim import needed, trim
from perfmodel.workloads.work import Workload
from profiles.grow import grow
from support.plain import plain


def compared(found: Any) -> Any:
    """Plain values, those of tables that are kept by process in another order."""
    found = plain(found)
    for table in (found["trace"]["api"], found["steps"]["kernels"]):
        columns = [name for name, column in table.items() if isinstance(column, list)]
        rows = [name for name in columns if name not in ("names", "categories", "total_ns")]
        table["rows"] = sorted(zip(*(table.pop(name) for name in rows), strict=True))
    return found


def measured(path: Path, options: Options, most_ops: int) -> TimedReport:
    """Measure a report part by part, and trim it as a whole one.

    What parts need holds what the whole needs. Gaps of parts name operations by their rows in the
    file, here by those of the whole trace.
    """
    trace, events = read_by_process(path)
    *_, row = events.take(trace, range(-1, len(trace.processes)), keep=True)
    keep = partial(needed, replays=False)
    found = time_streamed(trace, events, options, keep, most_ops)
    assert found.steps is not None
    if has_parts(trace, options):
        gaps = replace(found.steps.gaps, op=np.argsort(row).astype(np.int32)[found.steps.gaps.op])
        found = replace(found, steps=replace(found.steps, gaps=gaps))
    return trim(replace(found, trace=replace(found.trace, whole=True)), most_ops=most_ops)


@pytest.mark.parametrize(
    "name",
    [
        BASE.name,
        "launches/p4_nccl_device_H512_B3000.sqlite.xz",
        "campaign/h200x4_p2_host_float32_H512_B3000.sqlite.xz",
        "ddp/ddp_p2_H256_B3000.sqlite.xz",
        "programs/straggler_p2_b32.sqlite.xz",
        "programs/gpt_unnamed.sqlite.xz",
        "programs/gpt_modules.sqlite.xz",
    ],
)
@pytest.mark.parametrize("most_ops", [pytest.param(16_384, marks=pytest.mark.slow), 64])
def test_what_is_kept_is_that_of_the_whole_report(
    name: str, most_ops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PROFILES / name
    path = unpacked(path, tmp_path) if path.suffix == ".xz" else path
    options = Options({}, "full", by_time=True)
    whole = trim(time_one(read_sqlite(path), options), most_ops=most_ops)
    monkeypatch.setattr(by_process, "_ROWS", 1)
    assert compared(measured(path, options, most_ops)) == compared(whole)


@pytest.mark.parametrize(
    ("source", "ranks"), [(BASE, 4), (PROFILES / "programs/gpt_ddp8.sqlite.xz", 8)]
)
def test_more_ranks_than_processes_in_a_part(
    source: Path, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "grown.sqlite"
    rows = grow(source, report, 1, ranks)
    options = Options({}, "full", by_time=True)
    whole = trim(time_one(read_sqlite(report), options), most_ops=1000)
    assert whole.steps is not None
    assert sorted(whole.steps.rank_of.values()) == [*range(ranks)]
    monkeypatch.setattr(by_process, "_ROWS", rows // 3)
    assert len({*by_process._groups(*read_by_process(report)).tolist()}) < ranks
    assert compared(measured(report, options, 1000)) == compared(whole)


def test_labels_are_whole_where_the_program_is_not_pytorch(tmp_path: Path) -> None:
    path = unpacked(PROFILES / "programs/bert_shapes.sqlite.xz", tmp_path)
    apart, _ = read_large(path, path, Options())
    assert apart.numbers is not None
    assert len(apart.range_labels) < 500
    own = Options(workload=Workload("mine", "no", "", "", {}, {}))
    trace, events = read_large(path, path, own)
    assert plain(events.whole(trace)) == plain(read_sqlite(path))


@pytest.mark.parametrize(
    "column",
    [
        np.array([5, 5, 5]),
        np.array([0, 255, 256, 65_535]),
        np.array([-3, 1 << 40, (1 << 40) + 7, 1 << 41]),
        np.array([NULL, 0, 1 << 62]),
        np.array([-(1 << 61), 1 << 61, -(1 << 61)]),
        np.array([7, -1, 3], np.int32),
        np.array([], np.int64),
    ],
    ids=["equal", "narrow", "rising", "null", "far", "int32", "none"],
)
def test_packed_columns_come_back(column: Any) -> None:
    packed = Packed(Arena(np.uint8))
    for part in (column, column[::-1], column[:1]):
        packed.append({"x": part})
    found = packed.columns()["x"]
    assert found.dtype == column.dtype
    assert found.tolist() == [*column.tolist(), *column[::-1].tolist(), *column[:1].tolist()]
