"""The summary reports of `nsys stats`, equal to Nsight Systems 2024.2.3 to the last digit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from perfmodel.errors import SchemaError
from perfmodel.figures import Groups, round_half_up, summarize
from perfmodel.projection import project
from perfmodel.ranges import nest
from perfmodel.readers.codes import factorize, sums
from perfmodel.statistic import Statistic, to_csv, to_table
from perfmodel.trace import (
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
    GpuOps,
    Int32,
    Int64,
    Trace,
    rows,
)

__all__ = ["REPORTS", "Statistic", "compute", "to_csv", "to_table"]

_BASE = (
    "Total Time (ns)",
    "Instances",
    "Avg (ns)",
    "Med (ns)",
    "Min (ns)",
    "Max (ns)",
    "StdDev (ns)",
)
API_VERSION = re.compile(r"_v....$", re.DOTALL)


def nvtx_pushpop_sum(trace: Trace) -> Statistic:
    """Host time of push/pop ranges; an open end counts as the last time of any NVTX event."""
    ranges = trace.ranges
    chosen = np.flatnonzero(ranges.style == PUSH_POP)
    if len(chosen) == 0:
        raise _absent("nvtx_pushpop_sum", trace, "NVTX push/pop ranges", "nvtx")
    end = ranges.end_ns[chosen]
    last = trace.nvtx_last_ns if trace.nvtx_last_ns is not None else NULL
    duration = np.where(end == NULL, last, end) - ranges.start_ns[chosen]
    codes, names = _by_text(ranges.name[chosen], trace.range_names)
    return _timed("nvtx_pushpop_sum", codes, duration, [("Range", names)])


def cuda_gpu_kern_sum(trace: Trace) -> Statistic:
    """GPU time of kernels by demangled name."""
    ops = rows(trace.ops, trace.ops.kind == KERNEL)
    if len(ops) == 0:
        raise _absent("cuda_gpu_kern_sum", trace, "CUDA kernels", "cuda")
    codes, names = _by_text(ops.name, trace.strings)
    key = lambda g, groups: (-groups.total[g], groups.count[g], names[g] or "")  # noqa: E731
    return _timed("cuda_gpu_kern_sum", codes, ops.end_ns - ops.start_ns, [("Name", names)], key=key)


def cuda_gpu_mem_time_sum(trace: Trace) -> Statistic:
    """GPU time of copies and sets by operation."""
    codes, names, ops = _memory_operations(trace, "cuda_gpu_mem_time_sum")
    duration = ops.end_ns - ops.start_ns
    return _timed("cuda_gpu_mem_time_sum", codes, duration, [("Operation", names)], counted="Count")


def cuda_gpu_mem_size_sum(trace: Trace) -> Statistic:
    """Size of copies and sets by operation, in decimal megabytes."""
    codes, names, ops = _memory_operations(trace, "cuda_gpu_mem_size_sum")
    if (ops.bytes == NULL).any():
        raise SchemaError(
            f"{trace.source}: cuda_gpu_mem_size_sum wants sizes of copies and sets, found none; "
            f"export the report again with: nsys export -q true -t sqlite REPORT.nsys-rep"
        )
    groups = summarize(codes, ops.bytes, len(names))
    order = sorted(range(len(names)), key=lambda g: -groups.total[g])
    table = []
    for g in order:
        size = [groups.mean[g], groups.median[g], groups.minimum[g], groups.maximum[g]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, groups.stddev[g])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], names[g]))
    headers = ("Total", "Avg", "Med", "Min", "Max", "StdDev")
    titles = [f"{h} (MB)" for h in headers]
    return Statistic(
        "cuda_gpu_mem_size_sum",
        (titles[0], "Count", *titles[1:], "Operation"),
        (3, 0, 3, 3, 3, 3, 3, None),
        tuple(table),
    )


def cuda_api_sum(trace: Trace) -> Statistic:
    """Host time of CUDA API calls by function, the version suffix `_vNNNN` stripped."""
    api = trace.api
    if len(api) == 0:
        raise _absent("cuda_api_sum", trace, "CUDA API calls", "cuda")
    codes, kept = _by_code(api.name)
    names = [_text(trace.strings, c) for c in kept]
    stripped = [None if n is None else API_VERSION.sub("", n) for n in names]
    return _timed(
        "cuda_api_sum", codes, api.end_ns - api.start_ns, [("Name", stripped)], counted="Num Calls"
    )


def mpi_event_sum(trace: Trace) -> Statistic:
    """Host time of MPI calls by source and name; an open call counts, but has no time."""
    mpi = trace.mpi
    if trace.mpi_from_nvtx:
        raise SchemaError(
            f"{trace.source}: mpi_event_sum wants MPI tables; this export (Nsight Systems "
            f"{trace.product_version}) keeps MPI calls as NVTX ranges: see nvtx_pushpop_sum"
        )
    if len(mpi) == 0:
        raise _absent("mpi_event_sum", trace, "MPI calls", "mpi")
    alphabet = np.argsort(np.argsort(MPI_SOURCES))
    key = alphabet[mpi.source].astype(np.int64) * (len(trace.strings) + 1) + mpi.name + 1
    codes, kept = _by_code(key)
    source, name = np.divmod(kept, len(trace.strings) + 1)
    sources = [sorted(MPI_SOURCES)[s] for s in source]
    names = [_text(trace.strings, int(c) - 1) for c in name]
    ended = mpi.end_ns != NULL
    return _timed(
        "mpi_event_sum",
        codes,
        mpi.end_ns - mpi.start_ns,
        [("Source", sources), ("Name", names)],
        valid=ended,
    )


def nvtx_gpu_proj_sum(trace: Trace) -> Statistic:
    """NVTX ranges projected onto the GPU: see `perfmodel.projection.project`."""
    name = "nvtx_gpu_proj_sum"
    if len(trace.ranges) == 0:
        raise _absent(name, trace, "NVTX ranges", "nvtx")
    whole_graphs = trace.ops.kind == GRAPH
    ops = rows(trace.ops, ~whole_graphs) if whole_graphs.any() else trace.ops
    if len(ops) == 0 or len(trace.api) == 0:
        raise _absent(name, trace, "CUDA operations and their API calls", "cuda")
    nesting = nest(trace.ranges, len(trace.threads))
    found = project(trace, nesting, ops)
    if not (trace.ranges.name[nesting.row[found.range]] != NO_NAME).any():
        raise SchemaError(
            f"{trace.source}: {name} wants GPU operations launched inside a named range, on its "
            f"thread; found {len(ops)} operations, all launched elsewhere: annotate the code that "
            f"launches them"
        )
    children = np.zeros(len(nesting), np.int64)
    parent = nesting.parent[found.range]
    np.add.at(children, parent[parent >= 0], 1)

    row = nesting.row[found.range]
    named = trace.ranges.name[row] != NO_NAME
    at, row = found.range[named], row[named]
    text, names = _by_text(trace.ranges.name[row], trace.range_names)
    codes, kept = _by_code(text.astype(np.int64) * 2 + trace.ranges.style[row])
    columns = {
        "proj": (found.end_ns - found.start_ns)[named],
        "host": nesting.end_ns[at] - nesting.start_ns[at],
        "ops": found.ops[named],
        "level": nesting.level[at].astype(np.int64),
        "children": children[at],
    }
    proj = summarize(codes, columns.pop("proj"), len(kept))
    totals = {k: sums(codes, v, len(kept)) for k, v in columns.items()}
    table = []
    for g in sorted(range(len(kept)), key=lambda g: -proj.total[g]):
        table.append(
            (
                names[kept[g] // 2],
                STYLES[kept[g] % 2],
                int(proj.total[g]),
                int(totals["host"][g]),
                *_figures(proj, g),
                int(totals["ops"][g]),
                *(
                    round_half_up(float(totals[k][g]) / int(proj.count[g]))
                    for k in ("ops", "level", "children")
                ),
            )
        )
    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    return Statistic(name, headers, digits, tuple(table))


REPORTS: Final[dict[str, tuple[Callable[[Trace], Statistic], frozenset[str]]]] = {
    "nvtx_gpu_proj_sum": (nvtx_gpu_proj_sum, frozenset({"nvtx", "ops", "api"})),
    "nvtx_pushpop_sum": (nvtx_pushpop_sum, frozenset({"nvtx"})),
    "cuda_gpu_kern_sum": (cuda_gpu_kern_sum, frozenset({"ops"})),
    "cuda_gpu_mem_time_sum": (cuda_gpu_mem_time_sum, frozenset({"ops", "op_details"})),
    "cuda_gpu_mem_size_sum": (cuda_gpu_mem_size_sum, frozenset({"ops", "op_details"})),
    "cuda_api_sum": (cuda_api_sum, frozenset({"api", "api_names"})),
    "mpi_event_sum": (mpi_event_sum, frozenset({"mpi", "nvtx"})),
}
"""Every report, and the parts of a trace it needs (see `perfmodel.readers.nsys.read_sqlite`)."""


def compute(name: str, trace: Trace) -> Statistic:
    """Compute one report by name.

    Raises
    ------
    SchemaError
        If there is no such report, or the trace lacks its events.
    """
    if name not in REPORTS:
        raise SchemaError(f"wanted one of {', '.join(REPORTS)}; found {name!r}")
    return REPORTS[name][0](trace)


def _figures(groups: Groups, g: int) -> tuple[Any, ...]:
    """Count, average, median, minimum, maximum, standard deviation of one group."""
    if groups.timed[g] == 0:
        return (int(groups.count[g]), None, None, None, None, 0.0)
    return (
        int(groups.count[g]),
        round_half_up(float(groups.mean[g])),
        round_half_up(float(groups.median[g])),
        int(groups.minimum[g]),
        int(groups.maximum[g]),
        round_half_up(float(groups.stddev[g])),
    )


def _timed(
    name: str,
    codes: Int32,
    duration: Int64,
    labels: list[tuple[str, Sequence[str | None]]],
    *,
    counted: str = "Instances",
    key: Callable[[int, Groups], Any] | None = None,
    valid: Any = None,
) -> Statistic:
    """Time %, total, count, average, median, minimum, maximum, deviation and labels by group."""
    size = len(labels[0][1])
    groups = summarize(codes, duration, size, valid)
    grand = int(groups.total.sum())
    longest_first = key or (lambda g, groups: (groups.timed[g] == 0, -groups.total[g]))
    order = sorted(range(size), key=lambda g: longest_first(g, groups))
    table = []
    for g in order:
        total = int(groups.total[g]) if groups.timed[g] else None
        share = None if total is None or not grand else round_half_up(total * 100.0 / grand)
        named = (values[g] for _, values in labels)
        table.append((share, total, *_figures(groups, g), *named))
    headers = ("Time (%)", *(counted if h == "Instances" else h for h in _BASE))
    return Statistic(
        name,
        (*headers, *(title for title, _ in labels)),
        (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in labels)),
        tuple(table),
    )


def _memory_operations(trace: Trace, name: str) -> tuple[Int32, list[str], GpuOps]:
    """Copies by direction and sets, named as Nsight Systems names them, in alphabetical order."""
    labelled = np.isin(trace.ops.copy_kind, list(COPY_KINDS))
    chosen = ((trace.ops.kind == MEMCPY) & labelled) | (trace.ops.kind == MEMSET)
    ops = rows(trace.ops, chosen)
    if len(ops) == 0:
        raise _absent(name, trace, "CUDA copies or sets", "cuda")
    kind = np.where(ops.kind == MEMSET, len(COPY_KINDS), ops.copy_kind)
    labels = [*(f"[CUDA memcpy {label}]" for label in COPY_KINDS.values()), "[CUDA memset]"]
    codes, names = _by_text(kind.astype(np.int32), tuple(labels))
    return codes, [str(n) for n in names], ops


def _by_code(values: Any) -> tuple[Int32, Any]:
    """Group codes and the ascending distinct values they stand for."""
    codes, kept = factorize(values.astype(np.int64))
    return codes, kept


def _by_text(codes: Int32, texts: Sequence[str]) -> tuple[Int32, list[str | None]]:
    """Group codes by string value, ascending as SQLite's BINARY collation has it, NULL first."""
    used, kept = _by_code(codes)
    values = [_text(texts, int(c)) for c in kept]
    names = sorted(set(values), key=lambda v: (v is not None, (v or "").encode()))
    position = {v: i for i, v in enumerate(names)}
    return np.array([position[v] for v in values], np.int32)[used], names


def _text(texts: Sequence[str], code: int) -> str | None:
    return None if code == NO_NAME else texts[code]


def _absent(name: str, trace: Trace, what: str, traced: str) -> SchemaError:
    return SchemaError(
        f"{trace.source}: {name} wants {what}, found none; "
        f"collect them with: nsys profile --trace={traced} ..."
    )
