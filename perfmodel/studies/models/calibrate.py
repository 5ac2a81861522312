"""Calibration: observations of a few runs -> a model, its noise, and what they leave open.

Noise is what launches differ by and what the model misses, by what limits the batch. Both are
estimated from the calibration's own runs. Launches of one configuration tell the first. For the
second every configuration is predicted by a model that was fitted without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.studies.models.hosts import as_on_the_mean, factors_of, on_the_mean
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import (
    AHEAD,
    DERIVED,
    FEWEST,
    HOST_KINDS,
    RESAMPLES,
    USUAL_NOISE,
    Alone,
    Clock,
    Microbenchmark,
    Observation,
    Part,
    Row,
    Term,
    fit_term,
    kernels_of,
)

FEWEST_CONFIGURATIONS: Final = 4
"""Configurations below which noise is taken to be the usual."""
MOST_LEFT_OUT: Final = 40
"""Configurations that are left out, one after the other: of more, every second or third."""
_LEAST: Final = 0.003
"""Relative noise that no clock of a report is below."""
_PRIOR: Final = 2.0
"""Degrees of freedom by which the noise of one limit is drawn to that of all (on logarithms)."""
_DRAWS: Final = 200_000
_TURNS: Final = 3
"""Of fitting terms and hosts."""

Refit = Callable[[Sequence[Observation]], Model]


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log(measured / predicted): by limit, and of phases by their name."""

    batch: Mapping[str, float]
    phase: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Missed:
    """One configuration, predicted without it: log errors of its launches, and their variance."""

    limit: str
    errors: tuple[float, ...]
    variance: float
    phases: Mapping[str, float]


def estimate(observations: Sequence[Observation], refit: Refit, most: int = MOST_LEFT_OUT) -> Noise:
    """Estimate noise by leaving out one configuration after the other.

    Parameters
    ----------
    observations : sequence of Observation
    refit : callable
        Fits a model to a part of the observations.
    most : int
        Configurations to leave out.
    """
    every = grouped(observations)
    if len(every) < FEWEST_CONFIGURATIONS or most < 1:
        return Noise({}, {})
    missed = [
        found
        for group in every[:: -(-len(every) // most)]
        if (found := _missed(group, refit, [o for o in observations if o not in group]))
    ]
    return Noise(_noise_by_limit(missed), _noise_by_phase(missed))


def _missed(
    group: Sequence[Observation], refit: Refit, others: Sequence[Observation]
) -> _Missed | None:
    """Predict one configuration without its own runs; None if the others do not determine it."""
    try:
        said = predict(refit(others), group[0].case)
    except ModelError:
        return None
    phases: dict[str, float] = {}
    for phase in said.phases:
        times = [o.phases[phase.name] for o in group if o.phases.get(phase.name, 0.0) > 0]
        if times and phase.seconds > 0:
            phases[phase.name] = math.log(float(np.median(times)) / phase.seconds)
    errors = tuple(math.log(o.batch_s / said.batch_s) for o in group)
    return _Missed(said.limit, errors, said.variance, phases)


def _noise_by_limit(missed: Sequence[_Missed]) -> dict[str, float]:
    """Put launches' and the model's own variance together, each shrunk to that of all limits."""
    launches, misses = {}, {}
    for limit in dict.fromkeys(m.limit for m in missed):
        mine = [m for m in missed if m.limit == limit]
        free = sum(len(m.errors) - 1 for m in mine)
        within = sum(float(np.var(m.errors)) * len(m.errors) for m in mine)
        launch = math.sqrt(within / free) if free else 0.0
        launches[limit] = launch, free
        left = [
            float(np.median(m.errors)) ** 2 - (median_sd(len(m.errors)) * launch) ** 2 - m.variance
            for m in mine
        ]
        misses[limit] = math.sqrt(max(float(np.mean(left)), 0.0)), len(mine)
    within_sd, own_sd = shrunk(launches), shrunk(misses)
    return {limit: math.hypot(within_sd[limit], own_sd[limit]) for limit in launches}


def _noise_by_phase(missed: Sequence[_Missed]) -> dict[str, float]:
    phases: dict[str, list[float]] = {}
    for m in missed:
        for name, error in m.phases.items():
            phases.setdefault(name, []).append(error)
    return {
        name: max(math.sqrt(float(np.mean(np.square(errors)))), _LEAST)
        for name, errors in phases.items()
        if len(errors) >= FEWEST_CONFIGURATIONS
    }


def shrunk(found: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Shrink standard deviations with their degrees of freedom to their common geometric mean.

    A deviation with few degrees of freedom is moved most; logarithms, because limits differ by
    factors.
    """
    known = [(max(sd, _LEAST), free) for sd, free in found.values() if free > 0]
    if not known:
        return dict.fromkeys(found, USUAL_NOISE)
    weight = sum(free for _, free in known)
    common = sum(free * math.log(sd) for sd, free in known) / weight
    return {
        name: math.exp((free * math.log(max(sd, _LEAST)) + _PRIOR * common) / (free + _PRIOR))
        for name, (sd, free) in found.items()
    }


@cache
def medians(count: int) -> Floats:
    """Simulate medians of n launches, in standard deviations of a normal distribution."""
    draws = np.random.default_rng(213).standard_normal((_DRAWS, count))
    return np.asarray(np.median(draws, axis=1))


def median_sd(count: int) -> float:
    """Return the standard deviation of the median of n launches, in theirs (to 0.2 %)."""
    return float(np.sqrt(np.mean(medians(count) ** 2)))


_Rows = dict[str, list[Row]]


def calibrate(
    observations: Sequence[Observation],
    *,
    machine: str = "",
    untraced: Mapping[str, float] | None = None,
    alone: Alone | None = None,
    micro: Sequence[Microbenchmark] = (),
    host_calls: Mapping[str, float] | None = None,
    calls_of_host: str = "",
    resamples: int = RESAMPLES,
    left_out: int = MOST_LEFT_OUT,
) -> Model:
    """Fit every part that the runs have.

    Runs of several hosts are fitted as on the mean of these, by the factors of each.

    Parameters
    ----------
    observations : sequence of Observation
        One per launch; launches of one configuration are resampled together.
    machine : str
        What it was measured on, as a text.
    untraced : mapping of str to float, optional
        Median batch of the same configurations without Nsight Systems, in seconds, by report.
    alone : Alone, optional
        Microbenchmarks of cuBLAS's products, which are then not fitted by their FLOPs.
    micro : sequence of Microbenchmark, optional
        Microbenchmarks of copies, all-reduces and launches: evidence in addition to the runs.
    host_calls : mapping of str to float, optional
        Host times of the machine's file (`hosts.calls_of`), for predicting other hosts by theirs.
    calls_of_host : str
        The host that they were measured on, where the runs are of several.
    resamples : int
        Of the bootstrap that says how well coefficients are known.
    left_out : int
        Configurations at most that are left out, one after the other, to estimate the noise.

    Raises
    ------
    ModelError
        If there is no run.
    """
    if not observations:
        raise ModelError("expected reports to calibrate with; got none; give one at least")
    plain = _Fits(micro, 0)
    measured = observations
    observations, factors = _on_one_host(measured, lambda o: _model(o, machine, alone, plain))
    fitted = _model(observations, machine, alone, _Fits(micro, resamples))
    noise = estimate(observations, lambda runs: _model(runs, machine, alone, plain), left_out)
    return replace(
        fitted, batch_noise=noise.batch, phase_noise=noise.phase,
        runs=tuple(_evidence(fitted, observations)),
        recording_s=recording(measured, untraced or {}), hosts=factors,
        host_calls=on_the_mean(host_calls or {}, factors.get(calls_of_host)),
    )  # fmt: skip


def _on_one_host(
    observations: Sequence[Observation], refit: Refit
) -> tuple[Sequence[Observation], dict[str, tuple[float, ...]]]:
    """Return the launches as on the mean of their hosts, and the factors of each host.

    Terms and factors are fitted in turns.
    """
    names = {o.host for o in observations}
    if len(names) < 2:
        return observations, {name: (0.0,) * len(HOST_KINDS) for name in names if name}
    moved, factors = observations, {}
    for _ in range(_TURNS):
        factors = factors_of(refit(moved), observations)
        none = np.zeros(len(HOST_KINDS))
        moved = [as_on_the_mean(o, factors.get(o.host, none)) for o in observations]
    return moved, {name: tuple(found.tolist()) for name, found in factors.items()}


class _Fits:
    """Fits terms, each only once: a run that is left out changes the terms that it has."""

    def __init__(self, micro: Sequence[Microbenchmark], resamples: int) -> None:
        self._micro, self._resamples = micro, resamples
        self._known: dict[object, Term] = {}

    def __call__(self, part: Part, rows: Sequence[Row]) -> Term:
        """Return the term of a part, from these rows and from microbenchmarks."""
        key = part.key, tuple((seconds, id(o)) for _, seconds, o in rows)
        if key not in self._known:
            self._known[key] = fit_term(part, rows, self._micro, self._resamples)
        return self._known[key]


def _model(
    observations: Sequence[Observation], machine: str, alone: Alone | None, fits: _Fits
) -> Model:
    """Fit all terms; their noise is not known yet."""
    rows: _Rows = {}
    for o in observations:
        plain = o.case.parts()
        for part, known in zip(plain, o.case.parts(alone), strict=True):
            if part.key in o.parts and part.name not in DERIVED:
                rows.setdefault(known.key, []).append((known, o.parts[part.key], o))
    terms = {key: fits(found[0][0], found) for key, found in rows.items()}
    for key, found in _derived(observations, terms, alone).items():
        terms[key] = fits(found[0][0], found)
    terms |= _absent(observations, terms, fits)
    seen: dict[str, tuple[int, ...]] = {}
    for name in observations[0].case.sizes:
        seen[name] = tuple(sorted({o.case.sizes[name] for o in observations}))
    name = observations[0].case.workload
    return Model(name, terms, {}, {}, seen, machine, (), alone=alone)


def recording(
    observations: Sequence[Observation], untraced: Mapping[str, float]
) -> dict[str, float]:
    """Return what recording by Nsight Systems adds per kernel, by the side that it holds up.

    Where a host sets the batch's time, that is the time to note the call that launches a kernel;
    where the GPU does, the time to note the kernel's ends. Every configuration that was timed both
    ways says what a batch takes longer. The least mean relative error of the others' times is that
    of the weighted median (F. Y. Edgeworth, Hermathena 6, 279-285, 1887) of the seconds per
    kernel, each weighted by the kernels in a second.

    Parameters
    ----------
    observations : sequence of Observation
    untraced : mapping of str to float
        Median batch of the same configurations without Nsight Systems, in seconds, by report.

    Returns
    -------
    dict of str to float
        Seconds per kernel of a 'host' and a 'gpu'; without a side that fewer than `FEWEST`
        configurations tell of.
    """
    added: dict[Clock, list[tuple[float, float]]] = {}
    for group in grouped(observations):
        case, kernels = group[0].case, kernels_of(group[0].case.parts())
        bare = [untraced[o.source] for o in group if o.source in untraced]
        if not bare or not kernels:
            continue
        recorded = float(np.median([o.batch_s for o in group]))
        longer = recorded - float(np.median(bare))
        side: Clock = "gpu" if case.route == "replayed" or _behind(group, recorded) else "host"
        added.setdefault(side, []).append((longer / kernels, kernels / recorded))
    return {
        side: max(_weighted_median(*np.array(rows).T), 0.0)
        for side, rows in added.items()
        if len(rows) >= FEWEST
    }


def _behind(group: Sequence[Observation], batch_s: float) -> bool:
    """Whether hosts that queue a configuration's batches are faster than the GPU."""
    if group[0].case.route == "blocking":
        return False
    parts = [p for p in group[0].case.parts() if p.clock == "host" and p.name not in DERIVED]
    host = float(np.median([sum(o.parts.get(p.key, 0.0) for p in parts) for o in group]))
    return host * AHEAD <= batch_s


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _absent(
    observations: Sequence[Observation], terms: Mapping[str, Term], fits: _Fits
) -> dict[str, Term]:
    """Parts that took no time in any run: ranges of the user's own without work on one side.

    So are the delay of the first launch where no run waited for the GPU, gaps where the GPU
    limited none, and the wait for the slowest rank where all were: what microbenchmarks tell, or 0.
    """
    found = {}
    for o in observations:
        for part in o.case.parts():
            optional = part.role == "optional" or part.name in ("first launch", *DERIVED)
            if part.key not in terms and optional:
                found[part.key] = fits(part, ())
    return found


def _derived(
    observations: Sequence[Observation], terms: Mapping[str, Term], alone: Alone | None
) -> _Rows:
    """What a batch takes beyond the parts of the side that limits it.

    Where that is the GPU, the gaps between its kernels; where it is a host that queues, the wait
    for the slowest rank. What kernels take hardly changes from launch to launch, so that the
    launches of a configuration share it; if none has it, the terms give it.
    """
    rows: _Rows = {}
    for group in grouped(observations):
        case = group[0].case
        parts = case.parts(alone)
        plain = {p.name: p.key for p in case.parts()}
        if case.route == "blocking" or "gaps" not in plain:
            continue
        gap, slow = (next((p for p in parts if p.name == name), None) for name in DERIVED)
        on_gpu = [p for p in parts if p.clock == "gpu" and p is not gap]
        computed = _computed(group, plain["gaps"], [plain[p.name] for p in on_gpu])
        if computed is None and all(
            p.key in terms and terms[p.key].identifiable(p.amounts) for p in on_gpu
        ):
            computed = sum(terms[p.key].seconds(p.amounts) for p in on_gpu)
        if computed is None or gap is None:
            continue
        for o in group:
            host = sum(o.parts.get(p.key, 0.0) for p in parts if p.clock == "host")
            if case.route == "replayed" or computed > host:
                rows.setdefault(gap.key, []).append((gap, max(o.batch_s - computed, 1e-7), o))
            elif slow is not None:
                rows.setdefault(slow.key, []).append((slow, max(o.batch_s - host, 1e-7), o))
    return rows


def _computed(group: Sequence[Observation], gap: str, others: Sequence[str]) -> float | None:
    """Median time of a batch's kernels over the launches that have it."""
    found = []
    for o in group:
        if gap in o.parts:
            found.append(o.batch_s - o.parts[gap])
        elif others and all(key in o.parts for key in others):
            found.append(sum(o.parts[key] for key in others))
    return float(np.median(found)) if found else None


def _evidence(model: Model, observations: Sequence[Observation]) -> Iterator[Mapping[str, object]]:
    """Every run with what the model makes of it."""
    for o in observations:
        try:
            fitted_s = predict(model, o.case).batch_s
        except ModelError:
            continue
        yield {
            "source": o.source,
            "sizes": dict(o.case.sizes),
            "settings": dict(o.case.settings),
            "batch_s": o.batch_s,
            "fitted_s": fitted_s,
            "batches": o.batches,
        }


def grouped(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Launches by configuration."""
    groups: dict[object, list[Observation]] = {}
    for o in observations:
        groups.setdefault(o.case.key, []).append(o)
    return list(groups.values())
