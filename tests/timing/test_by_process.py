"""Reports split by processes: the parts put together are what the whole report measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, PROFILES, unpacked
from perfmodel.programs import program_of
from perfmodel.programs.program import Options
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing import by_process
from perfmodel.timing.step_report import StepReport, report_steps
from support.damaged_reports import KERNELS, sql
from support.plain import plain

REPORTS = [
    BASE,
    PROFILES / "ddp" / "ddp_p2_H256_B3000.sqlite.xz",
    PROFILES / "launches" / "p4_nccl_device_H512_B3000.sqlite.xz",
]


def measured(path: Path) -> StepReport:
    trace = read_sqlite(path)
    shown, steps = program_of([trace], Options()).steps(trace, Options())
    return report_steps(shown, steps)


def check_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> StepReport:
    """Compare what the processes one by one give with what the whole report gives."""
    whole = plain(measured(path))
    monkeypatch.setattr(by_process, "_ROWS", 1)
    joined = measured(path)
    found = plain(joined)
    kernels = [one.pop("kernels") for one in (whole, found)]  # rows in another order
    assert found == whole
    by_row = [sorted(zip(k["name"], k["step"], k["duration_ns"], strict=True)) for k in kernels]
    assert by_row[0] == by_row[1]
    for name in ("names", "categories", "total_ns"):
        assert kernels[0][name] == kernels[1][name]
    return joined


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name.split(".")[0])
def test_parts_put_together_are_the_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unpacked(path, tmp_path) if path.suffix == ".xz" else path
    assert len(check_parts(path, monkeypatch).times.process) > 1


def test_one_of_two_processes_has_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of operations and of ranges are the report's; the second process has all steps."""
    report = unpacked(PROFILES / "programs" / "gpt_ddp.sqlite.xz", tmp_path)
    first = f"(SELECT MIN(globalPid) >> 24 FROM {KERNELS})"
    sql(
        report,
        f"DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 = {first}",
        f"DELETE FROM {KERNELS} WHERE globalPid >> 24 = {first} AND rowid % 100",
    )
    found = check_parts(report, monkeypatch)
    assert found.times.process.tolist() == [1]
    assert (found.steps.row >= 0).all()


def test_kernels_that_take_equal_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in the order of their names, whichever process ran them first."""
    report = unpacked(PROFILES / "programs" / "gpt_ddp.sqlite.xz", tmp_path)
    sql(
        report,
        f'UPDATE {KERNELS} SET "end" = start',
        f"DELETE FROM {KERNELS} WHERE demangledName % 2 = (globalPid >> 24) % 2",
    )
    names = check_parts(report, monkeypatch).kernels.names
    assert list(names) == sorted(names)
    assert len(names) > 5
