"""Events of a run as tables: steps, spans, operations, exchanges, and gaps in which GPUs idle.

Every row can be found again in its report: `table`, `start_ns` and `correlation` are those of the
file. `events.toml` says of every column what it holds, and its unit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.arrays import Bool, Int64
from perfmodel.base.errors import ModelError
from perfmodel.readers.trace import (
    COPY_KINDS,
    KERNEL,
    MEMCPY,
    NULL,
    OP_KINDS,
    TORCH_PROFILER,
    GpuOps,
    Trace,
)
from perfmodel.timing.exchanges import COLLECTIVE, SEND
from perfmodel.timing.host_timeline import CAUSES
from perfmodel.timing.kernels import categorize
from perfmodel.timing.launched import launched
from perfmodel.timing.nesting import innermost, nest
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import exchanges_of, kernels_of, lane_ranks
from perfmodel.timing.run_steps import RunSteps
from perfmodel.timing.spans import LEVELS, SOURCES
from perfmodel.timing.step_report import StepReport

TABLES: Final = ("steps", "spans", "operations", "exchanges", "gaps")
_FILE_TABLES: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
"""Tables of an export of Nsight Systems in the order of `OP_KINDS`."""
_TORCH_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset", None)
"""The key `cat` of torch.profiler's events in the same order."""
_FOUND: Final = {"level": "range", "source": "declared", "parent": NULL, "instance": NULL}
"""Columns of a range that no level declares."""

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class EventTable:
    """Events, a row each.

    Attributes
    ----------
    name : str
        Of `TABLES`.
    columns : mapping of str to array, shape (n,)
        As `events.toml` lists them. `NULL` is missing in int64 columns, NaN in float64 ones, None
        in those of texts.
    complete : bool
        Whether all events of the report are there, not only those that an analysis looks at.
    """

    name: str
    columns: Mapping[str, Column]
    complete: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def taken(self, rows: Int64 | Bool | slice) -> EventTable:
        """Return some of the rows."""
        return replace(self, columns={name: c[rows] for name, c in self.columns.items()})

    def where(self, wanted: Mapping[str, Any]) -> EventTable:
        """Return the rows whose columns have these values, or one of a list of values.

        A text that no row has is a pattern, in which `*` is any letters: `step *`.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        kept = np.ones(len(self), np.bool_)
        for name, value in wanted.items():
            column = self.column(name)
            several = value if isinstance(value, (list, tuple)) else [value]
            matches = [_matches(column, one) for one in several]
            kept &= np.any(matches, axis=0) if matches else False
        return self.taken(kept)

    def sorted_by(self, name: str, *, descending: bool = True) -> EventTable:
        """Return the rows by a column, missing values last.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        column = self.column(name)
        if column.dtype == object:
            texts = np.array(["" if value is None else value for value in column], str)
            column = np.unique(texts, return_inverse=True)[1].astype(np.float64)
        missing = column == NULL if column.dtype == np.int64 else np.isnan(column)
        key = -column.astype(np.float64) if descending else column.astype(np.float64)
        return self.taken(np.argsort(np.where(missing, np.inf, key), kind="stable"))

    def column(self, name: str) -> Column:
        """Return a column by its name.

        Raises
        ------
        ModelError
            If there is no such column.
        """
        if name not in self.columns:
            raise ModelError(
                f"expected a column of {self.name}: {', '.join(self.columns)}; got {name!r}; take "
                f"one of these"
            )
        return self.columns[name]

    def records(self, first: int = 0, count: int | None = None) -> list[dict[str, Any]]:
        """Return rows as plain data; what is missing is None."""
        some = self.taken(slice(first, None if count is None else first + count))
        plain = {name: _plain(column) for name, column in some.columns.items()}
        return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def _matches(column: Column, value: Any) -> Bool:
    """Return which rows have a value, or match it as a pattern."""
    null = NULL if column.dtype == np.int64 else None
    equal: Bool = column == (null if value is None else value)
    if column.dtype != object or not isinstance(value, str) or "*" not in value or equal.any():
        return equal
    parts = value.split("*")
    fits = {one for one in set(column) if one is not None and _fits(one, parts)}
    return np.fromiter((one in fits for one in column), np.bool_, len(column))


def _fits(text: str, parts: Sequence[str]) -> bool:
    """Return whether a text begins and ends with the outer parts, and has the others between.

    Takes time linear in the text, whatever the parts: a client of `perfmodel mcp` writes them.
    """
    first, *inner, last = parts
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in inner:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@cache
def documented() -> dict[str, dict[str, str]]:
    """Return the descriptions of the columns of every table, by table and column."""
    text = files("perfmodel.analysis").joinpath("events.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def events(analysis: RunAnalysis, name: str) -> EventTable:
    """Return one table of a run.

    Parameters
    ----------
    analysis : RunAnalysis
        Of whole reports, for all rows of `operations` and `spans`.
    name : str
        Of `TABLES`.

    Raises
    ------
    ModelError
        If there is no such table.
    """
    makers = {
        "steps": _steps, "spans": _spans, "operations": _operations, "exchanges": _exchanges,
        "gaps": _gaps,
    }  # fmt: skip
    if name not in makers:
        raise ModelError(f"expected a table: {', '.join(TABLES)}; got {name!r}; take one of these")
    columns = makers[name](analysis)
    names = [*documented()[name]]
    complete = name in ("steps", "exchanges") or all(t.whole for t in analysis.traces)
    return EventTable(name, {column: columns[column] for column in names}, complete)


def _steps(analysis: RunAnalysis) -> dict[str, Column]:
    run, window = analysis.measured, _window(analysis)
    parts = [
        _lane_steps(report, number, lane, rank, window, analysis.run_steps)
        for number, (report, ranks) in enumerate(_numbered(run))
        for lane, rank in enumerate(ranks)
    ]
    if parts:
        return _joined(parts)
    times = run.range_times
    rows = np.flatnonzero(times.labelled(run.batch_label) & (times.batch >= 0))
    rows = rows[np.lexsort((times.batch[rows], times.rank[rows]))]
    step = times.batch[rows].astype(np.int64)
    timed = times.host_ns[rows] != NULL
    missing = np.full(len(rows), np.nan)
    return {
        "report": _filled(rows, NULL), "rank": times.rank[rows].astype(np.int64),
        "gpu": _filled(rows, NULL), "step": step, "counted": _inside(step, window),
        "start_ns": times.start_ns[rows],
        "end_ns": np.where(timed, times.start_ns[rows] + times.host_ns[rows], NULL),
        "step_s": _seconds(times.host_ns[rows]), "busy_s": _seconds(times.busy_ns[rows]),
        **dict.fromkeys(
            ("period_s", "compute_s", "communication_s", "exposed_s", "copy_s", "idle_s"), missing
        ),
    }  # fmt: skip


def _lane_steps(
    report: StepReport, number: int, lane: int, rank: int, window: slice, own: RunSteps
) -> dict[str, Column]:
    """Columns of the steps of one GPU of one process."""
    times, steps = report.times, report.steps
    mine = np.flatnonzero(steps.process == times.process[lane])
    mine = mine[steps.number[mine] < times.step_ns.shape[1]]
    step = steps.number[mine].astype(np.int64)

    def taken(ns: Int64) -> Column:
        return np.where(ns[lane, step] < 0, np.nan, ns[lane, step] * 1e-9)

    gpu, step_s = int(times.device[lane]), taken(times.step_ns)
    if own.clock != "gpu":
        row = int(np.flatnonzero(own.ranks == rank)[0])
        known = step < own.own_ns.shape[1]
        step_s = np.where(known, own.seconds()[row, np.where(known, step, 0)], np.nan)
    return {
        "report": _filled(mine, number), "rank": _filled(mine, rank),
        "gpu": _filled(mine, gpu if gpu >= 0 else NULL), "step": step,
        "counted": _inside(step, window), "start_ns": steps.start_ns[mine],
        "end_ns": steps.end_ns[mine], "step_s": step_s, "period_s": taken(times.step_ns),
        "busy_s": taken(times.busy_ns), "compute_s": taken(times.compute_ns),
        "communication_s": taken(times.communication_ns), "exposed_s": taken(times.exposed_ns),
        "copy_s": taken(times.copy_ns), "idle_s": taken(times.idle_ns),
    }  # fmt: skip


def _spans(analysis: RunAnalysis) -> dict[str, Column]:
    run = analysis.measured
    parts, first = [], 0
    for number, (trace, _) in enumerate(run.parts):
        ranges = trace.ranges
        held = np.zeros(len(ranges), np.bool_)
        ranks, rows = run.rank_of[number], 0
        if len(run.steps) == len(run.parts):
            spans = run.steps[number].spans
            rows = len(spans)
            own = _place_in(
                (spans.thread, spans.start_ns, spans.end_ns),
                (ranges.thread, ranges.start_ns, ranges.end_ns),
            )
            held[own[own >= 0]] = True
            named = np.where(own < 0, -1, ranges.name[own]) if len(ranges) else own
            labels = _texts(trace.range_labels, named)
            labels = np.where(named < 0, _texts(spans.labels, spans.label), labels)
            parts.append({
                "span": np.arange(first, first + rows), "report": _filled(spans.level, number),
                "rank": _of(ranks, spans.process), "thread": _code(spans.thread),
                "level": _texts(LEVELS, spans.level), "label": labels,
                "source": _texts(SOURCES, spans.source),
                "parent": np.where(spans.parent < 0, NULL, spans.parent + first),
                "instance": spans.instance.astype(np.int64), "start_ns": spans.start_ns,
                "end_ns": spans.end_ns, "gpu_s": spans.gpu_ns * 1e-9,
            })  # fmt: skip
        left = np.flatnonzero(~held)
        parts.append({
            "span": np.arange(first + rows, first + rows + len(left)),
            "report": _filled(left, number),
            "rank": _of(ranks, trace.thread_process[ranges.thread[left]]),
            "thread": _code(ranges.thread[left]),
            "label": _texts(trace.range_labels, ranges.name[left]),
            **{name: _filled(left, value) for name, value in _FOUND.items()},
            "start_ns": ranges.start_ns[left], "end_ns": ranges.end_ns[left],
            "gpu_s": np.full(len(left), np.nan),
        })  # fmt: skip
        first += rows + len(left)
    found = _joined(parts)
    timed = found["end_ns"] != NULL
    step = _step_of(_steps(analysis), found)
    host_s = np.where(timed, (found["end_ns"] - found["start_ns"]) * 1e-9, np.nan)
    return {**found, "step": step, "counted": _inside(step, _window(analysis)), "host_s": host_s}


def _place_in(rows: Sequence[Column], others: Sequence[Column]) -> Int64:
    """Return where each row is among others, by all of their columns, -1 where it is not."""
    both = np.concatenate([np.stack(one, axis=1, dtype=np.int64) for one in (others, rows)])
    kinds, kind = np.unique(both, axis=0, return_inverse=True)
    place = np.full(len(kinds), -1)
    kind, count = kind.ravel(), len(others[0])
    place[kind[:count][::-1]] = np.arange(count)[::-1]
    return place[kind[count:]]


def _step_of(steps: Mapping[str, Column], rows: Mapping[str, Column]) -> Int64:
    """Return the step in which each row begins on the host of its rank, `NULL` outside steps."""
    found = _filled(rows["rank"], NULL)
    for rank in np.unique(steps["rank"]):
        mine = np.flatnonzero(steps["rank"] == rank)
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        asked = np.flatnonzero(rows["rank"] == rank)
        at = rows["start_ns"][asked]
        held = np.searchsorted(steps["start_ns"][mine], at, side="right") - 1
        inside = (held >= 0) & (at < steps["end_ns"][mine[held]])
        found[asked] = np.where(inside, steps["step"][mine[held]], NULL)
    return found


def _operations(analysis: RunAnalysis) -> dict[str, Column]:
    run = analysis.measured
    found = _joined([_report_operations(run, number) for number in range(len(run.parts))])
    return {**found, "counted": _inside(found["step"], _window(analysis))}


def _report_operations(run: Run, number: int) -> dict[str, Column]:
    trace, found = run.traces[number], launched(run.traces[number])
    ops, every = trace.ops, np.arange(len(trace.ops))
    at = found.row_of(every)
    known = at >= 0

    def of_launch(values: Column) -> Column:
        return np.where(known, values[at], NULL) if len(found.op) else _filled(every, NULL)

    category, names = categorize(ops, trace.strings)
    step = _filled(every, NULL)
    if len(run.steps) == len(run.parts):
        steps = run.steps[number].steps
        held = steps.holding(found.process, found.at_ns)
        step[found.op] = np.where(held >= 0, steps.number[held], NULL) if len(steps) else NULL
    nesting = nest(trace.ranges, len(trace.threads))
    inner = innermost(nesting, found.thread, found.at_ns, found.at_ns)
    within = np.full(len(every), -1)
    within[found.op] = np.where(inner < 0, -1, trace.ranges.name[nesting.row[inner]])
    kernel = ops.kind == KERNEL
    copy = [COPY_KINDS.get(k) for k in range(max(COPY_KINDS) + 1)]
    copy_kind = np.where(ops.kind == MEMCPY, ops.copy_kind, -1)
    tables = _TORCH_CATEGORIES if trace.recorder == TORCH_PROFILER else _FILE_TABLES
    return {
        "report": _filled(every, number), "rank": _of(run.rank_of[number], ops.process),
        "gpu": ops.device.astype(np.int64), "stream": ops.stream.astype(np.int64), "step": step,
        "kind": _texts(OP_KINDS, ops.kind), "category": _texts(names, category),
        "name": _texts(trace.strings, np.where(kernel, ops.name, -1)),
        "copy": _texts(copy, copy_kind), "bytes": ops.bytes, "start_ns": ops.start_ns,
        "end_ns": ops.end_ns, "seconds": (ops.end_ns - ops.start_ns) * 1e-9,
        "range": _texts([name.partition(", ")[0] for name in trace.range_names], within),
        "launch_ns": of_launch(found.at_ns), "launch_thread": of_launch(found.thread),
        "correlation": ops.correlation, "table": _texts(tables, ops.kind),
    }  # fmt: skip


def _exchanges(analysis: RunAnalysis) -> dict[str, Column]:
    run = analysis.measured
    found = exchanges_of(run)
    way = np.where(found.way == COLLECTIVE, 0, np.where(found.way == SEND, 1, 2))
    columns = ("report", "rank", "communicator", "bytes", "peer", "tag")
    return {
        "name": _texts(found.names, found.name),
        "way": _texts(("collective", "send", "receive"), way),
        **{name: getattr(found, name) for name in columns}, "step": _code(found.step),
        "counted": _inside(found.step, _window(analysis)),
        "instance": _code(found.instance), "start_ns": found.post_ns - found.shift_ns,
        "end_ns": found.end_ns - found.shift_ns, "seconds": found.spent_ns * 1e-9,
        "waiting_s": _seconds(found.wait_ns), "transfer_s": _seconds(found.transfer_ns),
        "cause_rank": _code(found.cause_rank), "shift_ns": found.shift_ns,
        "clock_error_ns": found.clock_error_ns, "exposed_s": _exposed(run, len(found)),
    }  # fmt: skip


def _exposed(run: Run, count: int) -> Column:
    """Part of every kernel that no computing kernel covers; those of MPI have none."""
    exposed = np.full(count, np.nan)
    if run.steps and len(run.steps) == len(run.parts):
        ns = kernels_of(run.steps).exposed_ns
        exposed[: len(ns)] = ns * 1e-9
    return exposed


def _gaps(analysis: RunAnalysis) -> dict[str, Column]:
    window = _window(analysis)
    parts = []
    for number, (report, ranks) in enumerate(_numbered(analysis.measured)):
        gaps, trace = report.gaps, analysis.traces[number]
        step = gaps.step.astype(np.int64)
        rank = np.array([*ranks, NULL], np.int64)[gaps.lane]
        ended = np.where((gaps.op >= 0) & (gaps.op < len(trace.ops)), gaps.op, -1)
        parts.append({
            "report": _filled(step, number), "rank": rank, "step": step,
            "counted": _inside(step, window), "cause": _texts(CAUSES, gaps.cause),
            "start_ns": gaps.start_ns, "seconds": gaps.idle_ns * 1e-9,
            "call": _texts(gaps.names, gaps.call), "range": _texts(gaps.names, gaps.range),
            "line": _texts(gaps.names, gaps.line),
            "ended_by": _ending(trace, ended), "ended_by_correlation": _ending_id(trace.ops, ended),
        })  # fmt: skip
    return _joined(parts) if parts else dict.fromkeys(documented()["gaps"], np.empty(0, np.int64))


def _ending(trace: Trace, op: Column) -> Column:
    """Names of the operations that end gaps; the kind of those without a name."""
    if not trace.whole or not len(trace.ops):
        return _texts((), np.full(len(op), -1))
    named = _texts(trace.strings, np.where(op >= 0, trace.ops.name[op], -1))
    kinds = _texts(OP_KINDS, np.where(op >= 0, trace.ops.kind[op], -1))
    return np.where(named == None, kinds, named)  # noqa: E711 (of every element)


def _ending_id(ops: GpuOps, op: Column) -> Column:
    return np.where(op >= 0, ops.correlation[op], NULL) if len(ops) else _filled(op, NULL)


def _numbered(run: Run) -> list[tuple[StepReport, Sequence[int]]]:
    """Return the reports with steps, and the ranks of their lanes."""
    return [*zip(run.steps, lane_ranks(run.steps), strict=True)] if run.steps else []


def _window(analysis: RunAnalysis) -> slice:
    return analysis.run_steps.counted


def _inside(step: Int64, window: slice) -> Column:
    inside: Column = (step >= window.start) & (step < window.stop)
    return inside


def _filled(like: Column, value: object) -> Column:
    """Return a column of one value, as long as another one."""
    return np.full(len(like), value, object if isinstance(value, str) else np.int64)


def _code(codes: Column) -> Column:
    """Return codes as int64, -1 as missing."""
    return np.where(codes < 0, NULL, codes.astype(np.int64))


def _seconds(ns: Int64) -> Column:
    return np.where(ns == NULL, np.nan, ns * 1e-9)


def _texts(names: Sequence[str | None], code: Column) -> Column:
    """Return the texts of codes, None for -1."""
    return np.array([*names, None], object)[np.where(code < 0, len(names), code)]


def _of(ranks: Mapping[int, int], process: Column) -> Column:
    """Return the ranks of processes."""
    size = max([int(process.max(initial=-1)), *ranks]) + 2
    table = np.full(size, NULL)
    for number, rank in ranks.items():
        table[number] = rank
    found: Column = table[process]
    return found


def _joined(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _plain(column: Column) -> list[Any]:
    """Return Python's values of a column, None for what is missing."""
    values: list[Any] = column.tolist()
    if column.dtype == np.int64:
        return [None if value == NULL else value for value in values]
    if column.dtype == np.float64:
        return [None if value != value else value for value in values]
    return values
