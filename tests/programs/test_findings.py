"""Findings: every rule, when it speaks and when it is silent; docs/findings.md describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import ROOT
from perfmodel import findings
from perfmodel.findings import Finding
from perfmodel.findings.exposed_communication import in_mpi
from perfmodel.findings.offloading import copied_in_every_step
from perfmodel.findings.waiting_mpi import late_messages, waiting_in_mpi
from perfmodel.machines.machine import Machine
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, GemmTime
from perfmodel.programs.mlp.program import actions_of, facts_of
from perfmodel.timing.collectives import CollectiveGroup, Waiting
from perfmodel.timing.copies import CopyGroup
from perfmodel.timing.late_ranks import LateRank
from perfmodel.timing.point_to_point import Pair, PointToPoint, RangeOfRank
from perfmodel.timing.samples import Estimate

DOCS = ROOT / "docs" / "findings.md"
LINKS = {"pcie": 64e9, "nvlink": 900e9, "hbm": 4.8e12}
H200 = Machine("H200", "datasheet", {"float32": 67e12}, LINKS)

QUIET = Facts(
    batch=Estimate(1e-3, 0.9e-3, 1.1e-3, 20, "host", 0.8e-3, 1.2e-3),
    busy_s=1e-3,
    gpu_ops=30.0,
    synchronizations=0.0,
    synchronize_s=0.0,
    host_s={},
    copies=(),
    collectives=(),
    waiting=None,
    gemms=(),
    shared_gpus={},
    machine=H200,
    ranks=2,
)
"""A batch of 1 ms in which the GPU never rests: nothing to find."""

STAGED = {
    "cudaMemcpyDeviceToHost": 100e-6, "MPI_Allreduce": 300e-6, "cudaMemcpyHostToDevice": 100e-6,
}  # fmt: skip


def copy(direction: str = "Device-to-Host", memory: str = "pageable", **changes: Any) -> CopyGroup:
    group = CopyGroup(direction, memory, 4.0, 1.6e6, 80e-6, 20e9, 1_600_000)
    return replace(group, **changes)


def reduce(size: int | None = 1_600_000, **changes: Any) -> CollectiveGroup:
    group = CollectiveGroup("MPI_Allreduce", size, 1.0, 300e-6, 280e-6, 20e-6, 5e9)
    return replace(group, **changes)


def find(facts: Facts) -> tuple[Finding, ...]:
    return findings.find(facts_of(facts), actions_of(facts.config))


def only(facts: Facts, title: str) -> Finding:
    (found,) = [f for f in find(facts) if title in f.title]
    return found


def titles(facts: Facts) -> list[str]:
    return [f.title for f in find(facts)]


def test_nothing_to_find() -> None:
    assert find(QUIET) == ()


def test_ranks_that_share_a_gpu() -> None:
    found = only(replace(QUIET, shared_gpus={3: (0, 1)}), "ranks 0 and 1 share GPU 3")
    assert found.saving_s is None
    assert "CUDA_VISIBLE_DEVICES" in found.action


def test_the_gpu_waits_for_the_host() -> None:
    """Idle = batch - busy - collectives = 1000 - 400 - 250 µs."""
    facts = replace(
        QUIET, busy_s=400e-6, waiting=Waiting([250e-6, 250e-6], None), synchronizations=15.0,
        synchronize_s=120e-6,
    )  # fmt: skip
    found = only(facts, "the GPU waits for the host")
    assert found.saving_s == pytest.approx(350e-6)
    for said in (
        "400 µs",
        "40 %",
        "250 µs",
        "30 GPU operations",
        "15 synchronizing calls",
        "120 µs",
    ):
        assert said in found.evidence
    without = only(replace(facts, synchronizations=0.0, gpu_ops=1.0), "the GPU waits")
    assert "synchronizing" not in without.evidence
    assert "1 GPU operation per step" in without.evidence


def test_busy_is_a_lower_bound_where_batches_lack_operations() -> None:
    found = only(replace(QUIET, busy_s=400e-6, lacking=1600), "the GPU waits for the host")
    assert "busy at least 400 µs" in found.evidence
    assert "1600 operations of the run are in no range" in found.evidence
    assert found.action.startswith("count these first")
    whole = only(replace(QUIET, busy_s=400e-6), "the GPU waits for the host")
    assert "at least" not in whole.evidence
    assert "--attribute" not in whole.action


@pytest.mark.parametrize("busy", [None, 1e-3, 0.995e-3, 2e-3])
def test_the_gpu_does_not_wait(busy: float | None) -> None:
    """Unknown, always busy, idle for less than one percent, busy beyond the batch."""
    assert titles(replace(QUIET, busy_s=busy)) == []


def test_gradients_through_the_host() -> None:
    """500 µs spent; 1.6 MB over 450 GB/s each way take 2 (p-1)/p n / 450e9 = 3.56 µs."""
    facts = replace(QUIET, host_s=STAGED, collectives=[reduce()])
    found = only(facts, "gradients are reduced through the host")
    assert found.kind == "host_reduction"
    assert found.saving_s == pytest.approx(500e-6 - 1.6e6 / 450e9)
    assert "NCCL" in found.action


@pytest.mark.parametrize(
    "changes",
    [
        {"host_s": {k: v for k, v in STAGED.items() if k != "MPI_Allreduce"}},
        {"collectives": []},
        {"collectives": [reduce(None)]},
        {"ranks": 1},
        {"shared_gpus": {0: (0, 1)}},
        {"machine": None},
        {"machine": replace(H200, bandwidth_bytes_per_s={"pcie": 64e9})},
    ],
)
def test_gradients_not_through_the_host(changes: dict[str, Any]) -> None:
    facts = replace(replace(QUIET, host_s=STAGED, collectives=[reduce()]), **changes)
    assert "gradients are reduced through the host" not in titles(facts)


def test_pageable_copies_beside_pinned_ones() -> None:
    """The host spends 100 µs; at the pinned copies' 40 GB/s it were 40 µs."""
    pinned = copy("Host-to-Device", "pinned", bytes_per_s=40e9)
    facts = replace(QUIET, copies=[copy(), pinned], host_s={"cudaMemcpyDeviceToHost": 100e-6})
    found = only(facts, "Device-to-Host copies use pageable memory")
    assert found.saving_s == pytest.approx(100e-6 - 1.6e6 / 40e9)
    assert "pinned copies in this report reach 40.0 GB/s" in found.evidence


def test_pageable_copies_against_the_data_sheet() -> None:
    """Small pinned copies prove nothing: then 80 % of PCIe's 64 GB/s."""
    small = copy("Host-to-Device", "pinned", largest_bytes=40, bytes_per_s=1e9)
    facts = replace(QUIET, copies=[copy(), small])
    found = only(facts, "Device-to-Host copies use pageable memory")
    assert found.saving_s == pytest.approx(80e-6 - 1.6e6 / 51.2e9)
    assert "should reach about 51.2 GB/s" in found.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"copies": [copy(memory="pinned")]},
        {"copies": [copy(memory="managed")]},
        {"machine": None},
        {"copies": [copy(seconds=32e-6)]},  # already as fast
        {"copies": [copy(bytes_per_s=math.nan, seconds=0.0, bytes=0.0)]},
    ],
)
def test_copies_that_are_well(changes: dict[str, Any]) -> None:
    assert titles(replace(replace(QUIET, copies=[copy()]), **changes)) == []


def test_inputs_copied_in_every_batch() -> None:
    facts = replace(QUIET, host_s={"copying images host -> device": 200e-6})
    assert only(facts, "inputs are copied").saving_s == 200e-6
    assert titles(replace(QUIET, host_s={"copying images host -> device": 9e-6})) == []


def test_ranks_that_wait_for_each_other() -> None:
    facts = replace(QUIET, waiting=Waiting([300e-6, 310e-6, 300e-6], [0.0, 120e-6, 50e-6]))
    found = only(facts, "ranks wait for each other")
    assert found.saving_s == 120e-6
    assert "rank 1 waits longest" in found.evidence
    assert titles(replace(QUIET, waiting=Waiting([300e-6], None))) == []
    assert titles(replace(QUIET, waiting=Waiting([300e-6], [9e-6]))) == []


def test_several_small_all_reduces() -> None:
    small = reduce(2048, count=2.0, seconds=10e-6)
    facts = replace(QUIET, collectives=[reduce(), small, reduce(40, seconds=5e-6)])
    found = only(facts, "reduced in several messages")
    assert found.saving_s == pytest.approx(2 * 10e-6 + 5e-6)
    assert "4 all-reduces per step, 2 of them under 64 KB" in found.evidence
    for groups in ([reduce()], [reduce(), reduce(1 << 20)], [reduce(None, count=4.0)]):
        assert titles(replace(QUIET, collectives=groups)) == []


def test_products_below_their_ceiling() -> None:
    gemms = [
        GemmTime("forward GEMM 1", 100e-6, 1.2e9, 18e-6),
        GemmTime("on the host", 100e-6, 1.2e9, None),
        GemmTime("at its ceiling", 100e-6, 1.2e9, 95e-6),
    ]
    found = find(replace(QUIET, gemms=gemms))
    assert [f.title for f in found] == ["forward GEMM 1 runs at 18 % of its ceiling"]
    assert found[0].saving_s == pytest.approx(82e-6)


def test_findings_are_ranked_and_unknown_savings_come_last() -> None:
    facts = replace(
        QUIET,
        busy_s=700e-6,
        host_s={"copying images host -> device": 200e-6},
        shared_gpus={0: (0, 1)},
        gemms=[GemmTime("gemm", 500e-6, 1e9, 100e-6)],
    )
    savings = [f.saving_s for f in find(facts)]
    assert savings[-1] is None
    assert savings[:-1] == pytest.approx([400e-6, 300e-6, 200e-6])


times = st.floats(0.0, 1.0)


@given(
    batch=st.floats(0.0, 1.0),
    busy=st.none() | times,
    host=st.dictionaries(st.sampled_from([*STAGED, "copying images host -> device"]), times),
    copies=st.lists(st.builds(
        CopyGroup, st.sampled_from(["Host-to-Device", "Device-to-Host"]),
        st.sampled_from(["pageable", "pinned"]), st.floats(0, 9), st.floats(0, 1e9), times,
        st.floats(1.0, 1e12) | st.just(math.nan), st.integers(0, 10**9),
    ), max_size=3),
    collectives=st.lists(st.builds(
        CollectiveGroup, st.just("MPI_Allreduce"), st.none() | st.integers(0, 10**9),
        st.floats(0, 9), times, st.none(), st.none(), st.none(),
    ), max_size=3),
    waits=st.none() | st.lists(times, min_size=2, max_size=2),
    gemm=st.builds(GemmTime, st.just("gemm"), st.floats(1e-9, 1.0), times, st.none() | times),
    machine=st.sampled_from([None, H200]),
)  # fmt: skip
def test_a_saving_is_never_negative_nor_more_than_the_batch(
    batch: float,
    busy: float | None,
    host: dict[str, float],
    copies: list[CopyGroup],
    collectives: list[CollectiveGroup],
    waits: list[float] | None,
    gemm: GemmTime,
    machine: Machine | None,
) -> None:
    facts = replace(
        QUIET, batch=Estimate(batch, batch, batch, 1, "host", batch, batch), busy_s=busy,
        host_s=host, copies=copies,
        collectives=collectives, waiting=Waiting([0.1, 0.1], waits), gemms=[gemm],
        machine=machine, shared_gpus={0: (0, 1)},
    )  # fmt: skip
    found = find(facts)
    for finding in found:
        assert finding.saving_s is None or 0.0 <= finding.saving_s <= batch
        assert finding.evidence
        assert finding.action
    assert [f.saving_s is None for f in found] == sorted(f.saving_s is None for f in found)


@pytest.mark.parametrize(
    "title",
    [
        "ranks ... share GPU", "the GPU waits for the host",
        "gradients are reduced through the host", "copies use pageable memory",
        "the inputs are copied in every step", "ranks wait for each other",
        "the gradients are reduced in several messages", "of its ceiling",
    ],
)  # fmt: skip
def test_every_rule_is_documented(title: str) -> None:
    headings = [ln for ln in DOCS.read_text(encoding="utf-8").splitlines() if ln.startswith("## ")]
    assert any(title in heading for heading in headings)


def test_a_rank_for_which_the_others_poll_is_named() -> None:
    """Rank 1 works 0.4 ms longer in steps of 1 ms; the others poll meanwhile."""
    seconds = {"work": (0.4e-3, 0.8e-3, 0.4e-3), "poll": (0.6e-3, 0.2e-3, 0.6e-3)}
    times = tuple(
        RangeOfRank(rank, name, f"step/{name}", own[rank], own[rank] - sorted(own)[1], 0.5)
        for name, own in seconds.items()
        for rank in range(3)
    ) + tuple(RangeOfRank(rank, "step", "step", 1e-3, 0.0, 0.0) for rank in range(3))
    silent = tuple(late(rank, 0.0, 0.0) for rank in range(3))
    messages = PointToPoint((), silent, (), 0)
    facts = replace(QUIET, ranks=3, messages=messages, late=silent, ranges_by_rank=times)
    (found,) = late_messages(facts, Actions(), messages)
    assert (found.kind, found.saving_s) == ("waiting_mpi", pytest.approx(0.4e-3))
    assert found.title == "rank 1 takes longer in 'work' than the others"
    assert not list(late_messages(replace(facts, ranks=2), Actions(), messages))
    longer = tuple(
        replace(r, more_s=0.4e-3) if (r.range, r.rank) == ("step", 1) else r for r in times
    )
    assert not list(late_messages(replace(facts, ranges_by_rank=longer), Actions(), messages))


def late(rank: int, waiting_s: float, caused_s: float, latest: int = 0) -> LateRank:
    """A rank that is the latest in some of 9 steps."""
    sure = 1.0 if latest > 7 else 0.1
    return LateRank(rank, 0.0, 0.0, waiting_s, caused_s, caused_s, latest, 9, sure, enough=True)


def test_ranks_that_are_late_in_turn_are_not_named() -> None:
    rows = late(1, 40e-6, 50e-6, 5), late(0, 50e-6, 40e-6, 4)
    pairs = Pair(0, 1, 1.0, 8.0, 50e-6), Pair(1, 0, 1.0, 8.0, 40e-6)
    messages = PointToPoint(pairs, rows, (), 0)
    facts = replace(QUIET, ranks=2, messages=messages, late=rows)
    (found,) = late_messages(facts, Actions(), messages)
    assert found.title == "ranks wait for each other's messages"
    assert "late in turn" in found.evidence
    few = tuple(replace(row, steps=2, enough=False, latest=2 * (row.rank == 1)) for row in rows)
    (found,) = late_messages(replace(facts, late=few), Actions(), messages)
    assert found.title == "ranks wait for messages of rank 1"
    assert "(only 2 steps: record more to be sure)" in found.evidence


def test_a_rank_that_computes_longer_is_named_where_no_range_says_it() -> None:
    """Of two ranks without ranges but the step, rank 1 computes 60 ms longer."""
    times = tuple(RangeOfRank(rank, "step", "step", 0.12, rank * 1e-6, 0.0) for rank in (0, 1))
    waits, pairs = (late(1, 0.0, 60e-3, 9), late(0, 60e-3, 0.0)), (Pair(1, 0, 1.0, 8.0, 60e-3),)
    facts = replace(
        QUIET, ranks=2, messages=PointToPoint(pairs, waits, (), 0), late=waits,
        ranges_by_rank=times, compute_s={0: 60e-3, 1: 119e-3},
    )  # fmt: skip
    messages = PointToPoint(pairs, waits, (), 0)
    (found,) = late_messages(facts, Actions(), messages)
    assert found.saving_s == pytest.approx(59e-3)
    assert "it computes 119 ms per step, 59.0 ms more" in found.evidence
    (unknown,) = late_messages(replace(facts, compute_s={}), Actions(), messages)
    assert unknown.saving_s == pytest.approx(60e-3)


def test_copies_that_are_much_of_a_step_are_offloading() -> None:
    """Of 1 ms: 0.4 ms of copies either way, 81 % of the link's rate."""
    into = copy("Host-to-Device", "pinned", bytes=11e6, seconds=212e-6)
    back = copy("Device-to-Host", "pinned", bytes=10e6, seconds=188e-6)
    (found,) = copied_in_every_step(QUIET, Actions(), (into, back))
    assert found.kind == "offloading"
    assert found.saving_s == pytest.approx(400e-6)
    assert "11.0 MB to the GPU and 10.0 MB back" in found.evidence
    assert "82 % of the link's 64.0 GB/s" in found.evidence
    assert "40 %" in found.evidence
    assert "what is offloaded returns" in found.evidence
    (one_way,) = copied_in_every_step(replace(QUIET, machine=None), Actions(), (into,))
    assert "of the link" not in one_way.evidence
    assert "are on the host" in one_way.evidence
    assert not list(copied_in_every_step(QUIET, Actions(), (replace(into, seconds=99e-6),)))
    between = copy("Device-to-Device", "device", seconds=400e-6)
    assert not list(copied_in_every_step(QUIET, Actions(), (between,)))


def ranges_of(more: Mapping[str, float], mpi: Mapping[str, float]) -> tuple[RangeOfRank, ...]:
    """Ranges of three ranks, of which rank 1 spends more time outside MPI."""
    return tuple(
        RangeOfRank(
            rank, path.rpartition("/")[2], path, 1e-3, 0.0, 0.0, mpi_s=mpi.get(path, 0.0),
            own_s=1e-3 + extra * (rank == 1), own_more_s=extra * (rank == 1),
        )
        for path, extra in more.items()
        for rank in range(3)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"step": 2e-3, "step/read": 1.9e-3, "step/exchange": 0.0}, "read"),
        ({"step": 2e-3, "step/solve": 2e-3, "step/solve/exchange": 1.8e-3}, "exchange"),
        ({"step": 2e-3, "step/solve": 2e-3, "step/solve/exchange": 1e-3}, "solve"),
    ],
)
def test_a_late_rank_is_longer_in_the_innermost_range_outside_mpi(
    more: Mapping[str, float], where: str
) -> None:
    waits = Waiting((2e-3, 0.0, 2e-3), (2e-3, 0.0, 2e-3))
    facts = replace(
        QUIET, ranks=3, waiting=waits, ranges_by_rank=ranges_of(more, {}),
        late=(late(1, 0.0, 2e-3, 9), late(0, 2e-3, 0.0), late(2, 2e-3, 0.0)),
        host_ranks=dict.fromkeys(range(3), (3e-3, 2e-3)), compute_s={0: 3e-3, 1: 5e-3, 2: 3e-3},
    )  # fmt: skip
    (found,) = waiting_in_mpi(facts, Actions(), waits)
    assert (found.rank, found.range) == (1, where)
    assert f"longer in '{where}'" in found.evidence


def test_many_messages_are_in_the_innermost_range_with_most_of_mpi() -> None:
    spent = {"step": 8e-3, "step/solve": 7.9e-3, "step/solve/halo": 7e-3, "step/sum": 0.5e-3}
    group = CollectiveGroup("MPI_Allreduce", 8, 64.0, 1e-4, 1e-4, 0.0, None)
    ranks = dict.fromkeys(range(3), (1e-3, 8e-3))
    facts = replace(
        QUIET, ranks=3, collectives=(group,), host_ranks=ranks,
        ranges_by_rank=ranges_of(dict.fromkeys(spent, 0.0), spent),
    )  # fmt: skip
    (found,) = in_mpi(facts, Actions(), ranks)
    assert found.range == "halo"
