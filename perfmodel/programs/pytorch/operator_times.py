"""Joins PyTorch's operators to the steps of a report: their work and GPU time in every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from perfmodel.base.arrays import Bool, Int64, distinct_rows
from perfmodel.base.kernels import kernel_types
from perfmodel.base.kernels.types import KernelTypes
from perfmodel.base.units import si
from perfmodel.programs.pytorch.calls import OUTSIDE, Calls, Kernels, Made, find_calls
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.operators import Call
from perfmodel.programs.pytorch.replays import (
    Needed,
    Places,
    TokensOf,
    tokens_captured,
    with_replays,
)
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import KERNEL, NULL, TO_GPU, TO_HOST, Ranges, Trace
from perfmodel.timing.intervals import lengths
from perfmodel.timing.kernels import COMMUNICATION, categorize
from perfmodel.timing.launched import launched
from perfmodel.timing.nesting import Nesting, innermost, last_moment, nest
from perfmodel.timing.operator_times import OperatorKey, OperatorTimes, Phase
from perfmodel.timing.recorder import SIZED, each_ns, events_of
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.step_times import StepOps

_MOST_SIZES: Final = 10_000
"""Operators that are kept apart by their sizes and modules, those with most GPU time."""
_MOST_MODULES: Final = 5000
_RANGES: Final = 1 << 19
"""Ranges of a process that are looked at together: a few steps of a large model, 100 MB."""
_MOST: Final = 2**62
"""Counts of sizes that no program has end here."""
_MUCH: Final = 0.1
"""Of a step: so much more host time is said."""


_Name = TypeVar("_Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Placed(StepOps):
    """GPU operations of steps, by the steps' numbers; and how many lanes there are.

    `causal` is how attention was counted, `warnings` what a reader should know of the operators.
    """

    lanes: int
    causal: bool = False
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, steps: StepReport, *, causal: bool = False, warnings: tuple[str, ...] = ()
    ) -> Placed:
        """Return the operations of the steps of a report."""
        ops = steps.times.ops
        number = steps.steps.number[ops.step].astype(np.int64)
        return cls(ops.op, number, ops.lane, len(steps.times.process), causal, warnings)


@dataclass(frozen=True, slots=True)
class Found:
    """Calls of the operators of a report's steps, and warnings.

    `hidden` and `places` are those of `OperatorTimes`.
    """

    calls: Calls
    warnings: tuple[str, ...]
    hidden: int = 0
    places: Places = field(default_factory=dict)


def operator_times(
    trace: Trace,
    steps: StepReport,
    dtype: str | None = None,
    *,
    causal: bool = False,
    sources: Sequence[Trace] = (),
) -> OperatorTimes | None:
    """Count the operators of every step, and time them; None if no ranges name sizes.

    Parameters
    ----------
    trace : Trace
        Whole, with all its ranges.
    steps : StepReport
        Of the same trace.
    dtype : str, optional
        Of tensors whose type nothing in the report says.
    causal : bool
        Whether attention is counted as under a causal mask.
    sources : sequence of Trace
        Recordings of the captures of graphs that are replayed; `trace` itself by default.
    """
    tokens = (None,) * len(steps.steps)
    found = find_replayed(trace, steps, sources or (trace,), tokens, dtype, causal=causal)
    if not found.calls.calls:
        return None
    warnings = (*found.warnings, *(() if sources else _slowed(steps)))
    made = tabulate(trace, found.calls, Placed.of(steps, causal=causal, warnings=warnings))
    return replace(made, hidden=found.hidden, places=found.places)


def find_replayed(
    trace: Trace,
    steps: StepReport,
    sources: Sequence[Trace],
    tokens: Sequence[Needed | None],
    dtype: str | None = None,
    *,
    causal: bool = False,
    tokens_of: TokensOf = tokens_captured,
) -> Found:
    """Find the calls of operators in the steps of a report, those of replayed graphs among them.

    Parameters are those of `operator_times`, and of `replays.with_replays`.
    """
    found = find(trace, steps, dtype, causal=causal)
    if found is None:
        count = len(steps.times.ops.op)
        phase: list[Phase] = ["forward"] * count
        nothing = np.full(count, -1, np.int64)
        found = Found(Calls((), nothing, tuple(phase), ("",) * count), ())
    calls, matched, replayed, done = found.calls, 0, 0, frozenset[int]()
    places: Places = {}
    for source in sources:
        joined = with_replays(
            trace, steps, calls, source, tokens, dtype,
            causal=causal, tokens_of=tokens_of, done=done,
        )  # fmt: skip
        calls, replayed, done = joined.calls, joined.replayed, done | joined.done
        matched += joined.matched
        places = {**joined.places, **places}
    warnings = (*found.warnings, *_hidden(replayed, matched))
    return Found(calls, warnings, replayed - matched, places)


def _hidden(replayed: int, joined: int) -> Iterator[str]:
    """Say what replays hide, and how to see it."""
    if joined < replayed:
        yield (
            f"{replayed - joined} of {replayed} kernels are replayed by CUDA graphs, and no "
            f"recording of the capture names their operators: FLOPs and bytes lack them; give the "
            f"recording of the capture by --shapes FILE, or a served model's name by --decoder "
            f"(docs/serving.md)"
        )


def _slowed(steps: StepReport) -> Iterator[str]:
    """Say what recording sizes costs the host, where the GPU waits for it and it is much."""
    lasts, idle = (times[times >= 0] for times in (steps.times.step_ns, steps.times.gpu_idle_ns))
    if not len(lasts) or not len(idle):
        return
    step_s, idle_s = (float(np.median(times)) * 1e-9 for times in (lasts, idle))
    cost_s = max(float((events_of(graph) * each_ns(graph))[SIZED]) * 1e-9 for graph in steps.graphs)
    if min(cost_s, idle_s) > _MUCH * step_s:
        yield (
            f"recording sizes slows the host: it costs about {si(cost_s, 's', 2)} of each recorded "
            f"step of {si(step_s, 's')}, so that the GPU's idle time, and what changes on the host "
            f"would save, are too long; take times from a recording without sizes by --shapes "
            f"(docs/pytorch.md)"
        )


def find(
    trace: Trace,
    steps: StepReport,
    dtype: str | None = None,
    *,
    causal: bool = False,
    flow: bool = False,
) -> Found | None:
    """Find the calls of operators in the steps of a report; None if its ranges name no sizes."""
    names = parse((*trace.range_labels, ""), cut=trace.numbers is not None)  # NO_NAME is the last
    if all(sizes is None for sizes in names.sizes):
        return None
    op = steps.times.ops.op
    found = launched(trace)
    at = np.searchsorted(found.op, op)
    process, thread, at_ns = found.process[at], found.thread[at], found.at_ns[at]
    del found, at
    calls: list[Call] = []
    owner = np.full(len(op), -1, np.int64)
    made: list[Made] = []
    function: list[int] = []
    operator: list[int] = []
    ranges = 0
    phase, module = (np.empty(len(op), object) for _ in range(2))
    of_range = trace.thread_process[trace.ranges.thread]
    last_ns = last_moment(trace.ranges)
    for one in np.unique(process).tolist():  # operators are numbered by process
        rows = np.flatnonzero((of_range == one) & ~trace.ranges.other_thread)
        begin_ns = np.sort(steps.steps.start_ns[steps.steps.process == one])
        for before_ns, since_ns, until_ns in _windows(trace.ranges.start_ns[rows], begin_ns):
            near = (process == one) & (at_ns >= before_ns) & (at_ns < until_ns)
            seen = np.flatnonzero(near)
            nesting = nest(
                trace.ranges,
                len(trace.threads),
                rows[_open(trace.ranges, rows, before_ns, until_ns)],
                last_ns,
            )
            node = innermost(nesting, thread[seen], at_ns[seen], at_ns[seen])
            tree = _tree(trace, nesting)
            del nesting
            kernels = _kernels(trace, node, op[seen])
            its = find_calls(names, tree, kernels, dtype, causal=causal, flow=flow)
            inside = np.flatnonzero(at_ns[seen] >= since_ns)
            mine, its_owner = seen[inside], its.owner[inside]
            used, place = np.unique(its_owner[its_owner >= 0], return_inverse=True)
            owner[mine[its_owner >= 0]] = place + len(calls)
            if flow:
                number = {i: k for k, i in enumerate(used.tolist(), len(calls))}
                made += [
                    tuple((number.get(m, OUTSIDE) if m >= 0 else m, out) for m, out in its.made[i])
                    for i in used.tolist()
                ]
                for mine_of, all_of in ((its.function, function), (its.operator, operator)):
                    all_of += [
                        mine_of[i] + ranges if mine_of[i] >= 0 else -1 for i in used.tolist()
                    ]
                ranges += len(tree.parent)
            calls += [its.calls[i] for i in used.tolist()]
            phase[mine] = np.array(its.phase, object)[inside]
            module[mine] = np.array(its.module, object)[inside]
    unread = names.unread
    said = (f"sizes of {unread} operators cannot be read: not counted",) if unread else ()
    every = tuple(phase.tolist()), tuple(module.tolist())
    return Found(
        Calls(tuple(calls), owner, *every, tuple(made), tuple(function), tuple(operator)), said
    )


def _windows(start_ns: Int64, begin_ns: Int64) -> Iterator[tuple[int, int, int]]:
    """Divide a process at beginnings of steps, so that a window has `_RANGES` ranges or one step.

    Parameters
    ----------
    start_ns : int64, shape (ranges,)
    begin_ns : int64, shape (steps,)
        Ascending.

    Yields
    ------
    before_ns, since_ns, until_ns : int
        A window begins at `since_ns` and ends before `until_ns`; what made its operators' inputs is
        looked for from `before_ns` on, a step earlier.
    """
    first, last = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    ahead = np.searchsorted(np.sort(start_ns), begin_ns)
    cuts = [0]
    for step in range(1, len(begin_ns)):
        following = ahead[step + 1] if step + 1 < len(begin_ns) else len(start_ns)
        if following - ahead[cuts[-1]] > _RANGES:
            cuts.append(step)
    for i, step in enumerate(cuts):
        since = int(begin_ns[step]) if i else first
        before = int(begin_ns[step - 1]) if i else first
        yield before, since, int(begin_ns[cuts[i + 1]]) if i + 1 < len(cuts) else last


def _open(ranges: Ranges, rows: Int64, since_ns: int, until_ns: int) -> Bool:
    """Return whether each range is open at some time of a window."""
    end_ns = ranges.end_ns[rows]
    found: Bool = (ranges.start_ns[rows] < until_ns) & ((end_ns >= since_ns) | (end_ns == NULL))
    return found


def _tree(trace: Trace, nesting: Nesting) -> Tree:
    return Tree(
        trace.ranges.name[nesting.row],
        nesting.parent,
        nesting.start_ns,
        nesting.thread,
        trace.ranges.number[nesting.row],
        trace.numbers,
    )


def _kernels(trace: Trace, node: Int64, op: Int64) -> Kernels:
    ops = trace.ops
    return Kernels(
        node, ops.name[op], ops.kind[op], (ops.end_ns - ops.start_ns)[op], ops.bytes[op],
        trace.strings,
    )  # fmt: skip


def tabulate(trace: Trace, calls: Calls, placed: Placed) -> OperatorTimes:
    """Sum calls up by key, lane and step."""
    op, lane, step = placed.op, placed.lane, placed.step
    by_name, categories = categorize(trace.ops, trace.strings)
    category = by_name.astype(np.int64)
    sends = np.array([c == COMMUNICATION for c in categories])[category[op]]
    outside = np.flatnonzero(calls.owner < 0)
    strays, group_of_stray = _strays(trace, calls, op[outside], category[op[outside]], categories)
    owner = calls.owner.copy()
    owner[outside] = len(calls.calls) + np.arange(len(outside))
    count = len(calls.calls) + len(outside)
    talking = _any(owner[sends], count)
    gpu_ns = lengths(owner, trace.ops.start_ns[op], trace.ops.end_ns[op], count)
    kernel = trace.ops.kind[op] == KERNEL
    first = np.full(count, len(op), np.int64)
    np.minimum.at(first, owner, np.arange(len(op)))
    distinct, alike = _distinct(calls.calls)
    copies = np.isin(trace.ops.copy_kind[op], TO_GPU + TO_HOST) & ~kernel
    copied = _any(owner[copies], count) & ~_any(owner[kernel], count)
    known: dict[int, int] = {}
    sent = 4 * alike + 2 * copied[: len(alike)] + talking[: len(alike)]
    key = np.array([known.setdefault(k, len(known)) for k in sent.tolist()], np.int64)
    keys = [_key(distinct[k // 4], bool(k % 2), bool(k // 2 % 2)) for k in known] + strays
    key = np.append(key, len(known) + np.array(group_of_stray, np.int64))
    spent = np.zeros(len(keys), np.int64)
    np.add.at(spent, key, gpu_ns)
    keys = _fewer_sizes(_fewer_modules(_of_one_origin(keys, spent), spent), spent)
    codes: dict[OperatorKey, int] = {}
    code = np.array([codes.setdefault(k, len(codes)) for k in keys], np.int64)[key]
    rows, row = distinct_rows(code, lane[first], step[first])
    times = np.bincount(alike, minlength=len(distinct)).tolist()
    of_call = np.append(alike, np.full(len(outside), -1))

    def total(values: Int64) -> Int64:
        summed = np.zeros(len(rows), np.int64)
        np.add.at(summed, row, values)
        return summed

    def summed(counted: list[int]) -> Int64:
        if sum(n * times[i] for i, n in enumerate(counted)) > _MOST:
            counted = [min(n, _MOST // len(alike)) for n in counted]
        return total(np.array([*counted, 0], np.int64)[of_call])

    def of_work(attribute: str) -> Int64:
        return summed([getattr(c.work, attribute) if c.work else 0 for c in distinct])

    return OperatorTimes(
        keys=tuple(codes),
        key=rows[:, 0],
        lane=rows[:, 1],
        step=rows[:, 2],
        count=total(np.ones(count, np.int64)),
        kernels=total(np.bincount(owner[kernel], minlength=count).astype(np.int64)),
        flops=of_work("flops"),
        read_bytes=of_work("read_bytes"),
        write_bytes=of_work("write_bytes"),
        fusible_bytes=summed([c.fusible_bytes for c in distinct]),
        gpu_ns=total(gpu_ns),
        lanes=placed.lanes,
        causal=placed.causal,
        warnings=placed.warnings,
        largest=_largest(trace, op[kernel], [*codes], code[owner[kernel]]),
    )


def _largest(
    trace: Trace, op: Int64, keys: Sequence[OperatorKey], key: Int64
) -> dict[tuple[str, str], str]:
    """Return the kernel with most of the time of each operator and phase."""
    pairs, group = distinct_rows(key, trace.ops.name[op])
    spent = sums(group, (trace.ops.end_ns - trace.ops.start_ns)[op], len(pairs))
    found: dict[tuple[str, str], Counter[int]] = {}
    for (of, name), ns in zip(pairs.tolist(), spent.tolist(), strict=True):
        if name >= 0:
            found.setdefault((keys[of].name, keys[of].phase), Counter())[name] += ns
    return {of: trace.strings[held.most_common(1)[0][0]] for of, held in found.items()}


def _any(owner: Int64, count: int) -> Bool:
    """Whether each of so many calls owns any."""
    found = np.zeros(count, np.bool_)
    found[owner] = True
    return found


def _distinct(calls: Sequence[Call]) -> tuple[list[Call], Int64]:
    """Distinct objects among calls, in the order in which they come; and which one each is."""
    known: dict[int, int] = {}
    code = np.array([known.setdefault(id(call), len(known)) for call in calls], np.int64)
    first = np.unique(code, return_index=True)[1]
    return [calls[i] for i in first.tolist()], code


def _key(call: Call, communicates: bool, over_pcie: bool) -> OperatorKey:
    unit = "pcie" if over_pcie else call.unit
    return OperatorKey(
        call.name, call.phase, call.dtype, call.origin, unit, call.shown,
        call.work is not None, communicates, call.module,
    )  # fmt: skip


def _of_one_origin(keys: list[OperatorKey], gpu_ns: Int64) -> list[OperatorKey]:
    """Give keys that differ in what says their type alone the origin with most GPU time.

    Which calls name what made their inputs may change from step to step, and with it how many
    calls a median step would have of each.
    """
    spent: dict[OperatorKey, dict[str, int]] = {}
    for key, ns in zip(keys, gpu_ns.tolist(), strict=True):
        origins = spent.setdefault(replace(key, origin=""), {})
        origins[key.origin] = origins.get(key.origin, 0) + ns
    most = {key: max(origins, key=lambda o: origins[o]) for key, origins in spent.items()}
    return [replace(k, origin=most[replace(k, origin="")]) for k in keys]


def _fewer_sizes(keys: list[OperatorKey], gpu_ns: Int64) -> list[OperatorKey]:
    """Leave the sizes out of those with least GPU time, where there are too many."""
    kept = _longest(keys, gpu_ns, _MOST_SIZES)
    merged = {k: k if k in kept else replace(k, sizes="") for k in set(keys)}
    return [merged[k] for k in keys]


def _fewer_modules(keys: list[OperatorKey], gpu_ns: Int64) -> list[OperatorKey]:
    """Leave out the modules with least GPU time, where there are too many."""
    kept = _longest([k.module for k in keys], gpu_ns, _MOST_MODULES)
    merged = {k: k if k.module in kept else replace(k, module="") for k in set(keys)}
    return [merged[k] for k in keys]


def _longest(names: Sequence[_Name], gpu_ns: Int64, most: int) -> set[_Name]:
    """Return those with most GPU time, all of them where they are few."""
    if len(found := set(names)) <= most:
        return found
    spent: dict[_Name, int] = {}
    for name, ns in zip(names, gpu_ns.tolist(), strict=True):
        spent[name] = spent.get(name, 0) + ns
    return set(sorted(spent, key=lambda name: -spent[name])[:most])


def _strays(
    trace: Trace, calls: Calls, op: Int64, category: Int64, categories: tuple[str, ...]
) -> tuple[list[OperatorKey], list[int]]:
    """Keys of operations outside of operators, by what their kernels do; and each one's key."""
    known: dict[OperatorKey, int] = {}
    found = []
    outside = np.flatnonzero(calls.owner < 0)
    for i, o, c in zip(outside.tolist(), op.tolist(), category.tolist(), strict=True):
        name = int(trace.ops.name[o])
        types = kernel_types(trace.strings[name]) if name >= 0 else KernelTypes()
        said = types.dtype or ""
        key = OperatorKey(
            f"({categories[c]})", calls.phase[i], said, "kernel" if said else "", types.unit, "",
            False, categories[c] == COMMUNICATION, calls.module[i],
        )  # fmt: skip
        found.append(known.setdefault(key, len(known)))
    return list(known), found
