"""Reports that lack something, or hold what nobody expects: a clean answer all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import SchemaError
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report

BATCH = "batch iteration"


def test_nothing_at_all(tmp_path: Path) -> None:
    report = ReportBuilder()
    report.thread()
    report.diagnostic("No NVTX events collected. Does the process use NVTX?")
    path = report.write(tmp_path / "r.sqlite")
    with pytest.raises(SchemaError, match=r"got none.*No NVTX events collected.*--trace="):
        analyzed(path)


def test_gpu_work_without_a_range_is_analyzed(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.kernel("k", (0, 100), (50, 150))
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert run.steps is not None
    assert (run.steps.found_by, run.batch.count) == ("whole", 1)
    assert run.ranks[0].gpu_busy_s == pytest.approx(100e-9)


def test_events_that_nsight_systems_lost_are_warned_of(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.kernel("k", (0, 100), (50, 150))
    report.diagnostic("Error information: ProcessEventsError (4005) Cannot find string", "error")
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert [w for w in run.warnings if "could not read all that it had recorded" in w]


def test_a_range_that_is_not_there_says_which_ranges_there_are(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i, name in enumerate(["epoch", "x" * 500, "a\nb", *map(str, range(9))]):
        thread.range(name, 100 * i, 100 * i + 50)
    path = report.write(tmp_path / "r.sqlite")
    with pytest.raises(SchemaError, match="--batch-range") as caught:
        analyzed(path, batch_label="nosuch")
    message = str(caught.value)
    assert "expected ranges called 'nosuch', one per step; got 'epoch'" in message
    assert "\n" not in message
    assert len(message) < 700
    assert analyzed(path, batch_label="epoch").fitted.batch.count == 1
    assert analyzed(path).fitted.batch.count >= 1


def test_batches_that_end_on_another_thread(tmp_path: Path) -> None:
    report = ReportBuilder()
    one, other = report.thread(rank=0), report.thread(pid=100, tid=101)
    one.range(BATCH, 0, 100, style="startend", ended_by=other)
    with pytest.raises(SchemaError, match="starts on one thread and ends on another"):
        analyzed(report.write(tmp_path / "r.sqlite"))


def test_two_jobs_in_one_report_are_said(tmp_path: Path) -> None:
    report = ReportBuilder(world_size=2)
    for pid, rank in ((1, 0), (2, 1), (3, 0), (4, 1)):
        start = 50_000_000 * (pid > 2)
        Training(pace=(1, 1)).run(report.thread(pid=pid, rank=rank), start)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert run.batch.count == 4
    assert any("several MPI jobs" in w for w in run.warnings)


@pytest.mark.parametrize("rank", [10**8, 2**31, 2**62])
def test_a_rank_that_no_job_has(tmp_path: Path, rank: int) -> None:
    report = ReportBuilder("2025.3.2")
    thread = report.thread()
    thread.range(BATCH, 0, 100)
    report.insert("MPI_RANKS", globalTid=thread.global_tid, rank=rank)
    (row,) = analyzed(report.write(tmp_path / "r.sqlite")).fitted.ranks
    assert row.rank == (rank if rank < 2**31 else 0)


def test_a_batch_inside_its_like_is_a_part_of_it(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(3):
        start = 1_000_000 * i
        thread.range(BATCH, start, start + 900_000)
        thread.range(BATCH, start + 1_000, start + 800_000)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert run.batch.count == 3
    assert run.batch.median.value == pytest.approx(9e-4)
    assert [r.path for r in run.ranges] == [(BATCH,), (BATCH, BATCH)]


def test_processes_without_mpi_are_ranks_by_process_id(tmp_path: Path) -> None:
    """As torchrun starts them, under one nsys."""
    report = ReportBuilder("2025.3.2")
    for rank in (0, 1):
        report.gpu(rank)
        Training(mpi=False).run(report.thread(pid=500 + rank), device=rank)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert [(r.rank, r.gpu) for r in run.ranks] == [(0, 0), (1, 1)]
    assert run.identity.values["p"] == 2
    assert run.identity.values["B"] == 3000
    assert any("no MPI call was recorded" in w for w in run.warnings)


@pytest.mark.parametrize("warmup", [6, 10**30])
def test_no_batch_after_the_warm_up(tmp_path: Path, warmup: int) -> None:
    path = training_report(tmp_path / "r.sqlite")
    with pytest.raises(SchemaError, match=r"found 6 steps.*lower --warmup"):
        analyzed(path, warmup=warmup)


def test_the_only_batch_never_ended(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    thread.range(BATCH, 100, None)
    thread.range("forward", 200, 300)
    with pytest.raises(SchemaError, match="no finished step is left"):
        analyzed(report.write(tmp_path / "r.sqlite"))


def test_the_last_batch_never_ended(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(4):
        start = 1_000_000 * i
        thread.range(BATCH, start, start + 900_000 if i < 3 else None)
        thread.range("forward", start + 10, start + 400_010)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert run.batch.warmup == 0
    assert run.batch.median.value == pytest.approx(9e-4)
    assert run.batch.median.instances == 3
    assert any("1 ranges never ended and are left out" in w for w in run.warnings)


def test_ranges_that_cross(tmp_path: Path) -> None:
    """Neither contains the other: both lie in the batch, and the kernel in both."""
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(6):
        start = 1_000_000 * i
        thread.range(BATCH, start, start + 900_000)
        thread.range("forward", start + 10_000, start + 400_000)
        thread.range("backward", start + 300_000, start + 800_000)
        launch = (start + 310_000, start + 320_000)
        thread.kernel("k", launch, (start + 400_000, start + 500_000))
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert [r.path for r in run.ranges] == [(BATCH,), (BATCH, "forward"), (BATCH, "backward")]
    assert [r.gpu_busy_s for r in run.ranges] == pytest.approx([1e-4] * 3)


def test_batches_without_duration(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(6):
        thread.range(BATCH, 1_000 * i, 1_000 * i)
        thread.range("forward", 1_000 * i, 1_000 * i)
        thread.kernel("k", (1_000 * i, 1_000 * i), (1_000 * i, 1_000 * i))
    run = analyzed(report.write(tmp_path / "r.sqlite"), values={"D": 4, "H": 4, "C": 4, "B": 4})
    assert run.fitted.batch.median.value == 0.0
    assert run.fitted.findings == ()
    assert run.fitted.points == ()


def test_only_the_batch_has_content_elsewhere(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i in range(5):
        thread.range(BATCH, 1_000_000 * i, 1_000_000 * i + 100_000)
        thread.range("forward", 1_000_000 * i + 200_000, 1_000_000 * i + 300_000)
    run = analyzed(report.write(tmp_path / "r.sqlite")).fitted
    assert [r.path for r in run.ranges] == [(BATCH,)]


@pytest.mark.parametrize("pace", [(1,), (8, 1)])
def test_one_or_two_batches_are_enough(tmp_path: Path, pace: tuple[int, ...]) -> None:
    run = analyzed(training_report(tmp_path / "r.sqlite", Training(pace=pace))).fitted
    assert (run.batch.count, run.batch.warmup) == (len(pace), 0)
    assert run.rates["P_flops"] is not None
    assert run.rates["P_flops"].instances == 2 * len(pace)


@pytest.mark.slow
def test_two_hundred_ranks(tmp_path: Path) -> None:
    training = Training(D=8, H=6, C=3, p=200, B=1000, pace=(2, 1, 1))
    run = analyzed(training_report(tmp_path / "r.sqlite", training)).fitted
    assert len(run.ranks) == 200
    assert run.batch.median.instances == run.batch.count == 2
    assert {rank.batches for rank in run.ranks} == {2}
    assert run.identity.values["B"] == 1000
