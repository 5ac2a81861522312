"""What a GPU did takes the same time, whatever the format in which it was recorded."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES, PROGRAMS, ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.operators import StepWork
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.workloads import load
from support import build_kineto, build_others

EXAMPLE = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
NAMES = (
    "gpt_shapes",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("bert_shapes", "gan_shapes")),
)


def work_of(report: Path) -> StepWork:
    (run,) = analyze_reports([report], Options({})).runs
    assert run.work is not None
    return run.work


@pytest.mark.parametrize("name", NAMES)
def test_phases_take_equally_long_in_a_trace_of_torch_profiler(name: str, tmp_path: Path) -> None:
    """It says of fewer operators what made their inputs, so that their types differ, but no time.

    Sums of the operators' own medians differed by 0.01 %.
    """
    report = tmp_path / "report.sqlite"
    report.write_bytes(lzma.decompress((PROGRAMS / f"{name}.sqlite.xz").read_bytes()))
    trace = read(report)
    process = int(trace.ops.process[0])
    written = build_kineto.write(tmp_path / "trace.json", build_kineto.document(trace, process))
    ours, theirs = (
        {phase.phase: phase.gpu_s for phase in work_of(path).phases} for path in (report, written)
    )
    assert theirs == pytest.approx(ours, rel=1e-9)
    assert len(ours) >= 3


def test_formulas_of_the_user_s_own_change_no_step(tmp_path: Path) -> None:
    """The steps and the times of the ranks are those of the same report without --workload."""
    report = PROFILES / "ddp" / "ddp_p2_H512_B3000.sqlite.xz"
    (plain,) = analyze_reports([report], Options({})).runs
    own = Options({"B": 3000}, workload=load(EXAMPLE))
    (counted,) = analyze_reports([report], own).runs
    assert counted.program.name == "own"
    assert plain.program.name == "pytorch"
    assert counted.batch.count == plain.batch.count
    assert counted.batch.median.value == plain.batch.median.value
    assert counted.ranks == plain.ranks


def shown(report: Path) -> object:
    """What a run's steps and copies are, without what only some formats hold."""
    (run,) = analyze_reports([report], Options({})).runs
    ranks = [(r.recorded_step_s, r.gpu_busy_s, r.compute_s, r.idle_s, r.batches) for r in run.ranks]
    copies = [(c.direction, c.count, c.bytes, c.seconds) for c in run.copies]
    kernels = [(k.name, k.seconds) for k in run.steps.kernels] if run.steps else []
    return run.batch.label, run.batch.count, ranks, copies, kernels


@pytest.mark.parametrize("name", [
    "gpt_modules_timing", *(pytest.param(name, marks=pytest.mark.slow)
                            for name in ("cupy_streams", "gpt_unnamed", "gpt_ddp")),
])  # fmt: skip
@pytest.mark.parametrize("write", [build_others.rocpd_of, build_others.xplane_of])
def test_steps_take_equally_long_in_files_of_other_profilers(
    name: str, write: Callable[[Trace, Path], Path], tmp_path: Path
) -> None:
    """Sets of memory are left out: rocprofv3 records none."""
    report = tmp_path / "report.sqlite"
    report.write_bytes(lzma.decompress((PROGRAMS / f"{name}.sqlite.xz").read_bytes()))
    with closing(sqlite3.connect(report)) as db, db:
        db.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_MEMSET")
    trace = read(report)
    if write is build_others.xplane_of and len(trace.processes) > 1:
        pytest.skip("an XPlane file is of one process")
    path = write(trace, tmp_path / ("t.db" if write is build_others.rocpd_of else "t.xplane.pb"))
    assert shown(path) == shown(report)
