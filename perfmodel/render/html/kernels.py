"""Kernels of a median batch: what the GPU computes, by name."""

from __future__ import annotations

from typing import Final

from perfmodel.analysis.compare.series import KERNELS, links
from perfmodel.base.table import Column, Table
from perfmodel.timing.run import Run
from perfmodel.timing.samples import median, tabulate

_MOST: Final = 15


def kernels(run: Run, warmup: int, batch_s: float) -> Table | None:
    """Return the kernels that take longest, per rank and batch; None without any."""
    head = next(
        m
        for m in tabulate(run.range_times, run.ranks, run.batch_label)
        if m.label == run.batch_label
    )
    found = []
    for (group, path), table in links(run, head):
        seconds = median(table[:, warmup:])
        if group == "kernel" and path[0] == KERNELS and seconds is not None:
            found.append((path[1], seconds))
    if not found:
        return None
    found.sort(key=lambda pair: (-pair[1], pair[0]))
    rows = [
        (name, seconds, seconds / batch_s if batch_s > 0 else None)
        for name, seconds in found[:_MOST]
    ]
    columns = (
        Column("kernel", "Kernel"),
        Column("seconds", "On the GPU", "si", "s"),
        Column("share", "Of a batch", "percent"),
    )
    notes = (f"the {_MOST} longest of {len(found)}",) if len(found) > _MOST else ()
    return Table("Kernels of a batch (medians over ranks and batches)", columns, rows, notes)
