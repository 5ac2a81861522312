"""The timeline: every bar once, lanes without overlaps, labels that never touch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from benchmarks.common.folders import PROFILES, PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.runs import time_runs
from perfmodel.analysis.steps import idle_causes
from perfmodel.base.errors import ModelError, SchemaError
from perfmodel.programs import steps_of_run
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import NULL
from perfmodel.render.plot.style import CAUSE_COLORS, amount
from perfmodel.render.plot.timeline import fitting, shares
from perfmodel.render.plot.timeline import timeline as draw
from perfmodel.timing.host_timeline import CAUSE_NAMES, CAUSES
from perfmodel.timing.run import Run, batch_seconds, time_run
from perfmodel.timing.timeline import (
    GPU,
    IDLE,
    Bar,
    Lane,
    Window,
    apart,
    clocks_differ,
    drawn_lanes,
    select,
    window_of,
)
from support.build_report import ReportBuilder
from support.build_training import Training, training_report
from support.cli import EVIL, evil_report, fails, harmless, perfmodel, succeeds

REPORTS = (
    "h200x2_2ranks_base_nsys2025.3.1.sqlite",
    "ladder/document_1.sqlite.xz",
    "ladder/nccl_1.sqlite.xz",
    "ladder/fused-x3_1.sqlite.xz",
    "ddp/ddp_p2_H4096_B12000.sqlite.xz",
)


KEPT: Final[dict[tuple[int, str, str], tuple[Run, tuple[Lane, ...]]]] = {}


def lanes_of(run: Run, window: Window | None, **chosen: Any) -> tuple[Lane, ...]:
    """Select the lanes of a run, each choice once."""
    key = id(run), repr(window), repr(sorted(chosen.items()))
    if key not in KEPT:
        KEPT[key] = run, select(run, window, **chosen)
    return KEPT[key][1]


def run_of(*paths: Path) -> Run:
    return time_run([read(p) for p in paths], "batch iteration", label=paths[0].stem, by_time=True)


@pytest.fixture(scope="module", params=REPORTS)
def run(request: pytest.FixtureRequest) -> Run:
    return run_of(PROFILES / request.param)


def median(run: Run) -> Window:
    batch = steps_of_run(run).drawn
    return window_of(run, range(batch, batch + 1))


def bars(lanes: tuple[Lane, ...], *kinds: str) -> list[Bar]:
    return [bar for lane in lanes for bar in lane.bars if not kinds or bar.kind in kinds]


def overlaps(start: int, end: int, window: Window | None) -> bool:
    if window is None or (start < window.end_ns and end > window.start_ns):
        return True
    return start == end and window.start_ns <= start < window.end_ns


def check_complete(run: Run, window: Window | None) -> None:
    (trace,) = run.traces
    lanes = lanes_of(run, window)
    for table, kinds in (
        (trace.ranges, ("range",)), (trace.mpi, ("mpi",)), (trace.api, ("api",)), (trace.ops, GPU),
    ):  # fmt: skip
        assert (table.end_ns != NULL).all()
        spans = zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True)
        wanted = Counter(span for span in spans if overlaps(*span, window))
        assert Counter((b.start_ns, b.end_ns) for b in bars(lanes, *kinds)) == wanted


def test_every_bar_of_the_window_is_there_once(run: Run) -> None:
    check_complete(run, median(run))
    check_complete(run, None)


def test_kinds_of_operations_add_up(run: Run) -> None:
    (trace,) = run.traces
    lanes = lanes_of(run, None, api=False)
    copied = Counter(b.kind for b in bars(lanes))
    kinds = Counter(trace.ops.kind.tolist())
    assert copied["kernel"] + copied["nccl"] == kinds[0]
    assert sum(copied[k] for k in ("h2d", "d2h", "d2d", "p2p", "copy")) == kinds[1]
    assert copied["memset"] == kinds[2]
    assert copied["api"] == 0


def test_bars_of_a_lane_do_not_overlap(run: Run) -> None:
    for window in (median(run), None):
        for lane in lanes_of(run, window):
            assert lane.bars
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(lane.bars)), lane.name


def test_the_median_batch_is_behind_the_warm_up_and_in_the_middle(run: Run) -> None:
    slowest = batch_seconds(run)[steps_of_run(run).slowest]
    steps = steps_of_run(run)
    first, batch = steps.warmup, steps.drawn
    assert batch >= first
    late = slowest[first:]
    assert (late < slowest[batch]).sum() <= len(late) / 2
    assert (late > slowest[batch]).sum() <= len(late) / 2
    window = window_of(run, range(batch, batch + 1))
    assert (window.end_ns - window.start_ns) * 1e-9 >= slowest[batch] - 1e-12


@pytest.mark.parametrize("name", ["straggler_p2_b32", "cupy_cg", "graph_epochs"])
def test_the_step_that_is_drawn_has_the_median_time_of_the_tables(name: str) -> None:
    path = PROGRAMS / f"{name}.sqlite.xz"
    steps = analyze_reports([path], Options()).fitted.run_steps
    counted = np.sort(steps.series())
    (run,) = time_runs([read(path)], Options())
    assert steps.drawn == steps_of_run(run).drawn
    assert steps.seconds()[steps.slowest, steps.drawn] == counted[(len(counted) - 1) // 2]


def test_own_bars_are_those_of_the_batch() -> None:
    run = run_of(PROFILES / REPORTS[0])
    window = median(run)
    ranges = bars(lanes_of(run, window), "range")
    mine = [b for b in ranges if b.own and b.name == "batch iteration"]
    assert len(mine) == 2
    trace, found = run.parts[0]
    asked = found.op[found.op_batch == window.batches.start]
    own = [b.start_ns for b in bars(lanes_of(run, window), *GPU) if b.own]
    assert sorted(own) == sorted(trace.ops.start_ns[asked].tolist())


def test_the_autograd_thread_has_a_lane_of_its_own() -> None:
    run = run_of(PROFILES / REPORTS[-1])
    lanes = [ln for ln in lanes_of(run, median(run)) if ln.kind == "range" and ln.unit == 1]
    assert [lane.name for lane in lanes] == ["NVTX 1, thread 2"] * 2
    assert {bar.name for lane in lanes for bar in lane.bars} == {"ncclAllReduce"}
    own = [b for b in bars(lanes_of(run, median(run)), "nccl") if b.own]
    assert len(own) == 2  # launched from that thread, in the batch all the same


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=40))
def test_apart_keeps_all_and_takes_the_fewest_lists(spans: list[tuple[int, int]]) -> None:
    given_bars = [Bar("kernel", "k", s, s + d, True, 0) for s, d in spans]
    lists = apart(given_bars)
    assert Counter(b for one in lists for b in one) == Counter(given_bars)
    for one in lists:
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(one))
    crowd = max((sum(a.start_ns <= b.start_ns < a.end_ns for a in given_bars) for b in given_bars
                 if b.end_ns > b.start_ns), default=0)  # fmt: skip
    assert len(lists) <= max(crowd + 1, 1)


# --- idle time


def program(name: str) -> Run:
    (run,) = time_runs([read(PROFILES / f"programs/{name}.sqlite.xz")], Options())
    return run


@pytest.fixture(scope="module", params=["item_b32", "straggler_p2_b32", "gpt_unnamed"])
def program_run(request: pytest.FixtureRequest) -> Run:
    return program(request.param)


def test_idle_time_is_drawn_once_and_by_cause(program_run: Run) -> None:
    window = median(program_run)
    step = window.batches.start
    (report,) = program_run.steps
    lanes = lanes_of(program_run, None)
    for lane, process in enumerate(report.times.process.tolist()):
        rank = report.rank_of[process]
        idle = [b for ln in lanes if ln.kind == IDLE and ln.rank == rank for b in ln.bars]
        mine = report.gaps.lane == lane
        for code, cause in enumerate(CAUSES):
            expected = int(report.gaps.idle_ns[mine & (report.gaps.cause == code)].sum())
            assert sum(b.end_ns - b.start_ns for b in idle if b.kind == cause) == expected
        shown = [b for ln in lanes_of(program_run, window) if ln.kind == IDLE and ln.rank == rank
                 for b in ln.bars if b.own]  # fmt: skip
        assert sum(b.end_ns - b.start_ns for b in shown) == report.times.idle_ns[lane, step]


def test_the_longest_gaps_are_where_the_tables_say(program_run: Run) -> None:
    steps = steps_of_run(program_run)
    for cause in idle_causes(program_run.steps, steps):
        for gap in cause.gaps:
            window = window_of(program_run, range(gap.step, gap.step + 1))
            start = round(gap.start_s * 1e9)
            lanes = [ln for ln in lanes_of(program_run, window)
                     if ln.kind == IDLE and ln.rank == cause.rank]  # fmt: skip
            (bar,) = [b for ln in lanes for b in ln.bars if b.start_ns == start]
            assert bar.own
            assert bar.end_ns <= window.end_ns
            assert (bar.kind, bar.end_ns - start) == (cause.cause, round(gap.seconds * 1e9))


def test_no_operation_of_a_step_runs_in_idle_time(program_run: Run) -> None:
    lanes = lanes_of(program_run, None)
    for rank in program_run.ranks:
        idle = sorted((b.start_ns, b.end_ns) for ln in lanes if ln.kind == IDLE and ln.rank == rank
                      for b in ln.bars)  # fmt: skip
        busy = [b for ln in lanes if ln.kind in GPU and ln.rank == rank for b in ln.bars]
        starts, stops = np.array(idle).T
        for bar in busy:
            at = np.searchsorted(stops, bar.start_ns, side="right")
            assert at == len(starts) or starts[at] >= bar.end_ns


def test_a_gap_says_what_it_was_seen_in(program_run: Run) -> None:
    gaps = [b for ln in lanes_of(program_run, None) if ln.kind == IDLE for b in ln.bars]
    assert all(dict(b.details)["before"] for b in gaps)
    calls = [dict(b.details)["call"] for b in gaps if b.kind == "blocking_sync"]
    assert sum(call == "cudaStreamSynchronize" for call in calls) >= 0.5 * len(calls)


def test_communication_is_drawn_where_the_call_is() -> None:
    (run,) = time_runs([read(PROFILES / REPORTS[0])], Options())
    lanes = lanes_of(run, None)
    for rank in run.ranks:
        mine = [b for ln in lanes if ln.rank == rank for b in ln.bars]
        calls = [(b.start_ns, b.end_ns) for b in mine if b.kind == "mpi"]
        waiting = [(b.start_ns, b.end_ns) for b in mine if b.kind == "communication"]
        assert waiting
        for start, end in waiting:
            parts = [(max(s, start), min(e, end)) for s, e in calls if s < end and e > start]
            assert sum(e - s for s, e in parts) == end - start


def test_every_cause_has_one_colour_which_the_legend_explains(program_run: Run) -> None:
    assert len(set(CAUSE_COLORS.values())) == len(CAUSES)
    window = median(program_run)
    lanes = lanes_of(program_run, window)
    ax = draw(lanes, *ends(window))
    legend = ax.get_legend()
    assert legend is not None
    shown = {str(patch.get_label()): patch.get_facecolor() for patch in legend.get_patches()}
    causes = {b.kind for ln in lanes if ln.kind == IDLE for b in ln.bars}
    assert causes
    for cause in causes:
        assert shown[f"idle: {CAUSE_NAMES[cause]}"] == to_rgba(CAUSE_COLORS[cause])


def test_bars_of_a_collective_wait_for_the_last_rank(program_run: Run) -> None:
    """The rank that comes last waits for none; the transfer is what the bars have in common."""
    window = median(program_run)
    found: dict[int, list[Bar]] = {}
    for bar in bars(lanes_of(program_run, window), "nccl"):
        if bar.collective is not None:
            found.setdefault(bar.collective, []).append(bar)
    pairs = [both for both in found.values() if len(both) == 2]
    assert pairs or len(program_run.ranks) == 1
    for one, other in pairs:
        assert min(one.waits_ns, other.waits_ns) == 0
        assert max(one.waits_ns, other.waits_ns) == abs(one.start_ns - other.start_ns)
    alone = bars(lanes_of(program_run, window, ranks=[0]), "nccl")
    assert sum(b.waits_ns for b in alone) == sum(
        b.waits_ns for both in found.values() for b in both if b.process == alone[0].process
    ), "of one rank's picture, too"


def test_of_many_ranks_the_main_lanes_are_drawn() -> None:
    """Every kernel is in its GPU's lane, all lanes fit into one page, and few bars are drawn."""
    run = program("gpt_fsdp8")
    window = median(run)
    every = lanes_of(run, window, api=False, around=False)
    lanes = drawn_lanes(every)
    assert [(lane.rank, lane.name) for lane in lanes] == [
        (rank, name) for rank in range(8) for name in ("phases", "GPU", "NCCL")
    ]
    for rank in range(8):
        mine, all_of_it = (
            sorted((b.start_ns, b.end_ns) for lane in some for b in lane.bars
                   if lane.rank == rank and b.kind == "kernel")
            for some in (lanes, every)
        )  # fmt: skip
        assert mine == all_of_it
    few = tuple(lane for lane in every if lane.rank in (2, 3, 5, 7))
    assert drawn_lanes(few) == few
    ax = draw(lanes, *ends(window))
    figure = ax.figure.canvas.figure
    assert figure.get_figheight() < 7, "inches: on one screen"
    figure.draw_without_rendering()
    drawn = sum(len(made.get_paths()) for made in ax.collections)
    assert drawn < len(bars(every)) / 3, "short operations are shares of columns"
    boxes = [text.get_window_extent() for text in labels(ax)]
    assert len(boxes) >= 8 * 2
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_levels_around_the_window_are_left_out_of_pictures() -> None:
    run = run_of(PROFILES / REPORTS[0])
    whole, within = (lanes_of(run, median(run), around=around) for around in (True, False))
    assert "GPU parallel train" in {b.name for b in bars(whole, "range")}
    assert "GPU parallel train" not in {b.name for b in bars(within, "range")}
    assert [ln.name for ln in within if ln.kind == "range"] == ["NVTX 1", "NVTX 2", "NVTX 3"] * 2


def test_columns_hold_the_time_of_all_short_bars() -> None:
    """2, 3 and 4 ns from 8, 11 and 19 ns on, in columns of 10 ns; the one of 10 ns is a bar."""

    def bar(kind: str, start: int, end: int) -> Bar:
        return Bar(kind, "x", start, end, True, 0)

    some = [bar("kernel", 8, 10), bar("kernel", 11, 14), bar("nccl", 19, 23), bar("nccl", 30, 40)]
    found = shares(some, (0, 40), 4)
    assert list(found) == [("kernel", True), ("nccl", True)]
    np.testing.assert_allclose(found["kernel", True], [0.2, 0.3, 0, 0])
    np.testing.assert_allclose(found["nccl", True], [0, 0.1, 0.3, 0])
    cut = shares([bar("kernel", -5, 3), bar("kernel", 38, 45)], (0, 40), 4)
    np.testing.assert_allclose(cut["kernel", True], [0.3, 0, 0, 0.2])


# --- odd reports


def test_reports_without_gpu_and_without_mpi(tmp_path: Path) -> None:
    bare = Training(gpu=False, mpi=False, p=1)
    run = run_of(training_report(tmp_path / "bare.sqlite", bare))
    lanes = lanes_of(run, median(run))
    assert {lane.kind for lane in lanes} == {"range"}
    assert draw(lanes, *ends(median(run))).get_legend() is not None


def test_reports_of_one_rank_each_share_an_axis() -> None:
    folder = PROFILES.parent / "tests" / "reports"
    run = run_of(*sorted(folder.glob("cpu_rank?of2*.sqlite")))
    assert len(run.parts) == 2
    lanes = lanes_of(run, median(run))
    assert {lane.rank for lane in lanes} == {0, 1}
    begins = [b.start_ns for b in bars(lanes, "range") if b.own and b.name == "batch iteration"]
    assert len(begins) == 2
    assert max(begins) - min(begins) < median(run).end_ns - median(run).start_ns


def test_crossing_ranges_and_ranges_across_threads(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for start in (0, 2_000, 4_000):
        thread.range("batch iteration", start, start + 1_000)
    thread.range("a", 2_100, 2_500)
    thread.range("b", 2_300, 2_700)
    other = report.thread(pid=thread.pid, tid=thread.pid + 1)
    thread.range("c", 2_200, 2_900, style="startend", ended_by=other)
    other.range("open", 2_600, None)
    run = run_of(report.write(tmp_path / "r.sqlite"))
    lanes = lanes_of(run, window_of(run, range(1, 2)))
    assert [(lane.name, [(b.name, b.own) for b in lane.bars]) for lane in lanes] == [
        ("NVTX across", [("c", True)]), ("NVTX 1", [("batch iteration", True)]),
        ("NVTX 2", [("a", True)]), ("NVTX 2 (2)", [("b", True)]),
        ("NVTX 1, thread 2", [("open", True)]),
    ]  # fmt: skip
    assert [lane.nested for lane in lanes] == [False, False, False, False, True]
    after = lanes_of(run, window_of(run, range(2, 3)))
    around = [b.own for b in bars(after, "range") if b.name == "open"]
    assert around == [True]  # it began before the batch and ends with it


def test_kernels_that_overlap_get_a_second_lane_and_keep_their_batch(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for start in (0, 2_000):
        thread.range("batch iteration", start, start + 1_000)
        thread.kernel("a", (start + 10, start + 20), (start + 1_500, start + 1_900))
        thread.kernel("b", (start + 30, start + 40), (start + 1_800, start + 2_200))
    run = run_of(report.write(tmp_path / "r.sqlite"))
    lanes = [ln for ln in lanes_of(run, window_of(run, range(1, 2))) if ln.kind == "kernel"]
    assert [(lane.name, [(b.name, b.own) for b in lane.bars]) for lane in lanes] == [
        ("kernels", [("b", False), ("a", True)]), ("kernels (2)", [("b", True)]),
    ]  # fmt: skip


def test_reports_are_put_on_one_clock_by_their_utc_time(tmp_path: Path) -> None:
    paths = []
    for rank, shift in ((0, 0), (1, 700)):
        report = ReportBuilder(utc_start_ns=10**18 + shift, world_size=2)
        thread = report.thread(rank=rank)
        thread.range("batch iteration", 1_000, 2_000)
        paths.append(report.write(tmp_path / f"{rank}.sqlite"))
    run = run_of(*paths)
    window = window_of(run, range(1))
    assert (window.start_ns, window.end_ns) == (1_000, 2_700)
    assert [b.start_ns for b in bars(lanes_of(run, window))] == [1_000, 1_700]
    assert not clocks_differ(run)
    without_utc = tuple((replace(trace, utc_start_ns=None), found) for trace, found in run.parts)
    assert clocks_differ(replace(run, parts=without_utc))


def test_processes_without_a_rank_are_counted_on(tmp_path: Path) -> None:
    report = ReportBuilder()
    for i in range(6):
        thread = report.thread(pid=100 + i, rank=0 if i == 0 else None)
        for start in range(0, 40_000, 10_000):
            thread.range("batch iteration", start + i, start + 9_000)
    path = report.write(tmp_path / "r.sqlite")
    (run,) = time_runs([read(path)], Options())
    assert run.ranks == (0, 1, 2, 3, 4, 5)
    assert run.range_times.batch.max() == 3
    succeeds("timeline", path, "-o", tmp_path / "x.svg")
    assert "rank 5" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    succeeds("report", path, "-o", tmp_path / "x.html")
    assert "rank 5" in (tmp_path / "x.html").read_text(encoding="utf-8")


def test_batches_that_are_not_there(tmp_path: Path) -> None:
    run = run_of(training_report(tmp_path / "r.sqlite"))
    with pytest.raises(SchemaError, match="expected step 99; got steps 0 to 5"):
        window_of(run, range(99, 100))
    with pytest.raises(SchemaError, match="50 excluded as warm-up"):
        steps_of_run(run, warmup=50)


# --- the picture


def ends(window: Window) -> tuple[int, int]:
    return window.start_ns, window.end_ns


def labels(ax: Axes) -> list[Text]:
    return [text for text in ax.texts if not text.get_text().startswith("rank ")]


def test_labels_lie_on_their_bars_and_never_touch(run: Run) -> None:
    window = median(run)
    lanes = lanes_of(run, window)
    ax = draw(lanes, *ends(window))
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in labels(ax)]
    assert len(boxes) >= 6
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:i])
    frame = ax.get_window_extent()
    for text, box in zip(labels(ax), boxes, strict=True):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert on_a_bar(ax, text, (box.x0, box.x1), lanes, window)
    names = [tick.get_window_extent() for tick in ax.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in pairwise(names))
    assert min(name.x0 for name in names) >= 0


def on_a_bar(
    ax: Axes, text: Text, box: tuple[float, float], lanes: tuple[Lane, ...], window: Window
) -> bool:
    ticks = ax.get_yticks().tolist()
    lane = lanes[int(np.argmin([abs(text.get_position()[1] - tick) for tick in ticks]))]
    seen = np.clip([(b.start_ns, b.end_ns) for b in lane.bars], window.start_ns, window.end_ns)
    times = (seen.ravel() - window.start_ns) * 1e-3
    pixels = ax.transData.transform(np.column_stack([times, 0 * times]))[:, 0].reshape(-1, 2)
    for bar, (low, high) in zip(lane.bars, pixels, strict=True):
        if low <= box[0] and box[1] <= high:
            beginning = text.get_text().replace("\\$", "$").split("…")[0]
            timed = f"{bar.label}, {amount((bar.end_ns - bar.start_ns) * 1e-9, 's')}"
            return timed.startswith(beginning)
    return False


@pytest.mark.parametrize(("width", "inches"), [("single", 3.5), ("double", 7.2), ("wide", 11)])
def test_widths_are_those_of_a_page(width: str, inches: float) -> None:
    run = run_of(PROFILES / REPORTS[0])
    window = median(run)
    ax = draw(lanes_of(run, window, api=False), *ends(window), width=width)
    figure = ax.figure.canvas.figure
    figure.draw_without_rendering()
    assert figure.get_figwidth() == inches
    boxes = [text.get_window_extent() for text in (*labels(ax), *ax.get_yticklabels())]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert ax.get_xlabel().startswith("Time since the start of the step (ms)")


def test_what_no_picture_can_hold_is_an_error() -> None:
    lane = Lane(0, "range", 0, 0, True, 0, "NVTX 1", (Bar("range", "a", 0, 9, True, 0),))
    with pytest.raises(ModelError, match="got none in the window"):
        draw((), 0, 9)
    with pytest.raises(ModelError, match="at most 500 lanes in a picture; got 501"):
        draw([lane] * 501, 0, 9)


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    report = PROFILES.parent / "tests" / "reports" / "cpu_rank1of2_nsys2023.4.4.sqlite"
    result = perfmodel("timeline", report, "-o", tmp_path / "a.png")
    assert "1 of p = 2 ranks are in the report" in result.stderr


def test_mpi_calls_of_old_exports_are_no_ranges() -> None:
    run = run_of(PROFILES.parent / "tests" / "reports" / "cpu_2ranks_nsys2022.4.2.sqlite")
    (trace,) = run.traces
    assert trace.mpi_from_nvtx
    found = lanes_of(run, None)
    assert len(bars(found, "mpi")) == len(trace.mpi)
    assert len(bars(found, "range")) == len(trace.ranges) - len(trace.mpi)


def test_labels_say_what_matters() -> None:
    def label(kind: str, name: str, size: int | None = None) -> str:
        return Bar(kind, name, 0, 1, True, 0, size_bytes=size).label

    assert label("api", "cudaMemcpyAsync_v3020") == "cudaMemcpyAsync"
    assert label("h2d", "Host-to-Device", 4_704_000) == "4.70 MB"
    assert label("h2d", "Host-to-Device") == "Host-to-Device"
    assert label("nccl", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)") == (
        "AllReduce Sum f32 RING LL"
    )
    assert label("kernel", "void gemm<float, 4>(float*)") == "GEMM f32"
    assert label("range", "forward") == "forward"


def test_labels_are_shortened_or_left_out() -> None:
    assert fitting("forward GEMM 1", 200.0) == "forward GEMM 1"
    short = fitting("forward GEMM 1", 32.0)
    assert short.startswith("forw")
    assert short.endswith("… 1")
    assert fitting("forward", 8.0) == ""
    assert fitting("", 50.0) == ""
    assert fitting("x" * 10_000, 50.0).endswith("x…")
    assert fitting("$x_1$", 200.0) == r"\$x_1\$"


@pytest.mark.slow
def test_the_command_draws_the_same_bytes_again(tmp_path: Path) -> None:
    report = PROFILES / REPORTS[0]
    said = succeeds("timeline", report, "--batch", 7, "-o", tmp_path / "a.png")
    assert "step 7; D = 784, H = 512, C = 10, B = 3000, p = 2" in said
    succeeds("timeline", report, "--batch", "7:8", "-o", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    one = succeeds("timeline", report, "--rank", "1", "--api", "-o", tmp_path / "c.svg")
    assert "(the median)" in one
    svg = (tmp_path / "c.svg").read_text(encoding="utf-8")
    assert "CUDA API" in svg
    assert "rank 0" not in svg


def test_names_are_harmless(tmp_path: Path) -> None:
    report = evil_report(tmp_path / "evil.sqlite")
    assert harmless(succeeds("timeline", report, "-o", tmp_path / "evil.svg"))
    svg = (tmp_path / "evil.svg").read_text(encoding="utf-8")
    assert EVIL not in svg
    assert "$x_1$" in svg


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "x"), "expected a step"),
        (("--batch", "5:2"), "expected a step"),
        (("--batch", "-1"), "expected a step"),
        (("--rank", "9"), "some of the ranks 0, 1"),
        (("-o", "a.gif"), "FILE.png"),
    ],
)
def test_wrong_usage_is_said(arguments: tuple[str, ...], says: str, report: Path) -> None:
    result = perfmodel("timeline", report, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_batch_that_is_not_there_is_an_error(report: Path) -> None:
    assert "got steps 0 to 5" in fails(4, "timeline", report, "--batch", "99")
