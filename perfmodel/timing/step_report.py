"""The steps of one report: times, categories and kernels by step, NCCL's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from perfmodel.base.arrays import Floats, Growing, Int8, Int32, Int64, distinct_positions
from perfmodel.base.kernels import PRODUCTS
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import KERNEL, MEMCPY, MEMSET, NO_NAME, Trace, join_columns
from perfmodel.timing.by_process import Part, by_process
from perfmodel.timing.first_calls import FirstCall, first_calls
from perfmodel.timing.host_timeline import (
    HostTimes,
    call_kinds,
    host_timeline,
    host_times,
    other_timelines,
    quick_launches,
)
from perfmodel.timing.idle_causes import IdleGaps, idle_gaps
from perfmodel.timing.intervals import extents, union
from perfmodel.timing.kernels import COMMUNICATION, categorize
from perfmodel.timing.launched import Launched, launched, operation_codes
from perfmodel.timing.levels import join_spans, step_spans
from perfmodel.timing.nccl import NcclKernels, join_kernels, nccl_kernels
from perfmodel.timing.nesting import last_moment, nest
from perfmodel.timing.projection import Joined
from perfmodel.timing.recorder import Pushes, recorded, slowness
from perfmodel.timing.small_kernels import SmallKernels, small_kernels
from perfmodel.timing.spans import PAUSE, Spans, Steps
from perfmodel.timing.stack_times import StackTimes, join_stack_times, stack_times
from perfmodel.timing.step_graph import StepGraph, last_steps, step_graph
from perfmodel.timing.step_times import StepOps, StepTimes, join_times, step_times, widened
from perfmodel.timing.unified import Migrations, migrations

_MOST_KERNELS: Final = 40
"""Kernels of one report that are kept by name, those with most GPU time."""
MOST_PAUSES: Final = 3
"""Pauses of a process whose operations are compared with a step's: as many as warnings show."""
LaunchedThere = Literal[
    "nothing", "all", "all of a thread", "none of a thread", "some", "others", ""
]

_NONE: Final[Any] = np.empty(0, np.int64)
_NO_GAPS: Final = IdleGaps((), *[_NONE] * 12)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Launches of the kernels with most GPU time inside steps.

    Attributes
    ----------
    names : tuple of str
    categories : tuple of str
        Of every name.
    name, step, duration_ns : integer arrays, shape (n,)
        One row per launch, in as few bytes as they need; `step` is the step's number.
    total_ns : int64, shape (steps,)
        GPU time of all kernels by step, of those that are not kept by name, too.
    single : mapping of str to int
        Kernels of one block or thread by name, as `Trace.single`.
    launch_threads : mapping of str to float
        Threads of a launch by name, as `Trace.launch_threads`.
    """

    names: tuple[str, ...]
    categories: tuple[str, ...]
    name: Int32
    step: Int32
    duration_ns: Int64
    total_ns: Int64
    single: Mapping[str, int]
    launch_threads: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pause:
    """More than half a usual step between two steps.

    Attributes
    ----------
    process, number : int
        Process, and number of the step before.
    longer : float
        How many usual steps the pause is longer than a usual one.
    launched : str
        What is launched there, of the operations of the step before: `nothing`, `all` of them,
        `all of a thread` and some of the others', `none of a thread` but some of the others',
        `some`, or `others`; '' where not looked at, or where a step launches none.
    """

    process: int
    number: int
    longer: float
    launched: LaunchedThere


@dataclass(frozen=True, slots=True)
class StepReport:
    """The steps of one report, measured.

    Attributes
    ----------
    steps : Steps
    times : StepTimes
    categories : tuple of str
    exclusive_ns, kernel_ns, count : int64, shape (lanes, steps, categories)
        A category's part of the busy time, where overlapping time counts once (computing kernels
        before copies before communication); the sum of its operations' own times; and their
        number.
    kernels : KernelTimes
    nccl : NcclKernels
    gaps : IdleGaps
    host : HostTimes
    small : SmallKernels
    graphs : tuple of StepGraph
        One per lane.
    lost_ns, launched_ns, work_ns : int
        GPU time launched between the first and the last step of its process: in no step, and all;
        and all that these processes launched in the recording.
    rank_of : dict of int to int
        Rank by process index: MPI's; other processes with steps are counted on, by GPU.
    utc_start_ns : int or None
    pauses : tuple of Pause
    spans : Spans
        The steps, and the levels around and inside them.
    stacks : StackTimes
        What launched the operations in steps.
    migrations : Migrations
        Of unified memory.
    captured : mapping of str to (str or None, str or None)
        Line and module by kernel, of kernels that another recording shows in a graph's capture.
    launch_ns : tuple of float
        Median time of the calls that launch kernels in steps, of every process that has any.
    first_calls : tuple of FirstCall
        What took longer since it was called for the first time, in steps or before them.
    """

    steps: Steps
    times: StepTimes
    categories: tuple[str, ...]
    exclusive_ns: Int64
    kernel_ns: Int64
    count: Int64
    kernels: KernelTimes
    nccl: NcclKernels
    gaps: IdleGaps
    host: HostTimes
    small: SmallKernels
    graphs: tuple[StepGraph, ...]
    lost_ns: int
    launched_ns: int
    work_ns: int
    rank_of: dict[int, int]
    utc_start_ns: int | None
    pauses: tuple[Pause, ...]
    spans: Spans
    stacks: StackTimes
    migrations: Migrations
    captured: Mapping[str, tuple[str | None, str | None]]
    launch_ns: tuple[float, ...]
    first_calls: tuple[FirstCall, ...]


def report_steps(trace: Trace, steps: Steps, pushes: Pushes | None = None) -> StepReport:
    """Measure the steps of one report on every GPU.

    Parameters
    ----------
    trace : Trace
        With all its operations, and the ranges that say what the program did.
    steps : Steps
    pushes : Pushes, optional
        As of `StepsByPart`.
    """
    measured = StepsByPart(trace, steps, pushes=pushes)
    for part in by_process(trace, steps):  # one at a time: their timelines are large
        measured.add(part)
    return measured.joined()


class StepsByPart:
    """Measures the steps of one report part by part.

    Parameters
    ----------
    trace : Trace
        The report; its operations and calls are not looked at.
    steps : Steps
    most_ops : int, optional
        Operations of each lane's last steps that are kept for the replay; all by default. Which
        operations are in steps is then forgotten.
    all_gaps : bool
        Whether gaps are kept one by one even then.
    pushes : Pushes, optional
        All ranges of the report, where `trace` holds only some.
    """

    def __init__(
        self,
        trace: Trace,
        steps: Steps,
        most_ops: int | None = None,
        *,
        all_gaps: bool = False,
        pushes: Pushes | None = None,
    ) -> None:
        self.steps = steps
        self._pushes = pushes or Pushes.of(trace)
        self._trace, self._all_gaps = trace, all_gaps
        self._most_ops, self._last_ns = most_ops, last_moment(trace.ranges)
        self._names: dict[str, int] = {}
        self._found: list[StepReport] = []
        self._rows: list[tuple[Int64, Int64]] = []
        self._gaps, self._lanes = Growing(), 0

    def add(self, part: Part, joined: Joined | None = None) -> None:
        """Measure a part; parts come in the order of their processes.

        `joined` is what `join_launches` returns, where it is known.
        """
        if len(part.steps) == 0:
            return
        found = _measured(part.trace, part.steps, self._names, self._last_ns, joined, self._pushes)
        gaps = found.gaps
        if self._most_ops is not None:
            found = lightened(found, self._most_ops, first=not self._found)
        gaps = gaps if self._all_gaps else found.gaps
        self._gaps.append(gaps.columns(self._lanes, part.op))
        self._lanes += len(found.times.process)
        self._found.append(replace(found, gaps=_NO_GAPS))
        self._rows.append((part.op, part.step))

    def joined(self) -> StepReport:
        """Return the report of all parts."""
        if len(self._found) > 1 or self._found[0].steps is not self.steps:
            self._found = [_joined(self._trace, self.steps, self._found, self._rows)]
        one = self._found.pop()
        gaps = IdleGaps(tuple(self._names), **self._gaps.columns)
        return replace(one, gaps=gaps, kernels=_longest(one.kernels))


def lightened(report: StepReport, most_ops: int | None, *, first: bool = True) -> StepReport:
    """Drop what an analysis does not look at.

    Rows of operations are forgotten, gaps are added up but for the longest, operations for the
    replay are left out but for so many of each lane, and small kernels of all lanes but the
    report's first one, which is that of the `first` part.
    """
    none = np.empty(0, np.int64)
    lighter = replace(
        report,
        times=replace(report.times, ops=StepOps(none, none, none)),
        gaps=report.gaps.added_up(),
        small=report.small.chosen((report.small.lane == 0) & first),
    )
    return lighter if most_ops is None else shortened(lighter, most_ops)


def shortened(report: StepReport, most_ops: int) -> StepReport:
    """Keep of each lane so many operations for the replay, those of its last steps."""
    return replace(report, graphs=tuple(last_steps(graph, most_ops) for graph in report.graphs))


def _measured(
    trace: Trace,
    steps: Steps,
    names_of_gaps: dict[str, int],
    last_ns: int,
    joined: Joined | None,
    pushes: Pushes,
) -> StepReport:
    found = launched(trace, joined)
    code, names = categorize(trace.ops, trace.strings)
    sends = code == names.index(COMMUNICATION)
    step = steps.holding(found.process, found.at_ns)
    times = step_times(trace, steps, found, step, sends)
    product = np.isin(code, [i for i, name in enumerate(names) if name in PRODUCTS])
    exclusive, own, count = _by_category(trace, steps, times, code, names)
    nesting = nest(trace.ranges, len(trace.threads), last_ns=last_ns)
    quick = quick_launches(trace, found)
    small, small_of = small_kernels(trace, steps, found, times, nesting, code, names, quick)
    kinds = call_kinds(trace, found, quick)
    slow = {p: slowness(trace, steps, p) for p in np.unique(times.process).tolist()}
    gaps, hosts, graphs = [], [], []
    for lane in range(len(times.process)):
        line = host_timeline(trace, steps, found, times, lane, kinds, quick)
        gaps.append(idle_gaps(trace, steps, found, times, lane, line, nesting, names_of_gaps))
        hosts.append(host_times(line, steps, times, lane))
        others = other_timelines(trace, steps, times, lane, kinds)
        graph = step_graph(trace, steps, found, times, line, lane, sends, small_of, others)
        graphs.append(
            recorded(graph, pushes, line.threads, trace.recorder, slow[int(times.process[lane])])
        )
    lost, everything = _lost(trace, steps, found, step)
    return StepReport(
        steps=steps,
        times=times,
        categories=names,
        exclusive_ns=exclusive,
        kernel_ns=own,
        count=count,
        kernels=_kernels(trace, steps, times, code, names),
        nccl=nccl_kernels(trace, steps, found, times, sends, nesting, product),
        gaps=IdleGaps.of(names_of_gaps, gaps),
        host=HostTimes.of(hosts),
        small=small,
        graphs=tuple(graphs),
        lost_ns=lost,
        launched_ns=everything,
        work_ns=_work(trace, steps, found),
        rank_of=_numbered(trace.ranks, times),
        utc_start_ns=trace.utc_start_ns,
        pauses=tuple(_pauses(trace, steps, found, times)),
        spans=step_spans(trace, steps, found),
        stacks=stack_times(trace, steps, found, times),
        migrations=migrations(trace, steps, times),
        captured={},
        launch_ns=tuple(_launch_times(trace, found, step)),
        first_calls=first_calls(trace, steps, found),
    )


def _launch_times(trace: Trace, found: Launched, step: Int64) -> Iterator[float]:
    """Median time of the calls that launch kernels in steps, process by process."""
    inside = (step >= 0) & (trace.ops.kind[found.op] == KERNEL)
    call = distinct_positions(found.call[inside], len(trace.api))
    process = trace.thread_process[trace.api.thread[call]]
    length = (trace.api.end_ns - trace.api.start_ns)[call]
    for one in np.unique(process).tolist():
        yield float(np.median(length[process == one]))


def _pauses(trace: Trace, steps: Steps, found: Launched, times: StepTimes) -> Iterator[Pause]:
    """Say what the pauses between steps hold, of the first ones.

    Where the host runs ahead of the GPU, how long they are is seen on the GPU.
    """
    looked_at: dict[int, int] = {}
    begins: dict[int, Int64] = {}
    for process, number, on_host in steps.long_pauses():
        if process not in looked_at:
            looked_at[process] = 0
            mine = np.flatnonzero(steps.process == process)
            begins[process] = mine[np.argsort(steps.start_ns[mine], kind="stable")]
            longer_on_gpu = _longer_on_gpu(times, process)
        longer = -np.inf if longer_on_gpu is None else float(longer_on_gpu[number])
        longer = on_host if longer == -np.inf else longer
        if longer <= PAUSE:
            continue
        looked_at[process] += 1
        if looked_at[process] > MOST_PAUSES:
            yield Pause(process, number, longer, "")
            continue
        mine = begins[process]
        at = int(np.flatnonzero(steps.number[mine] == number)[0])
        start, end = (int(each[mine[at]]) for each in (steps.start_ns, steps.end_ns))
        usual = _kinds_launched(trace, found, process, (start, end))
        following = int(steps.start_ns[mine[at + 1]])
        there = _kinds_launched(trace, found, process, (end + 1, following - 1))
        yield Pause(process, number, longer, _compared(usual, there))


def _longer_on_gpu(times: StepTimes, process: int) -> Floats | None:
    """How many usual steps each step takes longer than one, on the GPU where that is longest.

    Minus infinity where it is not known.
    """
    longest = None
    for lane in np.flatnonzero((times.process == process) & (times.device >= 0)):
        took = times.step_ns[lane]
        usual = float(np.median(took[took >= 0])) if (took >= 0).any() else 0.0
        if usual > 0:
            longer = np.where(took >= 0, took / usual - 1.0, -np.inf)
            longest = longer if longest is None else np.maximum(longest, longer)
    return longest


def _kinds_launched(
    trace: Trace, found: Launched, process: int, within_ns: tuple[int, int]
) -> dict[int, set[int]]:
    """Of every thread of a process, codes of what it launches in an interval."""
    start, end = within_ns
    held = (found.process == process) & (found.at_ns >= start) & (found.at_ns <= end)
    codes, thread = operation_codes(trace.ops, found.op)[held], found.thread[held]
    return {t: set(codes[thread == t].tolist()) for t in np.unique(thread).tolist()}


def _compared(usual: dict[int, set[int]], there: dict[int, set[int]]) -> LaunchedThere:
    """`Pause.launched`, by what each thread launches in a step and in a pause."""
    if not any(usual.values()):
        return ""
    if not any(there.values()):
        return "nothing"
    complete = [kinds <= there.get(thread, set()) for thread, kinds in usual.items()]
    some = [bool(kinds & there.get(thread, set())) for thread, kinds in usual.items()]
    if all(complete):
        return "all"
    if any(complete) and all(some):
        return "all of a thread"
    if any(some) and not all(some):
        return "none of a thread"
    return "some" if any(some) else "others"


def _joined(
    trace: Trace,
    steps: Steps,
    parts: list[StepReport],
    rows: Sequence[tuple[Int64, Int64]],
) -> StepReport:
    """Put the reports of some processes each together to that of all; empties the list.

    `rows` are the operations and steps of the whole report that those of each part are. Gaps are
    not joined here.
    """
    column: dict[str, list[Any]] = {
        name: [getattr(part, name) for part in parts] for name in StepReport.__slots__
    }
    parts.clear()
    first = np.cumsum([0, *(len(times.process) for times in column["times"])])[:-1].tolist()
    times = join_times(column.pop("times"), rows)
    count = times.busy_ns.shape[1]
    totals = {
        name: np.concatenate([widened(values, count, 0) for values in column[name]])
        for name in ("exclusive_ns", "kernel_ns", "count")
    }
    return StepReport(
        steps=steps,
        times=times,
        categories=column["categories"][0],
        **totals,
        kernels=_join_kernels(column.pop("kernels"), count),
        nccl=join_kernels(column["nccl"], first),
        gaps=column["gaps"][0],
        host=HostTimes.join(column["host"], count),
        small=SmallKernels.join(column.pop("small"), first),
        graphs=tuple(graph for graphs in column["graphs"] for graph in graphs),
        lost_ns=sum(column["lost_ns"]),
        launched_ns=sum(column["launched_ns"]),
        work_ns=sum(column["work_ns"]),
        rank_of=_numbered(trace.ranks, times),
        utc_start_ns=trace.utc_start_ns,
        pauses=tuple(pause for pauses in column["pauses"] for pause in pauses),
        spans=join_spans(column["spans"]),
        stacks=join_stack_times(column["stacks"]),
        migrations=Migrations.join(column["migrations"]),
        captured={},
        launch_ns=tuple(ns for times in column["launch_ns"] for ns in times),
        first_calls=tuple(call for calls in column["first_calls"] for call in calls),
    )


def _numbered(known: Mapping[int, int], times: StepTimes) -> dict[int, int]:
    """Rank of every process with steps: MPI's, else the next one, in the order of their GPUs.

    Local ranks choose their GPUs in this order.
    """
    found = dict(known)
    following = itertools.count(max(known.values(), default=-1) + 1)
    for _, process in sorted(zip(times.device.tolist(), times.process.tolist(), strict=True)):
        if process not in found:
            found[process] = next(following)
    return found


def _by_category(
    trace: Trace, steps: Steps, times: StepTimes, code: Int8, names: tuple[str, ...]
) -> tuple[Int64, Int64, Int64]:
    shape = (*times.busy_ns.shape, len(names))
    op = times.ops.op
    step = steps.number[times.ops.step].astype(np.int64)
    cell = times.ops.lane * shape[1] + step
    category = code[op].astype(np.int64)
    start, end = trace.ops.start_ns[op], trace.ops.end_ns[op]
    kind, sends = trace.ops.kind[op], category == names.index(COMMUNICATION)
    order = np.where(sends, 2, ((kind == MEMCPY) | (kind == MEMSET)).astype(np.int64))
    held = exclusive(cell, start, end, order)
    where = cell * len(names) + category
    cells = shape[0] * shape[1] * shape[2]
    each = (held, end - start, np.ones(len(op), np.int64))
    totals = [sums(where, values, cells).reshape(shape) for values in each]
    return totals[0], totals[1], totals[2]


def exclusive(group: Int64, start_ns: Int64, end_ns: Int64, priority: Int64) -> Int64:
    """Time of each interval that no interval before it in priority covers, shape (n,).

    Within one priority overlapping intervals share their union in proportion to their lengths, so
    that the results of a group add up to the length of its union, but for rounding.

    Parameters
    ----------
    group, start_ns, end_ns : int64, shape (n,)
    priority : int64, shape (n,)
        0 counts first.
    """
    held = np.zeros(len(group), np.int64)
    groups = int(group.max(initial=-1)) + 1
    before = np.zeros(groups, np.float64)
    order = np.lexsort((start_ns, group))  # once for all the unions
    for level in np.flatnonzero(np.bincount(priority)):
        upto = order[priority[order] <= level]
        which, first, last = union(group[upto], start_ns[upto], end_ns[upto])
        total = np.bincount(which, (last - first).astype(np.float64), groups)
        mine = np.flatnonzero(priority == level)
        length = (end_ns[mine] - start_ns[mine]).astype(np.float64)
        own = np.bincount(group[mine], length, groups)
        factor = np.divide(total - before, own, out=np.zeros(groups), where=own > 0)
        held[mine] = np.round(length * factor[group[mine]]).astype(np.int64)
        before = total.astype(np.float64)
    return held


def _kernels(
    trace: Trace, steps: Steps, times: StepTimes, code: Int8, names: tuple[str, ...]
) -> KernelTimes:
    op = times.ops.op
    step = steps.number[times.ops.step]
    kernel = (trace.ops.kind[op] == KERNEL) & (trace.ops.name[op] != NO_NAME)
    op, step = op[kernel], step[kernel]
    duration = (trace.ops.end_ns - trace.ops.start_ns)[op]
    total = sums(step, duration, times.busy_ns.shape[1])
    used = trace.ops.name[op]
    distinct = distinct_positions(used, len(trace.strings))
    place = np.zeros(len(trace.strings), np.int32)
    place[distinct] = np.arange(len(distinct), dtype=np.int32)
    name = place[used]
    of_kernel = np.zeros(len(distinct), np.int8)
    of_kernel[name] = code[op]  # equal for all launches of a kernel
    return KernelTimes(
        names=tuple(trace.strings[c] for c in distinct.tolist()),
        categories=tuple(names[c] for c in of_kernel.tolist()),
        name=_narrow(name),
        step=_narrow(step),
        duration_ns=_narrow(duration),
        total_ns=total,
        single=trace.single,
        launch_threads=trace.launch_threads,
    )


def _narrow(values: Any) -> Any:
    """Return integers in as few bytes as they need, if none is negative."""
    least = np.min_scalar_type(values.max(initial=0)) if values.min(initial=0) >= 0 else np.int64
    return values.astype(least)


def _longest(kernels: KernelTimes) -> KernelTimes:
    """Keep the kernels with most GPU time; of equal ones those that come first by name."""
    spent = sums(kernels.name, kernels.duration_ns, len(kernels.names))
    least = np.sort(spent)[-_MOST_KERNELS:][:1]
    long = sorted(
        np.flatnonzero(spent >= least).tolist(),
        key=lambda i: (-spent[i], kernels.names[i], kernels.categories[i]),
    )
    top = np.array(long[:_MOST_KERNELS], np.int64)
    place = np.full(len(spent), -1, np.int32)
    place[top] = np.arange(len(top), dtype=np.int32)
    name = place[kernels.name]
    kept = slice(None) if len(top) == len(spent) else name >= 0
    return KernelTimes(
        names=tuple(kernels.names[i] for i in top.tolist()),
        categories=tuple(kernels.categories[i] for i in top.tolist()),
        name=_narrow(name[kept]),
        step=kernels.step[kept],
        duration_ns=kernels.duration_ns[kept],
        total_ns=kernels.total_ns,
        single=kernels.single,
        launch_threads=kernels.launch_threads,
    )


def _join_kernels(parts: list[KernelTimes], count: int) -> KernelTimes:
    codes: dict[tuple[str, str], int] = {}
    names = []
    for part in parts:
        keys = zip(part.names, part.categories, strict=True)
        recode = np.array([codes.setdefault(key, len(codes)) for key in keys], np.int32)
        names.append(_narrow(recode[part.name]))
    first = parts[
        0
    ]  # whose kernels by name are those of the report; `join_columns` empties `parts`
    total = np.zeros(count, np.int64)
    for part in parts:
        total[: len(part.total_ns)] += part.total_ns
    return KernelTimes(
        names=tuple(name for name, _ in codes),
        categories=tuple(category for _, category in codes),
        name=np.concatenate(names),
        **join_columns(parts, ("step", "duration_ns")),
        total_ns=total,
        single=first.single,
        launch_threads=first.launch_threads,
    )


def _work(trace: Trace, steps: Steps, found: Launched) -> int:
    """GPU time of all that the processes that have steps launched."""
    op = found.op[np.isin(found.process, steps.process)]
    return int((trace.ops.end_ns[op] - trace.ops.start_ns[op]).sum())


def _lost(trace: Trace, steps: Steps, found: Launched, step: Int64) -> tuple[int, int]:
    """GPU time that a process launched between its first and last step: in none, and all."""
    first, last = extents(steps.process, steps.start_ns, steps.end_ns, len(trace.processes))
    at, whose = found.at_ns, found.process
    between = (at >= first[whose]) & (at <= last[whose])
    spent = (trace.ops.end_ns - trace.ops.start_ns)[found.op]
    return int(spent[between & (step < 0)].sum()), int(spent[between].sum())
