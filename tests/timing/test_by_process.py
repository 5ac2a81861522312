"""Reports split by processes: the parts put together are what the whole report measures."""

from __future__ import annotations

import lzma
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.programs import program_of
from perfmodel.programs.kernels import categorize
from perfmodel.programs.program import Options
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing import by_process
from perfmodel.timing.step_report import StepReport, report_steps

PROFILES = Path(__file__).parents[2] / "profiles"
REPORTS = [
    PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite",
    PROFILES / "ddp" / "ddp_p2_H256_B3000.sqlite.xz",
    PROFILES / "launches" / "p4_nccl_device_H512_B3000.sqlite.xz",
]


def measured(path: Path, folder: Path) -> StepReport:
    if path.suffix == ".xz":
        plain = folder / path.stem
        plain.write_bytes(lzma.decompress(path.read_bytes()))
        path = plain
    trace = read_sqlite(path)
    shown, steps = program_of([trace], Options()).steps(trace, Options())
    return report_steps(shown, steps, categorize)


def values(found: Any) -> Any:
    """Return plain values of nested dataclasses, to compare."""
    if is_dataclass(found):
        return {f.name: values(getattr(found, f.name)) for f in fields(found)}
    if isinstance(found, tuple | list):
        return [values(one) for one in found]
    return found.tolist() if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name.split(".")[0])
def test_parts_put_together_are_the_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = values(measured(path, tmp_path))
    monkeypatch.setattr(by_process, "_ROWS", 1)
    joined = measured(path, tmp_path)
    assert len(joined.times.process) > 1
    found = values(joined)
    kernels = [one.pop("kernels") for one in (whole, found)]  # rows in another order
    assert found == whole
    by_row = [sorted(zip(k["name"], k["step"], k["duration_ns"], strict=True)) for k in kernels]
    assert by_row[0] == by_row[1]
    for name in ("names", "categories", "total_ns"):
        assert kernels[0][name] == kernels[1][name]
