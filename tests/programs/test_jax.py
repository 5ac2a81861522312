"""JAX: steps from XLA's modules, HLO operations from its thunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.jax import hlo_operation
from perfmodel.programs.program import Options
from support.build_report import ReportBuilder

US = 1000
FORWARD = "Thunk:#name=jit(train_step)/jvp()/dot_general,hlo_op=gemm_fusion_dot.{},id=##"
BACKWARD = "Thunk:#name=jit(train_step)/transpose(jvp())/dot_general,hlo_op=custom-call.{},id=##"


def report(path: Path, *, graph: bool = False) -> Path:
    """Five steps of 100 µs: two thunks forward, one backward; a small module between two steps."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(5):
        at = 100 * step * US
        module = f"XlaModule:#hlo_module=jit_train_step,program_id={step}#"
        thread.range(module, at, at + 40 * US, domain="TSL")
        for i, (name, start, length) in enumerate(
            [(FORWARD.format(1), 2, 20), (FORWARD.format(2), 10, 20), (BACKWARD.format(7), 20, 30)]
        ):
            begin = at + start * US
            thread.range(name, begin, begin + 5 * US, domain="TSL")
            gpu = at + (5 + 25 * i) * US
            thread.kernel(f"gemm_{i % 2}", (begin + 100, begin + 900), (gpu, gpu + length * US))
        small = at + 60 * US
        thread.range(
            "XlaModule:#hlo_module=jit_convert,program_id=9#", small, small + US, domain="TSL"
        )
        thread.kernel("convert", (small + 10, small + 20), (at + 90 * US, at + 91 * US))
    return builder.write(path)


def test_a_step_is_the_module_with_most_work_until_it_starts_again(tmp_path: Path) -> None:
    run = analyze_reports([report(tmp_path / "r.sqlite")], Options()).fitted
    assert run.program.name == "jax"
    assert run.steps is not None
    assert (run.steps.label, run.steps.found_by, run.batch.count) == ("jit_train_step", "range", 3)
    assert run.batch.median.value == pytest.approx(100e-6)
    assert run.ranks[0].gpu_busy_s == pytest.approx(71e-6)  # the small module's kernel, too
    assert run.steps.unattributed == 0


def test_hlo_operations_are_timed_by_kind_and_phase(tmp_path: Path) -> None:
    run = analyze_reports([report(tmp_path / "r.sqlite")], Options()).fitted
    assert run.work is not None
    found = {(o.name, o.phase): (o.count, o.gpu_s) for o in run.work.operators}
    assert found == {
        ("gemm_fusion_dot (dot_general)", "forward"): (2, pytest.approx(40e-6)),
        ("custom-call (dot_general)", "backward"): (1, pytest.approx(30e-6)),
    }
    assert all(o.flops is None for o in run.work.operators)


def test_a_thunk_names_its_source_and_its_operation() -> None:
    assert hlo_operation("Thunk:#hlo_op=command_buffer_1#") == ("", "command_buffer_1")
    assert hlo_operation("step 3") is None
