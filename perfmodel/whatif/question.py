"""The document's Question 2.6: what is required to increase arithmetic intensity and FLOP/s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.analysis import RangeRow, RunAnalysis
from perfmodel.errors import WorkloadError
from perfmodel.predict.parts import route
from perfmodel.sweeps import elasticity
from perfmodel.units import si
from perfmodel.whatif.evidence import GRAPH, WAITS, Evidence, structure
from perfmodel.workloads.work import Counts

_FLAT: Final = 0.05
"""Exponents of intensity closer to 0 than this hardly change it, as in `perfmodel.sweeps`."""
_FARTHEST: Final = 1 << 24
_SYMBOLS: Final = ("B", "H", "D", "C", "p")
_LAUNCHES: Final = ("launch forward", "launch backward")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "copy of images (PCIe)": ("copy images", "queue images"),
    "copies of gradients (PCIe)": ("copy out", "copy back"),
    "all-reduce": ("all-reduce", "sum alone", "pipeline", "peer all-reduce and step"),
    "launches on the host": (*_LAUNCHES, "launch step", "between", "replay"),
    "products": ("wide products", "thin products", "element-wise", "fused steps", GRAPH, WAITS),
    "step on the GPU": ("step kernels",),
    "gaps between kernels": ("gaps",),
}
"""Parts by link or unit."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How intensity follows one symbol, and where that meets the ridge.

    `flops_exponent` and `bytes_exponent` are those of the symbol in FLOPs and bytes over the
    links; `ridge_at` is the symbol's value at the ridge, None if none is; `roof_flops_per_s` the
    smooth roof there.
    """

    symbol: str
    value: int
    flops_exponent: float
    bytes_exponent: float
    ridge_at: int | None
    roof_flops_per_s: float | None


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
class Free:
    """Amdahl's bound: the batch if one link or unit took no time.

    `seconds` is what it takes now, hidden or not.
    """

    name: str
    seconds: float
    batch_s: float
    speedup: float
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


def answer(run: RunAnalysis, found: Evidence) -> Answer:
    """Answer the question for one report.

    Parameters
    ----------
    run : RunAnalysis
        By the document's counting, in which images are no part of the intensity.
    found : Evidence
        Of the same run.
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
        reach=tuple(_reaches(run)),
        removed=tuple(_removed(run, found)),
        free=tuple(sorted(_free(found, flops), key=lambda f: f.batch_s)),
        ceilings=tuple(_ceilings(run, rate)),
    )


def _reaches(run: RunAnalysis) -> Iterator[Reach]:
    values = {s: run.identity.values[s] for s in run.workload.symbols}
    for symbol in _SYMBOLS:
        slopes = elasticity(run.workload, values, symbol) if symbol in values else None
        if slopes is None:
            continue
        rise, at = slopes[0] - slopes[1], None
        if run.roofline is not None and abs(rise) > _FLAT:
            at = _ridge_at(run, values, symbol, rising=rise > 0)
        roof = None
        if run.roofline is not None and at is not None:
            roof = float(run.roofline.smooth(_intensity(run, {**values, symbol: at}) or 0.0))
        yield Reach(symbol, values[symbol], *slopes, at, roof)


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
    seen = {"cudaMemcpyDeviceToHost": "copy out", "cudaMemcpyHostToDevice": "copy back",
            "copying images host -> device": "copy images"}  # fmt: skip
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
        label = "all-reduce in the graph" if row.label == "CUDA graph" else row.label
        yield Removed(label, own, seconds, flops / left if left > 0 else None, flops / after)
    images = found.seconds.get("copy images")
    if images:
        row_bytes = next((r.measured_copy_bytes for r in run.ranges
                          if r.label.startswith("copying images")), None)  # fmt: skip
        after = without(found, ("copy images",))
        yield Removed(
            "copying images host -> device (not in the intensity)", row_bytes or 0.0, images,
            flops / whole if whole else None, flops / after,
        )  # fmt: skip


def _bytes(row: RangeRow) -> float:
    return (row.pci_bytes or 0.0) + (row.mpi_bytes or 0.0) + (row.peer_bytes or 0.0)


def _free(found: Evidence, flops: float) -> Iterator[Free]:
    for name, parts in GROUPS.items():
        seconds = sum(found.seconds.get(part, 0.0) for part in parts if part != WAITS)
        if seconds <= 0:
            continue
        batch = max(without(found, parts), 0.0)
        speedup = found.batch_s / batch if batch > 0 else float("inf")
        yield Free(name, seconds, batch, speedup, flops / batch if flops and batch > 0 else None)


def without(found: Evidence, names: tuple[str, ...]) -> float:
    """Return the batch if some parts took no time: what runs beside them may then show.

    A host that waits for the GPU is done with a batch when both its launches and the products are;
    where it only queues, the slower side is the batch.
    """
    s, how, parts = found.seconds, route(found.case), structure(found.case)
    if how == "replayed":
        return found.batch_s - sum(s.get(name, 0.0) for name in names if name != "replay")
    host = {n: v for n, v in s.items() if n in parts and parts[n].clock == "host"}
    gpu = {n: v for n, v in s.items() if n == "gaps" or (n in parts and parts[n].clock == "gpu")}
    if how == "queued":
        sides = [sum(v for n, v in side.items() if n not in names) for side in (host, gpu)]
        now = max(sum(host.values()), sum(gpu.values()))
        return found.batch_s - now + max(sides)
    kept = sum(v for n, v in host.items() if n not in names)
    launched = sum(s.get(n, 0.0) for n in _LAUNCHES)
    computed = sum(v for n, v in gpu.items() if parts[n].phase == "products")
    waits = s.get(WAITS, 0.0)
    done = launched + waits if waits > 0 else min(computed, launched)
    if set(_LAUNCHES) & set(names):
        launched = sum(s.get(n, 0.0) for n in _LAUNCHES if n not in names)
    if "wide products" in names:
        done = 0.0
    rest = sum(s.values()) - sum(host.values()) - sum(gpu.values()) - waits
    return kept + max(done - launched, 0.0) + max(rest, 0.0)


def _ceilings(run: RunAnalysis, rate: float | None) -> Iterator[Ceiling]:
    if rate is None:
        return
    found: dict[str, float] = {}
    if run.roofline is not None and run.points:
        at = run.points[0].intensity_flops_per_byte
        found["smooth roof here"] = float(run.roofline.smooth(at))
        found["hard roof here"] = float(run.roofline.hard(at))
        found["P_flops, effective"] = run.roofline.flops_per_s
    if run.machine and run.precision in run.machine.peak_flops_per_s:
        found[f"datasheet, {run.precision}"] = run.machine.peak_flops_per_s[run.precision]
    for name, value in found.items():
        yield Ceiling(name, value, value / rate)


def sentences(said: Answer, label: str) -> Iterator[str]:
    """Say the answer in words."""
    if said.intensity_flops_per_byte is None or said.flops_per_s is None:
        yield f"{label}: no bytes over a link or no FLOPs are known: no arithmetic intensity."
        return
    ai, ridge = said.intensity_flops_per_byte, said.ridge_flops_per_byte
    where = "the report has no rates of its own, so no ridge"
    if ridge is not None:
        side = "links bound it" if ai < ridge else "past the ridge: computing bounds it"
        where = f"the ridge of its effective rates is at {ridge:,.0f}: {side}"
    yield (f"Arithmetic intensity {ai:,.0f} FLOP/B at {si(said.flops_per_s, 'FLOP/s')}; {where}.")
    for r in said.reach:
        rise = r.flops_exponent - r.bytes_exponent
        how = "raises" if rise > _FLAT else "lowers" if rise < -_FLAT else "hardly changes"
        text = (
            f"{r.symbol} {how} the intensity: FLOPs go as {r.symbol}^{r.flops_exponent:.2f}, bytes "
            f"as {r.symbol}^{r.bytes_exponent:.2f}"
        )
        if r.ridge_at is not None:
            text += f"; {r.symbol} = {r.ridge_at:,} reaches the ridge"
        elif ridge is not None and ai < ridge and how != "hardly changes":
            text += f"; no {r.symbol} reaches the ridge"
        yield text + "."
