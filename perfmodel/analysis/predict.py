"""Predictions: a case's batch and phases with intervals and bounds, from a calibrated model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.base.errors import ModelError
from perfmodel.models.model import Z90, Model, Term
from perfmodel.models.part import BETWEEN, BOUNDS, D2H, Part, route
from perfmodel.programs.mlp.case import Case

Pace = Literal["GPU", "host, queueing", "host, waiting"]

_FALLBACK_NOISE: Final = 0.10
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
    pace : {'GPU', 'host, queueing', 'host, waiting'}
        What sets the batch's time, by which its noise is chosen.
    variance : float
        Of log(batch_s), that the coefficients leave.
    untraced_s : float or None
        The batch without Nsight Systems; None where the model does not know what that adds.
    """

    case: Case
    batch_s: float
    low_s: float
    high_s: float
    phases: tuple[Phase, ...]
    extrapolated: tuple[str, ...]
    pace: Pace
    variance: float
    untraced_s: float | None = None


def predict(model: Model, case: Case) -> Prediction:
    """Predict one case.

    Raises
    ------
    ModelError
        If a part of the case was not calibrated or cannot be told: says which run would tell it.
    """
    timed = [_Timed.of(model, part, case) for part in model.parts(case)]
    if route(case) == "blocking":
        return _prediction(model, case, _blocking(timed), "host, waiting")
    host, gpu = ([t for t in timed if t.part.clock == clock] for clock in ("host", "gpu"))
    paced_by_host = sum(t.seconds for t in host) > sum(t.seconds for t in gpu)
    queues: Final = "host, queueing"
    if paced_by_host:
        return _prediction(model, case, _queued(host), queues, (gpu, "GPU"))
    return _prediction(model, case, _computed(gpu), "GPU", (host, queues))


@dataclass(frozen=True, slots=True)
class _Timed:
    """A part with its seconds and their variance, and the amount that takes most of them."""

    part: Part
    seconds: float
    variance: float
    bound: str

    @classmethod
    def of(cls, model: Model, part: Part, case: Case) -> _Timed:
        term = model.terms.get(part.key)
        if term is None or not term.told(part.amounts):
            raise ModelError(not_told(part, term, case))
        shares = {
            name: amount * float(term.coefficients[term.amounts.index(name)])
            for name, amount in part.amounts.items()
        }
        bound = BOUNDS[max(shares, key=lambda name: shares[name])]
        if part.name.startswith("launch "):  # an all-reduce more to launch is the host's time, too
            bound = "host"
        return cls(part, term.seconds(part.amounts), term.variance(part.amounts), bound)


_Phases = list[tuple[str, float, float, str]]
"""Name, seconds, variance and bound of every phase."""


def _blocking(timed: Sequence[_Timed]) -> _Phases:
    """The host launches, waits for the GPU where it is behind, copies, sums, copies, launches."""
    host = [t for t in timed if t.part.clock == "host"]
    gpu = [t for t in timed if t.part.clock == "gpu" and t.part.phase == "products"]
    launched = sum(t.seconds for t in host if t.part.phase in ("forward", "backward"))
    computed = sum(t.seconds for t in gpu)
    behind = max(computed - launched, 0.0)
    waits_at = D2H if any(t.part.phase == D2H for t in host) else "MPI_Allreduce"
    found = []
    for t in host:
        seconds, variance, bound = t.seconds, t.variance, t.bound
        if t.part.phase == waits_at and behind > 0:
            variance += sum(g.variance for g in gpu)
            bound = "compute" if behind > seconds else bound
            seconds += behind
        found.append((t.part.phase, seconds, variance, bound))
    order = [p for p, *_ in found if p not in (BETWEEN, "step")]
    return sorted(found, key=lambda f: [*order, "step", BETWEEN].index(f[0]))


def _queued(host: Sequence[_Timed]) -> _Phases:
    """Host and GPU work side by side, the host is the slower: its phases are the batch."""
    return _together(host, lambda t: t.part.phase)


def _computed(gpu: Sequence[_Timed]) -> _Phases:
    """Host and GPU work side by side, the GPU is the slower: its parts are the batch."""
    return _together(gpu, lambda t: t.part.name)


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
    model: Model,
    case: Case,
    phases: _Phases,
    pace: Pace,
    faster: tuple[Sequence[_Timed], Pace] | None = None,
) -> Prediction:
    """Put the phases together.

    Where host and GPU work side by side, the one that is predicted to be faster may be the slower
    one in a launch: its upper limit counts, too.
    """
    total = sum(seconds for _, seconds, _, _ in phases)
    if total <= 0:
        raise ModelError(
            f"wanted a batch of some time at {case.label}; found that the model predicts 0 s; "
            "calibrate anew"
        )
    spread = sum(variance for _, _, variance, _ in phases) / total**2
    noise = model.noise(pace)
    low, high = interval(total, noise, spread)
    beside = sum(t.seconds for t in faster[0]) if faster else 0.0
    if faster and beside > 0:
        variance = sum(t.variance for t in faster[0]) / beside**2
        high = max(high, interval(beside, model.noise(faster[1]), variance)[1])
    made = []
    for name, seconds, variance, bound in phases:
        of_phase = model.phase_noise.get(name, max(noise, _FALLBACK_NOISE))
        relative = variance / seconds**2 if seconds > 0 else 0.0
        made.append(Phase(name, seconds, *interval(seconds, of_phase, relative), bound))
    beyond = tuple(
        name for name, values in model.seen.items()
        if name in case.sizes and not values[0] <= case.sizes[name] <= values[-1]
    )  # fmt: skip
    known = model.tracing_s is not None and route(case) == "blocking"
    untraced = max(total - (model.tracing_s or 0.0), 0.5 * total) if known else None
    return Prediction(case, total, low, high, tuple(made), beyond, pace, spread, untraced)


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


def not_told(part: Part, term: Term | None, case: Case) -> str:
    """Say what is missing, and which run would tell it."""
    run = f"profile {_command(case)}"
    if term is None:
        return (
            f"wanted the time of {part.key}; found no run in the calibration that has it; {run} "
            f"at two sizes at least, and calibrate with those reports, too"
        )
    return (
        f"wanted the time of {part.key} at {case.label}; found {len(term.runs)} run"
        f"{'s' * (len(term.runs) != 1)} of it, too few sizes to tell its "
        f"{', '.join(part.amounts)} apart; {run} at other sizes, such as this one, and calibrate "
        f"with that report, too"
    )


def _command(case: Case) -> str:
    """Return how the program that is missing is run."""
    s = case.settings
    if not s:
        return "the program"
    words = [f"--{name.replace('_', '-')} {s[name]}" for name in ("transport", "data_on", "gemm")]
    switches = ("graph", "--graph"), ("overlap", "--overlap"), ("sync", "--sync-ranges")
    words += [flag for name, flag in switches if s[name] == "yes"]
    words += [f"--math {s['math']}"] if s["math"] != "ieee" else []
    words += ["--parallel model"] if s["parallel"] == "model" else []
    words += ["with nsys's --cuda-graph-trace=node"] if s["graph"] == "yes" else []
    return " ".join(["python -m trainer", *_width(case), *words])


def _width(case: Case) -> list[str]:
    return ["--dtype float64"] if case.sizes["b"] == 8 else []
