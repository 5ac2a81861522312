"""Who comes last, how late, on clocks that disagree: worked by hand, and as properties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import BASE
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import Analysis
from perfmodel.programs.program import Options
from perfmodel.render import summary
from perfmodel.timing.exchanges import Exchanges, match
from perfmodel.timing.skew import Skew, skew_of
from profiles.grow import grow_ranks
from support.once import run_of


def exchanges(starts: list[list[int]], ends: list[int], batches: list[int]) -> Exchanges:
    """All-reduces of ranks 3, 5 and 7, on clocks that are known to 4 ns."""
    count = len(ends)
    columns = {
        "name": np.zeros(3 * count, np.int64), "rank": np.repeat([3, 5, 7], count),
        "post_ns": np.concatenate(starts), "end_ns": np.tile(ends, 3),
        "communicator": np.zeros(3 * count, np.int64), "bytes": np.full(3 * count, 8),
        "step": np.tile(batches, 3), "held_step": np.tile(batches, 3),
        "clock_error_ns": np.full(3 * count, 4),
    }  # fmt: skip
    return match(Exchanges.of(["MPI_Allreduce"], [3, 5, 7], columns), world=[3, 5, 7])


def by_hand(warmup: int = 0) -> Skew | None:
    """Three ranks, three collectives in two batches: rank 7 is last twice, rank 5 once."""
    starts = [[0, 100, 200], [10, 130, 210], [30, 110, 270]]
    batch_s = np.array([[150, 90], [150, 90], [150, 90]]) * 1e-9
    return skew_of(exchanges(starts, [50, 150, 290], [0, 0, 1]), [3, 5, 7], batch_s, warmup)


def test_who_is_last_how_often_and_how_late() -> None:
    skew = by_hand()
    assert skew is not None
    assert skew.count == 3
    assert skew.clock_bound_s == pytest.approx(4e-9)
    (collective,) = skew.collectives
    assert (collective.count, collective.last_rank) == (3, 7)
    assert collective.last_share == pytest.approx(2 / 3)
    # first to last arrival: 30, 30 and 70 ns
    assert collective.p50_s == pytest.approx(30e-9)
    assert collective.p95_s == pytest.approx((30 + 0.9 * 40) * 1e-9)
    assert collective.max_s == pytest.approx(70e-9)
    # after the middle rank: 30 - 10 and 270 - 210 for rank 7, 130 - 110 for rank 5
    seven, five, three = skew.ranks
    assert [r.rank for r in skew.ranks] == [7, 5, 3]
    assert (seven.last, seven.max_s) == (2, pytest.approx(60e-9))
    assert seven.p50_s == pytest.approx(40e-9)
    assert seven.per_batch_s == pytest.approx(40e-9)
    assert (five.last, five.p50_s) == (1, pytest.approx(20e-9))
    assert (three.last, three.p50_s, three.per_batch_s) == (0, None, 0.0)


def test_imbalance_is_of_the_time_without_waiting() -> None:
    """Rank 3 waits 30 + 30 of 150 and 70 of 90 ns, rank 5 20 and 60, rank 7 20 and 0."""
    skew = by_hand()
    assert skew is not None
    busy = np.array([[90, 20], [130, 30], [130, 90]]) * 1e-9
    most, mean = busy.max(axis=0), busy.mean(axis=0)
    assert skew.imbalance_s == pytest.approx(np.median(most - mean))
    assert skew.imbalance == pytest.approx(np.median((most - mean) / most * 3 / 2))
    assert {r.rank: r.busy_s for r in skew.ranks} == pytest.approx({3: 55e-9, 5: 80e-9, 7: 110e-9})


def test_the_warm_up_is_left_out() -> None:
    skew = by_hand(warmup=1)
    assert skew is not None
    assert (skew.count, skew.ranks[0].rank, skew.ranks[0].last) == (1, 7, 1)


def test_ranks_that_do_not_match_have_no_skew() -> None:
    found = exchanges([[0], [0], [0]], [9], [0])
    unequal = match(found.taken(np.arange(2)), world=[3, 5, 7])
    assert skew_of(unequal, [3, 5, 7], np.ones((3, 1)), 0) is None
    assert skew_of(found, [3, 5, 7], np.ones((3, 1)), 1) is None


# --- a grown job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """18 ranks on three hosts whose clocks disagree, a report each; rank 8 is a straggler."""
    paths = grow_ranks(BASE, tmp_path_factory.mktemp("job"), 18)
    return analyze_reports(paths, Options({}))


@pytest.mark.slow
def test_stragglers_of_a_grown_job_are_found(job: Analysis) -> None:
    run = job.fitted
    assert len(run.ranks) == 18
    skew = run.skew
    assert skew is not None
    assert skew.ranks[0].rank == 8
    assert skew.ranks[0].last_share > 0.5
    assert sum(r.last for r in skew.ranks) == skew.count == 38 * 5
    assert skew.clock_bound_s < 2e-6  # the hosts' clocks were off by milliseconds
    assert any("contradict the order" in w for w in run.warnings)
    text = summary.result(job, "all").render()
    assert "Late ranks" in text
    assert "10 of 18; all of them" in text


def test_each_rank_moved_as_one_leaves_the_times_of_ranges_alone(tmp_path: Path) -> None:
    """Only collectives are put on one clock: medians of ranges are those of the two originals."""
    job_ranges = analyze_reports(grow_ranks(BASE, tmp_path, 4), Options({})).fitted.ranges
    original = run_of(BASE).ranges
    assert [r.path for r in job_ranges] == [r.path for r in original]
    for mine, theirs in zip(job_ranges, original, strict=True):
        assert mine.host_s == pytest.approx(theirs.host_s)
        assert mine.gpu_busy_s == (theirs.gpu_busy_s and pytest.approx(theirs.gpu_busy_s))
