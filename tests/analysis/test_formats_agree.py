"""What a GPU did takes the same time, whatever the format in which it was recorded."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES, PROGRAMS, ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.operators import StepWork
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.workloads import load
from support import build_kineto

EXAMPLE = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
NAMES = ("gpt_shapes", "bert_shapes", "gan_shapes")


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
