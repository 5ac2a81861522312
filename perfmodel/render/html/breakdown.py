"""Where a median batch goes: ranges on three clocks, kernels, copies, collectives, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.render import tables
from perfmodel.render.html.blocks import Block, Cell, Grid, Head, Notice, grid
from perfmodel.render.html.kernels import kernels
from perfmodel.timing.run import Run

_COLLECT: Final = "nsys profile --trace=nvtx,cuda,mpi ..."


def breakdown(run: RunAnalysis, measured: Run) -> Iterator[Block]:
    """Yield the tables of one run, and what was not recorded."""
    yield _ranges(run)
    found = kernels(measured, run.batch.warmup, run.batch.median.value)
    if found is not None:
        yield grid(found)
    elif all(row.gpu_busy_s is None for row in run.ranges):
        yield Notice(
            "No GPU operation was recorded: GPU times, kernels and copies are missing.",
            f"if the program uses a GPU, profile it with {_COLLECT}",
        )
    if run.copies:
        yield grid(tables.copies(run))
    if run.collectives:
        yield grid(tables.collectives(run))
    elif len(run.ranks) > 1:
        yield Notice(
            "No collective was recorded in the ranges of the batches.",
            f"for MPI's, profile with {_COLLECT} --mpi-impl=openmpi (or mpich); NCCL's kernels "
            f"that another thread launches are in the timeline alone",
        )
    if len(run.ranks) > 1:
        yield grid(tables.ranks(run))


def _ranges(run: RunAnalysis) -> Grid:
    """The tree of ranges, with a column that draws its three clocks."""
    made = grid(
        tables.ranges_text(run),
        sort={"rate": [row.rate for row in run.ranges]},
        plain=("share", "of_ceiling"),
    )
    longest = max((s for row in run.ranges for s in _seconds(row) if s), default=0.0)
    drawn = Head("On the three clocks", "left", sortable=False)
    rows = [
        (cells[0], _clocks(row, longest), *cells[1:])
        for row, cells in zip(run.ranges, made.rows, strict=False)  # a page has not all of many
    ]
    return replace(made, heads=(made.heads[0], drawn, *made.heads[1:]), rows=tuple(rows))


def _seconds(row: RangeRow) -> tuple[float | None, float | None, float | None]:
    return row.host_s, row.gpu_projection_s, row.gpu_busy_s


def _clocks(row: RangeRow, longest: float) -> Cell:
    return Cell("", clocks=tuple(s / longest if s else None for s in _seconds(row)))
