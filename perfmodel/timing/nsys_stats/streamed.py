"""Summaries of reports of any size: one pass over the file, equal to those of `stats`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.parallel import Engine, over_reports
from perfmodel.readers import opened
from perfmodel.readers.checks import unchanged
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.pages import Unsupported
from perfmodel.readers.stream import Calls, EventStream, Ops, Progress
from perfmodel.readers.trace import GRAPH, KERNEL, NULL, Trace
from perfmodel.timing.nesting import Nesting, nest
from perfmodel.timing.nsys_stats.stats import (
    MEMORY_LABELS,
    REPORTS,
    AbsentError,
    absent,
    check_projection,
    count,
    count_projection,
    memory_labels,
    without_sizes,
)
from perfmodel.timing.nsys_stats.summaries import Counted, Counter, joined, named, numbered
from perfmodel.timing.projection_stream import Irregular, Projector

Found = Mapping[str, Counted | PerfmodelError]
"""What every summary is made of, or why it cannot be."""

_PROJECTED: Final = "nvtx_gpu_proj_sum"
_CALLS: Final = "cuda_api_sum"
_KERNELS: Final = "cuda_gpu_kern_sum"
_MEMORY: Final = ("cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum")


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
        Of `perfmodel.timing.nsys_stats.stats.REPORTS`.
    progress : callable, optional
        Called with the bytes of the file that were read since the call before.
    source : Path, optional
        What errors call the report.

    Raises
    ------
    ReportError, SchemaError
        If the file cannot be read; what it merely lacks is returned in place of a summary.
    """
    with opened(path) as file, unchanged(file, source or path):
        for fast in (True, False):
            try:
                return _Collection(file, source or path, names, fast=fast).collect(progress)
            except Unsupported:  # found out late: SQLite reads it all again
                continue
    raise AssertionError("SQLite reads every table")


def merged(names: Sequence[str], found: Sequence[Found]) -> Found:
    """Put the same summaries of several reports together, in the reports' order.

    What one report lacks others may have; what all lack, or one cannot tell, is an error.
    """
    result: dict[str, Counted | PerfmodelError] = {}
    for name in names:
        parts = [f[name] for f in found]
        have = [p for p in parts if isinstance(p, Counted)]
        errors = [p for p in parts if isinstance(p, PerfmodelError)]
        untold = [e for e in errors if not isinstance(e, AbsentError)]
        result[name] = joined(name, have) if have and not untold else [*errors, *untold][-1]
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


class _Collection:
    """One pass over one report."""

    def __init__(self, file: Path, source: Path, names: Collection[str], *, fast: bool) -> None:
        parts = frozenset().union(*(REPORTS[name][1] for name in names))
        self._read = partial(read_sqlite, file, fast=fast, source=source)
        self._open = partial(EventStream, file, source, fast=fast)
        self._names, self._source, self._parts = list(names), source, parts
        self._found: dict[str, Counted | PerfmodelError] = {}
        self._counters: dict[str, Counter] = {}
        self._projector: Projector | None = None
        self._calls = self._ops = 0

    def collect(self, progress: Progress) -> Found:
        trace = self._read(parts=self._parts & {"nvtx", "mpi"})
        for name in {"nvtx_pushpop_sum", "mpi_event_sum"} & {*self._names}:
            try:
                self._found[name] = count(name, trace)
            except PerfmodelError as error:
                self._found[name] = error
        nesting = self._nest(trace)
        if {"api", "ops"} & self._parts:
            with self._open(progress=progress) as stream:
                self._stream(stream)
        for name, counter in self._counters.items():
            if name not in self._found:
                self._found[name] = counter.counted(name) or absent(name, self._source)
        if _PROJECTED in self._names:
            try:
                self._found[_PROJECTED] = self._project(trace, nesting)
            except PerfmodelError as error:
                self._found[_PROJECTED] = error
        return {name: self._found[name] for name in self._names}

    def _nest(self, trace: Trace) -> Nesting | None:
        """Nest the ranges if they are to be projected and can be in a stream."""
        if _PROJECTED not in self._names or len(trace.ranges) == 0:
            return None
        nesting = nest(trace.ranges, len(trace.threads))
        with suppress(Irregular):
            self._projector = Projector(nesting, trace.threads)
        return nesting

    def _stream(self, stream: EventStream) -> None:
        if _CALLS in self._names:
            self._counters[_CALLS] = Counter(numbered(stream.strings))
        if _KERNELS in self._names:
            self._counters[_KERNELS] = Counter(named(stream.strings))
        for name in {*_MEMORY} & {*self._names}:
            self._counters[name] = Counter([(label,) for label in MEMORY_LABELS])
        if "api" in self._parts:
            joins = _PROJECTED in self._names
            for calls in stream.calls(names=_CALLS in self._names, joins=joins):
                self._add_calls(calls)
        if "ops" in self._parts:
            details = "op_details" in self._parts
            for ops in stream.ops(details=details, joins=self._projector is not None):
                self._add_ops(ops)

    def _add_calls(self, calls: Calls) -> None:
        self._calls += len(calls.start_ns)
        self._count(_CALLS, calls.name + 1, calls.end_ns - calls.start_ns)
        if self._projector is not None:
            try:
                self._projector.add_calls(*calls[:4])
            except Irregular:
                self._projector = None

    def _add_ops(self, ops: Ops) -> None:
        spent = ops.end_ns - ops.start_ns
        if ops.kind == KERNEL:
            self._count(_KERNELS, ops.name + 1, spent)
        if "op_details" in self._parts:
            chosen, labels = memory_labels(ops.kind, ops.copy_kind)
            self._count(_MEMORY[0], labels, spent[chosen])
            sizes = ops.bytes[chosen]
            if (sizes == NULL).any() and _MEMORY[1] in self._names:
                self._found[_MEMORY[1]] = without_sizes(self._source)
            self._count(_MEMORY[1], labels, sizes)
        if ops.kind != GRAPH:
            self._ops += len(ops.start_ns)
            if self._projector is not None:
                self._projector.add_ops(ops.start_ns, ops.end_ns, ops.pid, ops.correlation)

    def _count(self, name: str, codes: Any, values: Any) -> None:
        if name not in self._counters or name in self._found:
            return
        try:
            self._counters[name].add(codes, values)
        except PerfmodelError as error:
            self._found[name] = error

    def _project(self, trace: Trace, nesting: Nesting | None) -> Counted:
        check_projection(self._source, len(trace.ranges), self._ops, self._calls)
        if self._projector is None or nesting is None:  # all rows at once, exact whatever they are
            return count(_PROJECTED, self._read(parts=REPORTS[_PROJECTED][1]))
        projected, self._projector = self._projector.projection(), None  # which takes room
        found = count_projection(trace, nesting, projected, self._ops)
        assert found is not None  # it refuses a report without projected ranges
        return found
