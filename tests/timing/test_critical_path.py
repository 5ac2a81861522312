"""The replay of steps, against a hand-worked step of one kernel that the host waits for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.timing import critical_path
from perfmodel.timing.critical_path import COLLECTIVES, Change, Replay
from perfmodel.timing.host_timeline import HOST, LAUNCH, PAGEABLE, SYNC
from perfmodel.timing.step_graph import (
    COMMUNICATION_OP,
    KERNEL_OP,
    PAGEABLE_OP,
    PAGEABLE_READ_OP,
    StepGraph,
)

US = 1000
STEPS = 5


def graph(
    wait_us: int = 110, work_us: int = 20, op_us: int = 100, op_kind: int = KERNEL_OP
) -> StepGraph:
    """Steps of a launch of 10 µs, 10 µs, a call that waits for the kernel, and the host's work.

    The kernel begins 5 µs after its launch does, and the call returns 25 µs after its end.
    """
    length = np.tile([10, 10, wait_us, work_us], STEPS) * US
    end = np.cumsum(length)
    begin = end - length
    launch = np.arange(STEPS) * 4
    start = begin[launch] + 5 * US
    return StepGraph(
        host_edge_ns=np.append(begin, end[-1]),
        host_kind=np.tile([LAUNCH, LAUNCH, SYNC, HOST], STEPS).astype(np.int8),
        host_call=np.tile([True, False], 2 * STEPS),
        host_drains=np.tile([False, False, True, False], STEPS),
        op_start_ns=start,
        op_end_ns=start + op_us * US,
        op_stream=np.zeros(STEPS, np.int32),
        op_step=np.arange(STEPS, dtype=np.int32),
        op_call=launch.astype(np.int32),
        op_kind=np.full(STEPS, op_kind, np.int8),
        op_small=np.full(STEPS, -1, np.int32),
        op_waiter=np.full(STEPS, -1, np.int32),
        launch_ns=4 * US,
    )


def replay(*graphs: StepGraph) -> Replay:
    return Replay(graphs, [0] * len(graphs), [np.full(STEPS, -1)] * len(graphs))


@pytest.mark.parametrize(
    ("free", "step_us"),
    [
        ((), 150),
        (("kernel",), 50),  # 5 until it begins and ends, 25 until the call returns, 20 of work
        (("blocking_sync",), 101),  # the kernels follow each other, 1 apart
        (("host_compute",), 130),
        (("kernel", "blocking_sync"), 40),  # the host alone
    ],
)
def test_a_step_without_some_of_its_work(free: tuple[str, ...], step_us: float) -> None:
    found = replay(graph()).step_s(Change(free=frozenset(free)))
    assert found == pytest.approx(step_us * 1e-6)


def test_lengths_are_scaled_by_lane() -> None:
    lanes = replay(graph(), graph())
    assert lanes.step_s(Change(scale={(0, "kernel"): 0.5})) == pytest.approx(150e-6)
    both = {(0, "kernel"): 0.5, (1, "kernel"): 0.5}
    assert lanes.step_s(Change(scale=both)) == pytest.approx(100e-6)


def test_pieces_of_the_host_are_shorter_by_lane() -> None:
    """Of launch, pause, wait and work; the wait itself follows from the kernel."""
    lanes = replay(graph(), graph())
    shorter = np.tile([2, 0, 200, 15], STEPS) * US
    one, both = (Change(shorter_ns=dict.fromkeys(range(n), shorter)) for n in (1, 2))
    assert lanes.step_s(one) == pytest.approx(150e-6)
    assert lanes.step_s(both) == pytest.approx(135e-6)  # 15 of the work; a kernel hides the rest
    no_kernel = both | Change(free=frozenset(["kernel"]))
    assert lanes.step_s(no_kernel) == pytest.approx(35e-6)
    assert lanes.step_s(one | Change(shorter_ns={1: shorter})) == lanes.step_s(both)


def test_pinned_copies_take_their_bytes_over_the_rate() -> None:
    """The kernel is a copy of 100 µs and 100 kB, for which the call behind it waits.

    To the GPU the host waits for it no more; what it reads it must wait for.
    """
    sent, read = (
        replace(graph(op_kind=kind), op_bytes=np.full(STEPS, 100_000))
        for kind in (PAGEABLE_OP, PAGEABLE_READ_OP)
    )
    calls = np.arange(STEPS) * 4 + 2  # the call that waits makes the copy
    read = replace(
        read, op_call=calls.astype(np.int32), host_kind=np.where(
            read.host_kind == SYNC, PAGEABLE, read.host_kind).astype(np.int8),
    )  # fmt: skip
    for one in (sent, read):
        assert replay(one).step_s(Change()) == pytest.approx(150e-6)
    fast, slow = (Change(pinned_bytes_per_s=rate) for rate in (5e9, 0.5e9))  # 20 and 200 µs
    free = Change(free=frozenset(["pageable_copy"]))
    assert replay(read).step_s(fast) == pytest.approx(85e-6)  # 20 for the 85 behind its call
    assert replay(read).step_s(slow) == pytest.approx(150e-6)  # never slower
    assert replay(read).step_s(free) < replay(read).step_s(fast)
    both = Change(free=frozenset(["blocking_sync"]))
    assert replay(sent).step_s(fast | both) == pytest.approx(40e-6)  # the host alone
    assert replay(sent).step_s(slow | both) == pytest.approx(101e-6)  # copy by copy
    assert replay(sent).step_s(free | slow) == replay(sent).step_s(free)


def test_times_are_those_of_a_usual_step() -> None:
    found = Replay([graph()], [0], [np.full(STEPS, -1)], median_s=300e-6)
    assert found.step_s(Change()) == pytest.approx(300e-6)
    assert found.step_s(Change(free=frozenset(["kernel"]))) == pytest.approx(100e-6)
    assert sum(found.critical_path(Change()).values()) == pytest.approx(300e-6)


def test_what_decides_a_step() -> None:
    found = replay(graph()).critical_path(Change())
    expected = {"launch_bound": 5, "kernel": 100, "blocking_sync": 25, "host_compute": 20}
    assert found == pytest.approx({kind: us * 1e-6 for kind, us in expected.items()})


def test_one_step_is_from_its_first_operation_to_the_end_of_its_last() -> None:
    """Of five kernels of 100 µs that the host waits for, the first begins 600 before the last."""
    one = replay(replace(graph(), op_step=np.zeros(STEPS, np.int32)))
    assert one.step_s(Change()) == pytest.approx(700e-6)
    assert one.step_s(Change(free=frozenset(["kernel"]))) == pytest.approx(200e-6)
    kinds = {"launch_bound": 4 * 5, "kernel": 500, "blocking_sync": 4 * 25, "host_compute": 4 * 20}
    path = one.critical_path(Change())
    assert path == pytest.approx({kind: us * 1e-6 for kind, us in kinds.items()})


def test_what_waits_for_another_stream_may_begin_some_time_after_it() -> None:
    """All is queued at once; on two streams in turn, 1,000 µs, 50 until the next, 40, 10 more."""
    calls = 2 * STEPS
    edges = np.arange(2 * calls + 1) * 10 * US
    long = 1000 * US + np.arange(STEPS) * 1100 * US
    start = np.column_stack([long, long + 1050 * US]).ravel()
    queued = StepGraph(
        host_edge_ns=edges,
        host_kind=np.tile([LAUNCH, HOST], calls).astype(np.int8),
        host_call=np.tile([True, False], calls),
        host_drains=np.zeros(2 * calls, np.bool_),
        op_start_ns=start,
        op_end_ns=start + np.tile([1000, 40], STEPS) * US,
        op_stream=np.tile([0, 1], STEPS).astype(np.int32),
        op_step=np.repeat(np.arange(STEPS), 2).astype(np.int32),
        op_call=np.arange(0, 2 * calls, 2).astype(np.int32),
        op_kind=np.full(calls, KERNEL_OP, np.int8),
        op_small=np.full(calls, -1, np.int32),
        op_waiter=np.full(calls, -1, np.int32),
        launch_ns=4 * US,
    )
    found = Replay([queued], [0], [np.full(calls, -1)])
    assert found.step_s(Change()) == pytest.approx(1100e-6)
    assert found.critical_path(Change()) == pytest.approx({"kernel": 1040e-6, "dependency": 60e-6})
    assert found.step_s(Change(free=frozenset(["kernel"]))) == pytest.approx(60e-6)


def test_a_collective_ends_after_its_last_rank() -> None:
    """The second rank works 40 µs longer, and comes 40 µs later: that is what decides a step."""
    early = graph(150, 20, 140, COMMUNICATION_OP)
    late = graph(110, 60, 100, COMMUNICATION_OP)
    ranks = Replay([early, late], [0, 40 * US], [np.arange(STEPS)] * 2)
    assert ranks.step_s(Change()) == pytest.approx(190e-6)
    # from the first rank's last step back: its own work once, then the second rank's
    host = ranks.critical_path(Change())["host_compute"]
    assert host == pytest.approx((20 + 60 + 60 + 35) / 3 * 1e-6)
    as_early = Change(scale={(1, "host_compute"): 1 / 3})
    assert ranks.step_s(as_early) == pytest.approx(150e-6)
    free = Change(free=frozenset(["exposed_communication"]))
    assert ranks.step_s(free) == pytest.approx(90e-6)  # as the kernel above, and 40 of work
    assert ranks.step_s(Change(fused={COLLECTIVES: 0.5})) == pytest.approx(140e-6)


def test_a_collective_whose_clock_ends_it_before_its_launch_takes_no_time() -> None:
    one = graph(op_us=0, op_kind=COMMUNICATION_OP)
    early = replace(one, op_start_ns=one.op_start_ns - 9 * US, op_end_ns=one.op_end_ns - 9 * US)
    together = [np.arange(STEPS), np.arange(STEPS)]
    assert Replay([early, early], [0, 0], together).step_s(Change()) == pytest.approx(150e-6)


def random_lane(rng: np.random.Generator, lane: int) -> tuple[StepGraph, np.ndarray]:
    """Kernels and collectives on three streams, a call that waits in every third piece."""
    count = 6 * STEPS
    kind = np.tile([LAUNCH, HOST, SYNC, HOST], count).astype(np.int8)
    edges = np.cumsum(np.append(lane * 7 * US, rng.integers(1, 300, len(kind)) * US))
    call = np.sort(rng.choice(np.arange(0, len(kind), 4), count, replace=False)).astype(np.int32)
    start = np.maximum.accumulate(edges[call] + rng.integers(1, 400, count) * US)
    together = np.full(count, -1)
    together[::6] = np.arange(STEPS)
    return StepGraph(
        host_edge_ns=edges,
        host_kind=kind,
        host_call=np.arange(len(kind)) % 2 == 0,
        host_drains=kind == SYNC,
        op_start_ns=start,
        op_end_ns=start + rng.integers(1, 500, count) * US,
        op_stream=rng.integers(0, 3, count).astype(np.int32),
        op_step=np.repeat(np.arange(STEPS, dtype=np.int32), 6),
        op_call=call,
        op_kind=np.where(together >= 0, COMMUNICATION_OP, KERNEL_OP).astype(np.int8),
        op_small=rng.integers(-1, 2, count).astype(np.int32),
        op_waiter=np.full(count, -1, np.int32),
        launch_ns=4 * US,
    ), together


def many_lanes(seed: int, *, drifts: bool) -> tuple[list[StepGraph], list[int], list[np.ndarray]]:
    """Lanes whose collectives end when all have come, but for some where clocks drift."""
    rng = np.random.default_rng(seed)
    graphs, together = zip(*(random_lane(rng, lane) for lane in range(20)), strict=True)
    shifts = rng.integers(-seed * 40, seed * 40 + 1, len(graphs)) * US
    come = np.max([g.op_start_ns[::6] + shift for g, shift in zip(graphs, shifts, strict=True)], 0)
    found = []
    for one, shift in zip(graphs, shifts, strict=True):
        end = one.op_end_ns.copy()
        end[::6] = end[::6] if drifts else come - shift + rng.integers(1, 500, STEPS) * US
        found.append(replace(one, op_end_ns=end))
    return found, shifts.tolist(), list(together)


@pytest.mark.parametrize("drifts", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_many_lanes_at_once_are_replayed_as_one_by_one(
    seed: int, drifts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the last digit."""
    given = many_lanes(seed, drifts=drifts)
    lanes = Replay(*given)
    monkeypatch.setattr(critical_path, "_MANY_LANES", 1000)
    slow = Replay(*given)
    assert lanes._levels is not None
    assert slow._levels is None
    for change in (
        Change(),
        Change(free=frozenset(["kernel"])),
        Change(free=frozenset(["exposed_communication", "blocking_sync"])),
        Change(scale={(1, "kernel"): 0.5, (2, "host_compute"): 3.0}),
        Change(fused={COLLECTIVES: 0.0, 1: 0.25}),
    ):
        assert lanes.step_s(change) == slow.step_s(change)
        assert lanes.critical_path(change) == slow.critical_path(change)
