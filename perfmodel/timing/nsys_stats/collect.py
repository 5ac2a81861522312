"""The summary reports of `nsys stats`, equal to Nsight Systems 2024.2.3 to the last digit.

One pass over a report of any size gathers what its summaries are made of (`collect`); a report in
memory is a stream of one chunk a kind of event (`compute`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64, distinct_positions, release_freed
from perfmodel.base.errors import PerfmodelError, SchemaError
from perfmodel.base.parallel import Engine, over_reports
from perfmodel.base.table import Table
from perfmodel.readers import opened
from perfmodel.readers.checks import unchanged
from perfmodel.readers.codes import sums
from perfmodel.readers.nsys import EVENT_TABLES, OP_TABLES, EventStream, Progress, read_sqlite
from perfmodel.readers.pages import Unsupported
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import (
    COPY_KINDS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI_SOURCES,
    NO_NAME,
    NULL,
    PUSH_POP,
    STYLES,
    TORCH_PROFILER,
    ApiCalls,
    GpuOps,
    Trace,
    rows,
)
from perfmodel.timing.nesting import Nesting, nest
from perfmodel.timing.nsys_stats.tables import Counted, Key, Numbered, Texts, joined, to_table
from perfmodel.timing.projection import Irregular, Projection, Projector, project

Found = Mapping[str, Counted | PerfmodelError]
"""The input of every summary, or the reason that there is none."""

MEMORY_LABELS: Final = (*(f"[CUDA memcpy {k}]" for k in COPY_KINDS.values()), "[CUDA memset]")
"""Copies by direction and memsets, as Nsight Systems names them."""

_PROJECTED: Final = "nvtx_gpu_proj_sum"
_RANGES: Final = "nvtx_pushpop_sum"
_KERNELS: Final = "cuda_gpu_kern_sum"
_TIMES: Final = "cuda_gpu_mem_time_sum"
_SIZES: Final = "cuda_gpu_mem_size_sum"
_CALLS: Final = "cuda_api_sum"
_MPI: Final = "mpi_event_sum"


class Needs(NamedTuple):
    """The input of a summary.

    Attributes
    ----------
    parts : frozenset of str
        Of a trace: see `perfmodel.readers.nsys.read_sqlite`.
    events : str
        In words.
    traced : str
        What `nsys profile --trace` must name to record them.
    """

    parts: frozenset[str]
    events: str
    traced: str


REPORTS: Final = {
    _PROJECTED: Needs(frozenset({"nvtx", "ops", "api"}), "NVTX ranges", "nvtx"),
    _RANGES: Needs(frozenset({"nvtx"}), "NVTX push/pop ranges", "nvtx"),
    _KERNELS: Needs(frozenset({"ops"}), "CUDA kernels", "cuda"),
    _TIMES: Needs(frozenset({"ops", "op_details"}), "CUDA copies or memsets", "cuda"),
    _SIZES: Needs(frozenset({"ops", "op_details"}), "CUDA copies or memsets", "cuda"),
    _CALLS: Needs(frozenset({"api", "api_names"}), "CUDA API calls", "cuda"),
    _MPI: Needs(frozenset({"mpi", "nvtx"}), "MPI calls", "mpi"),
}
"""Every summary report."""


class AbsentError(SchemaError):
    """A report holds no events of a summary: other reports' are all there are."""


def compute(name: str, trace: Trace) -> Table:
    """Compute one summary report of a trace.

    Raises
    ------
    SchemaError
        If there is no such summary, or the trace lacks its events.
    """
    if name not in REPORTS:
        raise SchemaError(f"expected one of {', '.join(REPORTS)}; got {name!r}")
    collector = _Collector([name], trace)
    collector.add(_InMemory(trace), regular=False)
    found = collector.found(lambda: trace)[name]
    if isinstance(found, PerfmodelError):
        raise found
    return to_table(name, found)


def collect(
    path: Path,
    names: Sequence[str],
    progress: Progress = lambda _: None,
    *,
    source: Path | None = None,
) -> Found:
    """Gather what summary reports of one export are made of.

    Parameters
    ----------
    path : Path
    names : sequence of str
        Of `REPORTS`.
    progress : callable, optional
        Called with the bytes of the file that were read since the call before.
    source : Path, optional
        What errors call the report.

    Raises
    ------
    ReportError, SchemaError
        If the file cannot be read; what it merely lacks is returned in place of a summary.
    """
    source = source or path
    with opened(path) as file, unchanged(file, source):
        for fast in (True, False):
            with suppress(Unsupported):  # found out late: SQLite reads it all again
                found = _collected(file, source, names, progress, fast=fast)
                release_freed()
                return found
    raise AssertionError("SQLite reads every table")


def _collected(
    file: Path, source: Path, names: Sequence[str], progress: Progress, *, fast: bool
) -> Found:
    parts: frozenset[str] = frozenset().union(*(REPORTS[name].parts for name in names))
    read = partial(read_sqlite, file, fast=fast, source=source)
    trace = read(parts=parts & {"nvtx", "mpi"})
    release_freed()  # of a million names half of what reading them took
    collector = _Collector(names, trace)
    release_freed()
    if {"api", "ops"} & parts:
        with Database(file, fast=fast, shown=source) as db:
            collector.add(EventStream(db, progress, trace.strings), regular=True)
        release_freed()
    return collector.found(partial(read, parts=REPORTS[_PROJECTED].parts))


def merged(names: Sequence[str], found: Sequence[Found]) -> Found:
    """Put the same summaries of several reports together, in the reports' order.

    What one report lacks others may have; what all lack, or one cannot give, is an error.
    """
    result: dict[str, Counted | PerfmodelError] = {}
    for name in names:
        parts = [f[name] for f in found]
        have = [p for p in parts if isinstance(p, Counted)]
        errors = [p for p in parts if isinstance(p, PerfmodelError)]
        refused = [e for e in errors if not isinstance(e, AbsentError)]
        result[name] = joined(name, have) if have and not refused else [*errors, *refused][-1]
    return result


def summarize_reports(
    paths: Sequence[Path],
    names: Sequence[str],
    engine: Engine | None = None,
    progress: Callable[[Path], object] = lambda _: None,
) -> Found:
    """Gather what summary reports of all exports together are made of.

    Raises
    ------
    PerfmodelError
        As `collect` and `perfmodel.base.parallel.over_reports`.
    """
    parts = over_reports(partial(_summarize, names=names), paths, engine or Engine(1), progress)
    return merged(names, parts)


def _summarize(path: Path, source: Path, *, names: Sequence[str]) -> Found:
    return collect(path, names, source=source)


class _InMemory:
    """The events of a trace, as `perfmodel.readers.nsys.EventStream` yields them."""

    def __init__(self, trace: Trace) -> None:
        self.strings, self._trace = trace.strings, trace

    def calls(self, *, names: bool, joins: bool) -> Iterator[ApiCalls]:
        yield self._trace.api

    def ops(self, *, details: bool, joins: bool) -> Iterator[tuple[int, GpuOps]]:
        ops = self._trace.ops
        yield from ((kind, rows(ops, ops.kind == kind)) for kind, _ in OP_TABLES)


class _Collector:
    """Gathers the summaries of one report: of `trace` its ranges and MPI calls."""

    def __init__(self, names: Sequence[str], trace: Trace) -> None:
        self._names, self._trace = names, trace
        self._found: dict[str, Counted | PerfmodelError] = {}
        self._counters: dict[str, Counted] = {}
        self._nesting: Nesting | None = None
        self._projector: Projector | None = None
        self._calls = self._ops = 0
        self._range_names = _Names(trace)
        if _RANGES in names:
            self._try(_RANGES, partial(_count_ranges, trace, self._range_names))
        if _MPI in names:
            self._try(_MPI, partial(_count_mpi, trace))
        if _PROJECTED in names and len(trace.ranges):
            self._nesting = nest(trace.ranges, len(trace.threads))

    def _try(self, name: str, count: Callable[[], Counted]) -> None:
        try:
            found = count()
            if not found.count.any():
                raise _absent(name, self._trace)
            self._found[name] = found
        except PerfmodelError as error:
            self._found[name] = error

    def add(self, events: EventStream | _InMemory, *, regular: bool) -> None:
        """Add API calls and GPU operations; project ranges as they come, if all is `regular`."""
        labels = [(label,) for label in MEMORY_LABELS]
        for name, keys in (
            (_CALLS, Numbered), (_KERNELS, Texts.named), (_TIMES, None), (_SIZES, None)
        ):  # fmt: skip
            if name in self._names:
                self._counters[name] = Counted(keys(events.strings) if keys else labels)
        if regular and self._nesting is not None:
            with suppress(Irregular):
                self._projector = Projector(self._nesting, self._trace.threads)
        projected = _PROJECTED in self._names
        if projected or _CALLS in self._names:
            joins = projected and regular
            for calls in events.calls(names=_CALLS in self._names, joins=joins):
                self._add_calls(calls)
        details = bool({_TIMES, _SIZES} & {*self._names})
        if projected or details or _KERNELS in self._names:
            joins = self._projector is not None
            for kind, ops in events.ops(details=details, joins=joins):
                self._add_ops(kind, ops, details)

    def _add_calls(self, calls: ApiCalls) -> None:
        self._calls += len(calls.start_ns)
        self._count(_CALLS, calls.name + 1, calls.end_ns - calls.start_ns)
        if self._projector is not None:
            try:
                tid = calls.thread.astype(np.int64, copy=False)  # serialized in a stream
                self._projector.add_calls(calls.start_ns, calls.end_ns, tid, calls.correlation)
            except Irregular:
                self._projector = None

    def _add_ops(self, kind: int, ops: GpuOps, details: bool) -> None:
        spent = ops.end_ns - ops.start_ns
        if kind == KERNEL:
            self._count(_KERNELS, ops.name + 1, spent)
        if details:
            chosen, labels = _memory_labels(kind, ops.copy_kind)
            self._count(_TIMES, labels, spent[chosen])
            sizes = ops.bytes[chosen]
            if (sizes == NULL).any() and _SIZES in self._names:
                self._found[_SIZES] = SchemaError(
                    f"{self._trace.source}: {_SIZES} expected sizes of copies and memsets; got "
                    f"none; export the report again with: "
                    f"nsys export -q true -t sqlite REPORT.nsys-rep"
                )
            self._count(_SIZES, labels, sizes)
        if kind != GRAPH:
            self._ops += len(ops.start_ns)
            if self._projector is not None:
                pid = ops.process.astype(np.int64, copy=False)
                self._projector.add_ops(ops.start_ns, ops.end_ns, pid, ops.correlation)

    def _count(self, name: str, codes: Int32 | Int64, values: Int64) -> None:
        if name not in self._counters or name in self._found:
            return
        try:
            self._counters[name].add(codes, values)
        except PerfmodelError as error:
            self._found[name] = error

    def found(self, whole: Callable[[], Trace]) -> Found:
        """Return the summaries; `whole` gives the trace of what is not projected in a stream."""
        for name, counter in self._counters.items():
            if name not in self._found:
                self._try(name, partial(joined, name, [counter]))
        if _PROJECTED in self._names:
            self._try(_PROJECTED, partial(self._project, whole))
        return {name: self._with_views(name, self._found[name]) for name in self._names}

    def _with_views(self, name: str, found: Counted | PerfmodelError) -> Counted | PerfmodelError:
        """Say which of a summary's tables are views, whose events are missing."""
        tables = {t for part in REPORTS[name].parts for t in EVENT_TABLES.get(part, ())}
        views = sorted(tables & self._trace.views)
        if not views:
            return found
        said = (
            f"{self._trace.source}: {name} expected tables; got the view {', '.join(views)}, which "
            f"perfmodel does not read; make it a table: CREATE TABLE copy AS SELECT * FROM "
            f"{views[0]}"
        )
        if isinstance(found, AbsentError):
            return SchemaError(said)
        if isinstance(found, Counted):
            found.warnings = (said,)
        return found

    def _project(self, whole: Callable[[], Trace]) -> Counted:
        trace, nesting, names = self._trace, self._nesting, self._range_names
        if nesting is None:
            raise _absent(_PROJECTED, trace)
        if self._ops == 0 or self._calls == 0:
            raise _absent(_PROJECTED, trace, "CUDA operations and their API calls", "cuda")
        if self._projector is not None:
            projected, self._projector = self._projector.projection(), None  # which takes room
        else:  # all rows at once, exact whatever they are
            trace = whole()
            if trace is not self._trace:  # its threads are numbered otherwise
                nesting, names = nest(trace.ranges, len(trace.threads)), _Names(trace)
            graphs = trace.ops.kind == GRAPH
            ops = rows(trace.ops, ~graphs) if graphs.any() else trace.ops
            projected = project(trace, nesting, ops)
        return _count_projection(trace, names, nesting, projected, self._ops)


class _Names:
    """The texts of a trace's ranges in the order in which summaries list them; equal ones are one.

    A domain and a text may make the name that another text is.
    """

    def __init__(self, trace: Trace) -> None:
        texts = self._texts = trace.range_names
        order = sorted(range(len(texts)), key=texts.__getitem__)
        at = np.fromiter([NO_NAME, *order], np.int32, 1 + len(order))  # none is the first
        ordered = [texts[i] for i in order]
        new = np.ones(len(at), np.bool_)
        new[2:] = np.fromiter(map(operator.ne, ordered[1:], ordered), np.bool_, max(len(at) - 2, 0))
        self._place = np.empty(len(at), np.int32)
        self._place[at] = np.cumsum(new) - 1
        self._at = at[new]

    def keyed(self, name: Int32, style: Int8 | None = None) -> tuple[Int32, Texts]:
        """Number rows by name, and by style if given; return the numbers and their keys."""
        styles = 1 if style is None else len(STYLES)
        key = self._place[name] * np.int64(styles) + (0 if style is None else style)
        size = styles * len(self._at)
        used = distinct_positions(key, size)
        number = np.empty(size, np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        at, label = self._at[used // styles], (used % styles).astype(np.int8)
        return number[key], Texts(self._texts, at, STYLES, None if style is None else label)


def _count_ranges(trace: Trace, names: _Names) -> Counted:
    """Host time of push/pop ranges; an open end counts as the last time of any NVTX event."""
    ranges = trace.ranges
    chosen = np.flatnonzero(ranges.style == PUSH_POP)
    codes, keys = names.keyed(ranges.name[chosen])
    end = ranges.end_ns[chosen]
    last = trace.nvtx_last_ns if trace.nvtx_last_ns is not None else NULL
    counter = Counted(keys)
    counter.add(codes, np.where(end == NULL, last, end) - ranges.start_ns[chosen])
    return counter


def _count_mpi(trace: Trace) -> Counted:
    """Host time of MPI calls by source and name; an open call counts, but has no time."""
    mpi = trace.mpi
    if trace.mpi_from_nvtx:
        raise SchemaError(
            f"{trace.source}: {_MPI} expected MPI tables; this export (Nsight Systems "
            f"{trace.product_version}) keeps MPI calls as NVTX ranges: see {_RANGES}"
        )
    texts = Numbered(trace.strings)
    used, code = np.unique(mpi.source.astype(np.int64) * len(texts) + mpi.name + 1,
                           return_inverse=True)  # fmt: skip
    named = texts.of((used % len(texts)).tolist())
    sources = (used // len(texts)).tolist()
    keys: list[Key] = [(MPI_SOURCES[s], *key) for s, key in zip(sources, named, strict=True)]
    counter = Counted(keys)
    counter.add(code, mpi.end_ns - mpi.start_ns, mpi.end_ns != NULL)
    return joined(_MPI, [counter])


def _count_projection(
    trace: Trace, names: _Names, nesting: Nesting, found: Projection, ops: int
) -> Counted:
    """Group projected ranges by name and style; `ops` is the number of GPU operations."""
    row = nesting.row[found.range]
    name = trace.ranges.name[row]
    chosen = name != NO_NAME
    if not chosen.any():
        raise AbsentError(
            f"{trace.source}: {_PROJECTED} expected GPU operations launched inside a named "
            f"range, on its thread; got {ops} operations, all launched elsewhere: annotate the "
            f"code that launches them"
        )
    children = np.zeros(len(nesting), np.int64)
    parent = nesting.parent[found.range]
    np.add.at(children, parent[parent >= 0], 1)
    at, row = found.range[chosen], row[chosen]
    codes, keys = names.keyed(name[chosen], trace.ranges.style[row])
    counter = Counted(keys)
    counter.add(codes, (found.end_ns - found.start_ns)[chosen])
    spent = nesting.end_ns - nesting.start_ns
    counter.sums["host"] = sums(codes, spent[at], len(keys))
    counter.sums["ops"] = sums(codes, found.ops[chosen], len(keys))
    counter.sums["level"] = sums(codes, nesting.level[at].astype(np.int64), len(keys))
    counter.sums["children"] = sums(codes, children[at], len(keys))
    return counter


def _memory_labels(kind: int, copy_kind: Int8) -> tuple[Bool, Int64]:
    """Choose copies of known directions and memsets; return which, and their `MEMORY_LABELS`."""
    if kind == MEMSET:
        return np.ones(len(copy_kind), np.bool_), np.full(len(copy_kind), len(COPY_KINDS))
    chosen = np.isin(copy_kind, list(COPY_KINDS)) & (kind == MEMCPY)
    return chosen, copy_kind[chosen].astype(np.int64)


def _absent(name: str, trace: Trace, events: str = "", traced: str = "") -> AbsentError:
    """Return what is wrong with a report that has no events for a summary."""
    traced = traced or REPORTS[name].traced
    how = f"collect them with: nsys profile --trace={traced} ..."
    if trace.product_version == TORCH_PROFILER and traced != "mpi":
        how = trace.how_to_record
    return AbsentError(
        f"{trace.source}: {name} expected {events or REPORTS[name].events}; got none; {how}"
    )
