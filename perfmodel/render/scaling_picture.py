"""The picture of a scaling study: its series, its batches and its all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.analysis.bandwidth import Bandwidth
from perfmodel.analysis.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(found: Study, rows: Sequence[Bandwidth]) -> Figure:
    """Draw speed-up and efficiency, what batches hold, and bus bandwidth by size.

    Bars are of strong scaling, or of weak scaling where there is nothing else, and only of series
    that tell communication on more ranks than one.
    """
    from perfmodel.render.plot.studies import Message, Scaling, Stack, scaling

    curves = [
        Scaling(
            f"{s.kind}: {s.label}", s.kind, tuple(p.ranks for p in s.points),
            tuple(p.speedup for p in s.points), tuple(p.efficiency for p in s.points),
        )
        for s in found.series
    ]  # fmt: skip
    kind = found.series[0].kind
    stacks = [
        Stack(
            s.label, p.ranks,
            {
                "kernels": p.split.compute_s, "exposed communication": p.split.exposed_s,
                "copies only": p.split.copies_s, "neither: the host": p.split.idle_s,
            },
        )
        for s in found.series
        if s.kind == kind and any(p.split for p in s.points if p.ranks > 1)
        for p in s.points if p.split
    ]  # fmt: skip
    messages = [
        Message(f"{r.through}, p={r.ranks}, {r.source}", r.bytes, r.bus_bytes_per_s) for r in rows
    ]
    return scaling(curves, stacks, messages)
