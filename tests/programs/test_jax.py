"""JAX: steps from XLA's modules, HLO operations from its thunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.jax import JAX_PROGRAM, hlo_operation
from perfmodel.programs.program import Options
from perfmodel.readers import read
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
    assert (run.steps.label, run.steps.found_by, run.batch.count) == (
        "jit_train_step",
        "declared",
        3,
    )
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


def executed_on(path: Path, gpus: int, tuned_us: int) -> Path:
    """Six steps of 100 µs on every GPU, each by a thread of its own, after autotuning.

    The autotuner runs candidates, which have no number, and kernels outside of all modules.
    """
    builder = ReportBuilder("2025.3.2")
    threads = [builder.thread(tid=100 + i) for i in range(gpus)]
    for i, thread in enumerate(threads):
        builder.gpu(i)
        for try_ in range(4):
            at = try_ * tuned_us * US
            end = at + tuned_us * US - US
            thread.range("XlaModule:#hlo_module=gemm_fusion.3#", at, end, domain="TSL")
            thread.kernel("gemm_fusion_3", (at + 10, at + 20), (at + 30, end), device=i)
            thread.kernel("redzone", (end + 10, end + 20), (end + 30, end + 900), device=i)
        for step in range(6):
            # the second thread is first in odd steps
            at = (4 * tuned_us + 100 * step) * US + (i if step % 2 == 0 else -i) * US
            module = "XlaModule:#hlo_module=jit_step,program_id=5#"
            thread.range(module, at, at + 40 * US, domain="TSL")
            thread.kernel("fusion", (at + 10, at + 20), (at + 5 * US, at + (85 - i) * US), device=i)
    return builder.write(path)


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_is_launched_to_compile_and_tune_is_in_no_step(gpus: int, tmp_path: Path) -> None:
    path = executed_on(tmp_path / "r.sqlite", gpus, tuned_us=1000)
    run = analyze_reports([path], Options()).fitted
    assert run.steps is not None
    assert (run.steps.label, run.steps.found_by, run.batch.count) == ("jit_step", "declared", 4)
    assert run.steps.confidence == 1.0
    assert run.batch.median.value == pytest.approx(100e-6, rel=0.03)
    assert [rank.gpu_busy_s for rank in run.ranks] == pytest.approx([80e-6, 79e-6][:gpus])
    assert [(k.name, k.count) for k in run.steps.kernels] == [("fusion", 1)]


def test_steps_of_a_process_begin_on_the_thread_that_is_first(tmp_path: Path) -> None:
    trace = read(executed_on(tmp_path / "r.sqlite", 2, tuned_us=10))
    shown, steps = JAX_PROGRAM.steps(trace, Options())
    assert (steps.start_ns // US).tolist() == [40, 139, 240, 339, 440, 539]
    assert (steps.end_ns[:-1] == steps.start_ns[1:] - 1).all()
    step = [i for i, label in enumerate(shown.range_labels) if label == "jit_step"]
    rows = np.isin(shown.ranges.name, step)
    assert shown.ranges.start_ns[rows].tolist() == steps.start_ns.tolist()


def stays_open(path: Path, opened: str, closed_us: int | None, *, thunks: bool = False) -> Path:
    """Seven executions of 100 µs; the second ends at `closed_us` (None: never), others in 40 µs.

    A candidate of the autotuner, outside of all modules, runs before the last one. With `thunks`
    every module's ranges of thunks are recorded.
    """
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(7):
        at = 100 * step * US + (1000 * US if step == 6 else 0)
        name, end = ("jit_step", at + 40 * US) if step != 1 else (opened, closed_us)
        stop = end if step != 1 or end is None else end * US
        thread.range(f"XlaModule:#hlo_module={name},program_id=5#", at, stop, domain="TSL")
        if thunks:
            thread.range(FORWARD.format(1), at + 1 * US, at + 5 * US, domain="TSL")
        thread.kernel("fusion", (at + 2 * US, at + 3 * US), (at + 5 * US, at + 85 * US))
    for try_ in range(9):
        at = (605 + 100 * try_) * US
        thread.kernel("candidate", (at, at + US), (at + 2 * US, at + 97 * US))
    return builder.write(path)


@pytest.mark.parametrize("thunks", [False, True])
@pytest.mark.parametrize(
    ("opened", "closed_us", "steps"),
    [
        ("jit_step", None, 7), ("jit_step", 430, 7), ("jit_step", 1650, 7),
        ("jit_init", None, 6), ("jit_init", 1650, 6),
    ],
)  # fmt: skip
def test_a_module_that_stays_open_hides_no_steps(
    opened: str, closed_us: int | None, steps: int, thunks: bool, tmp_path: Path
) -> None:
    path = stays_open(tmp_path / "r.sqlite", opened, closed_us, thunks=thunks)
    _, found = JAX_PROGRAM.steps(read(path), Options())
    assert (found.label, found.found_by, len(found)) == ("jit_step", "declared", steps)
    run = analyze_reports([path], Options()).fitted
    assert run.steps is not None
    assert run.steps.label == "jit_step"
    assert run.batch.median.value == pytest.approx(100e-6)
    assert run.ranks[0].gpu_busy_s == pytest.approx(80e-6)


def test_a_module_whose_callbacks_execute_others_is_a_step(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(6):
        at = 100 * step * US
        module = "XlaModule:#hlo_module={},program_id=5#"
        thread.range(module.format("jit_step"), at, at + 90 * US, domain="TSL")
        for begin in (10, 20):
            start = at + begin * US
            thread.range(module.format("jit_log"), start, start + 5 * US, domain="TSL")
            thread.kernel("log", (start + 10, start + 20), (start + 30, start + 90))
        thread.range(FORWARD.format(1), at + 30 * US, at + 35 * US, domain="TSL")
        thread.kernel("fusion", (at + 31 * US, at + 32 * US), (at + 33 * US, at + 85 * US))
    trace = read(builder.write(tmp_path / "r.sqlite"))
    _, found = JAX_PROGRAM.steps(trace, Options())
    assert (found.label, len(found), found.confidence) == ("jit_step", 6, 1.0)


def test_flops_are_unknown_without_advice_for_another_framework(tmp_path: Path) -> None:
    run = analyze_reports([report(tmp_path / "r.sqlite")], Options()).fitted
    (said,) = [w for w in run.warnings if "FLOPs" in w]
    assert "cost_analysis" in said
    assert "pytorch" not in said
    assert run.work is not None
    assert run.work.source == "none"


@pytest.mark.parametrize("recorded", [0, 5])
def test_command_buffers_without_operations_are_warned_of(recorded: int, tmp_path: Path) -> None:
    """XLA's while loops are CUDA graphs that Nsight Systems may not record."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(5):
        at = 100 * step * US
        thread.range("XlaModule:#hlo_module=jit_run,program_id=1#", at, at + 40 * US, domain="TSL")
        thread.range(FORWARD.format(1), at + US, at + 5 * US, domain="TSL")
        thread.kernel("gemm", (at + 2 * US, at + 3 * US), (at + 5 * US, at + 20 * US))
        thread.range("Thunk:#hlo_op=command_buffer_7#", at + 6 * US, at + 9 * US, domain="TSL")
        if step < recorded:
            thread.kernel("body", (at + 7 * US, at + 8 * US), (at + 20 * US, at + 90 * US))
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    said = [w for w in run.warnings if "command buffers" in w]
    assert len(said) == (recorded == 0)
    assert all("5 of 5 executions" in w for w in said)


def test_a_recording_that_is_mostly_compilation_is_warned_of(tmp_path: Path) -> None:
    """One run of 10 ms behind 80 ms of compilation on two threads."""
    builder = ReportBuilder("2025.3.2")
    thread, other = builder.thread(), builder.thread(tid=101)
    builder.gpu()
    for where, end in ((thread, 60_000), (other, 80_000)):
        name = "XlaCompileBackend:#module=jit_step,program_id=5#"
        where.range(name, 1000, end * US, domain="TSL")
    thread.kernel("candidate", (2000, 3000), (4000, 5000))
    module = "XlaModule:#hlo_module=jit_step,program_id=5#"
    thread.range(module, 90_000 * US, 100_000 * US, domain="TSL")
    thread.range(FORWARD.format(1), 91_000 * US, 91_100 * US, domain="TSL")
    thread.kernel("gemm", (91_010 * US, 91_020 * US), (91_030 * US, 99_000 * US))
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert run.steps is not None
    assert (run.steps.found_by, run.batch.count) == ("declared", 1)
    (said,) = [w for w in run.warnings if "compiles" in w]
    assert "XLA compiles and tunes kernels in 80.0 ms of the 100 ms recorded" in said
