"""Networks by layer: FLOPs, parameters and bytes, errors of Paleo, ways to time (notebook 07)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.base.table import Column, Table
from perfmodel.workloads.layers import Conv, Cost, Linear, costs, total
from perfmodel.workloads.networks import network
from writeup.paleo import Judged
from writeup.shipped import Part, read_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS: Final = {
    "graph": "as a CUDA graph",
    "alone": "sum of layers alone",
    "events": "events between layers",
    "synchronized": "waiting after every layer",
}
"""How benchmarks.layers times a forward pass, besides whole."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass on one GPU, timed in several ways, in seconds; None was not timed."""

    net: str
    batch: int
    math: str
    whole_s: float
    graph_s: float | None
    alone_s: float | None
    events_s: float | None
    synchronized_s: float | None

    def over_whole(self, way: str) -> float | None:
        """Return the time of one of `WAYS` over that of the whole pass."""
        seconds: float | None = getattr(self, f"{way}_s")
        return None if seconds is None else seconds / self.whole_s


def parts_of(name: str, batch: int = 1) -> tuple[Cost, Cost, Cost]:
    """Return what convolutions, fully connected layers and the rest of a network cost."""
    found: dict[type, Cost] = {Conv: Cost(), Linear: Cost(), object: Cost()}
    for placed, cost in costs(network(name), batch):
        kind = next(k for k in found if isinstance(placed.layer, k))
        found[kind] += cost
    return found[Conv], found[Linear], found[object]


def counts_table(names: Sequence[str]) -> Table:
    """Return parameters, multiply-accumulates and bytes of networks, of one image."""
    columns = (
        Column("net", "network"), Column("params", "parameters", "int"),
        Column("fc_params", "in FC layers", "percent"), Column("macs", "MACs", "int"),
        Column("conv_macs", "in convolutions", "percent", digits=2),
        Column("flops", "training", "si", "FLOP"),
        Column("one", "FLOP/byte, 1 image", "float", digits=1),
        Column("many", "32 images", "float", digits=1),
    )  # fmt: skip
    rows = []
    for name in names:
        conv, fc, rest = parts_of(name)
        whole, many = conv + fc + rest, total(network(name), 32)
        rows.append(
            (name, whole.parameters, fc.parameters / whole.parameters, whole.macs,
             conv.macs / whole.macs, whole.flops, whole.forward_flops / whole.forward_bytes,
             many.forward_flops / many.forward_bytes)
        )  # fmt: skip
    return Table("One image, float32", columns, rows)


def read_forwards(path: Path) -> tuple[tuple[Forward, ...], Part]:
    """Read the forward passes that benchmarks.layers timed."""
    found = read_part(path, "time", "python -m benchmarks.layers --part time")
    cells: dict[tuple[str, int, str], dict[str, float]] = {}
    for r in found.rows:
        cells.setdefault((r["net"], r["batch"], r["math"]), {})[r["mode"]] = r["total_s"]
    passes = tuple(
        Forward(*cell, seconds["whole"], *(seconds.get(way) for way in WAYS))
        for cell, seconds in cells.items() if "whole" in seconds
    )  # fmt: skip
    return passes, found


def forwards_table(passes: Sequence[Forward]) -> Table:
    """Return every forward pass in all ways, and how much too long the waiting makes it."""
    columns = (
        Column("net", "network"), Column("batch", "images", "int"), Column("math", "math"),
        Column("whole", "whole", "si", "s"),
        *(Column(way, said, "si", "s") for way, said in WAYS.items()),
        Column("over", "waiting / whole", "float", digits=2),
    )  # fmt: skip
    rows = [
        (f.net, f.batch, f.math, f.whole_s, f.graph_s, f.alone_s, f.events_s, f.synchronized_s,
         f.over_whole("synchronized"))
        for f in passes
    ]  # fmt: skip
    return Table("Forward passes", columns, rows)


def judged_table(judged: Sequence[Judged]) -> Table:
    """Return every step with its prediction by the percent of peak of its network and type."""
    columns = (
        Column("net", "network"), Column("dtype", "type"), Column("batch", "images", "int"),
        Column("ppp", "PPP", "percent"), Column("measured_s", "measured", "si", "s"),
        Column("predicted_s", "predicted", "si", "s"), Column("error", "error", "percent"),
        Column("other", "by another network's PPP", "percent"),
    )  # fmt: skip
    rows = [
        (j.measured.net, j.measured.dtype, j.measured.batch, j.ppp, j.measured.seconds,
         j.predicted_s, j.error, j.other_error)
        for j in judged
    ]  # fmt: skip
    return Table("Paleo, fitted to one batch", columns, rows)


def draw_parts(names: Sequence[str], axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Draw shares of parameters, FLOPs of training, and bytes that one image's pass moves."""
    from perfmodel.render.plot.bars import stacks
    from perfmodel.render.plot.style import legend_over

    kinds = ("convolutions", "fully connected", "the rest")
    all_of = {name: parts_of(name) for name in names}
    said = {
        "Parameters (%)": {n: [c.parameters for c in cs] for n, cs in all_of.items()},
        "FLOPs (%)": {n: [c.flops for c in cs] for n, cs in all_of.items()},
        "Bytes moved, forward (%)": {n: [c.forward_bytes for c in cs] for n, cs in all_of.items()},
    }
    for i, (ax, (label, rows)) in enumerate(zip(axes, said.items(), strict=True)):
        bars = {name: dict(zip(kinds, values, strict=True)) for name, values in rows.items()}
        stacks(bars, rest=kinds[-1], label=label, named=i == 0, legend=False, ax=ax)
    legend_over(axes[:1])
    return tuple(axes)


def draw_errors(judged: Sequence[Judged], axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Draw predicted over measured by images, a line per data type, an axes per network."""
    from perfmodel.render.plot.lines import Series, lines
    from perfmodel.render.plot.style import Measure, legend_over

    nets = list(dict.fromkeys(j.measured.net for j in judged))
    for ax, net in zip(axes, nets, strict=True):
        points: dict[str, list[tuple[int, float]]] = {}
        for j in judged:
            if j.measured.net == net:
                point = (j.measured.batch, 1 + j.error)
                points.setdefault(j.measured.dtype, []).append(point)
        series = {
            t: Series([b for b, _ in sorted(mine)], [r for _, r in sorted(mine)])
            for t, mine in points.items()
        }
        images = Measure(f"Images per step, {net}", scale="log")
        ratio = Measure("Predicted / measured", scale="log")
        lines(series, images, ratio, references={"equal": 1.0}, legend=None, ticked=True, ax=ax)
    legend_over(axes)
    return tuple(axes)


def draw_ways(
    passes: Sequence[Forward], axes: Sequence[Axes], cells: Sequence[tuple[int, str]]
) -> tuple[Axes, ...]:
    """Draw times of all ways over the whole pass, an axes for every batch and math of `cells`."""
    from perfmodel.render.plot.bars import Dot, dots
    from perfmodel.render.plot.style import Measure, legend_over

    for ax, (batch, math) in zip(axes, cells, strict=True):
        mine = [f for f in passes if (f.batch, f.math) == (batch, math)]
        found = [
            Dot(f.net, said, ratio)
            for way, said in WAYS.items() for f in mine
            if (ratio := f.over_whole(way)) is not None
        ]  # fmt: skip
        images = f"{batch} image{'s' * (batch > 1)}"
        over = Measure(f"Time / whole pass, {images}, {math}")
        dots(found, over, levels={"equal": 1.0}, legend=False, ax=ax)
    legend_over(axes)
    return tuple(axes)
