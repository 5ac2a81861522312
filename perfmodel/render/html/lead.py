"""The summary of a page: what takes the time, how far from the ceilings, what to change first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.analysis.rates import Rate
from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.analysis.rows import machine_roof
from perfmodel.analysis.warnings import lacking
from perfmodel.analysis.whatif import WhatIf
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.programs.mlp.case import Case
from perfmodel.render.html.blocks import Grid, grid

_MOST_PARTS: Final = 7
_REST: Final = 0.005
"""Parts below this share of a batch are put together."""

_LINKS: Final = {"P_pci": "pcie", "P_peer": "nvlink"}
_MEANS: Final = {
    "P_flops": "computing",
    "P_pci": "copies over PCIe",
    "P_mpi": "all-reduce by MPI",
    "P_peer": "from GPU to GPU",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One number in large letters; `share` fills a bar below it."""

    name: str
    value: str
    note: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a median batch; `begin` and `share` are of the whole.

    `what` is 'range', 'small' for several ranges put together, 'rest' for what is in none.
    """

    name: str
    seconds: float
    begin: float
    share: float
    what: str = "range"

    @property
    def shown(self) -> str:
        """Time and share as a reader sees them."""
        return f"{si(self.seconds, 's')}, {percent(self.share)}"


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first thing to change: what it would save, on what grounds, and how to do it."""

    title: str
    saving: str
    grounds: str
    how: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Everything that stands above the sections."""

    sentence: str
    tiles: tuple[Tile, ...]
    parts: tuple[Part, ...]
    parts_of: str
    rates: Grid | None
    first: FirstStep | None


def lead(run: RunAnalysis, said: WhatIf | None) -> Lead:
    """Sum one run up; `said` is what `perfmodel.whatif` says of it, if it can."""
    found = tuple(parts(run))
    queued = run.batch.queued_s is not None
    fitted = [rate for rate in run.rates.values() if rate is not None]
    return Lead(
        sentence=_sentence(run, found),
        tiles=tuple(_tiles(run)),
        parts=found,
        parts_of="GPU busy time by range" if queued else "host time by range",
        rates=_rates(run) if fitted else None,
        first=_first(run, said),
    )


def head_of(run: RunAnalysis) -> RangeRow:
    """The row of the batch itself."""
    return next(row for row in run.ranges if row.label == run.batch.label)


def parts(run: RunAnalysis) -> Iterator[Part]:
    """Cut a median batch into the ranges directly inside it, and what is in none.

    Where the host only queues batches, its time says nothing: the GPU's is cut, and a range that is
    all there is into what is inside it, such as the kernels of a CUDA graph.
    """
    queued, head = run.batch.queued_s is not None, head_of(run)
    whole = run.batch.median.value
    children = _inside(run, head, queued=queued)
    if queued and len(children) == 1:
        children = _inside(run, children[0][0], queued=queued) or children
    if not children or whole <= 0:
        return
    found = [(row.label, s, "range") for row, s in children]
    shown = [p for p in found if p[1] >= _REST * whole][:_MOST_PARTS]
    small = sum(p[1] for p in found) - sum(p[1] for p in shown)
    rest = whole - sum(p[1] for p in found)
    scale = max(whole, whole - rest)
    if small > 0:
        shown.append((f"{len(found) - len(shown)} smaller ones", small, "small"))
    if rest > _REST * whole:
        idle = "the GPU is idle" if not lacking(run.unattributed) else "idle, or in no range"
        shown.append((idle if queued else "in no range", rest, "rest"))
    begin = 0.0
    for name, seconds, what in shown:
        yield Part(name, seconds, begin, seconds / scale, what)
        begin += seconds / scale


def _inside(run: RunAnalysis, row: RangeRow, *, queued: bool) -> list[tuple[RangeRow, float]]:
    inner = [r for r in run.ranges if r.path[:-1] == row.path]
    timed = [(r, r.gpu_busy_s if queued else r.host_s) for r in inner]
    return [(r, s) for r, s in timed if s]


def _sentence(run: RunAnalysis, found: Sequence[Part]) -> str:
    batch = run.batch.median.value
    said = f"A median batch takes {si(batch, 's', 4)}"
    named = [p for p in found if p.what == "range"]
    if named:
        most = max(named, key=lambda p: p.seconds)
        said += f"; its largest part, {most.shown}, is {most.name}"
    busy = head_of(run).gpu_busy_s
    if busy is not None and batch > 0:
        least = "at least " * bool(lacking(run.unattributed))
        said += f". The GPU is busy for {least}{percent(busy / batch)} of it"
    return said + "."


def _tiles(run: RunAnalysis) -> Iterator[Tile]:
    batch, head = run.batch, head_of(run)
    seconds = batch.median
    yield Tile(
        "Median batch",
        si(seconds.value, "s", 4),
        f"95 %: {si(seconds.low, 's', 4)} to {si(seconds.high, 's', 4)}; {batch.count} batches on "
        f"{len(run.ranks)} rank{'s' * (len(run.ranks) != 1)}",
    )
    if head.gpu_busy_s is None or seconds.value <= 0:
        yield Tile("GPU busy", "–", "no GPU operation was recorded in a batch")
    else:
        share = min(head.gpu_busy_s / seconds.value, 1.0)
        note, lost = f"{si(head.gpu_busy_s, 's')} of a batch", lacking(run.unattributed)
        if lost:
            note = f"at least: {note}, without {lost:,} operations in no range"
        yield Tile("GPU busy", percent(share), note, share)
    if head.flops and head.rate and head.rate_unit == "FLOP/s":
        note, reached = "the peak is not known", head.of_ceiling
        if reached is not None and run.machine is not None:
            peak = run.machine.peak_flops_per_s[run.precision]
            note = f"{percent(reached)} of {si(peak, 'FLOP/s')}, {run.precision} peak"
        yield Tile("Achieved in a batch", si(head.rate, "FLOP/s"), note, reached)
    else:
        yield Tile("Achieved in a batch", "–", "the FLOPs of a batch are not known")
    roof = run.roofline or machine_roof(run)
    name = "Of its effective roof" if run.roofline else "Of the machine's roof"
    if roof is not None and run.points:
        point = run.points[0]
        height = float(roof.smooth(point.intensity_flops_per_byte))
        share = point.flops_per_s / height
        yield Tile(name, percent(share), f"smooth: {si(height, 'FLOP/s')}", min(share, 1.0))
    else:
        yield Tile("Of its effective roof", "–", "no roofline could be fitted")


def percent(share: float) -> str:
    """Show a share in whole percents, a small one in two digits."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _rates(run: RunAnalysis) -> Grid:
    """Effective throughputs with their intervals, beside the machine's ceilings."""
    rows: list[tuple[object, ...]] = []
    fitted = [(name, rate) for name, rate in run.rates.items() if rate is not None]
    ceilings = [_ceiling(run, name) for name, _ in fitted]
    for (name, rate), (label, ceiling) in zip(fitted, ceilings, strict=True):
        rows.append(
            (name, _MEANS.get(name, ""), si(rate.value, rate.unit, 4), _interval(rate),
             si(ceiling, rate.unit) if ceiling else None, label or None,
             rate.value / ceiling if ceiling else None)
        )  # fmt: skip
    columns = (
        Column("name", "Rate"),
        Column("means", "Of"),
        Column("value", "Effective", align="right"),
        Column("interval", "95 % interval", align="right"),
        Column("ceiling", "Ceiling", align="right"),
        Column("which", "Which"),
        Column("share", "Of the ceiling", "percent", digits=0),
    )
    values = [rate.value for _, rate in fitted]
    return grid(
        Table("Effective throughputs and the machine's ceilings", columns, rows),
        sort={"value": values, "interval": values, "ceiling": [value for _, value in ceilings]},
    )


def _interval(rate: Rate) -> str:
    return f"{si(rate.low, rate.unit)} to {si(rate.high, rate.unit)}"


def _ceiling(run: RunAnalysis, name: str) -> tuple[str, float | None]:
    """Name and value of the machine's limit of a rate; None where it is not known.

    The datasheet's NVLink adds both directions up, and so does the assignment's count of bytes.
    """
    if run.machine is None:
        return "", None
    if name == "P_flops":
        return f"{run.precision} peak", run.machine.peak_flops_per_s.get(run.precision)
    link = _LINKS.get(name, "")
    rate = run.machine.bandwidth_bytes_per_s.get(link)
    if rate is None:
        return "", None
    one_way = link == "nvlink" and run.workload.counting != "document"
    return {"pcie": "PCIe", "nvlink": "NVLink"}[link], rate / 2 if one_way else rate


def _flags(said: WhatIf, after: Case) -> str:
    """The trainer's flags that differ between this run and the changed one."""
    found = []
    for name, value in after.settings.items():
        flag = {"sync": "--sync-ranges"}.get(name, f"--{name.replace('_', '-')}")
        if value == said.case.settings.get(name):
            continue
        found.append({"yes": flag, "no": f"no {flag}"}.get(value, f"{flag} {value}"))
    return " ".join(found)


def _first(run: RunAnalysis, said: WhatIf | None) -> FirstStep | None:
    """Choose what the model predicts to save most, else the largest loss that was measured."""
    step = said.path[0] if said is not None and said.path else None
    if said is not None and step is not None and step.source == "model":
        change = next((c.change for c in said.changes if c.name == step.name), step.removes)
        low, high = said.batch_s - step.high_s, said.batch_s - step.low_s
        return FirstStep(
            change,
            f"saves {si(step.saving_s, 's')} a batch ({percent(step.saving_s / said.batch_s)}), "
            f"90 %: {si(low, 's')} to {si(high, 's')}",
            f"predicted by the calibrated model; {step.name} removes {step.removes}",
            f"profile the trainer with {_flags(said, step.case)}",
        )
    finding = next((f for f in run.findings if f.saving_s is not None), None)
    if finding is None or finding.saving_s is None:
        return None
    share = finding.saving_s / run.batch.median.value
    return FirstStep(
        finding.title,
        f"saves at most {si(finding.saving_s, 's')} a batch ({percent(share)})",
        finding.evidence,
        finding.action,
    )
