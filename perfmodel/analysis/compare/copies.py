"""Finds reports that are copies of others: a recording counts once, whatever it is called."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from perfmodel.readers.trace import Trace


def found(before: Sequence[Trace], after: Sequence[Trace]) -> list[str]:
    """Warn of reports that are there twice: copies are no launches of their own."""
    sides = [{content(t): t.source.name for t in traces} for traces in (before, after)]
    said = [
        f"{sides[0][key]} is on both sides: no difference can show"
        for key in sides[0]
        if key in sides[1]
    ]
    for name, traces, distinct in zip(("before", "after"), (before, after), sides, strict=True):
        if len(distinct) < len(traces):
            said.append(
                f"{len(traces) - len(distinct)} of the {len(traces)} reports {name} are copies of "
                f"others: each launch counts once"
            )
    return said


def content(trace: Trace) -> tuple[Any, ...]:
    """Return what tells one recording from another, whatever its file is called."""
    columns = (
        trace.ranges.start_ns, trace.ranges.end_ns, trace.ops.start_ns, trace.ops.end_ns,
        trace.mpi.start_ns, trace.threads,
    )  # fmt: skip
    sums = tuple(zlib.crc32(np.ascontiguousarray(column).data) for column in columns)
    return trace.utc_start_ns, trace.marks, *sums, *map(len, columns)
