"""Which range, batch and rank a GPU operation or MPI call belongs to, whatever launched it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.readers import read
from perfmodel.readers.trace import NULL, Trace
from perfmodel.timing.range_times import RangeTimes, concatenate, ranks_of, time_ranges
from support.build_report import VERSIONS, ReportBuilder
from support.build_thread import Thread
from support.document_report import BATCHES, GRADIENTS, HOST, RANKS, document_report

BATCH = "batch iteration"
REPORTS = TESTS / "reports"
Fill = Callable[[ReportBuilder, Thread], None]


@pytest.fixture
def built(tmp_path: Path) -> Callable[[Fill], Trace]:
    """Build a report that has one thread, fill it, and read it."""

    def build(fill: Fill) -> Trace:
        report = ReportBuilder()
        fill(report, report.thread())
        return read(report.write(tmp_path / "built.sqlite"))

    return build


def column(times: RangeTimes, name: str) -> dict[str, list[int]]:
    """Values of one column by label, in time order."""
    found: dict[str, list[int]] = {}
    for i in times.start_ns.argsort(kind="stable"):
        found.setdefault(times.paths[times.path[i]][-1], []).append(int(getattr(times, name)[i]))
    return found


def phases(thread: Thread) -> None:
    thread.range(BATCH, 0, 1000)
    thread.range("forward", 100, 300)
    thread.range("backward", 400, 800)


def autograd(report: ReportBuilder, t: Thread) -> None:
    """The backward pass is launched from another thread, as PyTorch does."""
    phases(t)
    t.kernel("forward", (150, 160), (200, 250))
    worker = report.thread(tid=101)
    worker.kernel("in backward", (450, 460), (500, 550))
    worker.memcpy("d2h", 64, (500, 510), (600, 620))
    worker.kernel("across its end", (790, 810), (830, 840))
    worker.kernel("before the batch", (-50, -40), (20, 30))
    worker.kernel("no launch", None, (900, 910))
    stranger = report.thread(pid=200)
    stranger.kernel("of a process without batches", (450, 460), (500, 510))


def test_work_of_other_threads_belongs_to_nothing(built: Callable[[Fill], Trace]) -> None:
    times, found = time_ranges(built(autograd), BATCH)
    assert column(times, "ops") == {BATCH: [1], "forward": [1], "backward": [0]}
    assert column(times, "projection_ns")["backward"] == [NULL]
    assert (found.total, found.unlaunched, found.outside, found.by_time) == (7, 1, 5, 0)


def test_work_of_other_threads_by_time(built: Callable[[Fill], Trace]) -> None:
    times, found = time_ranges(built(autograd), BATCH, by_time=True)
    assert column(times, "ops") == {BATCH: [4], "forward": [1], "backward": [2]}
    # The kernel in [500, 550] and the copy in [600, 620].
    assert column(times, "projection_ns")["backward"] == [120]
    assert column(times, "busy_ns")["backward"] == [70]
    assert column(times, "copy_bytes")["backward"] == [64]
    assert column(times, "busy_ns")[BATCH] == [50 + 50 + 20 + 10]
    assert (found.total, found.unlaunched, found.outside, found.by_time) == (7, 1, 2, 3)
    assert sorted(found.op_batch.tolist()) == [0, 0, 0, 0]


def test_a_range_of_another_thread_in_no_batch_does_not_keep_work_from_it(
    built: Callable[[Fill], Trace],
) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        phases(t)
        worker = report.thread(tid=101)
        worker.range("engine", 440, 500)
        worker.kernel("k", (450, 460), (500, 550))

    times, found = time_ranges(built(fill), BATCH, by_time=True)
    assert column(times, "ops") == {
        BATCH: [1],
        "forward": [0],
        "backward": [1],
        "engine": [0],
    }
    assert (found.by_time, found.outside, len(found.op)) == (1, 0, 1)


def test_by_time_where_ranges_cross(built: Callable[[Fill], Trace]) -> None:
    """Every range open at that time gets the work, not only one chain of them."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        t.range(BATCH, 0, 1000)
        t.range("early", 100, 500, style="startend")
        t.range("late", 300, 900, style="startend")
        worker = report.thread(tid=101)
        worker.kernel("in both", (400, 410), (2000, 2010))
        worker.kernel("in one", (600, 610), (2020, 2050))

    times, found = time_ranges(built(fill), BATCH, by_time=True)
    assert column(times, "ops") == {BATCH: [2], "early": [1], "late": [2]}
    assert (found.by_time, found.outside) == (2, 0)
    assert len(found.op) == 2


def test_mpi_where_ranges_cross(built: Callable[[Fill], Trace]) -> None:
    """The call lies inside 'early', though the ranges opened since then have ended."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        t.range("tight", -50, 170, style="startend")
        t.range("early", 100, 500, style="startend")
        t.range("inner", 150, 160)
        t.mpi("MPI_Send", 200, 300, 8, source="p2p")

    times, _ = time_ranges(built(fill), BATCH)
    assert column(times, "mpi_ns") == {"tight": [0], "early": [100], "inner": [0]}
    assert column(times, "mpi_bytes") == {"tight": [0], "early": [8], "inner": [0]}


@pytest.mark.parametrize("own_thread", [True, False])
def test_cuda_graphs(built: Callable[[Fill], Trace], own_thread: bool) -> None:
    """Traced node by node or as a whole; launched by the batch's thread or by another one."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        phases(t)
        launcher = t if own_thread else report.thread(tid=101)
        nodes = [("a", (500, 510)), ("b", (505, 530)), ("a", (540, 550))]
        launcher.graph_launch((110, 120), kernels=nodes)
        launcher.graph_launch((450, 460), (600, 700))

    times, found = time_ranges(built(fill), BATCH, by_time=not own_thread)
    assert column(times, "ops") == {BATCH: [4], "forward": [3], "backward": [1]}
    assert column(times, "busy_ns") == {BATCH: [140], "forward": [40], "backward": [100]}
    assert column(times, "projection_ns") == {
        BATCH: [200],
        "forward": [50],
        "backward": [100],
    }
    assert found.by_time == (0 if own_thread else 4)
    assert (found.outside, found.unlaunched) == (0, 0)


def test_calls_that_share_an_id_count_an_operation_once(built: Callable[[Fill], Trace]) -> None:
    """Some exports hold the runtime call and the driver call inside it, with one id."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        phases(t)
        outer = t.memcpy("h2d", 4000, (110, 150), (200, 210))
        t.api("cuMemcpyHtoDAsync_v2", 115, 140, correlation=outer)

    times, found = time_ranges(built(fill), BATCH)
    assert column(times, "ops")["forward"] == [1]
    assert column(times, "copy_bytes") == {BATCH: [4000], "forward": [4000], "backward": [0]}
    assert (found.outside, found.unlaunched) == (0, 0)


def test_ranges_that_never_ended(built: Callable[[Fill], Trace]) -> None:
    """They have no host time, and hold what came after their start."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        t.range(BATCH, 0, 100)
        t.range(BATCH, 200, None)
        t.range("forward", 210, None)
        t.kernel("k", (220, 230), (240, 260))
        t.range("last", 300, 400)

    trace = built(fill)
    times, found = time_ranges(trace, BATCH)
    assert column(times, "host_ns") == {BATCH: [100, NULL], "forward": [NULL], "last": [100]}
    assert column(times, "batch") == {BATCH: [0, 1], "forward": [1], "last": [1]}
    assert column(times, "busy_ns") == {BATCH: [NULL, 20], "forward": [20], "last": [NULL]}
    assert found.op_batch.tolist() == [1]


def test_a_batch_inside_a_batch_is_part_of_it(built: Callable[[Fill], Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        t.range(BATCH, 0, 100)
        t.range(BATCH, 10, 20)
        t.range(BATCH, 200, 300)

    times, _ = time_ranges(built(fill), BATCH)
    assert column(times, "batch")[BATCH] == [0, 0, 1]


def test_unnamed_ranges_and_those_of_two_threads_are_left_out(
    built: Callable[[Fill], Trace],
) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        phases(t)
        t.range(None, 110, 290)
        t.range("async", 120, 280, style="startend", ended_by=report.thread(tid=101))
        t.range("inside both", 130, 270)

    times, _ = time_ranges(built(fill), BATCH)
    assert (BATCH, "forward", "inside both") in times.paths
    assert {label for path in times.paths for label in path} == {
        BATCH, "forward", "backward", "inside both",
    }  # fmt: skip


def rank_part(report: ReportBuilder, rank: int) -> None:
    t = report.thread(pid=1000 + rank, rank=rank)
    for batch in range(3):
        at = 10_000 * batch + 100 * rank
        t.range(BATCH, at, at + 5000 + batch)
        t.range("forward", at + 10, at + 900)
        t.kernel("k", (at + 20, at + 30), (at + 100, at + 200 + batch))
        t.memcpy("h2d", 10 + rank, (at + 40, at + 50), (at + 150, at + 300))
        t.mpi("MPI_Allreduce", at + 1000, at + 1100, 64)


def test_one_file_per_rank_is_one_file_for_all(tmp_path: Path) -> None:
    whole = ReportBuilder()
    for rank in range(3):
        rank_part(whole, rank)
    times, all_of_them = time_ranges(read(whole.write(tmp_path / "all.sqlite")), BATCH)
    parts = []
    for rank in range(3):
        one = ReportBuilder(world_size=3)
        rank_part(one, rank)
        parts.append(time_ranges(read(one.write(tmp_path / f"{rank}.sqlite")), BATCH))
    joined = concatenate([part for part, _ in parts])
    assert joined.paths == times.paths
    for name in RangeTimes.__slots__[1:]:
        assert getattr(joined, name).tolist() == getattr(times, name).tolist(), name
    assert sum(found.total for _, found in parts) == all_of_them.total


def test_ranks_without_a_name_are_counted_by_process(built: Callable[[Fill], Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        report.thread(pid=300).range(BATCH, 0, 10)
        report.thread(pid=200).api("cudaFree", 0, 1)
        t.range(BATCH, 0, 10)

    trace = built(fill)
    assert ranks_of(trace) == {0: 0, 2: 1}
    times, _ = time_ranges(trace, BATCH)
    assert times.rank.tolist() == [0, 1]
    times, _ = time_ranges(trace, BATCH, rank_of={0: 7})
    assert times.rank.tolist() == [7, -1]


def measured(path: Path) -> dict[str, Any]:
    trace = read(path)
    times, _ = time_ranges(trace, BATCH)
    return {"trace": trace, "spans": times, "mpi_ns": column(times, "mpi_ns")}


@pytest.mark.parametrize("version", VERSIONS)
def test_mpi_calls_are_no_ranges(version: str, tmp_path: Path) -> None:
    """Exports of 2022 keep MPI calls as NVTX ranges: time is the same, sizes are missing."""
    found = measured(document_report(tmp_path / "document.sqlite", version))
    labels = {label for path in found["spans"].paths for label in path}
    assert labels == {*HOST, "GPU parallel train", "train setup"}
    calls = found["trace"].mpi
    assert len(calls) == RANKS * (BATCHES * len(GRADIENTS) + 2)
    lost = 400 * len(GRADIENTS)  # the calls leave 200 ns free on both sides
    for host, mpi in zip(
        column(found["spans"], "host_ns")["MPI_Allreduce"],
        found["mpi_ns"]["MPI_Allreduce"],
        strict=True,
    ):
        assert mpi == host - lost
    old = version == "2022.4.2"
    assert found["trace"].mpi_from_nvtx == old
    sizes = set(column(found["spans"], "mpi_bytes")["MPI_Allreduce"])
    assert sizes == {NULL if old else sum(GRADIENTS)}


def test_mpi_calls_of_a_real_export_of_2022() -> None:
    old = measured(REPORTS / "cpu_2ranks_nsys2022.4.2.sqlite")
    new = measured(REPORTS / "cpu_2ranks_nsys2023.4.4.sqlite")
    assert old["trace"].mpi_from_nvtx
    assert not new["trace"].mpi_from_nvtx
    assert not {p[-1] for p in old["spans"].paths if p[-1].startswith("MPI_")} - {"MPI_Allreduce"}
    calls = [[t["trace"].strings[c] for c in t["trace"].mpi.name] for t in (old, new)]
    assert calls[0].count("MPI_Allreduce") == calls[1].count("MPI_Allreduce") > 0
    assert min(old["mpi_ns"]["MPI_Allreduce"]) > 0
    assert (old["spans"].mpi_bytes == NULL).all()
    assert (new["spans"].mpi_bytes >= 0).all()
