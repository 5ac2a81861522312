"""Who waits for whom in every kind of exchange: built reports whose truth is known."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.readers.trace import NULL
from perfmodel.timing.exchanges import Exchanges, match, rule_of
from perfmodel.timing.late_ranks import LateRank, beyond_chance, late_rank, late_ranks
from perfmodel.timing.run_exchanges import exchanges_of
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000
STEPS = 6
Step = Callable[[Thread, int, int], None]


def analyzed(ranks: int, step: Step, path: Path) -> RunAnalysis:
    """Steps of 20 ms in which each rank does `step(thread, rank, beginning)`."""
    builder = ReportBuilder(world_size=ranks)
    threads = [builder.thread(100 * (rank + 1), rank=rank) for rank in range(ranks)]
    for i in range(STEPS):
        for rank, thread in enumerate(threads):
            at = 20 * MS * (i + 1)
            thread.range(f"step {i}", at, at + 19 * MS)
            step(thread, rank, at)
    return analyze_reports([builder.write(path / "r.sqlite")], Options()).fitted


def waits(run: RunAnalysis, name: str) -> dict[int, tuple[float, int]]:
    """Waiting in ms and the rank that was waited for, by rank, in the last step."""
    found = exchanges_of(run.measured)
    rows = np.flatnonzero((found.step == STEPS - 1) & found.named(name))
    columns = (found.rank, found.wait_ns, found.cause_rank)
    return {r: (ns / MS, c) for r, ns, c in zip(*(c[rows].tolist() for c in columns), strict=True)}


def late(name: str, who: int, root: int | None) -> Step:
    """A collective from 2 ms on, to which one rank comes at 9, and which ranks leave in turn."""

    def step(thread: Thread, rank: int, at: int) -> None:
        begin = at + (9 if rank == who else 2) * MS
        end = at + (10 + rank) * MS
        if name in ("MPI_Gather", "MPI_Reduce") and rank not in (root, who):
            end = at + 3 * MS  # what is sent is buffered
        thread.mpi(name, begin, end, 64, rootRank=root)

    return step


def test_a_sender_that_does_not_leave_waits_for_a_late_root(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, at: int) -> None:
        begin, end = {0: (9, 10), 1: (2, 3), 2: (2, 11), 3: (9.5, 11)}[rank]
        thread.mpi("MPI_Gather", round(at + begin * MS), round(at + end * MS), 64, rootRank=0)

    got = waits(analyzed(4, step, tmp_path), "MPI_Gather")
    assert got == {0: (0.5, 3), 1: (0, -1), 2: (7, 0), 3: (0, -1)}


@pytest.mark.parametrize(
    ("name", "who", "root", "wanted"),
    [
        ("MPI_Allreduce", 1, None, {0: (7, 1), 1: (0, -1), 2: (7, 1), 3: (7, 1)}),
        ("MPI_Alltoallv", 1, None, {0: (7, 1), 1: (0, -1), 2: (7, 1), 3: (7, 1)}),
        ("MPI_Bcast", 2, 2, {0: (7, 2), 1: (7, 2), 2: (0, -1), 3: (7, 2)}),
        ("MPI_Bcast", 1, 2, {0: (0, -1), 1: (0, -1), 2: (0, -1), 3: (0, -1)}),
        ("MPI_Scatterv", 0, 0, {0: (0, -1), 1: (7, 0), 2: (7, 0), 3: (7, 0)}),
        ("MPI_Gather", 3, 0, {0: (7, 3), 1: (0, -1), 2: (0, -1), 3: (0, -1)}),
        ("MPI_Gather", 0, 0, {0: (0, -1), 1: (0, -1), 2: (0, -1), 3: (0, -1)}),
        ("MPI_Gather", 3, None, {0: (7, 3), 1: (0, -1), 2: (0, -1), 3: (0, -1)}),
        ("MPI_Scan", 1, None, {0: (0, -1), 1: (0, -1), 2: (7, 1), 3: (7, 1)}),
    ],
)
def test_a_rank_waits_for_those_that_it_needs(
    name: str, who: int, root: int | None, wanted: dict[int, tuple[float, int]], tmp_path: Path
) -> None:
    step = late(name, who, 0 if root is None and name == "MPI_Gather" else root)
    run = analyzed(4, step, tmp_path)
    found = exchanges_of(run.measured)
    if root is None and name == "MPI_Gather":  # a report that does not say the root
        found = match(
            Exchanges.of(
                found.names,
                found.ranks,
                {
                    column: getattr(found, column)
                    for column in (
                        "name", "rank", "communicator", "post_ns", "end_ns", "step", "held_step",
                    )
                },
            ),
            world=found.ranks,
        )  # fmt: skip
        rows = np.flatnonzero(found.step == STEPS - 1)
        got = zip(found.rank[rows], found.wait_ns[rows] / MS, found.cause_rank[rows], strict=True)
        assert {int(r): (float(ns), int(c)) for r, ns, c in got} == wanted
        return
    assert waits(run, name) == wanted


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("MPI_Iallreduce", "together"), ("MPI_Allreduce_c", "together"),
        ("MPI_Ialltoallv", "together"), ("MPI_Reduce_scatter_block", "together"),
        ("MPI_Ibcast", "from_root"), ("MPI_Ireduce", "to_root"), ("MPI_Gatherv_c", "to_root"),
        ("MPI_Iexscan", "in_order"), ("MPI_Win_fence", ""), ("NCCL AllGather", "together"),
        ("NCCL Broadcast", "from_root"), ("RCCL Reduce", "to_root"), ("NCCL SendRecv", ""),
    ],
)  # fmt: skip
def test_rules_are_known_by_name(name: str, rule: str) -> None:
    assert rule_of(name) == rule


def test_a_call_that_completes_several_exchanges_waits_once(tmp_path: Path) -> None:
    """Rank 0 waits from 3 ms on for rank 1's reduction at 6 and its messages at 8 and 5."""

    def step(thread: Thread, rank: int, at: int) -> None:
        reduced = at + (6 if rank else 1) * MS
        thread.mpi("MPI_Iallreduce", reduced, reduced + 1000, 64, requestHandle=1)
        for n, sent in enumerate((8, 5)):
            post = at + (sent if rank else 2) * MS
            name = "MPI_Isend" if rank else "MPI_Irecv"
            other = {"remoteRank": 1 - rank, "tag": n, "requestHandle": 2 + n}
            thread.mpi(name, post, post + 1000, 8, "p2p", **other)
        begin = at + (9 if rank else 3) * MS
        for request in (1, 2, 3):
            thread.mpi(
                "MPI_Waitall", begin, at + 10 * MS, None, "start-wait", requestHandle=request
            )

    run = analyzed(2, step, tmp_path)
    found = exchanges_of(run.measured)
    mine = (found.rank == 0) & (found.step == STEPS - 1)
    assert sorted((found.wait_ns[mine] / MS).tolist()) == [2, 3, 5]
    assert sorted(found.cause_rank[mine].tolist()) == [-1, -1, 1]
    assert found.seconds_by_step(STEPS, waiting=True)[0, 1:] == pytest.approx(5e-3)
    assert {r.rank: r.waiting_s for r in run.ranks} == pytest.approx({0: 5e-3, 1: 0.0})
    assert run.messages is not None
    assert sum(p.waiting_s for p in run.messages.pairs) == pytest.approx(5e-3)
    assert run.late[0].rank == 1
    assert run.late[0].caused_s == pytest.approx(5e-3)


def test_a_rank_that_is_late_since_it_waited_is_not_the_cause(tmp_path: Path) -> None:
    """Rank 2 sends at 9 ms to rank 1, which so comes last to a reduction, rank 0 at 2 ms."""

    def step(thread: Thread, rank: int, at: int) -> None:
        if rank == 1:
            thread.mpi("MPI_Recv", at + 2 * MS, at + 9 * MS, 8, "p2p", remoteRank=2, tag=0)
        if rank == 2:
            thread.mpi("MPI_Send", at + 9 * MS, at + 9 * MS + 10, 8, "p2p", remoteRank=1, tag=0)
        begin = at + (2 * MS, 9 * MS + 2000, 9 * MS + 1000)[rank]
        thread.mpi("MPI_Allreduce", begin, at + 10 * MS, 64)

    run = analyzed(3, step, tmp_path)
    first, *others = run.late
    assert first.rank == 2
    assert first.caused_s == pytest.approx(14e-3, rel=1e-3)
    assert sum(row.caused_s for row in others) < 10e-6
    assert max(run.late, key=lambda row: row.share_last).rank == 1  # who comes last is a victim
    assert (first.latest, first.steps, first.persistent) == (STEPS - 1, STEPS - 1, True)
    assert late_rank(run.late) == first
    chains = exchanges_of(run.measured)
    _, passed = late_ranks(chains, 1, STEPS)
    assert {(c.rank, c.peer, c.origin) for c in passed} == {(0, 1, 2)}


def test_a_step_that_one_rank_has_more_changes_no_count(tmp_path: Path) -> None:
    """Whose recording ends later may have a step of which the others have no whole one."""
    builder = ReportBuilder(world_size=4)
    for rank in range(4):
        thread = builder.thread(100 * (rank + 1), rank=rank)
        for i in range(20 if rank else 21):
            at = 20 * MS * (i + 1)
            thread.range(f"step {i}", at, at + 19 * MS)
            thread.mpi("MPI_Allreduce", at + (5 if rank == 1 else 2) * MS, at + 6 * MS, 64,
                       commHandle=thread.world)  # fmt: skip
        if rank:
            thread.mpi("MPI_Allreduce", 5 * MS, 6 * MS, 64)  # as many as rank 0 has
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert {group.count for group in run.collectives} == {1.0}


@pytest.mark.slow
@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=3, max_size=5))
def test_waiting_is_within_communication_and_for_others(delays: list[list[int]]) -> None:
    """Reductions that all or none wait for at once, and messages in a ring completed with them."""

    def step(thread: Thread, rank: int, at: int) -> None:
        for n, delay in enumerate(delays):
            begin = at + (3 * n * MS) + delay[rank] * MS // 10
            end = at + 3 * n * MS + MS
            request = 10 * n
            thread.mpi("MPI_Iallreduce", begin, begin + 10, 64, requestHandle=request)
            for m, (name, peer) in enumerate(
                (("MPI_Irecv", (rank - 1) % 3), ("MPI_Isend", (rank + 1) % 3))
            ):
                more = {"remoteRank": peer, "tag": n, "requestHandle": request + 1 + m}
                thread.mpi(name, begin + 20, begin + 30, 8, "p2p", **more)
            for m in range(3):
                thread.mpi("MPI_Waitall", begin + 40, end, None, "start-wait",
                           requestHandle=request + m)  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        run = analyzed(3, step, Path(folder))
    found = exchanges_of(run.measured)
    assert (found.instance >= 0).all()
    assert (found.cause_rank != found.rank).all()
    assert (found.wait_ns >= 0).all()
    assert (found.wait_ns <= found.completion_ns - found.begin_ns).all()
    assert (found.transfer_ns >= 0).all()
    waited, spent = (found.seconds_by_step(STEPS, waiting=w)[:, 1:] for w in (True, False))
    assert (waited <= spent).all()
    for i in range(3):
        held = [(max(d) - d[i]) * 1e-4 - 40e-9 for d in delays]
        wanted = sum(max(w, 0.0) for w in held)
        assert waited[i] == pytest.approx(wanted, abs=25e-9 * len(delays))  # 20 ns between calls
    for row in run.ranks:
        assert (row.waiting_s or 0.0) <= (row.collectives_s or 0.0)
    total = sum(row.caused_s for row in run.late)  # what leads back to the waiting rank is missing
    assert total <= sum(row.waiting_s for row in run.late) + 1e-12


# --- late by more than chance


def test_the_probability_is_that_of_the_posterior_distribution() -> None:
    """Drawn: shares of ranks that are equally likely before, and then made k of n steps."""
    rng = np.random.default_rng(1)
    for ranks, steps, latest in ((2, 4, 4), (4, 10, 5), (8, 3, 3)):
        share = rng.dirichlet(np.ones(ranks), 400_000)[:, 0]
        made = rng.binomial(steps, share) == latest
        drawn = float((share[made] > 1 / ranks).mean())
        assert beyond_chance(latest, steps, ranks) == pytest.approx(drawn, abs=0.01)


def test_ranks_that_are_equal_are_rarely_late_by_more_than_chance() -> None:
    rng = np.random.default_rng(2)
    for ranks in (2, 8):
        latest = rng.binomial(30, 1 / ranks, 2000)
        said = [beyond_chance(int(k), 30, ranks) >= 0.95 for k in latest]
        assert np.mean(said) < 0.07


@pytest.mark.parametrize(("ranks", "least"), [(2, 4), (4, 3), (8, 3), (64, 3)])
def test_so_many_steps_are_needed_at_least(ranks: int, least: int) -> None:
    assert beyond_chance(least, least, ranks) >= 0.95
    assert beyond_chance(least - 1, least - 1, ranks) < 0.95


def row(rank: int, caused_s: float, latest: int, steps: int, ranks: int = 2) -> LateRank:
    sure = beyond_chance(latest, steps, ranks)
    enough = beyond_chance(steps, steps, ranks) >= 0.95
    return LateRank(rank, 0.5, 0.0, 0.0, caused_s, caused_s, latest, steps, sure, enough)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([row(1, 9e-3, 10, 10), row(0, 0.0, 0, 10)], 1),
        ([row(1, 9e-3, 6, 10), row(0, 8e-3, 4, 10)], None),  # in turn
        ([row(1, 9e-3, 2, 2), row(0, 1e-3, 0, 2)], 1),  # too few to be sure
        ([row(1, 9e-3, 1, 2), row(0, 1e-3, 1, 2)], None),
        ([row(1, 0.0, 0, 0), row(0, 0.0, 0, 0)], None),
        ([], None),
    ],
)
def test_a_late_rank_is_named_beyond_chance_only(
    rows: Sequence[LateRank], named: int | None
) -> None:
    found = late_rank(rows)
    assert (found and found.rank) == named


def test_what_is_not_matched_is_not_known(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, at: int) -> None:
        for n in range(1 + (rank == 0)):
            begin = at + (2 + n) * MS
            thread.mpi("MPI_Allreduce", begin, begin + 1000, 64)

    found = exchanges_of(analyzed(2, step, tmp_path).measured)
    assert (found.wait_ns == NULL).all()
    assert (found.instance == -1).all()
    assert any("differ in number" in w for w in found.warnings)


# --- kernels


def kernels(path: Path, name: str, late_ns: int, steps: int = 8) -> RunAnalysis:
    """Two GPUs, 20 exchanges in each step of 10 ms; rank 1 comes `late_ns` later to all of them."""
    builder = ReportBuilder("2025.3.2", world_size=2)
    builder.gpu(0)
    builder.gpu(1)
    for rank in (0, 1):
        thread = builder.thread(100 * (rank + 1), rank=rank)
        for i in range(steps):
            at = 10 * MS * (i + 1)
            thread.range(f"step {i}", at, at + 10 * MS - 10)
            for n in range(20):
                call = at + n * 450_000
                begin, end = call + 10_000 + rank * late_ns, call + 60_000
                thread.kernel("gemm", (call, call + 4_000), (end, call + 400_000), device=rank)
                thread.kernel(
                    name, (call + 5_000, call + 6_000), (begin, end), device=rank, stream=9
                )
    return analyze_reports([builder.write(path / "r.sqlite")], Options()).fitted


def test_a_rank_that_is_last_by_what_changes_nothing_is_not_blamed(tmp_path: Path) -> None:
    run = kernels(tmp_path, "ncclDevKernel_AllGather_RING_LL", 2_000)
    assert (run.late[0].rank, run.late[0].share_last) == (1, 1.0)
    assert run.late[0].late_s == pytest.approx(20 * 2e-6)
    assert not [f for f in run.findings if f.kind == "straggler"]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", "nccl"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "deepep"),
    ],
)
def test_kernels_of_all_libraries_are_the_same_in_all_tables(
    name: str, library: str, tmp_path: Path
) -> None:
    run = kernels(tmp_path, name, 30_000)
    (group,) = run.collectives
    assert (group.library, group.count, group.ranks) == (library, 20.0, 2)
    assert group.waiting_s == pytest.approx(15e-6)  # the mean of 30 µs and none
    assert group.transfer_s == pytest.approx(20e-6)
    assert group.seconds == pytest.approx(35e-6)
    waiting = {r.rank: r.waiting_s for r in run.ranks}
    assert waiting == pytest.approx({0: 20 * 30e-6, 1: 0.0})
    found = exchanges_of(run.measured)
    by_step = found.seconds_by_step(run.batch.warmup + run.batch.count, waiting=True)
    assert by_step[0, run.batch.warmup :] == pytest.approx(20 * 30e-6)
    assert run.steps is not None
    late_s = [arrival.late_s for arrival in run.steps.facts.arrivals]
    assert late_s == pytest.approx([30e-6] * len(late_s))


def test_one_step_of_another_rank_does_not_hide_who_is_late() -> None:
    """Rank 1 of three is 1 ms late in ten steps, but for one in which rank 2 is 50 ms late."""
    late_ns = np.zeros((3, 10), np.int64)
    late_ns[1], late_ns[2, 4] = MS, 50 * MS
    post = late_ns + np.arange(10) * 100 * MS
    end = np.broadcast_to(post.max(axis=0) + 1000, post.shape)
    step = np.tile(np.arange(10), 3)
    columns = {
        "name": np.zeros(30, np.int64), "rank": np.repeat(np.arange(3), 10), "step": step,
        "communicator": np.zeros(30, np.int64), "held_step": step, "post_ns": post.ravel(),
        "end_ns": end.ravel().copy(),
    }  # fmt: skip
    found = match(Exchanges.of(["MPI_Barrier"], range(3), columns), world=range(3))
    rows, _ = late_ranks(found, 0, 10)
    assert rows[0].rank == 2  # 99 of 117 ms
    shares = {r.rank: (r.latest, r.steps) for r in rows}
    assert shares == {0: (0, 10), 1: (9, 10), 2: (1, 10)}
    assert [r.rank for r in rows if r.persistent] == [1]
    assert late_rank(rows) is None  # 15 % of all waiting
    named = late_rank(rows, least=0.1)
    assert named is not None
    assert named.rank == 1
