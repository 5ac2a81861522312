"""Levels around and inside steps: epochs, micro-batches, phases and layers, declared or found.

Ranges are of the level that their names say (`perfmodel.timing.declared`). Where none says what a
layer is, the loops inside a step are: of its operations, the loop that takes most of the step's
time, and another one beside it that runs equally often. Those are the layers of the forward pass
and of the backward pass; of a loop whose repetitions each copy inputs, or that is most of a step
which updates parameters, the repetitions are micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers.nvtx import MPI_DOMAIN
from perfmodel.readers.trace import Trace
from perfmodel.timing.declared import said_by
from perfmodel.timing.evidence import alike, repeated_ns
from perfmodel.timing.launched import Launched, Parts, launched
from perfmodel.timing.loops import Loop, Operations, find_loops
from perfmodel.timing.nest import operations_of
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.spans import LEVELS, SOURCES, Level, Source, Spans, Steps, pattern_of
from perfmodel.timing.work import WorkByTime

_AROUND: Final = ("epoch",)
_INSIDE: Final = ("micro_batch", "phase", "layer")
_LEAST_LAYERS: Final = 3
"""Two equal parts of a step may be anything, such as two networks."""
_LEAST_SHARE: Final = 0.1
"""Layers take at least this share of a step's GPU time: less is a loop within something else."""
_NEARLY: Final = 0.8
"""Of loops within each other the outermost that takes this share of what the largest takes."""
_BOUNDARY: Final = 0.05
"""A loop of one more repetition is the layers themselves, though it may hold so much less."""
_ALIKE: Final = 0.5
"""Each repetition has this share of the kinds of operations that any has."""
_MOSTLY: Final = 0.7
"""What takes this share of a step that updates parameters is a micro-batch: layers of the forward
pass take a third of a training step, those of the backward pass two thirds."""
_FAR: Final = 5.0
_DIFFERENT: Final = 0.1
"""A layer differs from the others by so many of their median deviations, and by this share."""
_MOST_STEPS: Final = 16
"""Steps of different operations of a process whose loops are searched one by one."""
_MOST_OPS: Final = 200_000
"""Operations of a step in which loops are searched."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer, or another span that each step has in its place, the median over steps.

    Attributes
    ----------
    name : str
        Label of the spans.
    number : int
        Place in the step, from 0.
    seconds : float
        GPU time launched inside (without a GPU: the host's time).
    ratio : float
        To the median of the layers of this name.
    differs : bool
        Whether that is far from 1, as the others differ.
    """

    name: str
    number: int
    seconds: float
    ratio: float
    differs: bool


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level of a run, as `analysis.json` names it.

    Attributes
    ----------
    level, name, source : str
        As of `Spans`; `name` is the label.
    parent : str or None
        Level of the spans that hold most of these.
    count : int
        Spans of the process that has most of them, warm-up and the last one included.
    per_parent : float or None
        Median number in each parent that has any.
    median_s : float
        Median duration on the host's clock: from the beginning to the end of a range, or of what
        launches the operations. Of spans that a CUDA graph launches at once, the GPU's time.
    gpu_share : float or None
        Share of all GPU work of the processes that have steps that is launched inside; None
        without a GPU.
    """

    level: Level
    name: str
    source: Source
    parent: Level | None
    count: int
    per_parent: float | None
    median_s: float
    gpu_share: float | None


def step_spans(trace: Trace, steps: Steps, found: Launched) -> Spans:
    """Return the steps of a report, or of a part, and the levels around and inside them.

    Parameters
    ----------
    trace : Trace
    steps : Steps
    found : Launched
    """
    tables = [_steps(steps), *_declared(trace, steps)]
    inside = {LEVELS[level] for table in tables[1:] for level in np.unique(table.level).tolist()}
    if len(found.op) and not inside & {"layer", "micro_batch"}:
        tables += _found(trace, steps, found, _MOST_STEPS)
    spans = _together(tables)
    work = WorkByTime.of(trace, [(trace, found)].copy)
    inside_ns = work.each(spans.process, spans.start_ns, spans.end_ns)
    gpu_ns = np.where(spans.gpu_ns > 0, spans.gpu_ns, inside_ns)
    none = np.full(len(spans), -1, np.int64)  # a part's ranges have other rows than the report's
    return _ordered(replace(spans, gpu_ns=gpu_ns, row=none))


def join_spans(parts: Sequence[Spans]) -> Spans:
    """Put the spans of some processes each together to those of all."""
    return parts[0] if len(parts) == 1 else _ordered(_together(parts))


def level_rows(spans: Sequence[Spans], work_ns: int) -> tuple[LevelRow, ...]:
    """Sum the levels of a run's reports up, the outermost first.

    Parameters
    ----------
    spans : sequence of Spans
        One per report.
    work_ns : int
        GPU time of all that processes with steps launched, in steps or not; 0 without a GPU.
    """
    rows: list[LevelRow] = []
    for level, name in _in_order(spans):
        chosen = [(one, _rows(one, level, name)) for one in spans]
        chosen = [(one, at) for one, at in chosen if len(at)]
        seconds = np.concatenate([one.end_ns[at] - one.start_ns[at] for one, at in chosen]) * 1e-9
        parents = [one.parent[at] for one, at in chosen]
        above = np.concatenate(
            [one.level[p[p >= 0]] for (one, _), p in zip(chosen, parents, strict=True)]
        )
        held = np.concatenate([np.unique(p[p >= 0], return_counts=True)[1] for p in parents])
        source = chosen[0][0].source[chosen[0][1][0]]
        gpu_ns = np.concatenate([one.gpu_ns[at] for one, at in chosen])
        if not seconds.any():
            seconds = gpu_ns * 1e-9
        rows.append(
            LevelRow(
                level=LEVELS[level],
                name=name,
                source=SOURCES[int(source)],
                parent=LEVELS[int(np.bincount(above).argmax())] if len(above) else None,
                count=max(int(np.bincount(one.process[at]).max()) for one, at in chosen),
                per_parent=float(np.median(held)) if len(held) else None,
                median_s=float(np.median(seconds)),
                gpu_share=min(float(gpu_ns.sum()) / work_ns, 1.0) if work_ns else None,
            )
        )
    return tuple(rows)


def layer_times(spans: Sequence[Spans]) -> tuple[LayerTime, ...]:
    """Time the layers of a run by their place in the step, forward and backward apart."""
    rows: list[LayerTime] = []
    layer = LEVELS.index("layer")
    for name in [name for level, name in _in_order(spans) if level == layer]:
        places, times = [], []
        for one in spans:
            at = _rows(one, layer, name)
            order = at[np.lexsort((one.start_ns[at], one.process[at]))]
            step = _ancestors(one, order, LEVELS.index("step"))
            begins = np.concatenate([[True], step[1:] != step[:-1]]) if len(order) else step > 0
            index = np.arange(len(order))
            places.append(index - np.maximum.accumulate(np.where(begins, index, 0)))
            times.append(one.gpu_ns[order])
        place = np.concatenate(places)
        spent = np.concatenate(times).astype(np.float64) * 1e-9
        medians = _medians(place, spent)
        usual = float(np.median(medians))
        spread = float(np.median(np.abs(np.array(medians) - usual)))
        rows += [
            LayerTime(
                name, i, seconds, seconds / max(usual, 1e-12),
                abs(seconds - usual) > max(_FAR * spread, _DIFFERENT * usual),
            )
            for i, seconds in enumerate(medians)
        ]  # fmt: skip
    return tuple(rows)


def _medians(place: Int64, spent: Floats) -> list[float]:
    """Median of what was spent at each place, of which there are all from 0 on."""
    ranked = spent[np.lexsort((spent, place))]
    counts = np.bincount(place)
    begin = np.cumsum(counts) - counts
    middle = (ranked[begin + (counts - 1) // 2] + ranked[begin + counts // 2]) / 2
    return [float(seconds) for seconds in middle]


def _in_order(spans: Sequence[Spans]) -> list[tuple[int, str]]:
    """Levels and labels of some reports, the outermost level first, then by their first span."""
    first: dict[tuple[int, str], int] = {}
    for one in spans:
        for level, label in np.unique(np.column_stack([one.level, one.label]), axis=0).tolist():
            begins = one.start_ns[(one.level == level) & (one.label == label)]
            first.setdefault((level, one.labels[label]), int(begins.min()))
    return sorted(first, key=lambda key: (key[0], first[key]))


def _ancestors(spans: Spans, rows: Int64, level: int) -> Int64:
    """Of some spans, the rows of the spans of an outer level that hold them, -1 for none."""
    at = rows.copy()
    for _ in LEVELS:
        deeper = (at >= 0) & (spans.level[at] > level)
        at = np.where(deeper, spans.parent[at], at)
    return at


def at_level(trace: Trace, steps: Steps, level: Level, parts: Parts | None = None) -> Steps:
    """Return the spans of a level as steps, of several labels those with most work.

    Parameters
    ----------
    trace : Trace
        With the ranges that say what the program did.
    steps : Steps
        Of that trace.
    level : str
    parts : callable, optional
        Makes the parts that have the operations and calls, where the trace holds none.

    Raises
    ------
    SchemaError
        If no span is of that level.
    """
    if parts is None:
        everything = [(trace, launched(trace))]
        parts = everything.copy
    declared = _declared(trace, steps)
    tables = [table for table in declared if LEVELS[table.level[0]] == level]
    if not tables and level in ("micro_batch", "layer"):
        for part, found in parts():
            there = np.unique(found.process)
            inside = _found(part, steps.of(there.astype(np.int64)), found, len(steps))
            tables += [table for table in inside if LEVELS[table.level[0]] == level]
    if not tables:
        known = dict.fromkeys(LEVELS[table.level[0]] for table in declared)
        raise SchemaError(
            f"{trace.source.name}: expected spans of level {level!r} around or inside the steps "
            f"{steps.label!r}; got {', '.join(known) or 'none'} among the ranges; --section levels "
            f"lists all, and --batch-range makes any ranges the unit"
        )
    spans = _together(tables)
    work = WorkByTime.of(trace, parts)
    gpu_ns = work.each(spans.process, spans.start_ns, spans.end_ns)
    at = np.zeros(len(spans), np.bool_)
    for p in np.unique(spans.process).tolist():  # loops without names have one in each process
        mine = spans.process == p
        own = int(np.argmax(np.bincount(spans.label[mine], np.maximum(gpu_ns[mine], 1))))
        at |= mine & (spans.label == own)
    most = int(np.argmax(np.bincount(spans.label[at])))
    if (spans.end_ns[at] <= spans.start_ns[at]).all():
        raise SchemaError(
            f"{trace.source.name}: expected spans of level {level!r} that are launched one after "
            f"the other; got {int(at.sum())} that CUDA graphs launch at once; --section levels "
            f"has their times"
        )
    made = Steps.numbered(
        spans.labels[most], "found" if spans.row[at][0] < 0 else "declared",
        float(gpu_ns[at].sum()) / max(work.total_ns, 1), spans.process[at], spans.thread[at],
        spans.start_ns[at], spans.end_ns[at], spans.row[at],
    )  # fmt: skip
    return replace(made, apart=True)


def _rows(spans: Spans, level: int, name: str) -> Int64:
    label = spans.labels.index(name) if name in spans.labels else -1
    return np.flatnonzero((spans.level == level) & (spans.label == label))


def _table(
    level: Level,
    source: Source,
    label: str,
    process: Int32,
    thread: Int32,
    start: Int64,
    end: Int64,
    row: Int64 | None = None,
    gpu_ns: Int64 | None = None,
) -> Spans:
    """Spans of one label, numbered in each process."""
    order = np.lexsort((start, process))
    process, count = process[order], len(order)
    number = np.arange(count) - np.searchsorted(process, process)
    return Spans(
        (label,),
        np.full(count, LEVELS.index(level), np.int8),
        np.full(count, SOURCES.index(source), np.int8),
        np.zeros(count, np.int32),
        np.full(count, -1, np.int64),
        number.astype(np.int32), process, thread[order], start[order], end[order],
        np.full(count, -1, np.int64) if row is None else row[order],
        np.zeros(count, np.int64) if gpu_ns is None else gpu_ns[order],
    )  # fmt: skip


def _steps(steps: Steps) -> Spans:
    """The steps themselves, without what was launched in them."""
    source: Source = "asked" if steps.found_by == "asked" else "declared"
    return _table(
        "step", source if steps.declared else "found", steps.label,
        steps.process, steps.thread, steps.start_ns, steps.end_ns, steps.row,
    )  # fmt: skip


def _declared(trace: Trace, steps: Steps) -> list[Spans]:
    """Ranges whose names say that they are around steps, or inside them."""
    ranges, tables = trace.ranges, []
    groups: dict[tuple[str, str], list[int]] = {}
    for code, text in enumerate(trace.range_labels):
        said = said_by(text)
        ours = text != steps.label and trace.range_domains[code] != MPI_DOMAIN
        if ours and said is not None and said.level in (*_AROUND, *_INSIDE):
            groups.setdefault((said.level, pattern_of(text)), []).append(code)
    ends = closed_ends(ranges)
    for (level, label), codes in groups.items():
        rows = np.flatnonzero(np.isin(ranges.name, codes) & ~ranges.other_thread)
        process = trace.thread_process[ranges.thread[rows]]
        if level in _INSIDE:
            middle = (ranges.start_ns[rows] + ends[rows]) // 2  # begins before its first launch
            rows = rows[steps.holding(process, middle) >= 0]
        else:
            rows = rows[_holds(steps, process, ranges.start_ns[rows], ends[rows])]
        if len(rows):
            thread = ranges.thread[rows]
            at: Any = level
            tables.append(
                _table(
                    at, "declared", label, trace.thread_process[thread], thread,
                    ranges.start_ns[rows], ends[rows], rows,
                )
            )  # fmt: skip
    return tables


def _holds(steps: Steps, process: Int32, start: Int64, end: Int64) -> Any:
    """Return whether intervals hold the beginning of a step of their process."""
    held = np.zeros(len(start), np.bool_)
    for p in np.unique(process):
        begins = np.sort(steps.start_ns[steps.process == p])
        mine = process == p
        held[mine] = np.searchsorted(begins, end[mine]) > np.searchsorted(begins, start[mine])
    return held


def _found(trace: Trace, steps: Steps, found: Launched, most: int) -> list[Spans]:
    """Loops inside steps: micro-batches, or layers forward and backward, of each process."""
    made: dict[tuple[Level, str], list[Any]] = {}
    for p in np.unique(steps.process).tolist():
        sequence = operations_of(trace, found, p)
        if len(sequence.ops) == 0:
            continue
        mine = np.flatnonzero(steps.process == p)
        spent = np.maximum(sequence.kernel_end_ns - sequence.kernel_start_ns, 0)
        until = np.concatenate([[0], np.cumsum(np.where(spent > 0, spent, sequence.ops.spent_ns))])
        begin = np.searchsorted(sequence.at_ns[:-1], steps.start_ns[mine], side="left")
        end = np.searchsorted(sequence.at_ns[:-1], steps.end_ns[mine], side="right")
        searched: dict[bytes, list[tuple[Level, str, Loop]]] = {}
        for step, a, b in zip(mine.tolist(), begin.tolist(), end.tolist(), strict=True):
            codes = sequence.ops.codes[a:b]
            key = codes.tobytes()
            if key not in searched:
                if len(searched) >= most or b - a > _MOST_OPS:
                    continue
                searched[key] = inner_loops(sequence.ops.slice(a, b))
            for level, label, loop in searched[key]:
                start_ns = sequence.at_ns[a + loop.first]
                end_ns = np.maximum(sequence.at_ns[a + loop.after] - 1, start_ns)
                thread = np.full(len(loop), steps.thread[step], np.int32)
                process = np.full(len(loop), p, np.int32)
                gpu_ns = until[a + loop.after] - until[a + loop.first]
                row = np.full(len(loop), -1, np.int64)
                columns = process, thread, start_ns, end_ns, row, gpu_ns
                made.setdefault((level, label), []).append(columns)
    return [
        _table(level, "found", label, *(np.concatenate(c) for c in zip(*columns, strict=True)))
        for (level, label), columns in made.items()
    ]


def inner_loops(ops: Operations) -> list[tuple[Level, str, Loop]]:
    """Find the loops of one step that are micro-batches or layers, with what to call them."""
    total = float(ops.spent_ns.sum())
    until = np.concatenate([[0], np.cumsum(ops.spent_ns)])
    loops = [
        (loop, repeated_ns(loop, until) / max(total, 1.0))
        for loop in find_loops(ops.codes)
        if len(loop) >= _LEAST_LAYERS
    ]
    loops = [
        (loop, share)
        for loop, share in loops
        if share >= _LEAST_SHARE and alike(ops, loop) >= _ALIKE
    ]
    if not loops:
        return []
    largest = max(share for _, share in loops)
    outermost, share = min(
        ((loop, share) for loop, share in loops if share >= _NEARLY * largest),
        key=lambda one: (len(one[0]), -one[1]),
    )
    more = [
        (loop, held)
        for loop, held in loops
        if len(loop) == len(outermost) + 1 and held >= share - _BOUNDARY
    ]
    if more:  # n layers have n - 1 boundaries, which repeat as well
        outermost, share = max(more, key=lambda one: one[1])
    if ops.updates.any() and share >= _MOSTLY:
        within = ops.updates[outermost.first[0] : outermost.after[-1]].any()
        return [] if within else [("micro_batch", "micro-batch", outermost)]
    others = [
        loop
        for loop, _ in loops
        if abs(len(loop) - len(outermost)) <= 1
        and (loop.first[0] >= outermost.after[-1] or loop.after[-1] <= outermost.first[0])
    ]
    if not others:
        return [("layer", "layer", outermost)]
    other = max(others, key=lambda loop: repeated_ns(loop, until))
    forward, backward = sorted((outermost, other), key=lambda loop: int(loop.first[0]))
    return [("layer", "layer forward", forward), ("layer", "layer backward", backward)]


def _together(tables: Sequence[Spans]) -> Spans:
    """Join tables, each with labels and rows of its own."""
    labels: dict[str, int] = {}
    codes = [
        np.array([labels.setdefault(text, len(labels)) for text in table.labels], np.int32)
        for table in tables
    ]
    before = np.cumsum([0, *(len(table) for table in tables)]).tolist()
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS
    }
    label = [code[t.label] for code, t in zip(codes, tables, strict=True) if len(t)]
    parent = [
        np.where(t.parent < 0, -1, t.parent + n) for t, n in zip(tables, before, strict=False)
    ]
    return Spans(
        tuple(labels), label=np.concatenate(label), parent=np.concatenate(parent), **columns
    )


_COLUMNS: Final = (
    "level", "source", "instance", "process", "thread", "start_ns", "end_ns", "row", "gpu_ns",
)  # fmt: skip


def _ordered(spans: Spans) -> Spans:
    """Return the spans by level, label, process and start, with their parents."""
    names = sorted(spans.labels)
    label = np.array([names.index(text) for text in spans.labels], np.int32)[spans.label]
    order = np.lexsort((spans.end_ns, spans.start_ns, spans.process, label, spans.level))
    columns = {name: getattr(spans, name)[order] for name in _COLUMNS}
    placed = replace(spans, labels=tuple(names), label=label[order], **columns)
    return replace(placed, parent=_parents(placed))


def _parents(spans: Spans) -> Int64:
    """Row of the shortest span of an outer level, no shorter, that holds the middle of each."""
    middle, own = (spans.start_ns + spans.end_ns) // 2, spans.end_ns - spans.start_ns
    parent = np.full(len(spans), -1, np.int64)
    length = np.full(len(spans), np.iinfo(np.int64).max)
    for p in np.unique(spans.process).tolist():
        mine = np.flatnonzero(spans.process == p)
        levels = np.unique(spans.level[mine]).tolist()
        for outer in levels:
            label = spans.label[mine]
            for code in np.unique(label[spans.level[mine] == outer]).tolist():
                held = mine[(spans.level[mine] == outer) & (label == code)]
                held = held[np.argsort(spans.start_ns[held], kind="stable")]
                inner = mine[spans.level[mine] > outer]
                at = np.searchsorted(spans.start_ns[held], middle[inner], "right") - 1
                row = held[np.maximum(at, 0)]
                took = spans.end_ns[row] - spans.start_ns[row]
                better = (at >= 0) & (middle[inner] <= spans.end_ns[row])
                better &= (took < length[inner]) & (took >= own[inner])
                parent[inner[better]], length[inner[better]] = row[better], took[better]
    return parent
