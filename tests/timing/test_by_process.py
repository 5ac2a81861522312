"""Reports split by processes: the parts put together are what the whole report measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.programs import program_of
from perfmodel.programs.kernels import categorize
from perfmodel.programs.program import Options
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing import by_process
from perfmodel.timing.step_report import StepReport, report_steps
from support.folders import BASE, PROFILES, unpacked
from support.plain import plain

REPORTS = [
    BASE,
    PROFILES / "ddp" / "ddp_p2_H256_B3000.sqlite.xz",
    PROFILES / "launches" / "p4_nccl_device_H512_B3000.sqlite.xz",
]


def measured(path: Path, folder: Path) -> StepReport:
    trace = read_sqlite(unpacked(path, folder) if path.suffix == ".xz" else path)
    shown, steps = program_of([trace], Options()).steps(trace, Options())
    return report_steps(shown, steps, categorize)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name.split(".")[0])
def test_parts_put_together_are_the_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plain(measured(path, tmp_path))
    monkeypatch.setattr(by_process, "_ROWS", 1)
    joined = measured(path, tmp_path)
    assert len(joined.times.process) > 1
    found = plain(joined)
    kernels = [one.pop("kernels") for one in (whole, found)]  # rows in another order
    assert found == whole
    by_row = [sorted(zip(k["name"], k["step"], k["duration_ns"], strict=True)) for k in kernels]
    assert by_row[0] == by_row[1]
    for name in ("names", "categories", "total_ns"):
        assert kernels[0][name] == kernels[1][name]
