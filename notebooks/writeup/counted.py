"""Counters of Nsight Compute for notebooks: ranges against ceilings and against formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.analysis import counters
from perfmodel.analysis.counters import Placed, by_range, inside, place
from perfmodel.base.table import Table
from perfmodel.machines.machine import Machine
from perfmodel.readers.ncu import read_counters

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def place_ranges(
    paths: Sequence[Path], machine: Machine, ranges: Sequence[str] = ()
) -> tuple[Placed, ...]:
    """Read files of ncu and set their ranges against the machine's ceilings, the longest first.

    Parameters
    ----------
    paths : sequence of Path
        Several files are told apart by their names.
    ranges : sequence of str
        Only these; all by default.
    """
    launches = inside(read_counters(paths).launches, ranges)
    return tuple(place(one, machine) for one in by_range(launches))


def against_formulas(path: Path, sizes: Mapping[str, int]) -> Table:
    """Return FLOPs and bytes of every range of the trainer, counted and by the formulas."""
    launches = read_counters([path]).launches
    ranges = by_range(launches)
    workload = counters.as_counted(None, ranges)
    batches = counters.batches_of(launches, workload.batch_range)
    return counters.table(counters.compare(ranges, workload, dict(sizes), batches))


def draw_levels(placed: Sequence[Placed], ax: Axes) -> Axes:
    """Draw the hierarchical roofline; see `perfmodel.render.plot.roofline.levels`."""
    from perfmodel.render.plot.roofline import levels

    return levels(placed, ax=ax)
