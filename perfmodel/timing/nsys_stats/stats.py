"""The summary reports of `nsys stats`, equal to Nsight Systems 2024.2.3 to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int64
from perfmodel.base.errors import PerfmodelError, SchemaError
from perfmodel.readers.codes import factorize
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
    Trace,
    rows,
)
from perfmodel.timing.nesting import Nesting, nest
from perfmodel.timing.nsys_stats.statistic import Statistic, to_csv, to_table
from perfmodel.timing.nsys_stats.summaries import (
    API_VERSION,
    Counted,
    Counter,
    named,
    numbered,
    to_statistic,
)
from perfmodel.timing.projection import Projection, project

__all__ = ["API_VERSION", "REPORTS", "Statistic", "compute", "to_csv", "to_table"]

MEMORY_LABELS: Final = (*(f"[CUDA memcpy {k}]" for k in COPY_KINDS.values()), "[CUDA memset]")
"""Copies by direction and sets, as Nsight Systems names them."""

_WANTS: Final = {
    "nvtx_pushpop_sum": ("NVTX push/pop ranges", "nvtx"),
    "cuda_gpu_kern_sum": ("CUDA kernels", "cuda"),
    "cuda_gpu_mem_time_sum": ("CUDA copies or sets", "cuda"),
    "cuda_gpu_mem_size_sum": ("CUDA copies or sets", "cuda"),
    "cuda_api_sum": ("CUDA API calls", "cuda"),
    "mpi_event_sum": ("MPI calls", "mpi"),
}
"""What a summary is made of, and what `nsys profile --trace` must name to have it."""


class AbsentError(SchemaError):
    """A report holds no events of a summary: other reports' are all there are."""


def nvtx_pushpop_sum(trace: Trace) -> Counted | None:
    """Host time of push/pop ranges; an open end counts as the last time of any NVTX event."""
    ranges = trace.ranges
    counter = Counter(named(trace.range_names))
    chosen = np.flatnonzero(ranges.style == PUSH_POP)
    end = ranges.end_ns[chosen]
    last = trace.nvtx_last_ns if trace.nvtx_last_ns is not None else NULL
    duration = np.where(end == NULL, last, end) - ranges.start_ns[chosen]
    counter.add(ranges.name[chosen] + 1, duration)
    return counter.counted("nvtx_pushpop_sum")


def cuda_gpu_kern_sum(trace: Trace) -> Counted | None:
    """GPU time of kernels by demangled name."""
    ops = rows(trace.ops, trace.ops.kind == KERNEL)
    counter = Counter(named(trace.strings))
    counter.add(ops.name + 1, ops.end_ns - ops.start_ns)
    return counter.counted("cuda_gpu_kern_sum")


def cuda_gpu_mem_time_sum(trace: Trace) -> Counted | None:
    """GPU time of copies and sets by operation."""
    ops = trace.ops
    chosen, codes = memory_labels(ops.kind, ops.copy_kind)
    counter = Counter([(label,) for label in MEMORY_LABELS])
    counter.add(codes, (ops.end_ns - ops.start_ns)[chosen])
    return counter.counted("cuda_gpu_mem_time_sum")


def cuda_gpu_mem_size_sum(trace: Trace) -> Counted | None:
    """Size of copies and sets by operation, in decimal megabytes."""
    chosen, codes = memory_labels(trace.ops.kind, trace.ops.copy_kind)
    sizes = trace.ops.bytes[chosen]
    if (sizes == NULL).any():
        raise without_sizes(trace.source)
    counter = Counter([(label,) for label in MEMORY_LABELS])
    counter.add(codes, sizes)
    return counter.counted("cuda_gpu_mem_size_sum")


def cuda_api_sum(trace: Trace) -> Counted | None:
    """Host time of CUDA API calls by function, the version suffix `_vNNNN` stripped."""
    api = trace.api
    counter = Counter(numbered(trace.strings))
    counter.add(api.name + 1, api.end_ns - api.start_ns)
    return counter.counted("cuda_api_sum")


def mpi_event_sum(trace: Trace) -> Counted | None:
    """Host time of MPI calls by source and name; an open call counts, but has no time."""
    mpi = trace.mpi
    if trace.mpi_from_nvtx:
        raise SchemaError(
            f"{trace.source}: mpi_event_sum wants MPI tables; this export (Nsight Systems "
            f"{trace.product_version}) keeps MPI calls as NVTX ranges: see nvtx_pushpop_sum"
        )
    texts = numbered(trace.strings)
    used, code = np.unique(mpi.source.astype(np.int64) * len(texts) + mpi.name + 1,
                           return_inverse=True)  # fmt: skip
    keys = [(MPI_SOURCES[u // len(texts)], *texts[u % len(texts)]) for u in used.tolist()]
    counter = Counter(keys)
    counter.add(code, mpi.end_ns - mpi.start_ns, mpi.end_ns != NULL)
    return counter.counted("mpi_event_sum")


def nvtx_gpu_proj_sum(trace: Trace) -> Counted | None:
    """NVTX ranges projected onto the GPU: see `perfmodel.timing.projection.project`."""
    whole_graphs = trace.ops.kind == GRAPH
    ops = rows(trace.ops, ~whole_graphs) if whole_graphs.any() else trace.ops
    check_projection(trace.source, len(trace.ranges), len(ops), len(trace.api))
    nesting = nest(trace.ranges, len(trace.threads))
    return count_projection(trace, nesting, project(trace, nesting, ops), len(ops))


def check_projection(source: Path, ranges: int, ops: int, calls: int) -> None:
    """Refuse to project what is not there.

    Raises
    ------
    SchemaError
        If the report holds no ranges, no GPU operations, or no API calls.
    """
    if ranges == 0:
        raise _absent("nvtx_gpu_proj_sum", source, "NVTX ranges", "nvtx")
    if ops == 0 or calls == 0:
        what = "CUDA operations and their API calls"
        raise _absent("nvtx_gpu_proj_sum", source, what, "cuda")


def count_projection(trace: Trace, nesting: Nesting, found: Projection, ops: int) -> Counted | None:
    """Group projected ranges by name and style; `ops` is the number of GPU operations."""
    row = nesting.row[found.range]
    name = trace.ranges.name[row]
    if not (name != NO_NAME).any():
        raise AbsentError(
            f"{trace.source}: nvtx_gpu_proj_sum wants GPU operations launched inside a named "
            f"range, on its thread; found {ops} operations, all launched elsewhere: annotate the "
            f"code that launches them"
        )
    children = np.zeros(len(nesting), np.int64)
    parent = nesting.parent[found.range]
    np.add.at(children, parent[parent >= 0], 1)
    chosen = name != NO_NAME
    at, row = found.range[chosen], row[chosen]
    codes, used = factorize(trace.ranges.name[row].astype(np.int64) * 2 + trace.ranges.style[row])
    keys = [(trace.range_names[u // 2], STYLES[u % 2]) for u in used.tolist()]
    counter = Counter(keys, ("host", "ops", "level", "children"))
    counter.add(
        codes,
        (found.end_ns - found.start_ns)[chosen],
        host=nesting.end_ns[at] - nesting.start_ns[at],
        ops=found.ops[chosen],
        level=nesting.level[at].astype(np.int64),
        children=children[at],
    )
    return counter.counted("nvtx_gpu_proj_sum")


_MATERIAL: Final[dict[str, tuple[Callable[[Trace], Counted | None], frozenset[str]]]] = {
    "nvtx_gpu_proj_sum": (nvtx_gpu_proj_sum, frozenset({"nvtx", "ops", "api"})),
    "nvtx_pushpop_sum": (nvtx_pushpop_sum, frozenset({"nvtx"})),
    "cuda_gpu_kern_sum": (cuda_gpu_kern_sum, frozenset({"ops"})),
    "cuda_gpu_mem_time_sum": (cuda_gpu_mem_time_sum, frozenset({"ops", "op_details"})),
    "cuda_gpu_mem_size_sum": (cuda_gpu_mem_size_sum, frozenset({"ops", "op_details"})),
    "cuda_api_sum": (cuda_api_sum, frozenset({"api", "api_names"})),
    "mpi_event_sum": (mpi_event_sum, frozenset({"mpi", "nvtx"})),
}


def count(name: str, trace: Trace) -> Counted:
    """Gather what one report is made of, by name.

    Raises
    ------
    SchemaError
        If there is no such report, or the trace lacks its events.
    """
    if name not in _MATERIAL:
        raise SchemaError(f"wanted one of {', '.join(_MATERIAL)}; found {name!r}")
    counted = _MATERIAL[name][0](trace)
    if counted is None:
        raise absent(name, trace.source)
    return counted


def compute(name: str, trace: Trace) -> Statistic:
    """Compute one report by name.

    Raises
    ------
    SchemaError
        If there is no such report, or the trace lacks its events.
    """
    return to_statistic(name, count(name, trace))


REPORTS: Final[dict[str, tuple[Callable[[Trace], Statistic], frozenset[str]]]] = {
    name: (partial(compute, name), parts) for name, (_, parts) in _MATERIAL.items()
}
"""Every report, and the parts of a trace it needs (see `perfmodel.readers.nsys.read_sqlite`)."""


def memory_labels(kind: Int8 | int, copy_kind: Int8) -> tuple[Bool, Int64]:
    """Choose copies of known directions and sets; return which, and their `MEMORY_LABELS`."""
    is_set = np.broadcast_to(np.equal(kind, MEMSET), copy_kind.shape)
    chosen = is_set | (np.equal(kind, MEMCPY) & np.isin(copy_kind, list(COPY_KINDS)))
    return chosen, np.where(is_set, len(COPY_KINDS), copy_kind)[chosen].astype(np.int64)


def without_sizes(source: Path) -> SchemaError:
    """Return what is wrong with a report whose copies have no sizes."""
    return SchemaError(
        f"{source}: cuda_gpu_mem_size_sum wants sizes of copies and sets, found none; "
        f"export the report again with: nsys export -q true -t sqlite REPORT.nsys-rep"
    )


def absent(name: str, source: Path) -> PerfmodelError:
    """Return what is wrong with a report that has no events for a summary."""
    return _absent(name, source, *_WANTS[name])


def _absent(name: str, source: Path, what: str, traced: str) -> AbsentError:
    return AbsentError(
        f"{source}: {name} wants {what}, found none; "
        f"collect them with: nsys profile --trace={traced} ..."
    )
