"""Predictions of a calibrated model: batch, phases, intervals and bounds; sweeps and scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import numpy as np

from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.models.spread import Z90
from perfmodel.studies.models.hosts import SAME, Host
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.terms import (
    BOUNDS,
    DERIVED,
    HOST_KINDS,
    Case,
    Part,
    Route,
    Term,
    kernels_of,
)

Limit = Literal["GPU", "host, queueing", "host, waiting"]

_FALLBACK_NOISE: Final = 0.10
_MOST_RECORDING: Final = 0.5
"""Of a side's time that is believed to be recording."""
_SIDES: Final[Mapping[Route, set[str]]] = {
    "blocking": {"host"},
    "queued": {"host", "gpu"},
    "replayed": {"gpu"},
}
"""Sides whose time without recording must be known, by how a batch runs."""
_WIDEST: Final = 2.0
"""Relative standard deviation beyond which only an upper limit of a time is known."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a predicted batch, in seconds, and what bounds it."""

    name: str
    seconds: float
    low_s: float
    high_s: float
    bound: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted batch: median seconds with its 90 % interval, phases, and what is extrapolated.

    Attributes
    ----------
    case : Case
    batch_s, low_s, high_s : float
        Of one launch: uncertainty of the coefficients and noise from launch to launch.
    phases : tuple of Phase
        In the order in which they run; they add up to `batch_s`.
    extrapolated : tuple of str
        Symbols beyond what the model was calibrated on.
    limit : {'GPU', 'host, queueing', 'host, waiting'}
        What sets the batch's time, by which its noise is chosen.
    variance : float
        Of log(batch_s), that the coefficients leave.
    untraced_s : float or None
        The batch without Nsight Systems (`Model.recording_s`); None where the model does not know
        what recording adds.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"limit": "", "variance": ""}

    case: Case
    batch_s: float
    low_s: float
    high_s: float
    phases: tuple[Phase, ...]
    extrapolated: tuple[str, ...]
    limit: Limit
    variance: float
    untraced_s: float | None = None


def predict(model: Model, case: Case, host: Host = SAME) -> Prediction:
    """Predict one case.

    Parameters
    ----------
    model : Model
    case : Case
    host : Host, optional
        Where it will run: what that host's parts take, and how well that is known; by default on
        the calibration's.

    Raises
    ------
    ModelError
        If a part of the case was not calibrated, or is not identifiable: says which run would help.
    """
    timed = _timed(model, case, host)
    batch = _batch(case, timed)
    moved = [
        (kind, _batch(case, _timed(model, case, host.moved(kind))))
        for kind in range(len(HOST_KINDS)) if host.covariance[kind, kind] > 0
    ]  # fmt: skip
    untraced_s = None
    if _SIDES[case.route] <= set(model.recording_s) and kernels_of(case.parts()):
        untraced_s = _batch(case, _untraced(model, case, timed)).seconds
    said = _prediction(model, case, batch, _of_host(host, batch, moved))
    return replace(said, untraced_s=untraced_s)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A part with its seconds and their variance, and the amount that takes most of them."""

    part: Part
    seconds: float
    variance: float
    bound: str

    @classmethod
    def of(cls, model: Model, part: Part, case: Case, host: Host) -> _Timed:
        term = model.terms.get(part.key)
        if term is None or not term.identifiable(part.amounts):
            raise ModelError(missing_calibration(part, term, case))
        shares = {
            name: amount * float(term.coefficients[term.amounts.index(name)])
            for name, amount in part.amounts.items()
        }
        bound = BOUNDS[max(shares, key=lambda name: shares[name])]
        if part.name.startswith("launch "):  # an all-reduce more to launch is the host's time, too
            bound = "host"
        ratio = host.ratio(part)
        seconds, variance = term.seconds(part.amounts), term.variance(part.amounts)
        return cls(part, ratio * seconds, ratio**2 * variance, bound)


_Phases = list[tuple[str, float, float, str]]
"""Name, seconds, variance and bound of every phase."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch's phases on one host, what limits it, and the side that is faster, if two work."""

    phases: _Phases
    limit: Limit
    beside: Sequence[_Timed] = ()

    @property
    def seconds(self) -> float:
        """The whole batch."""
        return sum(seconds for _, seconds, _, _ in self.phases)


def _timed(model: Model, case: Case, host: Host) -> list[_Timed]:
    return [_Timed.of(model, part, case, host) for part in case.parts(model.alone)]


def _untraced(model: Model, case: Case, timed: Sequence[_Timed]) -> list[_Timed]:
    """Take off what recording adds: of the host's launches, and of all that the GPU does.

    It is taken off in proportion, and half of a side's time at most.
    """
    kernels, left = kernels_of(case.parts()), {}
    for side, each_s in model.recording_s.items():
        whole = sum(t.seconds for t in timed if _recorded_on(t.part) == side)
        left[side] = 1 - min(kernels * each_s / whole, _MOST_RECORDING) if whole > 0 else 1.0
    return [
        replace(t, seconds=t.seconds * left.get(_recorded_on(t.part) or "", 1.0)) for t in timed
    ]


def _recorded_on(part: Part) -> str | None:
    """Return the side that recording holds up in a part; None where it holds up none."""
    if part.clock == "gpu":
        return part.clock
    launches = part.host_kind == 0 and part.name not in DERIVED
    return part.clock if launches else None


def _batch(case: Case, timed: Sequence[_Timed]) -> _Batch:
    """Put the parts of a batch together, as host and GPU take turns."""
    if case.route == "blocking":
        return _Batch(_blocking(timed), "host, waiting")
    # host and GPU work side by side: the phases of the slower one are the batch
    on_host, gpu = ([t for t in timed if t.part.clock == clock] for clock in ("host", "gpu"))
    if sum(t.seconds for t in on_host) > sum(t.seconds for t in gpu):
        return _Batch(_together(on_host, lambda t: t.part.phase), "host, queueing", gpu)
    return _Batch(_together(gpu, lambda t: t.part.name), "GPU", on_host)


def _of_host(
    host: Host, batch: _Batch, moved: Sequence[tuple[int, _Batch]]
) -> Callable[[str | None], float]:
    """Return what gives the variance that a host's factors leave of a logarithm: of a phase's time.

    Of the batch where no phase is named. By how much it grows where one factor is a standard
    deviation higher: so it counts, too, where the host would then be slower than the GPU.
    """
    kinds = [kind for kind, _ in moved]
    sd = np.sqrt(np.diag(host.covariance)[kinds])
    alike = host.covariance[np.ix_(kinds, kinds)] / np.outer(sd, sd)

    def seconds(of: _Batch, name: str | None) -> float:
        return of.seconds if name is None else sum(s for n, s, _, _ in of.phases if n == name)

    def variance(name: str | None) -> float:
        now = seconds(batch, name)
        later = [seconds(of, name) for _, of in moved]
        if now <= 0 or not later:
            return 0.0
        grown = np.array([math.log(t / now) if t > 0 else 0.0 for t in later])
        return max(float(grown @ alike @ grown), 0.0)

    return variance


def _blocking(timed: Sequence[_Timed]) -> _Phases:
    """The host launches, waits for the GPU where it is behind, copies, sums, copies, launches."""
    host = [t for t in timed if t.part.clock == "host"]
    host.sort(key=lambda t: t.part.role == "follows")
    gpu = [t for t in timed if t.part.role == "computes"]
    launched = sum(t.seconds for t in host if t.part.role == "launches")
    computed = sum(t.seconds for t in gpu)
    behind = max(computed - launched, 0.0)
    found = []
    for t in host:
        seconds, variance, bound = t.seconds, t.variance, t.bound
        if t.part.role == "waits" and behind > 0:
            variance += sum(g.variance for g in gpu)
            bound = "compute" if behind > seconds else bound
            seconds += behind
        found.append((t.part.phase, seconds, variance, bound))
    return found


def _together(timed: Sequence[_Timed], name: Callable[[_Timed], str]) -> _Phases:
    """Add up parts of one name; the first one's bound is theirs."""
    named: dict[str, list[_Timed]] = {}
    for t in timed:
        named.setdefault(name(t), []).append(t)
    return [
        (name, sum(t.seconds for t in ts), sum(t.variance for t in ts), ts[0].bound)
        for name, ts in named.items()
    ]


def _prediction(
    model: Model, case: Case, batch: _Batch, of_host: Callable[[str | None], float]
) -> Prediction:
    """Put a prediction together.

    Where host and GPU work side by side, the one that is predicted to be faster may be the slower
    one in a launch: its upper limit counts, too.
    """
    total, limit, phases = batch.seconds, batch.limit, batch.phases
    if total <= 0:
        raise ModelError(
            f"expected a batch of some time at {case.label}; got that the model predicts 0 s; "
            "calibrate anew"
        )
    spread = sum(variance for _, _, variance, _ in phases) / total**2
    noise = model.noise(limit)
    low, high = interval(total, noise, spread + of_host(None))
    beside = sum(t.seconds for t in batch.beside)
    if beside > 0:
        other: Final[Limit] = "GPU" if limit == "host, queueing" else "host, queueing"
        variance = sum(t.variance for t in batch.beside) / beside**2
        high = max(high, interval(beside, model.noise(other), variance)[1])
    made = []
    for name, seconds, variance, bound in phases:
        of_phase = model.phase_noise.get(name, max(noise, _FALLBACK_NOISE))
        relative = (variance / seconds**2 if seconds > 0 else 0.0) + of_host(name)
        made.append(Phase(name, seconds, *interval(seconds, of_phase, relative), bound))
    beyond = tuple(
        name for name, values in model.seen.items()
        if name in case.sizes and not values[0] <= case.sizes[name] <= values[-1]
    )  # fmt: skip
    return Prediction(case, total, low, high, tuple(made), beyond, limit, spread)


def interval(seconds: float, noise: float, relative_variance: float) -> tuple[float, float]:
    """Return the 90 % interval: noise of launches and the coefficients' variance.

    Log-normal; where that exceeds a factor of 27 each way (a small time with the uncertainty of a
    large one), from 0 to the larger of that factor and a normal distribution's upper limit.
    """
    spread = math.sqrt(noise**2 + relative_variance)
    width = math.exp(Z90 * min(spread, _WIDEST))
    if spread > _WIDEST:
        return 0.0, seconds * max(width, 1 + Z90 * spread)
    return seconds / width, seconds * width


def missing_calibration(part: Part, term: Term | None, case: Case) -> str:
    """Say what is missing, and which run would add it."""
    run = f"profile {case.command}"
    if term is None:
        return (
            f"expected the time of {part.key}; got no run in the calibration that has it; {run} "
            f"at two sizes at least, and calibrate with those reports, too"
        )
    return (
        f"expected the time of {part.key} at {case.label}; got {len(term.runs)} run"
        f"{'s' * (len(term.runs) != 1)} of it, too few sizes to tell its "
        f"{', '.join(part.amounts)} apart; {run} at other sizes, such as this one, and calibrate "
        f"with that report, too"
    )


Scaling = Literal["strong", "weak"]
MOST_POINTS: Final = 200
_Predict = Callable[[Case], Prediction]


@dataclass(frozen=True, slots=True)
class Scaled:
    """One number of ranks: its prediction, speed-up and efficiency against the fewest ranks."""

    prediction: Prediction
    speedup: float
    efficiency: float


def at(case: Case, symbol: str, value: int) -> Case:
    """Return the case with another value of one symbol.

    Raises
    ------
    WorkloadError
        If the case has no such symbol, or p exceeds the images of a batch.
    """
    if symbol not in case.sizes:
        raise WorkloadError(
            f"expected a symbol among {', '.join(case.sizes)}; got {symbol!r}; take one of those"
        )
    changed = case.resized({symbol: value})
    if changed.sizes.get("p", 1) > changed.sizes.get("B", 1 << 62):
        raise WorkloadError(
            f"expected at most as many ranks as images in a batch; got p={changed.sizes['p']}, "
            f"B={changed.sizes['B']}; take fewer ranks or a larger batch"
        )
    return changed


def sweep(
    predict: _Predict, case: Case, symbol: str, values: Sequence[int]
) -> tuple[Prediction, ...]:
    """Predict the case at several values of one symbol, ascending."""
    if not values or len(values) > MOST_POINTS:
        raise WorkloadError(
            f"expected 1 to {MOST_POINTS} values of {symbol}; got {len(values)}; give fewer"
        )
    return tuple(predict(at(case, symbol, value)) for value in sorted(set(values)))


def scale(predict: _Predict, case: Case, ranks: Sequence[int], kind: Scaling) -> tuple[Scaled, ...]:
    """Predict strong scaling (B fixed) or weak scaling (B/p fixed) over numbers of ranks.

    Speed-up is in images per second against the fewest ranks, whose own is 1 per rank; efficiency
    is speed-up over the ratio of ranks.
    """
    if not {"B", "p"} <= set(case.sizes):
        raise WorkloadError(
            f"expected symbols B and p to scale over; got {', '.join(case.sizes)}; name the batch "
            "of all ranks B and the ranks p in the workload"
        )
    share = case.sizes["B"] / case.sizes["p"]
    found: list[Scaled] = []
    first: tuple[int, float] | None = None
    for p in sorted(set(ranks)):
        batch = case.sizes["B"] if kind == "strong" else round(share * p)
        prediction = predict(at(case.resized({"B": batch}), "p", p))
        rate = batch / prediction.batch_s
        first = first or (p, rate)
        speedup = rate / first[1]
        found.append(Scaled(prediction, speedup, speedup * first[0] / p))
    if not found:
        raise ModelError("expected numbers of ranks to scale over; got none; give some")
    return tuple(found)


def epoch_s(prediction: Prediction, images: int) -> float | None:
    """Return the time of one epoch: ceil(images / B) batches, the last one in proportion.

    None where a batch takes more images than there are, or the workload has no B.
    """
    batch = prediction.case.sizes.get("B")
    return None if batch is None or batch > images else prediction.batch_s * images / batch
