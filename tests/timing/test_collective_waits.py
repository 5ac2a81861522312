"""Traffic: collectives of all ranks, split into transfer and waiting."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.readers import read
from perfmodel.timing.batches import Batches
from perfmodel.timing.collectives import CollectiveGroup, Waiting, groups, waiting_of
from perfmodel.timing.run import Run, time_run
from perfmodel.timing.run_exchanges import exchanges_of
from support.build_report import VERSIONS, ReportBuilder

BATCH = "batch iteration"
UTC = 1_700_000_000_000_000_000
Call = tuple[str, int, int | None, int | None]


def timeline(
    path: Path,
    calls: Mapping[int, Sequence[Call]],
    *,
    version: str = "2024.2.3",
    utc_start_ns: int = UTC,
    shift: int = 0,
    world_size: int | None = None,
) -> Path:
    """Write one batch of 0 to 1 ms per rank, with the rank's collectives in it."""
    report = ReportBuilder(version, utc_start_ns=utc_start_ns, world_size=world_size)
    for rank, mine in calls.items():
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.range(BATCH, shift, shift + 1_000_000)
        for name, start, end, size in mine:
            thread.mpi(name, start + shift, None if end is None else end + shift, size)
    return report.write(path)


def measured(*paths: Path) -> Run:
    return time_run([read(p) for p in paths], BATCH, label="run")


def collectives(
    run: Run, warmup: int = 0
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None, tuple[str, ...]]:
    found = exchanges_of(run)
    batches = Batches.of(run.range_times, BATCH)
    stop = int(run.range_times.batch.max()) + 1
    numbers = {rank: batches.numbers(rank)[warmup:] for rank in run.ranks}
    grouped = groups(found, None, numbers)
    waiting = waiting_of(found, batches, run.ranks, warmup, stop) if grouped else None
    return grouped, waiting, found.warnings


# Rank 1 arrives 300 µs after rank 0; both leave 100 µs later.
LATE: dict[int, Sequence[Call]] = {
    0: [("MPI_Allreduce", 100_000, 500_000, 1_000_000)],
    1: [("MPI_Allreduce", 400_000, 500_000, 1_000_000)],
}


def check_late(found: tuple[tuple[CollectiveGroup, ...], Waiting | None, tuple[str, ...]]) -> None:
    (group,), waiting, warnings = found
    assert warnings == ()
    assert group.name == "MPI_Allreduce"
    assert (group.bytes, group.count) == (1_000_000, 1.0)
    assert group.seconds == pytest.approx(250e-6)  # median of 400 and 100 µs
    assert group.transfer_s == pytest.approx(100e-6)  # both: after the last arrival
    assert group.waiting_s == pytest.approx(150e-6)  # median of 300 and 0 µs
    assert group.bus_bytes_per_s == pytest.approx(1_000_000 / 100e-6)  # 2 (p - 1) / p = 1
    assert waiting is not None
    assert waiting.seconds == pytest.approx([400e-6, 100e-6])
    assert waiting.waiting_s == pytest.approx([300e-6, 0.0])


@pytest.mark.parametrize("version", [v for v in VERSIONS if v != "2022.4.2"])
def test_time_before_the_last_arrival_is_waiting(tmp_path: Path, version: str) -> None:
    check_late(collectives(measured(timeline(tmp_path / "r.sqlite", LATE, version=version))))


@pytest.mark.parametrize("offset_ns", [0, 7, 130_000_000, -130_000_000])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_reports_of_one_rank_each_are_aligned_by_their_utc_start(
    tmp_path: Path, offset_ns: int, order: tuple[int, int]
) -> None:
    """The second report's clock starts `offset_ns` later, so its times are that much smaller."""
    base = 200_000_000
    paths = [
        timeline(tmp_path / "0.sqlite", {0: LATE[0]}, shift=base, world_size=2),
        timeline(
            tmp_path / "1.sqlite", {1: LATE[1]}, shift=base - offset_ns,
            utc_start_ns=UTC + offset_ns, world_size=2,
        ),
    ]  # fmt: skip
    check_late(collectives(measured(*(paths[i] for i in order))))


def test_several_collectives_are_matched_one_by_one(tmp_path: Path) -> None:
    calls: dict[int, Sequence[Call]] = {
        0: [("MPI_Barrier", 10_000, 30_000, None), ("MPI_Allreduce", 50_000, 90_000, 4_000)],
        1: [("MPI_Barrier", 20_000, 30_000, None), ("MPI_Allreduce", 40_000, 90_000, 4_000)],
        2: [("MPI_Barrier", 25_000, 30_000, None), ("MPI_Allreduce", 60_000, 90_000, 4_000)],
    }
    groups, waiting, _ = collectives(measured(timeline(tmp_path / "r.sqlite", calls)))
    reduce, barrier = groups  # the longest first
    assert (reduce.name, barrier.name) == ("MPI_Allreduce", "MPI_Barrier")
    assert barrier.bytes is None
    assert barrier.bus_bytes_per_s is None
    assert reduce.transfer_s == pytest.approx(30e-6)
    assert reduce.bus_bytes_per_s == pytest.approx(4_000 / 30e-6 * 4 / 3)
    assert waiting is not None
    assert waiting.waiting_s == pytest.approx([25e-6, 25e-6, 0.0])


@given(
    st.lists(st.lists(st.integers(0, 40_000), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(1, 9_000),
)
def test_transfer_and_waiting_add_up_to_the_call(delays: list[list[int]], took: int) -> None:
    """Every rank's waiting and transfer are not negative, and the last rank never waits."""
    calls: dict[int, list[Call]] = {0: [], 1: [], 2: []}
    for i, arrivals in enumerate(delays):
        start = 50_000 * i
        for rank, delay in enumerate(arrivals):
            end = start + max(arrivals) + took
            calls[rank].append(("MPI_Allreduce", start + delay, end, 8 * (i + 1)))
    with tempfile.TemporaryDirectory() as folder:
        run = measured(timeline(Path(folder) / "r.sqlite", calls))
    groups, waiting, warnings = collectives(run)
    assert warnings == ()
    assert len(groups) == len(delays)
    for group in groups:
        assert group.transfer_s == pytest.approx(took * 1e-9)
        assert group.waiting_s is not None
        assert group.waiting_s >= 0
    assert waiting is not None
    assert waiting.waiting_s is not None
    for rank in range(3):
        wanted = sum(max(d) - d[rank] for d in delays) * 1e-9
        assert waiting.waiting_s[rank] == pytest.approx(wanted)
        moving = waiting.seconds[rank] - waiting.waiting_s[rank]
        assert moving == pytest.approx(took * len(delays) * 1e-9)


@pytest.mark.parametrize(
    "second",
    [
        [],
        [("MPI_Bcast", 400_000, 500_000, 1_000_000)],
        [("MPI_Allreduce", 400_000, 500_000, 8), ("MPI_Allreduce", 600_000, 700_000, 8)],
    ],
    ids=["none", "another", "more"],
)
def test_collectives_that_do_not_match_are_said(tmp_path: Path, second: list[Call]) -> None:
    path = timeline(tmp_path / "r.sqlite", {0: LATE[0], 1: second})
    groups, waiting, (warning,) = collectives(measured(path))
    assert "differ in number or order" in warning
    assert all(g.waiting_s is None and g.transfer_s is None for g in groups)
    assert all(g.bus_bytes_per_s is None for g in groups)
    assert waiting is not None
    assert waiting.waiting_s is None
    assert waiting.seconds[0] == pytest.approx(400e-6)


def test_collectives_that_never_returned_are_said_and_left_out(tmp_path: Path) -> None:
    cut: list[Call] = [*LATE[0], ("MPI_Allreduce", 900_000, None, 8)]
    path = timeline(tmp_path / "r.sqlite", {0: cut, 1: LATE[1]})
    (group,), waiting, warnings = collectives(measured(path))
    assert [w for w in warnings if "rank 0: 1 collectives never returned" in w]
    assert group.transfer_s == pytest.approx(100e-6)
    assert waiting is not None


def test_reports_without_a_clock_cannot_be_aligned(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        report = ReportBuilder(world_size=2)
        del report.rows["TARGET_INFO_SESSION_START_TIME"]
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.range(BATCH, 0, 1_000_000)
        thread.mpi(*LATE[rank][0])
        paths.append(report.write(tmp_path / f"{rank}.sqlite"))
    groups, _, (warning,) = collectives(measured(*paths))
    assert "no UTC start time" in warning
    assert groups[0].waiting_s is None


def test_a_run_without_collectives_has_none(tmp_path: Path) -> None:
    path = timeline(tmp_path / "r.sqlite", {0: [], 1: []})
    assert collectives(measured(path)) == ((), None, ())


def test_one_rank_does_not_wait(tmp_path: Path) -> None:
    path = timeline(tmp_path / "r.sqlite", {0: LATE[0]})
    (group,), waiting, warnings = collectives(measured(path))
    assert warnings == ()
    assert (group.waiting_s, group.transfer_s, group.bus_bytes_per_s) == (None, None, None)
    assert waiting is not None
    assert waiting.waiting_s is None


def test_collectives_of_warm_up_and_between_batches_do_not_count(tmp_path: Path) -> None:
    report = ReportBuilder()
    for rank in (0, 1):
        thread = report.thread(pid=100 + rank, rank=rank)
        thread.mpi("MPI_Bcast", 0, 900, 8)  # before the batches
        for i in range(3):
            start = 1_000 + 10_000 * i
            thread.range(BATCH, start, start + 9_000)
            thread.mpi("MPI_Allreduce", start, start + (5_000 if i == 0 else 1_000), 64)
            thread.mpi("MPI_Barrier", start + 9_500, start + 9_600)
    groups, waiting, _ = collectives(measured(report.write(tmp_path / "r.sqlite")), warmup=1)
    assert [(g.name, g.count) for g in groups] == [("MPI_Allreduce", 1.0)]
    assert groups[0].seconds == pytest.approx(1e-6)
    assert waiting is not None
    assert waiting.seconds == pytest.approx([1e-6, 1e-6])


def test_batches_without_collectives_count_too(tmp_path: Path) -> None:
    """Half of the batches reduce: half a call per batch."""
    report = ReportBuilder()
    for rank in (0, 1):
        thread = report.thread(pid=100 + rank, rank=rank)
        for i in range(8):
            thread.range(BATCH, 10_000 * i, 10_000 * i + 9_000)
            if i < 4:
                thread.mpi("MPI_Allreduce", 10_000 * i, 10_000 * i + 1_000, 64)
    ((group,), _, _) = collectives(measured(report.write(tmp_path / "r.sqlite")))
    assert group.count == 0.5


def test_non_blocking_starts_neither_transfer_nor_wait(tmp_path: Path) -> None:
    """MPI_Iallreduce returns at once: when the last rank arrives says nothing of its call."""
    calls = {
        0: [("MPI_Iallreduce", 100_000, 120_000, 800), ("MPI_Allreduce", 300_000, 400_000, 80)],
        1: [("MPI_Iallreduce", 110_000, 130_000, 800), ("MPI_Allreduce", 340_000, 400_000, 80)],
    }
    groups, waiting, said = collectives(measured(timeline(tmp_path / "r.sqlite", calls)))
    assert said == ()
    begun = next(g for g in groups if g.name == "MPI_Iallreduce")
    assert begun.seconds == pytest.approx(20e-6)
    assert (begun.transfer_s, begun.waiting_s, begun.bus_bytes_per_s) == (None, None, None)
    assert waiting is not None
    assert waiting.seconds == pytest.approx([120e-6, 80e-6])
    assert waiting.waiting_s == pytest.approx([40e-6, 0])


def test_nothing_but_non_blocking_calls_does_not_tell_the_waiting(tmp_path: Path) -> None:
    calls = {r: [("MPI_Iallreduce", 100_000 + r, 120_000 + r, 800)] for r in (0, 1)}
    _, waiting, _ = collectives(measured(timeline(tmp_path / "r.sqlite", calls)))
    assert waiting is not None
    assert waiting.waiting_s is None
