"""Ranks of one run in one file each are one run; runs that only overlap in time are not."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.runs import group, not_joined
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.share import share

REPORTS = ("profiles/programs/gpt_ddp.sqlite.xz", "profiles/ddp/ddp_p2_H512_B3000.sqlite.xz")


def split(report: Path, folder: Path) -> list[Path]:
    """Write the report of every process of a report, the last process first."""
    found = []
    with closing(sqlite3.connect(report)) as db:
        rows = db.execute("SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1")
        processes = [process for (process,) in rows]
    for i, process in enumerate(reversed(processes)):
        path = folder / f"part{i}.sqlite"
        path.write_bytes(report.read_bytes())
        with closing(sqlite3.connect(path)) as db, db:
            tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
                for column in {"globalTid", "globalPid"} & {*columns}:
                    db.execute(f'DELETE FROM "{table}" WHERE {column} >> 24 != ?', [process >> 24])
        found.append(path)
    return found


def shown(run: RunAnalysis) -> list[object]:
    assert run.steps is not None
    return [
        run.batch.count,
        [
            (rank.rank, rank.gpu, rank.step_s, rank.recorded_step_s, rank.gpu_busy_s)
            for rank in run.ranks
        ],
        [(c.name, c.count, c.bytes) for c in run.collectives],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_split_by_process_is_one_run(name: str, tmp_path: Path) -> None:
    report = tmp_path / "whole.sqlite"
    report.write_bytes(lzma.decompress((ROOT / name).read_bytes()))
    parts = split(report, tmp_path)
    (whole,) = analyze_reports([report], Options({})).runs
    (joined,) = analyze_reports(parts, Options({})).runs
    assert [rank.rank for rank in joined.ranks] == [0, 1]
    assert shown(joined) == shown(whole)


def test_runs_of_other_times_on_one_host_are_said_to_be_apart(tmp_path: Path) -> None:
    """The second one's GPU work is shifted, as that of another program would lie."""
    report = tmp_path / "whole.sqlite"
    report.write_bytes(lzma.decompress((ROOT / REPORTS[1]).read_bytes()))
    one, other = split(report, tmp_path)
    with closing(sqlite3.connect(other)) as db, db:
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        db.execute(f"UPDATE {table} SET start = start + start % 7e6, end = end + start % 7e6")
        db.execute(f"UPDATE {table} SET start = CAST(start AS INT), end = CAST(end AS INT)")
    traces = [read(one), read(other)]
    assert [len(members) for _, members in group(traces)] == [1, 1]
    (said,) = not_joined(traces)
    assert "do not end together" in said


def started_as(report: Path, rank: str) -> None:
    """Write into a report what torchrun sets, as Nsight Systems 2023.4 to 2026.2 keep it."""
    said = ("PROCESS_0:ENVIRONMENT_VARIABLE", f'RANK="{rank}"')
    with closing(sqlite3.connect(report)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", said)


def test_ranks_are_numbered_by_the_environment_of_torchrun(tmp_path: Path) -> None:
    """Neither by process id nor by GPU: the last process is rank 2, the first one rank 5."""
    report = tmp_path / "whole.sqlite"
    report.write_bytes(lzma.decompress((ROOT / REPORTS[1]).read_bytes()))
    last, first = split(report, tmp_path)
    (by_gpu,) = analyze_reports([first, last], Options({})).runs
    assert [(rank.rank, rank.gpu) for rank in by_gpu.ranks] == [(0, 0), (1, 1)]
    started_as(last, "2")
    started_as(first, "5")
    (by_rank,) = analyze_reports([first, last], Options({})).runs
    assert [(rank.rank, rank.gpu) for rank in by_rank.ranks] == [(2, 1), (5, 0)]
    assert by_rank.ranks[0].gpu_busy_s == by_gpu.ranks[1].gpu_busy_s
    copy = tmp_path / "copy.sqlite"
    share(first, copy)
    assert read(copy).launch_rank == 5


@pytest.mark.parametrize("second", ["5", '5" OR 1', "-1", ""])
def test_an_environment_that_does_not_tell_ranks_apart_numbers_none(
    second: str, tmp_path: Path
) -> None:
    report = tmp_path / "whole.sqlite"
    report.write_bytes(lzma.decompress((ROOT / REPORTS[1]).read_bytes()))
    last, first = split(report, tmp_path)
    started_as(last, second)
    started_as(first, "5")
    (found,) = analyze_reports([first, last], Options({})).runs
    assert [rank.rank for rank in found.ranks] == [0, 1]
