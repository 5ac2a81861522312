"""Outliers: slow ranks, GPUs and hosts are named, equal ones are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.outliers import find_outliers, least_score, own_seconds
from perfmodel.analysis.result import RankRow
from perfmodel.programs.program import Options
from support.build_report import ReportBuilder

HOSTS = {rank: f"node{rank // 8}" for rank in range(64)}


def ranks(own_ms: dict[int, float], count: int = 64) -> list[RankRow]:
    """Ranks of 10 ms of their own, some of other times, in steps of 20 ms."""
    noise = np.random.default_rng(5).normal(0.0, 0.02, count)
    own = [own_ms.get(rank, 10.0 + noise[rank]) * 1e-3 for rank in range(count)]
    return [RankRow(r, r % 8, 9, 0.020, 0.020, 0.008, 0.011, 0.020 - s) for r, s in enumerate(own)]


def test_equal_ranks_have_no_outliers() -> None:
    assert find_outliers(ranks({}), HOSTS) == ()


def test_a_slow_rank_is_named_with_both_times() -> None:
    (found,) = find_outliers(ranks({17: 12.0}), HOSTS)
    assert (found.kind, found.name, found.ranks) == ("rank", "17", (17,))
    assert found.seconds == pytest.approx(0.012)
    assert found.usual_s == pytest.approx(0.010, rel=1e-3)
    assert found.excess == pytest.approx(0.2, rel=1e-2)


def test_a_slow_host_is_named_once_and_not_its_ranks() -> None:
    (found,) = find_outliers(ranks(dict.fromkeys(range(24, 32), 11.0)), HOSTS)
    assert (found.kind, found.name, found.ranks) == ("host", "node3", tuple(range(24, 32)))


def test_a_gpu_that_is_slow_on_every_host_is_named() -> None:
    slow = tuple(range(5, 64, 8))
    (found,) = find_outliers(ranks(dict.fromkeys(slow, 11.0)), HOSTS)
    assert (found.kind, found.name, found.ranks) == ("GPU", "5", slow)


def test_a_slow_gpu_is_named_where_gpus_differ_too_much_to_say_so_of_eight() -> None:
    """Their medians spread by 5 %, and one is 80 % above: its ranks are outliers one by one."""
    usual = [9.0, 10.9, 9.4, 10.5, 0.0, 9.8, 10.2, 11.3]
    own = {rank: usual[rank % 8] for rank in range(64)} | dict.fromkeys(range(4, 64, 8), 15.0)
    (found,) = find_outliers(ranks(own), HOSTS)
    assert (found.kind, found.name, found.ranks) == ("GPU", "4", tuple(range(4, 64, 8)))
    assert found.seconds == pytest.approx(0.015)


def test_less_than_two_percent_is_no_outlier() -> None:
    own = dict.fromkeys(range(64), 10.0)
    assert find_outliers(ranks({**own, 3: 10.19}), HOSTS) == ()
    assert [one.name for one in find_outliers(ranks({**own, 3: 10.21}), HOSTS)] == ["3"]


def test_of_three_ranks_none_is_unusual() -> None:
    assert find_outliers(ranks({1: 30.0}, count=3), {}) == ()


def test_a_rank_whose_waiting_is_unknown_has_no_time_of_its_own() -> None:
    assert own_seconds(RankRow(0, 0, 9, 0.02, 0.02, None, None, None)) is None


@pytest.mark.parametrize("count", [4, 8, 16, 64, 1024])
def test_healthy_values_pass_the_least_score_in_two_percent_of_the_cases(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(800_000 // count, count))
    excess = values - np.median(values, axis=1, keepdims=True)
    score = 0.6745 * excess / np.median(np.abs(excess), axis=1, keepdims=True)
    assert 0.0 < (score > least_score(count)).any(axis=1).mean() < 0.025


def test_a_thousand_healthy_ranks_have_no_outliers() -> None:
    """Of these, some have a modified z-score above the usual 3.5."""
    rng, named = np.random.default_rng(3), 0
    for _ in range(8):
        own = dict(enumerate((10.0 + rng.normal(0.0, 0.1, 1024)).tolist()))
        hosts = {rank: f"node{rank // 8}" for rank in own}
        named += bool(find_outliers(ranks(own, 1024), hosts))
    assert named <= 1


def ddp_report(path: Path, rank: int, ranks: int, made: bool) -> Path:
    """A rank that sums gradients by NCCL, with the call that makes its communicator or without."""
    report = ReportBuilder("2025.3.2")
    report.gpu()
    thread = report.thread(100 + rank)
    if made:
        said = {"NCCL communicator ID": 7, "No. of ranks": ranks, "Rank": rank, "CUDA device": 0}
        thread.range("ncclCommInitRank", 0, 500, domain="NCCL", jsonText=json.dumps(said))
    said = {"NCCL communicator ID": 7, "Message size [bytes]": 1024}
    for step in range(5):
        at = 1_000_000 * (step + 1)
        thread.range(f"step {step}", at, at + 900_000)
        thread.kernel("gemm", (at + 100, at + 200), (at + 1000, at + 500_000))
        thread.range("ncclAllReduce", at + 300, at + 600, domain="NCCL", jsonText=json.dumps(said))
        thread.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (at + 400, at + 500),
                      (at + 500_000, at + 600_000), stream=9)  # fmt: skip
        thread.synchronize(at + 700, at + 650_000)
    return report.write(path)


@pytest.mark.parametrize(("made", "warned"), [((0, 1, 3), True), ((0, 3), False), ((), False)])
def test_ranks_that_nccl_counts_and_no_report_has_are_named(
    made: tuple[int, ...], warned: bool, tmp_path: Path
) -> None:
    """Of a program without MPI, where every report holds how its communicator was made."""
    paths = [ddp_report(tmp_path / f"r{r}.sqlite", r, 4, r in made) for r in (0, 1, 3)]
    analysis = analyze_reports(paths, Options())
    assert [len(run.ranks) for run in analysis.runs] == [3]
    said = [warning for warning in analysis.fitted.warnings if "no report has rank 2;" in warning]
    assert len(said) == warned
