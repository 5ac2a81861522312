"""Bytes that Nsight Compute counted of a program's operators: launches lie in the open ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.programs.pytorch.calls import Kernels, find_calls
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.operators import Call
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers.ncu import Launch
from perfmodel.readers.trace import KERNEL

_READ, _WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
_L2, _TIME = "lts__t_bytes.sum", "gpu__time_duration.sum"


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """Calls of operators, and what their kernels moved; NaN where that was not counted.

    Attributes
    ----------
    calls : tuple of Call
    kernels : int64, shape (n,)
    dram_read_bytes, dram_write_bytes, l2_bytes : floats, shape (n,)
    """

    calls: tuple[Call, ...]
    kernels: Int64
    dram_read_bytes: Floats
    dram_write_bytes: Floats
    l2_bytes: Floats


def counted_calls(launches: Sequence[Launch], dtype: str | None = None) -> CountedCalls:
    """Give every launch to its operator, as `calls.find_calls` does in a report.

    Parameters
    ----------
    launches : sequence of Launch
        Collected with `ncu --nvtx`, and the ranges with sizes.
    dtype : str, optional
        Of tensors whose type nothing says.

    Raises
    ------
    SchemaError
        If no launch lies in a range that names sizes.
    """
    labels: dict[str, int] = {}
    nodes: dict[tuple[str, ...], int] = {}
    label, parent, node = [], [], []
    for launch in launches:
        for depth in range(len(launch.ranges)):
            path = launch.ranges[: depth + 1]
            if path not in nodes:
                nodes[path] = len(nodes)
                label.append(labels.setdefault(path[-1], len(labels)))
                parent.append(nodes[path[:-1]] if depth else -1)
        node.append(nodes[launch.ranges] if launch.ranges else -1)
    names = parse(list(labels))
    if all(sizes is None for sizes in names.sizes):
        raise SchemaError(
            "expected launches in ranges that name operators' sizes; got none; collect with "
            "ncu --nvtx and torch.autograd.profiler.emit_nvtx(record_shapes=True)"
        )
    count = len(label)
    tree = Tree(
        np.array(label, np.int64), np.array(parent, np.int64), np.arange(count),
    )  # fmt: skip
    found = find_calls(names, tree, _kernels(launches, node), dtype)
    inside = found.owner >= 0

    def total(metric: str) -> Floats:
        values = [one.metrics.get(metric) for one in launches]
        known = np.array([np.nan if v is None else v for v in values])
        return np.bincount(found.owner[inside], known[inside], len(found.calls)).astype(np.float64)

    kernels = np.bincount(found.owner[inside], minlength=len(found.calls)).astype(np.int64)
    return CountedCalls(found.calls, kernels, total(_READ), total(_WRITE), total(_L2))


def _kernels(launches: Sequence[Launch], node: Sequence[int]) -> Kernels:
    codes: dict[str, int] = {}
    name = [codes.setdefault(launch.kernel, len(codes)) for launch in launches]
    seconds = np.array([launch.metrics.get(_TIME) or 0.0 for launch in launches])
    count = len(launches)
    return Kernels(
        np.array(node, np.int64), np.array(name, np.int32), np.full(count, KERNEL, np.int8),
        (seconds * 1e9).astype(np.int64), np.zeros(count, np.int64), tuple(codes),
    )  # fmt: skip


def counted_operators(
    launches: Sequence[Launch], dtype: str | None = None
) -> dict[tuple[str, str, str], tuple[float | None, float | None]]:
    """Mean bytes of DRAM and L2 of a call by operator, phase and sizes; see `counted_calls`."""
    found = counted_calls(launches, dtype)
    rows: dict[tuple[str, str, str], list[int]] = {}
    for i, call in enumerate(found.calls):
        rows.setdefault((call.name, call.phase, call.shown), []).append(i)
    moved: dict[tuple[str, str, str], tuple[float | None, float | None]] = {}
    for key, mine in rows.items():
        read, written = _mean(found.dram_read_bytes[mine]), _mean(found.dram_write_bytes[mine])
        both = None if read is None or written is None else read + written
        moved[key] = both, _mean(found.l2_bytes[mine])
    return moved


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)].tolist()
    return sum(known) / len(known) if known else None
