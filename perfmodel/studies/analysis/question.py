"""Question 2.6 of the CME 213 assignment: what raises intensity and FLOP/s; other parallelism."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.analysis.sweeps import FLAT, elasticity
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.programs.program import Options
from perfmodel.studies.calibrated import Free
from perfmodel.studies.mlp.bounds import Evidence
from perfmodel.studies.models.terms import Case
from perfmodel.studies.registry import model_of
from perfmodel.workloads.work import Counts

Source = Literal["model", "bound"]
Batch = Callable[[Case], tuple[float, Source]]
"""Says what a batch of another case takes: predicted, or at least."""
SMOOTH: Final = "smooth roof here"
_FARTHEST: Final = 1 << 24
_SYMBOLS: Final = ("B", "H", "D", "C", "p")


@dataclass(frozen=True, slots=True)
class Reach:
    """Intensity along one symbol, and its crossing of the ridge.

    `flops_exponent` and `bytes_exponent` are those of the symbol in FLOPs and bytes over the
    links; `ridge_at` is the symbol's value at the ridge, None if none is; `roof_flops_per_s` the
    smooth roof there. `doubled_flops_per_s` is the rate at twice the value, predicted if
    `doubled_by` is 'model', at most if it is 'bound'.
    """

    symbol: str
    value: int
    flops_exponent: float
    bytes_exponent: float
    ridge_at: int | None
    roof_flops_per_s: float | None
    doubled_flops_per_s: float | None
    doubled_by: Source | None


@dataclass(frozen=True, slots=True)
class Removed:
    """One source of bytes: intensity and FLOP/s without it.

    `seconds` is its time in a batch; `intensity_flops_per_byte` is None where no other bytes are
    left; `flops_per_s` is at most what is reached.
    """

    name: str
    bytes: float
    seconds: float | None
    intensity_flops_per_byte: float | None
    flops_per_s: float | None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A limit of FLOP/s, and how many times this report's rate it is."""

    name: str
    flops_per_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The report's batch on the roofline, and the symbols that move it.

    Attributes
    ----------
    intensity_flops_per_byte, flops_per_s, ridge_flops_per_byte : float or None
        None where nothing is moved, or the report has no roofline.
    formula : str
        Intensity in D, H, C, B, p and b.
    """

    intensity_flops_per_byte: float | None
    flops_per_s: float | None
    ridge_flops_per_byte: float | None
    formula: str
    reach: tuple[Reach, ...]
    removed: tuple[Removed, ...]
    free: tuple[Free, ...]
    ceilings: tuple[Ceiling, ...]


def answer(run: RunAnalysis, found: Evidence, batch: Batch) -> Answer:
    """Answer the question for one report.

    Parameters
    ----------
    run : RunAnalysis
        By the assignment's counting, in which images are no part of the intensity.
    found : Evidence
        Of the same run.
    batch : callable
        From a case to seconds and their source.
    """
    moved, flops = run.totals.moved_bytes, run.totals.flops
    rate = flops / found.batch_s if flops and found.batch_s else None
    try:
        formula = run.workload.total().arithmetic_intensity().text
    except WorkloadError:
        formula = ""
    return Answer(
        intensity_flops_per_byte=flops / moved if moved else None,
        flops_per_s=rate,
        ridge_flops_per_byte=run.roofline.ridge_flops_per_byte if run.roofline else None,
        formula=formula,
        reach=tuple(_reaches(run, found.case, batch)),
        removed=tuple(_removed(run, found)),
        free=tuple(sorted(found.if_free(flops), key=lambda f: f.batch_s)),
        ceilings=tuple(_ceilings(run, rate)),
    )


def _reaches(run: RunAnalysis, case: Case, batch: Batch) -> Iterator[Reach]:
    values = {s: run.identity.values[s] for s in run.workload.symbols}
    for symbol in _SYMBOLS:
        slopes = elasticity(run.workload, values, symbol) if symbol in values else None
        if slopes is None:
            continue
        rise, at = slopes[0] - slopes[1], None
        if run.roofline is not None and abs(rise) > FLAT:
            at = _ridge_at(run, values, symbol, rising=rise > 0)
        roof = None
        if run.roofline is not None and at is not None:
            roof = float(run.roofline.smooth(_intensity(run, {**values, symbol: at}) or 0.0))
        rate, source = _doubled(run, values, case, symbol, batch)
        yield Reach(symbol, values[symbol], *slopes, at, roof, rate, source)


def _doubled(
    run: RunAnalysis, values: Mapping[str, int], case: Case, symbol: str, batch: Batch
) -> tuple[float | None, Source | None]:
    """Return FLOP/s at twice the value of a symbol, and by what."""
    try:
        bigger = model_of(run.program, run.measured).case(
            {**case.sizes, symbol: 2 * case.sizes[symbol]}, case.settings, Options()
        )
        counts = run.workload.evaluate({**values, symbol: 2 * values[symbol]}).values()
        seconds, source = batch(bigger)
    except (ModelError, WorkloadError):
        return None, None
    return sum(counts, Counts()).flops / seconds, source


def _intensity(run: RunAnalysis, values: Mapping[str, int]) -> float | None:
    try:
        whole = sum(run.workload.evaluate(values).values(), Counts())
    except WorkloadError:
        return None
    return whole.arithmetic_intensity


def _ridge_at(
    run: RunAnalysis, values: Mapping[str, int], symbol: str, *, rising: bool
) -> int | None:
    """Find the first value that reaches the ridge, by bisection; None if it is reached, or never.

    A batch is cut into equal shares: B in steps of p.
    """
    ridge = run.roofline.ridge_flops_per_byte if run.roofline else 0.0
    step = values["p"] if symbol == "B" else 1

    def reached(count: int) -> bool:
        return (_intensity(run, {**values, symbol: count * step}) or 0.0) >= ridge

    here = max(values[symbol] // step, 1)
    far = _FARTHEST // step if rising else 1
    if reached(here) or not reached(far):
        return None
    way = range(here, far, 1 if rising else -1)
    return (way[0] + way.step * bisect_left(way, True, key=reached)) * step


def _removed(run: RunAnalysis, found: Evidence) -> Iterator[Removed]:
    """Every range that moves bytes over a link, and the images, which the assignment leaves out."""
    flops, whole = run.totals.flops, run.totals.moved_bytes
    for row in run.ranges:
        own = _bytes(row)
        if own <= 0 or any(other is not row and other.path[: len(row.path)] == row.path
                           and _bytes(other) > 0 for other in run.ranges):  # fmt: skip
            continue
        name = found.part_of(row.label)
        seconds = found.seconds.get(name)
        left = whole - own
        after = found.batch_s if seconds is None else found.without((name,))
        replayed = row.label == run.workload.replay
        label = "all-reduce in the graph" if replayed else row.label
        yield Removed(label, own, seconds, flops / left if left > 0 else None, flops / after)
    images = found.seconds.get("copy images")
    copied = next((r for r in run.ranges if found.part_of(r.label) == "copy images"), None)
    if images and copied is not None:
        after = found.without(("copy images",))
        yield Removed(
            f"{copied.label} (not in the intensity)", copied.measured_copy_bytes or 0.0, images,
            flops / whole if whole else None, flops / after,
        )  # fmt: skip


def _bytes(row: RangeRow) -> float:
    return (row.pci_bytes or 0.0) + (row.mpi_bytes or 0.0) + (row.peer_bytes or 0.0)


def _ceilings(run: RunAnalysis, rate: float | None) -> Iterator[Ceiling]:
    if rate is None:
        return
    found: dict[str, float] = {}
    if run.roofline is not None and run.points:
        at = run.points[0].intensity_flops_per_byte
        found[SMOOTH] = float(run.roofline.smooth(at))
        found["hard roof here"] = float(run.roofline.hard(at))
        found["P_flops, effective"] = run.roofline.flops_per_s
    if run.machine and run.precision in run.machine.peak_flops_per_s:
        found[f"datasheet, {run.precision}"] = run.machine.peak_flops_per_s[run.precision]
    for name, value in found.items():
        yield Ceiling(name, value, value / rate)
