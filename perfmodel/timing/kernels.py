"""Operations of the GPU by what they do: categories, and which communicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int8
from perfmodel.base.kernels import UNKNOWN, categories, kernel
from perfmodel.readers.trace import BETWEEN_GPUS, GRAPH, KERNEL, MEMCPY, MEMSET, GpuOps, Trace

COMMUNICATION: Final = "communication"
_OF_KIND: Final = {MEMCPY: "copy", MEMSET: "memset", GRAPH: "graph"}


def categorize(ops: GpuOps, strings: Sequence[str]) -> tuple[Int8, tuple[str, ...]]:
    """Category of every GPU operation, shape (n,), as positions in all categories, and these."""
    names = tuple(kind.name for kind in categories())
    code = {name: i for i, name in enumerate(names)}
    found = np.full(len(ops), code[UNKNOWN], np.int8)
    for kind, name in _OF_KIND.items():
        found[ops.kind == kind] = code[name]
    found[_between_gpus(ops)] = code[COMMUNICATION]
    kernels = np.flatnonzero((ops.kind == KERNEL) & (ops.name >= 0))
    distinct, inverse = np.unique(ops.name[kernels], return_inverse=True)
    known = [code[kernel(strings[c]).category] for c in distinct]
    found[kernels] = np.array(known or [0], np.int8)[inverse]
    return found, names


def communicating(trace: Trace) -> Bool:
    """Return whether GPU operations exchange data, shape (operations,), copies included."""
    category, names = categorize(trace.ops, trace.strings)
    found: Bool = category == names.index(COMMUNICATION)
    return found


def exchange_named(trace: Trace, name: int) -> str:
    """What an operation that communicates does, and by which library: 'NCCL AllReduce'.

    `name` is as in `GpuOps.name`; that of a copy is negative.
    """
    if name < 0:
        return "CUDA peer copy"
    known = kernel(trace.strings[name])
    return f"{known.library or 'unknown library'} {known.operation}"


def _between_gpus(ops: GpuOps) -> Bool:
    found: Bool = (ops.kind == MEMCPY) & (ops.copy_kind == BETWEEN_GPUS)
    return found
