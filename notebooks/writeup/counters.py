"""Counters of Nsight Compute, and training steps of ResNets on H200s (notebook 06)."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from studies import resnet as published

from perfmodel.analysis import counters
from perfmodel.analysis.counters import Counted, Placed, by_range, inside, place
from perfmodel.base.table import Column, Table
from perfmodel.base.units import DTYPE_BYTES
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point, Roofline
from perfmodel.readers.ncu import Launch, parse, read_counters
from perfmodel.render.counters import formulas_table
from perfmodel.studies.models.paleo import PEAKS
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import Cost, total
from writeup.paleo import Measured
from writeup.shipped import Part, read_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKER: Final = "spin_kernel"
"""`torch.cuda._sleep`: benchmarks.resnet launches it before every phase, and behind the last."""
PHASES: Final = ("forward", "backward", "step")
SCRIPT: Final = "python -m benchmarks.resnet --part"
MATHS: Final = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}
"""What the benchmark calls a data type of `perfmodel.studies.models.paleo.PEAKS`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step that was timed without a profiler, and what its layers cost.

    Attributes
    ----------
    seconds, host_s : float
        Of the step, and how long Python was launching it.
    cost : Cost
        FLOPs and bytes by the layers, each reading and writing memory once.
    """

    net: str
    batch: int
    math: str
    seconds: float
    host_s: float
    cost: Cost

    @property
    def flops_per_s(self) -> float:
        """FLOPs of the layers over the time."""
        return self.cost.flops / self.seconds

    @property
    def host_share(self) -> float:
        """Share of the step in which the host launched it; near 1 the GPU waits for Python."""
        return min(self.host_s / self.seconds, 1.0)

    @property
    def measured(self) -> Measured:
        """As `writeup.paleo.judge` takes it."""
        return Measured(self.net, MATHS[self.math], self.batch, self.seconds)


@dataclass(frozen=True, slots=True)
class Phase:
    """What Nsight Compute counted of one phase of one step."""

    net: str
    batch: int
    math: str
    phase: str
    counted: Counted


def place_ranges(
    paths: Sequence[Path], machine: Machine, ranges: Sequence[str] = ()
) -> tuple[Placed, ...]:
    """Read files of ncu and set their ranges against the machine's ceilings, the longest first.

    Parameters
    ----------
    paths : sequence of Path
        Several files are distinguished by their names.
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
    return formulas_table(counters.compare(ranges, workload, dict(sizes), batches))


def draw_levels(placed: Sequence[Placed], ax: Axes) -> Axes:
    """Draw the hierarchical roofline; see `perfmodel.render.plot.roofline.levels`."""
    from perfmodel.render.plot.roofline import levels

    return levels(placed, ax=ax)


def between(launches: Iterable[Launch], marker: str = MARKER) -> list[list[Launch]]:
    """Part launches at a marker kernel; each begins one part, what is before the first is dropped.

    Examples
    --------
    >>> between([])
    []
    """
    parts: list[list[Launch]] = []
    for launch in launches:
        if marker in launch.kernel:
            parts.append([])
        elif parts:
            parts[-1].append(launch)
    return parts


def read_steps(path: Path) -> tuple[tuple[Step, ...], Part]:
    """Read the timed steps of benchmarks.resnet, those on one GPU."""
    found = read_part(path, "time", f"{SCRIPT} time")
    image = found.data.get("about", {}).get("image", 224)
    steps = tuple(
        Step(
            r["net"], r["batch"], r["math"], r["total_s"], r["host_s"],
            total(resnet(r["net"], image), r["batch"], DTYPE_BYTES[MATHS[r["math"]]]),
        )
        for r in found.rows if r.get("total_s") and r.get("mode") == "alone"
    )  # fmt: skip
    return steps, found


def read_phases(path: Path) -> tuple[tuple[Phase, ...], Part]:
    """Read the counters of one step per cell, by phase, from the tables beside the results.

    Phases that were cut off are left out.
    """
    found = read_part(path, "counters", f"{SCRIPT} counters")
    phases: list[Phase] = []
    for net, table in found.data.get("tables", {}).items():
        cells = [r for r in found.rows if r["net"] == net]
        if not cells or not table["kernels"]:
            continue
        file = path.parent / table["file"]
        parts = between(parse(lzma.decompress(file.read_bytes()).decode(), file.name).launches)
        for i, cell in enumerate(cells):
            mine = parts[4 * i : 4 * i + 4]  # the last of them is behind the step
            for name, launches in zip(PHASES, mine[:-1], strict=False):
                label = f"{net} {cell['math']}, {name}"
                counted = Counted.of(label, "range", launches)
                phases.append(Phase(net, cell["batch"], cell["math"], name, counted))
    return tuple(phases), found


def place_phases(phases: Sequence[Phase], machine: Machine) -> tuple[Placed, ...]:
    """Set every phase against the machine's ceilings."""
    return tuple(place(one.counted, machine) for one in phases)


def roofs(machine: Machine, maths: Sequence[str]) -> tuple[Roofline, ...]:
    """Return the machine's roof for each math: the peak of its GEMMs, and the memory."""
    found = []
    for math in maths:
        key = next(k for k in PEAKS[MATHS[math]] if k in machine.peak_flops_per_s)
        roof = published.roof(machine, key)
        found.append(Roofline(math, roof.flops_per_s, roof.links_bytes_per_s, roof.shares))
    return tuple(found)


def points(steps: Sequence[Step], phases: Sequence[Phase] = ()) -> tuple[Point, ...]:
    """Return a point per step: by its layers' bytes, and by DRAM's where a step was counted.

    Both stand at FLOPs of the layers, or counted ones, over the time without a profiler.
    """
    found = [
        Point(
            f"{s.math}, {s.batch} images", "bytes by the layers", s.math,
            s.cost.flops / s.cost.moved_bytes, s.flops_per_s,
        )
        for s in steps
    ]  # fmt: skip
    for s in steps:
        mine = [
            p.counted for p in phases if (p.net, p.batch, p.math) == (s.net, s.batch, s.math)
        ]  # fmt: skip
        flops = [c.flops for c in mine]
        moved = [c.bytes_of("dram") for c in mine]
        if len(mine) == len(PHASES) and all(flops) and all(moved):
            work, size = sum(f or 0.0 for f in flops), sum(m or 0.0 for m in moved)
            found.append(
                Point(
                    f"{s.math}, {s.batch} images, counted", "counted", s.math, work / size,
                    work / s.seconds,
                )
            )  # fmt: skip
    return tuple(found)


def steps_table(steps: Sequence[Step], machine: Machine) -> Table:
    """Return a row per step: time, rate, share of the peak, and how busy the host was."""
    columns = (
        Column("net", "network"), Column("math", "math"), Column("batch", "images", "int"),
        Column("step_s", "step", "si", "s"), Column("flops", "FLOPs", "si", "FLOP"),
        Column("rate", "rate", "si", "FLOP/s"), Column("share", "of the peak", "percent"),
        Column("host", "host busy", "percent", digits=0),
    )  # fmt: skip
    peaks = {m: roofs(machine, [m])[0].flops_per_s for m in dict.fromkeys(s.math for s in steps)}
    rows = [
        (s.net, s.math, s.batch, s.seconds, s.cost.flops, s.flops_per_s,
         s.flops_per_s / peaks[s.math], s.host_share)
        for s in steps
    ]  # fmt: skip
    return Table(f"Training steps on {machine.name}", columns, rows)


def phases_table(phases: Sequence[Phase]) -> Table:
    """Return FLOPs and DRAM bytes of every counted phase beside those of the layers."""
    columns = (
        Column("net", "network"), Column("math", "math"), Column("batch", "images", "int"),
        Column("phase", "phase"), Column("kernels", "kernels", "int"),
        Column("flops", "FLOPs, layers", "si", "FLOP"), Column("counted", "counted", "si", "FLOP"),
        Column("ratio", "ratio", "float", digits=3), Column("bytes", "bytes, layers", "si", "B"),
        Column("dram", "DRAM", "si", "B"), Column("moved", "of it", "float", digits=2),
        Column("seconds", "kernels' time", "si", "s"),
    )  # fmt: skip
    rows = []
    for p in phases:
        cost = total(resnet(p.net), p.batch, DTYPE_BYTES[MATHS[p.math]])
        flops = {"forward": cost.forward_flops, "backward": cost.backward_flops}.get(p.phase)
        moved = {"forward": cost.forward_bytes, "backward": cost.backward_bytes}.get(
            p.phase, cost.update_bytes
        )
        counted, dram = p.counted.flops, p.counted.bytes_of("dram")
        rows.append(
            (p.net, p.math, p.batch, p.phase, p.counted.launches, flops, counted,
             counted / flops if counted and flops else None, moved, dram,
             dram / moved if dram else None, p.counted.time_s)
        )  # fmt: skip
    return Table("What Nsight Compute counted of ResNet steps", columns, rows)


def draw_published(axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Draw the published study's points under the roofs of its two machines."""
    from perfmodel.render.plot import roofline

    trials = published.study().trials
    machines = list(dict.fromkeys(t.machine for t in trials))
    for ax, name in zip(axes, machines, strict=True):
        mine = [t for t in trials if t.machine == name]
        roof = published.roof(published.machine_of(mine[0]))
        roofline(roof, [published.point(t) for t in mine], ax=ax, title=name)
    return tuple(axes)


def draw_rates(steps: Sequence[Step], machine: Machine, axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Draw FLOP/s over images, a line per math, an axes per network."""
    from perfmodel.render.plot.lines import Series, lines
    from perfmodel.render.plot.style import Measure, legend_over

    nets = list(dict.fromkeys(s.net for s in steps))
    maths = list(dict.fromkeys(s.math for s in steps))
    for ax, net in zip(axes, nets, strict=True):
        series = {}
        for math in maths:
            mine = sorted((s for s in steps if (s.net, s.math) == (net, math)), key=_images)
            series[math] = Series([s.batch for s in mine], [s.flops_per_s for s in mine])
        peak = roofs(machine, ["fp32"])[0].flops_per_s
        images = Measure(f"Images per step, {net}", scale="log")
        lines(series, images, Measure("FLOP/s of the layers", "FLOP/s", "log"), legend=None,
              references={"peak of fp32": peak}, ticked=True, ax=ax)  # fmt: skip
    legend_over(axes)
    return tuple(axes)


def draw_roofs(
    steps: Sequence[Step], phases: Sequence[Phase], machine: Machine, axes: Sequence[Axes]
) -> tuple[Axes, ...]:
    """Draw steps of 10 and 128 images under the roofs of their math, an axes for each network."""
    from perfmodel.render.plot import roofline

    maths = ("fp32", "tf32")
    nets = list(dict.fromkeys(s.net for s in steps))
    for ax, net in zip(axes, nets, strict=True):
        mine = [s for s in steps if s.net == net and s.math in maths and s.batch in (10, 128)]
        roofline(roofs(machine, maths), points(mine, phases), ax=ax, title=net)
    return tuple(axes)


def _images(step: Step) -> int:
    return step.batch
