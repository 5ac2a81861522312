"""Question 2.6 of the CME 213 assignment: what raises intensity and FLOP/s; other parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.analysis.splits import rates_of, sizes_of
from perfmodel.analysis.sweeps import elasticity
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.models.model import Model
from perfmodel.models.predict import predict
from perfmodel.programs.mlp.bounds import Evidence, Free, if_free, without
from perfmodel.programs.mlp.case import Case, mlp_case
from perfmodel.programs.mlp.settings import COPY, D2H, GRAPH, H2D
from perfmodel.programs.mlp.splits import (
    Crossing,
    Crossings,
    Grid,
    crossings_of_bytes,
    crossings_of_time,
    of_kind,
    rank_grids,
    split,
)
from perfmodel.workloads.work import Counts

Source = Literal["model", "bound"]
Batch = Callable[[Case], tuple[float, Source]]
"""Says what a batch of another case takes: predicted, or at least."""
FLAT: Final = 0.05
"""Exponents of intensity closer to 0 than this hardly change it, as in `analysis.sweeps`."""
SMOOTH: Final = "smooth roof here"
_FARTHEST: Final = 1 << 24
_SYMBOLS: Final = ("B", "H", "D", "C", "p")


@dataclass(frozen=True, slots=True)
class Reach:
    """How intensity follows one symbol, and where that meets the ridge.

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
    """Where the report's batch is on the roofline, and what moves it.

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
        By the document's counting, in which images are no part of the intensity.
    found : Evidence
        Of the same run.
    batch : callable
        From a case to seconds and their source.
    """
    moved, flops = run.totals.moved_bytes, run.totals.flops
    rate = flops / found.batch_s if flops else None
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
        free=tuple(sorted(if_free(found, flops), key=lambda f: f.batch_s)),
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
        bigger = mlp_case({**case.sizes, symbol: 2 * case.sizes[symbol]}, case.settings)
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
    short, enough = here, far
    while abs(enough - short) > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if reached(middle) else (middle, enough)
    return enough * step


def _removed(run: RunAnalysis, found: Evidence) -> Iterator[Removed]:
    """Every range that moves bytes over a link, and the images, which the document leaves out."""
    flops, whole = run.totals.flops, run.totals.moved_bytes
    seen = {D2H: "copy out", H2D: "copy back", COPY: "copy images"}
    for row in run.ranges:
        own = _bytes(row)
        if own <= 0 or any(other is not row and other.path[: len(row.path)] == row.path
                           and _bytes(other) > 0 for other in run.ranges):  # fmt: skip
            continue
        name = seen.get(row.label, "all-reduce")
        if name not in found.seconds and "pipeline" in found.seconds:
            name = "pipeline"
        seconds = found.seconds.get(name)
        left = whole - own
        after = found.batch_s if seconds is None else without(found, (name,))
        label = "all-reduce in the graph" if row.label == GRAPH else row.label
        yield Removed(label, own, seconds, flops / left if left > 0 else None, flops / after)
    images = found.seconds.get("copy images")
    if images:
        row_bytes = next((r.measured_copy_bytes for r in run.ranges
                          if r.label.startswith(COPY)), None)  # fmt: skip
        after = without(found, ("copy images",))
        yield Removed(
            f"{COPY} (not in the intensity)", row_bytes or 0.0, images,
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


_ENDS: Final = {"H": (1, 1 << 17), "B": (1, 1 << 20), "p": (2, 1 << 10)}
"""Where crossings are looked for."""


@dataclass(frozen=True, slots=True)
class Parallelisms:
    """Data against model parallelism for one report's sizes and ranks.

    Attributes
    ----------
    data_s, model_s : float or None
        Seconds of a batch on paper (`perfmodel.splits`): bytes and FLOPs over the report's rates,
        without launches. None where the report has no rates.
    data_bytes, model_bytes : float
        Handed to the all-reduce.
    rates : str
        Where the rates come from, or why there are none.
    bytes : Crossings
        Where the model's message is the smaller one.
    seconds : Crossings or None
        Where its batch is the shorter one, on paper.
    calibrated : Crossings or None
        The same by the calibrated model, whose terms are measured.
    missing_calibration : str
        Why there is no `calibrated`.
    """

    data_s: float | None
    model_s: float | None
    data_bytes: float
    model_bytes: float
    rates: str
    bytes: Crossings
    seconds: Crossings | None
    calibrated: Crossings | None
    missing_calibration: str


def parallelisms(full: RunAnalysis, case: Case, model: Model | None) -> Parallelisms | None:
    """Compare both parallelisms on paper and, where it can, by the calibrated model.

    Parameters
    ----------
    full : RunAnalysis
        Counted in full.
    case : Case
    model : Model, optional

    Returns
    -------
    Parallelisms or None
        None on one rank.
    """
    if case.sizes["p"] < 2:
        return None
    sizes, ranks = sizes_of(case.sizes)
    streamed = case.streamed
    data = split(sizes, Grid(B=ranks)).message_bytes
    apart = split(sizes, Grid(H=ranks)).message_bytes
    times: list[float | None] = [None, None]
    seconds = None
    try:
        rates = rates_of(full)
        ranked, _ = rank_grids(sizes, ranks, rates, streamed=streamed)
        kinds = [of_kind(ranked, f"{kind} parallel") for kind in ("data", "model")]
        times = [r.times.batch_s(streamed=streamed) if r else None for r in kinds]
        seconds = crossings_of_time(sizes, ranks, rates, streamed=streamed)
        source = f"{rates.source}, by {rates.through}"
    except ModelError as error:
        source = f"no rates ({error})"
    calibrated, missing = _calibrated(case, model)
    return Parallelisms(
        times[0], times[1], data, apart, source, crossings_of_bytes(sizes), seconds,
        calibrated, missing,
    )  # fmt: skip


def _calibrated(case: Case, model: Model | None) -> tuple[Crossings | None, str]:
    if model is None:
        return None, "no calibrated model was given (--model model.json)"
    settings = case.having(overlap="no").settings
    try:
        kinds = [mlp_case(case.sizes, {**settings, "parallel": k}) for k in ("data", "model")]

        def faster(symbol: str) -> Callable[[int], bool]:
            def wins(value: int) -> bool:
                data, apart = (k.resized({symbol: value}) for k in kinds)
                return predict(model, apart).batch_s < predict(model, data).batch_s

            return wins

        found = {symbol: _crossing(faster(symbol), *_ends(case, symbol)) for symbol in _ENDS}
    except (ModelError, WorkloadError) as error:
        return None, str(error)
    return Crossings(batch=found["B"], hidden=found["H"], ranks=found["p"]), ""


def _ends(case: Case, symbol: str) -> tuple[int, int]:
    """Values between which a run can be: a rank needs an image and a hidden unit."""
    low, high = _ENDS[symbol]
    z = case.sizes
    if symbol == "p":
        return low, min(high, z["B"], z["H"])
    return max(low, z["p"]), high


def _crossing(wins: Callable[[int], bool], low: int, high: int) -> Crossing:
    """Say from where on, or up to where, model parallelism wins, if it changes once."""
    first, last = wins(low), wins(high)
    if first == last:
        return Crossing(None, "always" if first else "never")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wins(middle) == first else (low, middle)
    return Crossing(float(high), "below" if first else "above")
