"""Programs of other kinds than GPTs and ResNets: an LSTM, a GAN, CuPy on several streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.facts import OperatorRow
from perfmodel.programs.program import Options
from perfmodel.render.operators import work_document, work_lines
from perfmodel.render.tables import sweep_text
from support.build_report import ReportBuilder
from support.build_thread import Thread
from support.recorded import analyzed, truth, with_warmup_s

MS = 1_000_000


def operators(name: str) -> tuple[OperatorRow, ...]:
    work = analyzed(name).work
    assert work is not None
    return work.operators


def test_flops_of_recurrent_layers_are_those_of_their_matrices() -> None:
    said, work = truth("lstm_shapes"), analyzed("lstm_shapes").work
    assert work is not None
    cells = {r.phase: r.flops for r in work.operators if "_cudnn_rnn" in r.name}
    assert cells == {
        "forward": said["rnn_flops_by_hand"] / 3, "backward": said["rnn_flops_by_hand"] * 2 / 3,
    }  # fmt: skip
    assert work.flops == said["rnn_flops_by_hand"] + said["flop_counter_total"]
    assert work.modelled > 0.99


def test_flops_of_two_networks_and_transposed_convolutions_equal_the_counters() -> None:
    work = analyzed("gan_shapes").work
    assert work is not None
    assert work.flops == truth("gan_shapes")["flop_counter_total"]
    assert work.modelled > 0.99


def test_copies_from_the_host_stand_against_the_link() -> None:
    (copy,) = (r for r in operators("gan_shapes") if r.name == "aten::copy_" and r.bound == "link")
    assert copy.bytes == 2 * 128 * 3 * 64 * 64 * 4
    assert copy.of_ceiling == pytest.approx(copy.bytes / 2 / 64e9 / copy.gpu_s)
    assert all(r.bound != "link" for r in operators("lstm_shapes"))


@pytest.mark.parametrize("name", ["lstm_shapes", "gan_shapes", "cupy_streams"])
def test_steps_without_ranges_take_as_long_as_by_the_programs_clock(name: str) -> None:
    run, said = analyzed(name), truth(name)
    assert run.steps is not None
    assert run.steps.found_by == "found"
    timed = run.batch.mean_s if name == "cupy_streams" else with_warmup_s(run.batch)
    assert timed == pytest.approx(said["step_s_profiled"], rel=0.01)
    assert abs(run.batch.count + run.batch.warmup + 1 - said["steps"]) <= 3  # not timed


@pytest.mark.parametrize("name", ["cupy_cg", "graph_epochs"])
def test_checks_and_evaluations_now_and_then_are_no_part_of_steps(name: str) -> None:
    """A norm is read in every 50th iteration; every 40 replays of a graph end an epoch."""
    run, said = analyzed(name), truth(name)
    assert run.steps is not None
    assert run.steps.found_by == "found"
    before = 3  # steps that the program does not time
    assert run.batch.count + run.batch.warmup + 1 == before + said["steps"]
    assert run.batch.median.value == pytest.approx(said["step_s_profiled"], rel=0.03)


def test_parts_on_several_streams_are_no_steps() -> None:
    """Six parts overlap until the host waits: the step lasts until then."""
    run, said = analyzed("cupy_streams"), truth("cupy_streams")
    (rank,) = run.ranks
    assert run.steps is not None
    copied = sum(g.bytes for g in run.copies)  # an input of the last step was copied before it
    assert copied == pytest.approx(said["bytes_copied"], rel=0.005)
    assert rank.gpu_busy_s is not None
    assert rank.gpu_busy_s <= (rank.recorded_step_s or 0.0)
    spent = {c.category for c in run.steps.categories if c.kernel_s > 1e-5}
    assert spent == {"GEMM", "FFT", "copy", "element-wise"}


def test_recording_sizes_is_said_to_slow_the_host() -> None:
    (said,) = (w for w in analyzed("gan_shapes").warnings if "slows the host" in w)
    known, cost_ms = truth("gan_shapes"), float(said.partition("it costs about ")[2].split()[0])
    longer_s = known["step_s_profiled"] - known["step_s_bare"]
    assert cost_ms * 1e-3 == pytest.approx(longer_s, rel=0.3)
    assert not any("slows the host" in w for w in analyzed("cupy_streams").warnings)


# --- steps of unequal length


def uneven(tmp_path: Path, slow_ms: int) -> Path:
    """Sixteen steps of 10 ms; before each fourth the host is `slow_ms` longer in range `load`."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    at = 0
    for k in range(16):
        spent = slow_ms if k % 4 == 3 else 1
        thread.range("step", at, at + (spent + 8) * MS)
        thread.range("load", at + 1000, at + spent * MS)
        _busy(thread, at + spent * MS)
        at += (spent + 9) * MS
    return builder.write(tmp_path / "r.sqlite")


def _busy(thread: Thread, at: int) -> None:
    for i in range(4):
        called = at + i * 2 * MS
        thread.kernel("work", (called, called + 1000), (called + 5000, called + 2 * MS))


def test_long_steps_are_found_with_what_they_cost_in_the_mean(tmp_path: Path) -> None:
    run = analyze_reports([uneven(tmp_path, 61)], Options()).fitted
    found = run.findings[0]
    assert found.kind == "host_compute"
    assert found.title.startswith("3 of 14 steps") or found.title.startswith("4 of 14 steps")
    assert "'load'" in found.evidence
    assert found.action == "load what the next step needs in 'load' in another thread, a step ahead"
    count = int(found.title.split()[0])
    assert found.saving_s == pytest.approx(count * 60e-3 / 14, rel=0.02)
    assert found.saving_s > run.batch.median.value
    assert found.share == pytest.approx(found.saving_s / run.batch.mean_s)
    assert any("times the median" in w for w in run.warnings)


def test_steps_of_about_one_length_have_no_long_ones(tmp_path: Path) -> None:
    run = analyze_reports([uneven(tmp_path, 4)], Options()).fitted
    assert not any("take much longer" in f.title for f in run.findings)
    assert not any("times the median" in w for w in run.warnings)


@pytest.mark.parametrize("more", ["kernels", "a longer kernel"])
def test_long_steps_that_compute_longer_are_not_blamed_on_the_host(
    more: str, tmp_path: Path
) -> None:
    """Every fourth step validates: it has 30 kernels of 400 µs more, or one of 12 ms."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    at = 0
    for step in range(12):
        begin, lengths = at, [400_000] * 8
        if step % 4 == 3:
            lengths += [400_000] * 30 if more == "kernels" else [12_000_000]
        for length in lengths:
            thread.kernel("gemm", (at, at + 5_000), (at + 6_000, at + 6_000 + length))
            at += length + 8_000
        thread.range(f"step {step}", begin, at - 10)
        at += 1_000
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert not any("take much longer" in f.title for f in run.findings)
    (said,) = (w for w in run.warnings if "times the median" in w)
    assert said.endswith("ms more, mostly in computing kernels")
    assert "2 of 10 steps" in said
    assert "finding" not in said


def test_a_table_of_runs_without_formulas_has_no_empty_columns() -> None:
    paths = [PROGRAMS / f"{name}.sqlite.xz" for name in ("gan_shapes", "cupy_streams")]
    table = sweep_text(analyze_reports(paths, Options()))
    assert [column.key for column in table.columns] == ["run", "batch_s"]


def test_flops_that_no_formula_counts_are_unknown_and_not_0() -> None:
    """As of CUDA graphs by torch.compile, whose kernels no operator launches."""
    run = analyzed("lstm_shapes")
    assert run.work is not None
    hidden = replace(run, work=replace(run.work, flops=0.0, modelled=0.13, mfu=None))
    assert hidden.work is not None
    said = work_document(hidden)["work"]
    assert said is not None
    assert said["flops_per_step"] is None
    assert next(work_lines(hidden.work)).startswith("work       FLOPs unknown, at least 2.04 GB")
    partly = replace(run.work, modelled=0.9)
    assert next(work_lines(partly)).startswith("work       at least 178.2 GFLOP and 2.04 GB")
