"""Facts behind findings: idle time by cause, the cost of each kind of work, late ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.readers.trace import NULL
from perfmodel.timing.critical_path import COLLECTIVES, EXPOSED, PATH_KINDS, Change, Replay
from perfmodel.timing.exchanges import Exchanges
from perfmodel.timing.host_timeline import ALLOCATION, CAUSES, HOST, LAUNCH, PAGEABLE, SYNC
from perfmodel.timing.idle_causes import Gap
from perfmodel.timing.late_ranks import (
    COMPUTING,
    Arrivals,
    Chain,
    Excess,
    LateRank,
    late_rank,
    late_ranks,
)
from perfmodel.timing.ledger import Ledger
from perfmodel.timing.nccl import PASSES, NcclKernels
from perfmodel.timing.recorder import (
    Recorder,
    Timed,
    costs_of,
    fitted,
    unrecorded,
    without_recorder,
)
from perfmodel.timing.run_graph import replay_of
from perfmodel.timing.small_kernels import MANY
from perfmodel.timing.step_graph import KERNEL_OP, STEP_OP, StepGraph
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.unified import UnifiedFacts, unified_facts

_WORTH: Final = 0.005
"""Kinds that take less than this share of a step cannot save more, and are not replayed."""
_SMALL_MESSAGES: Final = 20
_EQUAL_STEPS, _INTERRUPTIONS, _SLICE, _ALIKE = 3, 3, 3, 0.1
"""Kernels are compared in so many equal steps; so many that take longer by more than so many median
kernels and by about as much each (quartiles this share of the median apart) were interrupted. A
time slice is 2.5 ms on an H200, whatever the program does: beside kernels that take so long, too,
it is not seen."""
_BY_CHANCE: Final = 0.5
"""Interruptions come by chance: of the places in a step where kernels are ever interrupted, less
than this share is in a step that has any, on average."""
_BY_HOST: Final = (ALLOCATION, HOST, SYNC, PAGEABLE, LAUNCH)
DISPATCH: Final = "dispatch"
"""Key of what the host does to launch: the calls, and all of its own work between them."""
LATE_RANK: Final = "late_rank"
"""Key of the change after which the late rank does no more than the others."""
SMALL_KERNELS: Final = "small_kernels"
"""Key of the change after which the small kernels of a range are fused."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel by name: launches per step and rank, median time, share of all kernel time.

    `line` and `module` launch it for most of its time; None where the report does not say.
    `single` is `ONE_BLOCK` or `ONE_THREAD` of one that is launched so, else 0.
    """

    name: str
    category: str
    count: float
    median_s: float
    seconds: float
    share: float
    line: str | None = None
    module: str | None = None
    single: int = 0


@dataclass(frozen=True, slots=True)
class IdleCause:
    """Idle time of one rank's GPU in a median step by cause, with the longest gaps of that cause.

    `cause` is one of `timing.host_timeline.CAUSES`. `share` is of the rank's idle time: the shares
    of a rank add up to 1, its seconds to all of it. `range` is the one in which the host is
    for most of it, '' outside all but the step's own. `asleep` is the share of the longest gaps in
    which the host's thread ran on no processor, None where that was not recorded; `wait` is the
    system's call that it was in for at least half of them. Both are known where the host is outside
    CUDA. `call` is the CUDA or MPI call that the host was in for most of the longest gaps of every
    step.
    """

    rank: int
    cause: str
    seconds: float
    share: float
    gaps: tuple[Gap, ...]
    range: str = ""
    asleep: float | None = None
    wait: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class IdleRange:
    """Idle time of a GPU per step by the innermost range that the host was in, and by cause.

    `range` is '' outside all ranges. `seconds` are the mean over ranks; `share` is of their steps.
    """

    range: str
    cause: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class PathPart:
    """A kind of work on the critical path of a step, and what the step takes where it is free.

    `kind` is one of `timing.critical_path.PATH_KINDS`; `free_s` is the time of the replayed step
    in which work of this kind takes no time.
    """

    kind: str
    seconds: float
    share: float
    free_s: float


@dataclass(frozen=True, slots=True)
class SmallRange:
    """A range that launches many kernels that take less than `under_s` in a step.

    `saving_s` is what a step takes less where they are fused, by the change of this key of
    `StepFacts.changes`.
    """

    range: str
    count: float
    gpu_s: float
    host_s: float
    saving_s: float
    under_s: float
    change: str = ""


@dataclass(frozen=True, slots=True)
class LongSteps:
    """Steps of a rank that take much longer than its median step, and why.

    Attributes
    ----------
    rank : int
    count, steps : int
        Of so many steps so many are long.
    median_s, mean_s : float
        Of all these steps.
    longer_s : float
        What a long step takes beyond the median one, the mean.
    cause : str
        What takes at least half of that: why the GPU idles, of `CAUSES`, or what it does, of
        `PATH_KINDS`; '' where no one thing does.
    saving_s : float
        The idle time by this cause beyond that of the median step, per step of all; 0 where the
        GPU does not idle.
    gap : Gap or None
        The longest of this cause.
    paused : int
        After so many of the long steps other work is done before the next one, such as an
        evaluation: a step lasts until the next one begins.
    """

    rank: int
    count: int
    steps: int
    median_s: float
    mean_s: float
    longer_s: float
    cause: str
    saving_s: float
    gap: Gap | None
    paused: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Kernels of a rank that take turns with another process on its GPU.

    `count` is per step; each takes `each_s` longer (the median) than the same kernel of the step in
    which it is shortest, all of them `seconds` per step.
    """

    rank: int
    count: float
    each_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LastArrival:
    """Who came last to one of NCCL's collectives of a step, how long after the rank before it.

    `bytes` is None where the report does not say.
    """

    step: int
    name: str
    bytes: int | None
    rank: int
    late_s: float


@dataclass(frozen=True, slots=True)
class StepFacts:
    """A run's steps as far as findings need them.

    Attributes
    ----------
    ledger : Ledger
        The step, and what it takes after changes. All of these facts are of that step: without the
        profiler where it makes steps longer.
    path : tuple of PathPart
        Largest first; empty where the steps cannot be replayed.
    free_s : mapping of str to float
        Time of a step in which one of `PATH_KINDS`, or `DISPATCH`, takes none. Without `copy` no
        copy between host and GPU takes any; `pageable_copy` uses pinned memory, where its rate is
        known.
    small : tuple of SmallRange
    stragglers : tuple of LateRank
        The rank that the others wait for most first; empty where no exchange is matched.
    chains : tuple of Chain
        Waiting that is passed on.
    interrupted : tuple of Interrupted
        By rank; empty where no GPU is shared.
    arrivals : tuple of LastArrival
        Of every matched collective of kernels, in the order of their last arrivals.
    straggler_saving_s : float
        What a step takes less if the late rank did no more than the others.
    bucket_saving_s : float
        What it takes less if its collectives were free, and many small ones one.
    collectives, exposed_s : float
        NCCL's kernels of a rank and step, and the most time of a rank's beside no computing.
    exposed_in : tuple of (str, float)
        That time by the range that launched them, longest first; '' is outside any.
    messages : tuple of (str, str, float)
        What NCCL's kernels of the steps that count are (`NCCL AllReduce`, ...), the pass of
        `perfmodel.timing.nccl.PASSES` that launched them, and their share of that lane's such time;
        of all their time where none is beside no computing.
    idle : tuple of IdleCause
    kernels : tuple of KernelTime
        Those with most GPU time.
    long : LongSteps or None
        Steps that are so much longer than the median one that it does not stand for all.
    unified : UnifiedFacts or None
        Migrations of unified memory.
    changes : mapping of str to Change
        What is replayed: a kind of work takes no time, by one of `PATH_KINDS` or `DISPATCH`; the
        late rank does no more than the others (`LATE_RANK`); small kernels of a range are fused
        (`SMALL_KERNELS`, of further ranges `small_kernels-2` and so on).
    kernels_next_s : float
        What a step takes less without kernels, once its launches cost nothing: of a step that the
        host limits more than kernels save now.
    recorder : Recorder or None
        The step without the profiler; None where no step can be replayed.
    """

    ledger: Ledger
    path: tuple[PathPart, ...]
    free_s: Mapping[str, float]
    small: tuple[SmallRange, ...]
    stragglers: tuple[LateRank, ...]
    chains: tuple[Chain, ...]
    interrupted: tuple[Interrupted, ...]
    arrivals: tuple[LastArrival, ...]
    straggler_saving_s: float
    bucket_saving_s: float
    collectives: float
    exposed_s: float
    exposed_in: tuple[tuple[str, float], ...]
    messages: tuple[tuple[str, str, float], ...]
    idle: tuple[IdleCause, ...]
    kernels: tuple[KernelTime, ...]
    long: LongSteps | None = None
    unified: UnifiedFacts | None = None
    changes: Mapping[str, Change] = field(default_factory=dict)
    kernels_next_s: float = 0.0
    recorder: Recorder | None = None

    @property
    def step_s(self) -> float:
        """The step; 0 where it cannot be replayed."""
        return self.ledger.step_s if self.ledger.scale else 0.0

    def idle_s(self, *causes: str) -> float:
        """Idle time by one of some causes, of the rank with most of it."""
        by_rank: dict[int, float] = {}
        for c in self.idle:
            if c.cause in causes or not causes:
                by_rank[c.rank] = by_rank.get(c.rank, 0.0) + c.seconds
        return max(by_rank.values(), default=0.0)

    def longest(self, cause: str) -> Gap | None:
        """Longest gap of a cause, on any rank."""
        gaps = [gap for c in self.idle if c.cause == cause for gap in c.gaps]
        return max(gaps, key=lambda gap: gap.seconds, default=None)

    def most_idle(self, cause: str, rank: int | None = None) -> IdleCause | None:
        """Idle time by a cause, of the rank with most of it or of a given one."""
        mine = [c for c in self.idle if c.cause == cause and rank in (None, c.rank)]
        return max(mine, key=lambda c: c.seconds, default=None)

    def mostly_in(self, cause: str) -> str:
        """Range in which the host is for most of the idle time by a cause; '' outside all."""
        most = self.most_idle(cause)
        return most.range if most else ""

    def last_rank(self) -> LateRank | None:
        """Return the rank that the others wait for; None if there is no such one."""
        return late_rank(self.stragglers)

    def saved_s(self, kind: str) -> float:
        """Return the time that a step saves where a kind of work takes none."""
        return max(self.step_s - self.free_s.get(kind, self.step_s), 0.0)


def step_facts(
    reports: Sequence[StepReport],
    sent: NcclKernels,
    found: Exchanges,
    window: slice,
    numbered: Sequence[Sequence[int]],
    idle: tuple[IdleCause, ...],
    kernels: tuple[KernelTime, ...],
    median_s: float,
    gpu_s: float,
    long: LongSteps | None = None,
    timed: Timed | None = None,
    pinned_bytes_per_s: float | None = None,
) -> StepFacts:
    """Replay the steps of a run, and find its small kernels and its late ranks.

    Parameters
    ----------
    reports : sequence of StepReport
    sent : NcclKernels
        Kernels that communicate, of all reports.
    found : Exchanges
        These come first.
    window : slice
        Numbers of the steps that count.
    numbered : sequence of sequences of int
        Rank of every lane of every report.
    idle : tuple of IdleCause
    kernels : tuple of KernelTime
    median_s : float
        Median step of the slowest rank, of all steps that count.
    gpu_s : float
        The GPU's own work in it, without waiting for other ranks, of the rank with most of it.
    long : LongSteps, optional
    timed : Timed, optional
        Steps that the program timed before it was recorded.
    pinned_bytes_per_s : float, optional
        Rate of pinned copies; else copies from and to pageable memory could take no time.
    """
    replay = replay_of(reports, numbered, sent, found, median_s)
    graphs = [graph for report in reports for graph in report.graphs]
    lanes = [rank for ranks in numbered for rank in ranks]
    spent = _spent(reports, window)
    stragglers, chains = late_ranks(found, window.start, window.stop)
    count = _collectives(reports, window)
    recorder = without_recorder(replay, graphs, median_s, gpu_s, timed) if graphs else None
    ledger = _ledger(replay, graphs, recorder, median_s)
    worst, late = late_rank(stragglers), None
    if worst is not None and worst.rank in lanes:
        late = lanes.index(worst.rank)
        excess = _excess(reports, late, ledger.base, idle, worst)
        doing = "" if excess is None else str(excess)
        stragglers = (replace(worst, doing=doing, excess=excess), *stragglers[1:])
    asked = _Asked(reports, window, spent, count, late, pinned_bytes_per_s)
    saved = _saved(ledger, asked)
    step, path = ledger.step_s, ledger.critical_path()
    free_s = dict(saved.free_s)
    if recorder is not None and ledger.base.shorter_ns:
        free_s["kernel"] = step - _kernels_at_most(ledger, graphs, recorder, saved)
    return StepFacts(
        ledger=ledger,
        path=tuple(
            PathPart(kind, seconds, seconds / step, free_s.get(kind, step))
            for kind, seconds in sorted(path.items(), key=lambda item: -item[1])
        ),
        free_s=free_s,
        small=saved.small,
        stragglers=stragglers,
        chains=chains,
        interrupted=tuple(_interrupted(reports, lanes)),
        arrivals=_arrivals(found, window),
        straggler_saving_s=saved.straggler_s,
        bucket_saving_s=saved.bucket_s,
        collectives=count,
        exposed_s=spent[EXPOSED],
        exposed_in=_exposed_in(sent, window),
        messages=_messages(sent, window),
        idle=shorter_idle(idle, ledger.recorded_s - step),
        kernels=kernels,
        long=long,
        unified=unified_facts([r.migrations for r in reports], window, len(lanes)),
        changes=saved.changes,
        kernels_next_s=saved.kernels_next_s,
        recorder=recorder,
    )


def _ledger(
    replay: Replay, graphs: Sequence[StepGraph], recorder: Recorder | None, recorded_s: float
) -> Ledger:
    """The step without its recorder where that makes it longer, and what takes its cost off."""
    if recorder is None or recorder.without_s is None or not recorder.matters:
        return Ledger(recorded_s, recorded_s, Change(), replay)
    return Ledger(recorder.without_s, recorded_s, fitted(replay, graphs, recorder), replay)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Omissions of replayed steps: the time of kinds of work, and the excess of the late lane."""

    reports: Sequence[StepReport]
    window: slice
    spent: Mapping[str, float]
    collectives: float
    late: int | None
    pinned_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a step takes without some of its work, as in `StepFacts`."""

    free_s: Mapping[str, float]
    small: tuple[SmallRange, ...]
    straggler_s: float
    bucket_s: float
    changes: Mapping[str, Change]
    kernels_next_s: float


def _saved(ledger: Ledger, asked: _Asked) -> _Saved:
    """Replay the step with each change."""
    step, base = ledger.step_s if ledger.scale else 0.0, ledger.base

    def saved_s(change: Change) -> float:
        return max(step - ledger.replayed_s(change), 0.0) if step else 0.0

    changes = {
        kind: Change(free=frozenset([kind]))
        for kind, seconds in asked.spent.items()
        if step and seconds > _WORTH * step
    }
    if len(dispatch := {CAUSES[LAUNCH], CAUSES[HOST]} & changes.keys()) > 1:
        changes[DISPATCH] = Change(free=frozenset(dispatch))
    if changes.keys() & {"copy", CAUSES[PAGEABLE]}:
        changes["copy"] = Change(free=frozenset(["copy", CAUSES[PAGEABLE]]))
    if CAUSES[PAGEABLE] in changes and asked.pinned_bytes_per_s:
        changes[CAUSES[PAGEABLE]] = Change(pinned_bytes_per_s=asked.pinned_bytes_per_s)
    # without some work waiting may move into the step that is the median one
    free = {kind: step - saved_s(change) for kind, change in changes.items()}
    many = {COLLECTIVES: 0.0} if asked.collectives >= _SMALL_MESSAGES else {}
    hidden = Change(free=frozenset([EXPOSED]), fused=many)
    if asked.collectives and step:
        changes[EXPOSED] = hidden
    late, most_s = None, 0.0
    if asked.late is not None:
        late, most_s = _like_others(asked.reports, asked.late, base)
        changes[LATE_RANK] = late
    small = _small(asked.reports, asked.window, saved_s)
    for one, fused in small:
        changes[one.change] = fused
    return _Saved(
        free,
        tuple(one for one, _ in small),
        min(saved_s(late), most_s) if late else 0.0,
        saved_s(hidden) if asked.collectives else 0.0,
        changes,
        _kernels_next(ledger, changes, step - min(free.values(), default=step)),
    )


def _kernels_next(ledger: Ledger, changes: Mapping[str, Change], most_s: float) -> float:
    """What a step takes less without kernels, once launches cost nothing; 0 where they do not."""
    launching = changes.get(DISPATCH, changes.get(CAUSES[LAUNCH]))
    if launching is None or not most_s or "kernel" not in changes:
        return 0.0
    without_s = ledger.replayed_s(launching | changes["kernel"])
    return max(ledger.replayed_s(launching) - without_s, 0.0)


def _kernels_at_most(
    ledger: Ledger, graphs: Sequence[StepGraph], recorder: Recorder, saved: _Saved
) -> float:
    """What a step without the profiler takes less without kernels, at most.

    Sizes slow the host most, and nobody knows well by how much. So the host is taken to be as fast
    as it may be: what kernels lose is then not hidden by what only the recording costs.
    """
    free = Change(free=frozenset(["kernel"]))
    saved_s = ledger.step_s - saved.free_s.get("kernel", ledger.step_s)
    if recorder.source != "estimated" or "sized_range" not in recorder.by_kind:
        return saved_s
    fastest, replay = unrecorded(graphs, costs_of(graphs[0].recorder).high), ledger.replay
    assert replay is not None
    return max(saved_s, ledger.scale * (replay.step_s(fastest) - replay.step_s(fastest | free)))


def shorter_idle(idle: tuple[IdleCause, ...], less_s: float) -> tuple[IdleCause, ...]:
    """Idle time of a step that is so much shorter: the GPUs work as long as before.

    It is less by launches first: what recording costs lies in calls that launch and in the usual
    pauses behind them.
    """
    total: dict[tuple[int, bool], float] = {}
    for one in idle:
        key = one.rank, one.cause == CAUSES[LAUNCH]
        total[key] = total.get(key, 0.0) + one.seconds
    left = {}
    for rank in {one.rank for one in idle}:
        launching, others = (total.get((rank, by), 0.0) for by in (True, False))
        more = max(less_s - launching, 0.0)
        left[rank, True] = max(launching - less_s, 0.0) / launching if launching else 0.0
        left[rank, False] = max(others - more, 0.0) / others if others else 0.0
    seconds = [one.seconds * left[one.rank, one.cause == CAUSES[LAUNCH]] for one in idle]
    whole: dict[int, float] = {}
    for one, own_s in zip(idle, seconds, strict=True):
        whole[one.rank] = whole.get(one.rank, 0.0) + own_s
    return tuple(
        replace(one, seconds=own_s, share=own_s / (whole[one.rank] or 1.0))
        for one, own_s in zip(idle, seconds, strict=True)
        if own_s > 0
    )


def _spent(reports: Sequence[StepReport], window: slice) -> dict[str, float]:
    """Seconds per step of every kind of work, of the lane with most of it."""
    spent = dict.fromkeys(PATH_KINDS, 0.0)
    for report in reports:
        for lane in range(len(report.times.process)):
            host = report.host.ns[lane, window].mean(axis=0) * 1e-9
            times = report.times
            here = {
                **{kind: float(host[i]) for i, kind in enumerate(CAUSES)},
                "kernel": float(times.compute_ns[lane, window].mean()) * 1e-9,
                "copy": float(times.copy_ns[lane, window].mean()) * 1e-9,
                EXPOSED: float(times.exposed_ns[lane, window].mean()) * 1e-9,
            }
            spent = {kind: max(spent[kind], here[kind]) for kind in spent}
    return spent


def _collectives(reports: Sequence[StepReport], window: slice) -> float:
    """NCCL's kernels of a lane and step."""
    most = 0.0
    for report in reports:
        inside = (report.nccl.step >= window.start) & (report.nccl.step < window.stop)
        for lane in range(len(report.times.process)):
            count = int((inside & (report.nccl.lane == lane)).sum())
            most = max(most, count / (window.stop - window.start))
    return most


def _messages(kernels: NcclKernels, window: slice) -> tuple[tuple[str, str, float], ...]:
    """Operations and passes of `StepFacts.messages`, those with the largest share first."""
    inside = np.flatnonzero((kernels.step >= window.start) & (kernels.step < window.stop))
    if len(inside) == 0:
        return ()
    spent = kernels.exposed_ns[inside]
    if not spent.any():
        spent = (kernels.end_ns - kernels.start_ns)[inside]
    key = kernels.name[inside] * len(PASSES) + kernels.during[inside]
    total = _of_longest_lane(kernels.lane[inside], key, spent)
    kinds = np.unique(key)
    shares = total[kinds] / max(int(total.sum()), 1)
    found = (
        (kernels.names[kind // len(PASSES)], PASSES[kind % len(PASSES)], share)
        for kind, share in zip(kinds.tolist(), shares.tolist(), strict=True)
    )
    return tuple(sorted(found, key=lambda item: (-item[2], item)))


def _exposed_in(kernels: NcclKernels, window: slice) -> tuple[tuple[str, float], ...]:
    """Seconds per step beside no computing by range, of the lane with most of it."""
    inside = (kernels.step >= window.start) & (kernels.step < window.stop)
    if not inside.any():
        return ()
    columns = (kernels.lane, kernels.range, kernels.exposed_ns)
    most = _of_longest_lane(*(column[inside] for column in columns))
    seconds = most * 1e-9 / (window.stop - window.start)
    found = ((kernels.ranges[i], s) for i, s in enumerate(seconds.tolist()) if s > 0)
    return tuple(sorted(found, key=lambda item: -item[1]))


def _of_longest_lane(lane: Int64, key: Int64, spent_ns: Int64) -> Int64:
    """Nanoseconds by key, of the lane that has most of them in all."""
    total = np.zeros((int(lane.max()) + 1, int(key.max()) + 1), np.int64)
    np.add.at(total, (lane, key), spent_ns)
    longest: Int64 = total[np.argmax(total.sum(axis=1))]
    return longest


def _small(
    reports: Sequence[StepReport], window: slice, saved_s: Callable[[Change], float]
) -> list[tuple[SmallRange, Change]]:
    """Ranges that launch many small kernels, and what fuses them; the largest saving first.

    One pass over the data is left of as many as there are different kernels.
    """
    found: dict[str, tuple[SmallRange, Change]] = {}
    for report in reports:
        small = report.small
        inside = (small.step >= window.start) & (small.step < window.stop) & (small.lane == 0)
        first = np.flatnonzero(inside)
        first = first[np.argsort(small.range[first], kind="stable")]
        codes = small.range[first]
        times = np.bincount(codes)
        launched = np.bincount(codes, weights=small.count[first])
        for code in np.flatnonzero((times > 0) & (launched >= MANY * times)).tolist():
            rows = first[slice(*np.searchsorted(codes, [code, code + 1]))]
            steps, count = len(rows), int(small.count[rows].sum())
            passes = max(float(np.median(small.distinct[rows])), 1.0)
            label = small.ranges[code]
            fused = Change(fused={code: 1.0 / passes})
            one = SmallRange(
                label,
                count / steps,
                float(small.gpu_ns[rows].sum()) * 1e-9 / steps,
                float(small.host_ns[rows].sum()) * 1e-9 / steps,
                saved_s(fused),
                float(small.under_ns[rows[0]]) * 1e-9,
            )
            found[label] = one, fused
    by_saving = sorted(found.values(), key=lambda pair: -pair[0].saving_s)
    return [
        (replace(one, change=f"{SMALL_KERNELS}-{k}" if k > 1 else SMALL_KERNELS), fused)
        for k, (one, fused) in enumerate(by_saving, 1)
    ]


def _interrupted(reports: Sequence[StepReport], ranks: Sequence[int]) -> Iterator[Interrupted]:
    """Find kernels that some steps' equal ones do not need so long for, by about as much each.

    A GPU that two processes use gives each of them a time slice in turns (2.5 ms on an H200): a
    kernel that is interrupted takes so much longer, whatever it does. Where the same kernels take
    longer in the same steps, they may have more to do there.
    """
    graphs = [graph for report in reports for graph in report.graphs]
    for rank, graph in zip(ranks, graphs, strict=True):
        numbers, sizes = np.unique(graph.op_step, return_counts=True)
        equal = numbers[sizes == np.bincount(sizes).argmax()] if len(sizes) else numbers
        if len(equal) < _EQUAL_STEPS:
            continue
        rows = np.flatnonzero(np.isin(graph.op_step, equal))
        rows = rows[np.argsort(graph.op_step[rows], kind="stable")]
        took = (graph.op_end_ns - graph.op_start_ns)[rows].reshape(len(equal), -1)
        kernel = (graph.op_kind[rows].reshape(took.shape) == KERNEL_OP).all(axis=0)
        least = took.min(axis=0)
        more = took - least
        usual = np.median(took[:, kernel]) if kernel.any() else 0.0
        cut = (more > np.maximum(least, _SLICE * usual)) & kernel
        longer, places = more[cut], cut.any(axis=0)
        if len(longer) < _INTERRUPTIONS:
            continue
        cells = np.count_nonzero(places) * np.count_nonzero(cut.any(axis=1))
        if len(longer) >= _BY_CHANCE * cells:
            continue
        low, each, high = np.percentile(longer, [25, 50, 75])
        if high - low < _ALIKE * each:
            count = len(longer) / len(equal)
            seconds = float(longer.sum()) * 1e-9 / len(equal)
            yield Interrupted(rank, count, float(each) * 1e-9, seconds)


def _host_seconds(reports: Sequence[StepReport], base: Change) -> Floats:
    """Median seconds of every lane by what its host does, and of its computing kernels last.

    Launches that wait for room in the GPU's queue do not count, nor what a change takes off.
    """
    rows: list[Floats] = []
    for report in reports:
        for lane in range(len(report.times.process)):
            ns = report.host.ns[lane].copy()
            ns[:, LAUNCH] -= report.host.queue_ns[lane]
            host = np.median(ns, axis=0) * 1e-9
            graph = report.graphs[lane]
            kernels = graph.op_kind == KERNEL_OP
            length = (graph.op_end_ns - graph.op_start_ns)[kernels].sum() * 1e-9
            steps = max(len(np.unique(graph.op_step)), 1)
            less_ns = base.shorter_ns.get(len(rows))
            if less_ns is not None:
                less = np.bincount(graph.host_kind, less_ns, len(CAUSES))[: len(CAUSES)]
                host = np.maximum(host - less * 1e-9 / steps, 0.0)
            rows.append(np.append(host, length / steps))
    return np.array(rows)


def _like_others(reports: Sequence[StepReport], late: int, base: Change) -> tuple[Change, float]:
    """A late lane that does no more of anything than the others, and kernels as fast everywhere.

    Kernels are slower beside a collective that waits for the late rank. The profiler may slow one
    rank more than the others: lanes are compared after the change `base`, which takes that off.

    Returns
    -------
    Change
    float
        Seconds that the late lane then does less per step: a step is shorter by no more.
    """
    spent = _host_seconds(reports, base)
    others = np.median(np.delete(spent, late, axis=0), axis=0)
    scale = {
        (late, CAUSES[k]): float(min(1.0, others[k] / spent[late, k]))
        for k in _BY_HOST
        if spent[late, k] > 0
    }
    fastest = float(spent[:, -1].min())
    for lane in range(len(spent)):
        if spent[lane, -1] > 0:
            scale[lane, "kernel"] = fastest / float(spent[lane, -1])
    more = np.maximum(spent[late] - others, 0.0)[[*_BY_HOST]].sum()
    return Change(scale=scale), float(more + spent[late, -1] - fastest)


def _arrivals(found: Exchanges, window: slice) -> tuple[LastArrival, ...]:
    """List the last kernel of every collective of the steps that count, in the order of time."""
    inside = (found.step >= window.start) & (found.step < window.stop)
    arrived = Arrivals.of(found, inside & ~found.by_mpi)
    late = arrived.last_ns - arrived.before_ns
    order = np.argsort(arrived.last_ns, kind="stable")
    return tuple(
        LastArrival(
            step=int(found.step[row]),
            name=found.names[found.name[row]],
            bytes=None if found.bytes[row] == NULL else int(found.bytes[row]),
            rank=int(found.rank[row]),
            late_s=ns * 1e-9,
        )
        for row, ns in zip(arrived.row[order].tolist(), late[order].tolist(), strict=True)
    )


def _counts(reports: Sequence[StepReport]) -> Floats:
    """Operations and computing kernels of every lane per step."""
    graphs = [graph for report in reports for graph in report.graphs]
    steps = [max(len(np.unique(graph.op_step)), 1) for graph in graphs]
    counts = [
        (np.count_nonzero(graph.op_kind < STEP_OP), np.count_nonzero(graph.op_kind == KERNEL_OP))
        for graph in graphs
    ]
    return np.array(counts, np.float64) / np.array(steps, np.float64)[:, None]


def _excess(
    reports: Sequence[StepReport],
    lane: int,
    base: Change,
    idle: tuple[IdleCause, ...],
    late: LateRank,
) -> Excess | None:
    """What a lane spends most time in beyond the others, where, and how much of it there is.

    Where its host does no more of anything: what its GPU idles longer by than the others'.
    """
    spent = _host_seconds(reports, base)
    more = spent[lane] - np.median(np.delete(spent, lane, axis=0), axis=0)
    most = max([*_BY_HOST, len(CAUSES)], key=lambda k: more[k])
    if more[most] < _WORTH * late.late_s:
        more = _more_idle(late.rank, idle)
        most = int(more.argmax())
        if more[most] < _WORTH * late.late_s:
            return None
    computes = most == len(CAUSES)
    count = _counts(reports)[:, int(computes)]
    own, usual = float(count[lane]), float(np.median(np.delete(count, lane)))
    took = spent[:, -1 if computes else LAUNCH]
    slower = float(took[lane] / max(np.median(np.delete(took, lane)), 1e-12))
    mine = [c for c in idle if c.rank == late.rank and c.cause == CAUSES[most % len(CAUSES)]]
    gap = mine[0].gaps[0] if mine and mine[0].gaps and not computes else None
    whole = gap is not None and 2 * gap.seconds >= more[most]
    where = gap.range if gap and whole else mine[0].range if mine and not computes else ""
    counts = computes or most == LAUNCH
    return Excess(
        kind=COMPUTING if computes else CAUSES[most],
        seconds=float(more[most]),
        range=where,
        line=gap.line if gap else None,
        count=own if counts else None,
        usual=usual if counts else None,
        slower=slower if counts else None,
        gap=gap,
    )


def _more_idle(rank: int, idle: tuple[IdleCause, ...]) -> Floats:
    """Idle time of a rank by `CAUSES` beyond the median of the others."""
    ranks = sorted({c.rank for c in idle} | {rank})
    seconds = np.zeros((len(ranks), len(CAUSES)))
    for c in idle:
        seconds[ranks.index(c.rank), CAUSES.index(c.cause)] += c.seconds
    own = ranks.index(rank)
    if len(ranks) < 2:
        return np.zeros(len(CAUSES))
    more: Floats = seconds[own] - np.median(np.delete(seconds, own, axis=0), axis=0)
    return more
