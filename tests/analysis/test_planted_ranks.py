"""Sixty-four reports with a rank, a host or a GPU number that is planted to be slow, or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import BASE
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.parallel import Engine
from perfmodel.programs.program import Options
from profiles.grow import PER_HOST, grow_ranks

RANKS = 64
USUAL, LATE = 0.2, 0.95
GPU_TABLES = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))


def planted(folder: Path, slow: Callable[[int], bool]) -> RunAnalysis:
    """Analyze a job of eight hosts of eight GPUs in which some ranks come late to collectives."""
    paths = grow_ranks(BASE, folder, RANKS, lateness=lambda rank: LATE if slow(rank) else USUAL)
    for rank, path in enumerate(paths):
        with closing(sqlite3.connect(path)) as db, db:
            for table in GPU_TABLES:  # the source has two GPUs
                db.execute(f"UPDATE {table} SET deviceId = ?", [rank % PER_HOST])
    (run,) = analyze_reports(paths, Options({}), Engine(2)).runs
    assert len(run.ranks) == RANKS
    return run


def named(run: RunAnalysis) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.kind, one.name, one.ranks) for one in run.outliers]


@pytest.mark.slow
def test_a_healthy_job_has_no_outlier(tmp_path: Path) -> None:
    run = planted(tmp_path, lambda _: False)
    assert named(run) == []
    assert run.skew is not None
    assert max(rank.last_share for rank in run.skew.ranks) < 0.2  # nobody is often last


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 37, 63])
def test_a_slow_rank_is_named(tmp_path: Path, rank: int) -> None:
    run = planted(tmp_path, lambda one: one == rank)
    assert named(run) == [("rank", str(rank), (rank,))]
    assert run.skew is not None
    assert run.skew.ranks[0].rank == rank
    assert run.skew.collectives[0].last_rank == rank
    reduced = next(c for c in run.collectives if c.bytes == 1_605_632)
    assert reduced.waiting_s  # matched across all reports
    assert run.skew.count == sum(c.count for c in run.skew.collectives)


@pytest.mark.slow
def test_a_slow_host_is_named_and_not_its_ranks(tmp_path: Path) -> None:
    run = planted(tmp_path, lambda rank: rank // PER_HOST == 5)
    assert named(run) == [("host", "5", tuple(range(40, 48)))]
    assert run.skew is not None
    assert {rank.rank for rank in run.skew.ranks[:PER_HOST]} == set(range(40, 48))


@pytest.mark.slow
def test_a_gpu_that_is_slow_on_every_host_is_named(tmp_path: Path) -> None:
    run = planted(tmp_path, lambda rank: rank % PER_HOST == 3)
    assert named(run) == [("GPU", "3", tuple(range(3, RANKS, PER_HOST)))]
