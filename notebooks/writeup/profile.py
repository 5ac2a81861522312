"""Notebook 02: what ran when in a report of the trainer, and the parts of its batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.api import Report, Results
from perfmodel.base.errors import SchemaError
from perfmodel.programs import steps_of_run
from perfmodel.programs.mlp.settings import PEER
from perfmodel.readers import read
from perfmodel.timing.run import Run, time_run
from perfmodel.timing.timeline import Bar, Lane, select, window_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BATCH: Final = "batch iteration"
IMAGES: Final = "copying images host -> device"
GEMMS: Final = (
    "forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 2", "backward GEMM 3",
)  # fmt: skip
TRANSFERS: Final = (
    "cudaMemcpyDeviceToHost", "MPI_Allreduce", "ncclAllReduce", "cudaMemcpyHostToDevice",
)  # fmt: skip
"""Ranges inside the backward pass that sum the gradients over the ranks."""
_PARTS: Final = (
    ("copying images", (IMAGES,)), ("forward", ("forward",)), ("backward, GEMMs", ()),
    ("gradients to host", ("cudaMemcpyDeviceToHost",)),
    ("all-reduce", ("MPI_Allreduce", "ncclAllReduce")),
    ("gradients to GPU", ("cudaMemcpyHostToDevice",)), ("step", ("step", PEER)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """What ran in a part of a report, by rank and lane.

    Attributes
    ----------
    lanes : tuple of Lane
    start_ns, end_ns : int
        On the clock of the report.
    since : str
        What the view starts with.
    batch : int or None
        The batch that is shown, if it is one.
    """

    lanes: tuple[Lane, ...]
    start_ns: int
    end_ns: int
    since: str
    batch: int | None = None

    @property
    def seconds(self) -> float:
        """Duration of the view."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def bars(self) -> int:
        """Number of ranges, calls and GPU operations."""
        return sum(len(lane.bars) for lane in self.lanes)

    def longest_s(self, *names: str) -> float | None:
        """Return the seconds of the longest bar of these names; None without one."""
        found = [b.end_ns - b.start_ns for lane in self.lanes for b in lane.bars if b.name in names]
        return max(found) * 1e-9 if found else None

    def draw(self, ax: Axes | None = None) -> Axes:
        """Draw it; see `perfmodel.render.plot.timeline.timeline`."""
        from perfmodel.render.plot.timeline import timeline

        return timeline(self.lanes, self.start_ns, self.end_ns, ax=ax, since=self.since)


@dataclass(frozen=True, slots=True)
class Profile:
    """A report of which parts are viewed; see `read_profile`."""

    run: Run

    def whole(self, *, ranks: Collection[int] | None = None) -> View:
        """Return all of the report, from the first event of these ranks to their last."""
        lanes = select(self.run, None, ranks=ranks, api=False)
        bars = [bar for lane in lanes for bar in lane.bars]
        start, end = min(b.start_ns for b in bars), max(b.end_ns for b in bars)
        return View(lanes, start, end, "the start of the report")

    def range(self, name: str, *, ranks: Collection[int] | None = None) -> View | None:
        """Return what ran while the ranks were in a range, such as 'GPU parallel train'.

        None if the report has no such range.
        """
        everything = select(self.run, None, ranks=ranks, api=False)
        around = _around([b for b in _ranges(everything) if b.name == name])
        if around is None:
            return None
        start, end = around
        inside = [
            replace(lane, bars=tuple(b for b in lane.bars if b.start_ns < end and b.end_ns > start))
            for lane in everything
        ]
        return View(tuple(lane for lane in inside if lane.bars), start, end, f"the start of {name}")

    def batch(self, number: int | None = None) -> View:
        """Return one batch, counted from 0; the median one by default.

        Raises
        ------
        SchemaError
            If the report has no such batch.
        """
        number = steps_of_run(self.run).drawn if number is None else number
        window = window_of(self.run, range(number, number + 1))
        lanes = select(self.run, window, api=False)
        return View(lanes, window.start_ns, window.end_ns, "the start of the batch", number)

    def passes(
        self,
        names: Sequence[str] = ("forward", "backward"),
        *,
        ranks: Collection[int] | None = None,
    ) -> View | None:
        """Return the median batch from the start of the first of some ranges to the last's end.

        None if the batch has none of them, as when it is a CUDA graph.
        """
        number = steps_of_run(self.run).drawn
        window = window_of(self.run, range(number, number + 1))
        lanes = select(self.run, window, ranks=ranks, api=False)
        around = _around([bar for bar in _ranges(lanes) if bar.own and bar.name in names])
        if around is None:
            return None
        start, end = around
        window = replace(window, start_ns=start, end_ns=end)
        lanes = select(self.run, window, ranks=ranks, api=False)
        return View(lanes, start, end, f"the start of {names[0]}", number)


def read_profile(report: Path | str) -> Profile:
    """Read a report of the trainer, or of a program with the same range around a batch."""
    trace = read(report)
    return Profile(time_run([trace], BATCH, label=trace.source.name.split(".")[0], by_time=True))


def projections(report: Report) -> pd.DataFrame | None:
    """Return the projections of ranges to the GPU; None for a report without GPU work."""
    try:
        found = report.stats("nvtx_gpu_proj_sum")
    except SchemaError:
        return None
    return found[["Range", "Range Instances", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)"]]


def described(results: Results) -> str:
    """Return what ran on what, for captions: ranks, GPU, sizes, data type."""
    run = results.run
    gpu = None if run.machine is None else run.machine.name
    ranks = len(results.ranks)
    words = f"{ranks} rank{'s' * (ranks > 1)}{f' on {gpu}' if gpu else ''}"
    row = results.runs.iloc[0]
    sizes = [f"{s} = {row[s]:g}" for s in "DHCB" if s in row and row[s] == row[s]]
    return ", ".join([words, *sizes, *([run.precision] if run.precision else [])])


# --- numbers that a report may not have


def total(values: Mapping[str, float] | pd.Series, names: Iterable[str]) -> float | None:
    """Return the sum of what is there; None where nothing is."""
    found = [values[name] for name in names if name in values and not math.isnan(values[name])]
    return sum(found) if found else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return a quotient; None without one of the two."""
    return None if part is None or not whole else part / whole


def percent(share: float | None) -> str | None:
    """Return a share in per cent; None without one."""
    return None if share is None else f"{100 * share:.0f} %"


def clause(text: str, *values: object) -> str:
    """Return a text with its values formatted; nothing where one is missing."""
    return "" if any(value is None for value in values) else text.format(*values)


def batch_parts(host_s: Mapping[str, float] | pd.Series) -> dict[str, float]:
    """Divide a batch's host time into parts that do not overlap and add up to it.

    Parameters
    ----------
    host_s : mapping or Series of float by str
        Median host times by range of the trainer, in seconds; a range that is missing has no part.
        Medians of parts need not add up to that of the whole: the rest, at least 0, is
        'between ranges'.
    """
    found = {name: total(host_s, ranges) for name, ranges in _PARTS}
    backward = total(host_s, ["backward"])
    if backward is not None:
        found["backward, GEMMs"] = max(backward - (total(host_s, TRANSFERS) or 0.0), 0.0)
    parts = {name: seconds for name, seconds in found.items() if seconds is not None}
    return {**parts, "between ranges": max(host_s[BATCH] - sum(parts.values()), 0.0)}


def least_times(results: Results) -> dict[str, float]:
    """Return the seconds of the counted FLOPs and bytes of a batch at the datasheet's rates.

    What the report does not tell, such as sizes or the GPU, is left out.
    """
    run, ranges = results.run, results.ranges.set_index("range")
    if run.machine is None:
        return {}
    peak = run.machine.peak_flops_per_s.get(run.precision or "float32")
    pcie = run.machine.bandwidth_bytes_per_s.get("pcie")
    images = total(ranges["measured_copy_bytes"], [IMAGES])
    found = {
        "GEMMs": ratio(float(run.totals.flops), peak),
        "gradients over PCIe": ratio(float(run.totals.pci_bytes), pcie),
        "images over PCIe": ratio(images, pcie),
    }
    return {name: seconds for name, seconds in found.items() if seconds}


def _ranges(lanes: Sequence[Lane]) -> list[Bar]:
    return [bar for lane in lanes if lane.kind == "range" for bar in lane.bars]


def _around(bars: Sequence[Bar]) -> tuple[int, int] | None:
    """Return the start of the first bar and the end of the last."""
    if not bars:
        return None
    return min(bar.start_ns for bar in bars), max(bar.end_ns for bar in bars)
