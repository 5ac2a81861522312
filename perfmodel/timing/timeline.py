"""Timelines: the bars of a run that lie in a window of batches, laid into lanes without overlap."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.base.kernels import kernel
from perfmodel.base.units import si
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import (
    COPY_KINDS,
    KERNEL,
    MEMCPY,
    NULL,
    OP_KINDS,
    Trace,
    distinct_calls,
)
from perfmodel.readers.window import overlaps
from perfmodel.timing.exchanges import COLLECTIVE
from perfmodel.timing.host_timeline import CAUSE_NAMES, CAUSES
from perfmodel.timing.kernels import communicating
from perfmodel.timing.nesting import nest
from perfmodel.timing.nsys_stats.tables import API_VERSION
from perfmodel.timing.projection import join_launches
from perfmodel.timing.range_times import own_rows
from perfmodel.timing.run import Run, batch_windows
from perfmodel.timing.run_exchanges import exchanges_of
from perfmodel.timing.stack_times import nodes_at
from perfmodel.timing.step_report import StepReport


@dataclass(frozen=True, slots=True)
class Window:
    """Time in which the ranks were at some batches.

    Attributes
    ----------
    batches : range
        Batches from 0.
    start_ns, end_ns : int
        From the first rank's start until the last rank and its GPU are done, and the GPU has begun
        the next step, on the clock of the run's first report.
    host_ns : dict
        When the host of every rank was in the batches.
    """

    batches: range
    start_ns: int
    end_ns: int
    host_ns: dict[int, tuple[int, int]]


def clocks(run: Run) -> tuple[int, ...]:
    """Return the shifts of every report's times to those of the first; 0 where unknown."""
    zero = run.parts[0][0].utc_start_ns
    return tuple(
        0 if zero is None or t.utc_start_ns is None else t.utc_start_ns - zero for t in run.traces
    )


def clocks_differ(run: Run) -> bool:
    """Whether times of several reports cannot be put on one clock."""
    return len(run.parts) > 1 and any(t.utc_start_ns is None for t in run.traces)


def window_of(run: Run, batches: range) -> Window:
    """Find when the ranks were at the batches.

    Raises
    ------
    SchemaError
        If the run has no such batch, or the batches never ended.
    """
    count = int(run.range_times.batch.max()) + 1
    if not batches or batches[0] < 0 or batches[-1] >= count:
        asked = f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else str(batches.start)
        raise SchemaError(
            f"{run.label}: expected step {asked}; got steps 0 to {count - 1}; name some of those"
        )
    offset = {
        rank: clock
        for rank_of, clock in zip(run.rank_of, clocks(run), strict=True)
        for rank in rank_of.values()
    }
    times = run.range_times
    asked_for = (times.batch >= batches.start) & (times.batch < batches.stop)
    asked_for &= times.labelled(run.batch_label)
    at = np.flatnonzero(asked_for & (times.host_ns != NULL))
    _, done = batch_windows(run)
    host: dict[int, tuple[int, int]] = {}
    ends = []
    for row, rank in enumerate(run.ranks):
        mine = at[times.rank[at] == rank]
        if len(mine) == 0:
            continue
        begin, end = times.start_ns[mine], times.start_ns[mine] + times.host_ns[mine]
        host[rank] = int(begin.min()) + offset[rank], int(end.max()) + offset[rank]
        ends.append(int(done[row, batches.start : batches.stop].max()) + offset[rank])
    if not host:
        raise SchemaError(
            f"{run.label}: expected the end of step {batches.start}; it never ended on "
            f"the host; name another one with --batch"
        )
    for report, clock in zip(run.steps, clocks(run), strict=False):
        gaps = report.gaps
        mine = (gaps.step >= batches.start) & (gaps.step < batches.stop)
        if len(run.steps) == len(run.parts) and mine.any():
            ends.append(int((gaps.start_ns + gaps.idle_ns)[mine].max()) + clock)
    return Window(batches, min(begin for begin, _ in host.values()), max(ends), host)


HOST: Final = ("range", "mpi", "api")
IDLE: Final = "idle"
GPU: Final = (
    "kernel", "graph", "nccl", "h2d", "d2h", "d2d", "p2p", "copy", "memset",
)  # fmt: skip
COPIES: Final = ("h2d", "d2h", "d2d", "p2p", "copy", "memset")
NAMES: Final[Mapping[str, str]] = {
    "range": "NVTX",
    "mpi": "MPI",
    "api": "CUDA API",
    IDLE: "GPU idle",
    "kernel": "kernels",
    "graph": "CUDA graphs",
    "nccl": "NCCL",
    "h2d": "copies H2D",
    "d2h": "copies D2H",
    "d2d": "copies D2D",
    "p2p": "copies P2P",
    "copy": "other copies",
    "memset": "memsets",
}
"""Kinds of lanes, in their order, and what they are called."""

_DIRECTIONS: Final = {
    1: "h2d", 3: "h2d", 11: "h2d", 2: "d2h", 4: "d2h", 12: "d2h", 5: "d2d", 6: "d2d", 7: "d2d",
    8: "d2d", 13: "d2d", 10: "p2p",
}  # fmt: skip
_ACROSS: Final = -1
"""Level of ranges that start on one thread and end on another."""

_NO_NAME: Final = "(no name)"


Details = tuple[tuple[str, str | int | float], ...]
"""Facts of a bar, by name."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One range, call or GPU operation.

    Attributes
    ----------
    kind : str
        Key of `NAMES`; in lanes of idle time one of `perfmodel.timing.host_timeline.CAUSES`.
    name : str
        As the report writes it, of any length and with any letters; a cause of idle time.
    start_ns, end_ns : int
        On the clock of the run's first report.
    own : bool
        Belongs to the batches that were asked for; others only run at the same time.
    process : int
        Counts the processes of all reports of the run; -1 where the report does not say.
    correlation : int or None
        Same for a CUDA call and what it launched, within a process.
    size_bytes, stream, device : int or None
    details : tuple of (str, value)
        What else is known of it, by name: of idle time the evidence of its cause.
    collective : int or None
        Same for the calls, or the kernels of NCCL, of all ranks in one collective.
    waits_ns : int
        How long it waits in its collective until the last rank is there, too.
    """

    kind: str
    name: str
    start_ns: int
    end_ns: int
    own: bool
    process: int
    correlation: int | None = None
    size_bytes: int | None = None
    stream: int | None = None
    device: int | None = None
    details: Details = ()
    collective: int | None = None
    waits_ns: int = 0

    @property
    def label(self) -> str:
        """Return the text on the bar in a picture."""
        if self.kind in COPIES and self.size_bytes is not None:
            return si(self.size_bytes, "B")
        if self.kind == "api":
            return API_VERSION.sub("", self.name)
        return kernel(self.name).short if self.kind in ("kernel", "nccl") else self.name


@dataclass(frozen=True, slots=True)
class Track:
    """Common facts of bars that share lanes.

    Attributes
    ----------
    rank : int or None
        None for what no rank did.
    kind : str
    unit : int
        Which thread (from 0, that of the batches first) or GPU of the rank.
    level : int
        Ranges: how many ranges are above.
    nested : bool
        Ranges: those of the next level lie inside those of this one.
    """

    rank: int | None
    kind: str
    unit: int = 0
    level: int = 0
    nested: bool = True

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Ranks ascending, host before GPU, thread by thread, kind by kind."""
        on_gpu = self.kind not in HOST
        kinds = (IDLE, *GPU) if on_gpu else HOST
        rank = 2**31 if self.rank is None else self.rank
        return rank, on_gpu, self.unit, kinds.index(self.kind), self.level


@dataclass(frozen=True, slots=True)
class Lane(Track):
    """One row of a rank: bars that do not overlap, by start.

    `part` counts lanes that are there only because bars overlap.
    """

    part: int = 0
    name: str = ""
    bars: tuple[Bar, ...] = ()


def lanes_of(tracks: Mapping[Track, Iterable[Bar]]) -> tuple[Lane, ...]:
    """Lay the bars of every track into as few lanes as let none overlap."""
    gpus: dict[int | None, set[int]] = {}
    for track in tracks:
        if track.kind not in HOST:
            gpus.setdefault(track.rank, set()).add(track.unit)
    found = []
    for track in sorted(tracks, key=lambda t: t.order):
        several = track.kind not in HOST and len(gpus[track.rank]) > 1
        for part, bars in enumerate(apart(tracks[track])):
            name = _name(track, part, several=several)
            found.append(Lane(**asdict(track), part=part, name=name, bars=tuple(bars)))
    return tuple(found)


def apart(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Split bars into lists in which each ends before the next starts; the first list that fits.

    As many lists as bars overlap at one time, which is the fewest there can be.
    """
    lists: list[list[Bar]] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for bar in sorted(bars, key=lambda b: (b.start_ns, -b.end_ns, b.name)):
        while busy and busy[0][0] <= bar.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            at = heapq.heappop(free)
        else:
            at = len(lists)
            lists.append([])
        lists[at].append(bar)
        heapq.heappush(busy, (bar.end_ns, at))
    return lists


def _name(track: Track, part: int, *, several: bool) -> str:
    name = NAMES[track.kind]
    if track.kind == "range":
        name = f"{name} {track.level + 1}" if track.level >= 0 else f"{name} across"
    if track.kind in HOST and track.unit:
        name += f", thread {track.unit + 1}"
    if several:
        name += f", GPU {track.unit}"
    return f"{name} ({part + 1})" if part else name


@dataclass(frozen=True, slots=True)
class _Part:
    """One report, its clock, and what was asked for."""

    trace: Trace
    clock_ns: int
    first_process: int
    rank_of: dict[int, int]
    units: tuple[int, ...]
    last_ns: int
    window: Window | None
    steps: StepReport | None
    mpi_number: Mapping[int, _Number]
    nccl_number: Mapping[tuple[int, int, int], _Number]
    flops: Mapping[str, float]
    work: Mapping[int, Details]
    places: bool

    def inside(self, start_ns: Int64, end_ns: Int64) -> Bool:
        """Mark what overlaps the window, or begins and ends at once in it."""
        if self.window is None:
            return np.ones(len(start_ns), np.bool_)
        when = self.window.start_ns - self.clock_ns, self.window.end_ns - self.clock_ns
        return overlaps(start_ns, end_ns, when)

    def bar(
        self, kind: str, name: str, start_ns: int, end_ns: int, rank: int | None, process: int,
        **more: Any,
    ) -> Bar:  # fmt: skip
        """Return a bar of the host; it belongs to batches that it begins in, or goes around."""
        start, end, own = start_ns + self.clock_ns, end_ns + self.clock_ns, True
        if self.window is not None:
            begin, done = self.window.host_ns.get(-1 if rank is None else rank, (0, -1))
            own = begin <= start < done or start <= begin <= done <= end
        return Bar(kind, name, start, end, own, process, **more)

    def whose(self, thread: int) -> tuple[int, int | None]:
        """Process, counted over all reports, and rank of a thread."""
        process = int(self.trace.thread_process[thread])
        return self.first_process + process, self.rank_of.get(process)


def select(
    run: Run,
    window: Window | None,
    *,
    ranks: Collection[int] | None = None,
    api: bool = True,
    around: bool = True,
    flops: Mapping[str, float] | None = None,
    work: Sequence[Mapping[int, Details]] = (),
    places: bool = False,
) -> tuple[Lane, ...]:
    """Return all that ran in the window, by rank and lane.

    Parameters
    ----------
    run : Run
    window : Window or None
        None for the whole report.
    ranks : collection of int, optional
        All by default, with what no rank did.
    api : bool
        With CUDA API calls.
    around : bool
        With levels of ranges in which nothing begins or ends in the window.
    flops : mapping of str to float, optional
        Of one range, by label.
    work : sequence of mapping, optional
        What is known of GPU operations, by row, of every report.
    places : bool
        Say of GPU operations which module and line launched them, where the report knows.

    Returns
    -------
    tuple of Lane
        Every range, call and GPU operation that overlaps the window is in exactly one lane, as
        long as it is, and so is the idle time of steps, by cause; bars of a lane do not overlap.
    """
    tracks: dict[Track, list[Bar]] = defaultdict(list)
    first = 0
    steps = run.steps if len(run.steps) == len(run.parts) else (None,) * len(run.parts)
    for trace, clock, rank_of, report, calls, kernels, known in zip(
        run.traces, clocks(run), run.rank_of, steps, *_numbers(run),
        work or [{}] * len(run.parts), strict=True,
    ):  # fmt: skip
        if not trace.whole:  # a page draws few of many ranks, and the others' reports are trimmed
            first += len(trace.processes)
            continue
        part = _Part(
            trace, clock, first, rank_of, _units(trace, run.batch_label), _last(trace), window,
            report, calls, kernels, flops or {}, known, places,
        )  # fmt: skip
        calls = (_calls(part, kind) for kind in (("mpi", "api") if api else ("mpi",)))
        for track, bar in chain(_ranges(part), *calls, _idle(part), _operations(part)):
            tracks[track].append(bar)
        first += len(trace.processes)
    if ranks is not None:
        tracks = {track: bars for track, bars in tracks.items() if track.rank in ranks}
    return lanes_of(tracks if around or window is None else _within(tracks, window))


_FEW_RANKS: Final = 4


def drawn_lanes(lanes: Sequence[Lane]) -> tuple[Lane, ...]:
    """Return the lanes that a picture shows: all of up to four ranks, the main ones of more.

    Those are the ranges right below those of the steps (or the only ones); MPI calls; all that a
    GPU does, and why it idles, in one lane; and NCCL's kernels.
    """
    ranks = list(dict.fromkeys(lane.rank for lane in lanes))
    if len(ranks) <= _FEW_RANKS:
        return tuple(lanes)
    found: list[Lane] = []
    for rank in ranks:
        mine = [lane for lane in lanes if lane.rank == rank]
        ranges = [lane for lane in mine if lane.kind == "range" and lane.unit == 0 == lane.part]
        found += [replace(lane, name="phases") for lane in ranges[:2][-1:]]
        found += [lane for lane in mine if lane.kind in ("mpi", "nccl")]
        for unit in sorted({lane.unit for lane in mine if lane.kind not in HOST}):
            on_gpu = [
                lane for lane in mine if lane.unit == unit and lane.kind not in (*HOST, "nccl")
            ]
            if on_gpu:
                bars = sorted((b for lane in on_gpu for b in lane.bars), key=lambda b: b.start_ns)
                name = on_gpu[0].name.replace(NAMES[on_gpu[0].kind], "GPU")
                found.append(replace(on_gpu[0], kind="kernel", name=name, bars=tuple(bars)))
    return tuple(sorted(found, key=lambda lane: lane.order))


_Number = tuple[int, int, int]
"""Number of an exchange (-1 if it cannot be matched), its bytes and its waiting in ns."""


def _numbers(
    run: Run,
) -> tuple[list[dict[int, _Number]], list[dict[tuple[int, int, int], _Number]]]:
    """Exchanges by the row of the MPI call, and by a kernel's process, device and start."""
    found = exchanges_of(run)
    calls: list[dict[int, _Number]] = [{} for _ in run.parts]
    kernels: list[dict[tuple[int, int, int], _Number]] = [{} for _ in run.parts]
    waiting = np.where((found.wait_ns != NULL) & found.blocking, found.wait_ns, 0)
    known = [*zip(found.instance.tolist(), found.bytes.tolist(), waiting.tolist(), strict=True)]
    rows = np.flatnonzero(found.by_mpi & (found.way == COLLECTIVE) & (found.instance >= 0)).tolist()
    for i, report, row in zip(
        rows, found.report[rows].tolist(), found.row[rows].tolist(), strict=True
    ):
        calls[report][row] = known[i]
    first = 0
    for i, report in enumerate(run.steps if len(run.steps) == len(run.parts) else ()):
        sent, times = report.nccl, report.times
        keys = times.process[sent.lane].tolist(), times.device[sent.lane].tolist()
        mine = zip(*keys, sent.start_ns.tolist(), strict=True)
        kernels[i] = dict(zip(mine, known[first : first + len(sent)], strict=True))
        first += len(sent)
    return calls, kernels


def _within(tracks: Mapping[Track, list[Bar]], window: Window) -> dict[Track, list[Bar]]:
    """Leave out levels whose ranges all begin before the window and end after it."""
    found: dict[Track, list[Bar]] = {}
    left: dict[tuple[int | None, int], int] = defaultdict(int)
    for track in sorted(tracks, key=lambda t: t.order):
        bars = tracks[track]
        outside = (b.start_ns < window.start_ns and b.end_ns > window.end_ns for b in bars)
        if track.kind == "range" and track.level >= 0:
            if all(outside):
                left[track.rank, track.unit] += 1
                continue
            track = replace(track, level=track.level - left[track.rank, track.unit])
        found.setdefault(track, []).extend(bars)
    return found


def _ranges(part: _Part) -> Iterator[tuple[Track, Bar]]:
    """Ranges of one thread by their nesting, then those that start on one and end on another."""
    trace, ranges = part.trace, part.trace.ranges
    nesting = nest(ranges, len(trace.threads), own_rows(trace))
    mpi = np.array([d == MPI_DOMAIN for d in trace.range_domains] + [False], np.bool_)
    across = np.flatnonzero(ranges.other_thread & ~mpi[ranges.name])
    ends = np.where(ranges.end_ns == NULL, part.last_ns, ranges.end_ns)[across]
    row = np.append(nesting.row, across)
    start, end = ranges.start_ns[row], np.append(nesting.end_ns, ends)
    level = np.append(nesting.level, np.full(len(across), _ACROSS))
    nested = np.append(~nesting.crossing[nesting.thread], np.zeros(len(across), np.bool_))
    at = np.flatnonzero(part.inside(start, end))
    columns = (ranges.thread[row], ranges.name[row], start, end, level, nested)
    for thread, name, begin, until, depth, inner in zip(
        *(c[at].tolist() for c in columns), strict=True
    ):
        process, rank = part.whose(thread)
        label = trace.range_labels[name] if name >= 0 else _NO_NAME
        track = Track(rank, "range", part.units[thread], depth, inner and rank is not None)
        known: Details = (("flops", part.flops[label]),) if label in part.flops else ()
        yield track, part.bar("range", label, begin, until, rank, process, details=known)


def _calls(part: _Part, kind: str) -> Iterator[tuple[Track, Bar]]:
    """MPI calls with their sizes, or CUDA API calls with their correlation ids."""
    trace, mpi = part.trace, part.trace.mpi
    table, more = (mpi, mpi.size_bytes) if kind == "mpi" else (trace.api, trace.api.correlation)
    ends = np.where(table.end_ns == NULL, part.last_ns, table.end_ns)
    rows = distinct_calls(mpi) if kind == "mpi" else np.arange(len(table))
    at = rows[part.inside(table.start_ns[rows], ends[rows])]
    columns = (table.thread, table.name, table.start_ns, ends, more)
    for row, thread, name, start, end, number in zip(
        at.tolist(), *(c[at].tolist() for c in columns), strict=True
    ):
        process, rank = part.whose(thread)
        said = {"size_bytes" if kind == "mpi" else "correlation": _known(number)}
        if kind == "mpi" and row in part.mpi_number:
            said["collective"], _, said["waits_ns"] = part.mpi_number[row]
        bar = part.bar(kind, _string(trace, name), start, end, rank, process, **said)
        yield Track(rank, kind, part.units[thread]), bar


def _idle(part: _Part) -> Iterator[tuple[Track, Bar]]:
    if part.steps is None:
        return
    gaps, times = part.steps.gaps, part.steps.times
    ends, names = gaps.start_ns + gaps.idle_ns, (*gaps.names, "")
    at = np.flatnonzero(part.inside(gaps.start_ns, ends))
    columns = (
        gaps.cause, gaps.start_ns, ends, gaps.step, gaps.call, gaps.range, gaps.op,
        times.process[gaps.lane], times.device[gaps.lane],
    )  # fmt: skip
    for code, start, end, step, call, where, op, process, device in zip(
        *(c[at].tolist() for c in columns), strict=True
    ):
        details = {"call": names[call], "range": names[where], "before": _what(part.trace, op)}
        yield (
            Track(part.rank_of.get(process), IDLE, device),
            Bar(CAUSES[code], CAUSE_NAMES[CAUSES[code]], start + part.clock_ns, end + part.clock_ns,
                part.window is None or step in part.window.batches, part.first_process + process,
                device=device, details=tuple((k, v) for k, v in details.items() if v)),
        )  # fmt: skip


def _what(trace: Trace, op: int) -> str:
    """Return what an operation is called: a kernel's name, the direction of a copy, its kind."""
    kind = int(trace.ops.kind[op])
    if kind == KERNEL:
        return _string(trace, int(trace.ops.name[op]))
    if kind == MEMCPY:
        return COPY_KINDS.get(int(trace.ops.copy_kind[op]), COPY_KINDS[0])
    return OP_KINDS[kind]


def _operations(part: _Part) -> Iterator[tuple[Track, Bar]]:
    ops, own = part.trace.ops, _launched_in_time(part)
    sends = communicating(part.trace)
    at = np.flatnonzero(part.inside(ops.start_ns, ops.end_ns))
    placed = _places(part.trace, at) if part.places else {}
    columns = (
        at, ops.kind[at], ops.copy_kind[at], sends[at], own[at], ops.start_ns[at], ops.end_ns[at],
        ops.process[at], ops.correlation[at], ops.bytes[at], ops.stream[at], ops.device[at],
    )  # fmt: skip
    for op, kind, copy, collective, mine, start, end, process, same, size, stream, device in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        word, said = "nccl" if collective else OP_KINDS[kind], _what(part.trace, op)
        if kind == MEMCPY:
            word = _DIRECTIONS.get(copy, "copy")
        number, message, waits = part.nccl_number.get((process, device, start), (-1, NULL, 0))
        sent: Details = (("message_bytes", message),) if message != NULL else ()
        yield (
            Track(part.rank_of.get(process), word, device),
            Bar(word, said, start + part.clock_ns, end + part.clock_ns, mine,
                part.first_process + process if process >= 0 else -1, _known(same), _known(size),
                stream, device, (*sent, *part.work.get(op, ()), *placed.get(op, ())),
                number if number >= 0 else None, min(waits, end - start)),
        )  # fmt: skip


def _places(trace: Trace, ops: Int64) -> dict[int, Details]:
    """Return the module and the line of code that launched each of these operations, by row."""
    if len(trace.stacks) == 0:
        return {}
    op, call, _ = join_launches(trace, trace.ops, trace.api)
    some = np.isin(op, ops)
    op, call = op[some], call[some]
    node = nodes_at(trace, trace.api.thread[call], trace.api.start_ns[call])
    stacks, found = trace.stacks, dict[int, Details]()
    for row, at in zip(op.tolist(), node.tolist(), strict=True):
        module, line = (int(stacks.module[at]), int(stacks.line[at])) if at >= 0 else (-1, -1)
        said: list[tuple[str, str]] = []
        said += [("module", stacks.modules[module])] if module >= 0 else []
        said += [("line", stacks.frames[line])] if line >= 0 else []
        found[row] = tuple(said)
    return found


def _launched_in_time(part: _Part) -> Bool:
    """Mark operations that the host launched while in the batches, from any thread.

    What no call in the report launched counts by its own start.
    """
    trace, api = part.trace, part.trace.api
    op, call, _ = join_launches(trace, trace.ops, api)
    begun = trace.ops.start_ns.copy()
    begun[op] = api.start_ns[call]
    if part.window is None:
        return np.ones(len(begun), np.bool_)
    low, high = np.zeros((2, len(trace.processes) + 1), np.int64)  # the last: no process
    for process, rank in part.rank_of.items():
        begin, end = part.window.host_ns.get(rank, (0, 0))
        low[process], high[process] = begin - part.clock_ns, end - part.clock_ns
    whose = trace.ops.process
    own: Bool = (low[whose] <= begun) & (begun < high[whose])
    return own


def _units(trace: Trace, batch_label: str) -> tuple[int, ...]:
    """Count the threads of every process from 0: the one of most batches, then by ranges."""
    is_batch = np.array([n == batch_label for n in trace.range_labels] + [False], np.bool_)
    size = len(trace.threads)
    batches = np.bincount(trace.ranges.thread[is_batch[trace.ranges.name]], minlength=size)
    ranges = np.bincount(trace.ranges.thread, minlength=size)
    calls = np.bincount(trace.mpi.thread, minlength=size)
    units = [0] * size
    counted: dict[int, int] = defaultdict(int)
    order = np.lexsort((np.arange(size), -calls, -ranges, -batches))
    for thread in order.tolist():
        process = int(trace.thread_process[thread])
        units[thread] = counted[process]
        counted[process] += 1
    return tuple(units)


def _last(trace: Trace) -> int:
    """Return the last moment of a report, which stands for ends never written."""
    times = [t for table in (trace.ranges, trace.mpi, trace.api, trace.ops)
             for t in (table.start_ns, table.end_ns) if len(t)]  # fmt: skip
    return max((int(t.max()) for t in times), default=0)


def _string(trace: Trace, code: int) -> str:
    return trace.strings[code] if code >= 0 else _NO_NAME


def _known(value: int) -> int | None:
    return None if value == NULL else value
