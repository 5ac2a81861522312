"""Calibration: observations of a few runs -> a model, with what they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.predict.alone import Alone
from perfmodel.predict.case import MLP, Case
from perfmodel.predict.model import Model, Term, parts_known
from perfmodel.predict.observe import Observation
from perfmodel.predict.parts import Part, parts_of, route
from perfmodel.predict.predict import predict
from perfmodel.predict.regress import fit, measured_space, resample, spread

_RESAMPLES: Final = 100
_SEED: Final = 213
_FEWEST: Final = 4
"""Launches below which noise is not estimated but taken to be the usual."""
USUAL_NOISE: Final = 0.08
"""Relative standard deviation of a batch from launch to launch, where it cannot be estimated."""


def calibrate(
    observations: Sequence[Observation],
    *,
    machine: str = "",
    untraced: Mapping[str, float] | None = None,
    alone: Alone | None = None,
) -> Model:
    """Fit every part that the runs have.

    Parameters
    ----------
    observations : sequence of Observation
        One per launch; launches of one configuration are resampled together.
    machine : str
        What it was measured on, for people.
    untraced : mapping of str to float, optional
        Median batch of the same configurations without Nsight Systems, in seconds, by report.
    alone : Alone, optional
        Microbenchmarks of cuBLAS's products, which are then not fitted by their FLOPs.

    Raises
    ------
    ModelError
        If there is no run.
    """
    if not observations:
        raise ModelError("wanted reports to calibrate with; found none; give one at least")
    rows: dict[str, list[tuple[Part, float, Observation]]] = {}
    for o in observations:
        plain = parts_of(o.case)
        for part, known in zip(plain, parts_known(o.case, alone), strict=True):
            if part.key in o.parts:
                rows.setdefault(known.key, []).append((known, o.parts[part.key], o))
    terms = {key: _term(key, measured) for key, measured in rows.items()}
    terms |= _absent(observations, terms)
    terms |= _gaps(observations, terms, alone)
    seen: dict[str, tuple[int, ...]] = {}
    for name in observations[0].case.sizes:
        seen[name] = tuple(sorted({o.case.sizes[name] for o in observations}))
    workload = observations[0].case.workload
    name = workload.name if workload else MLP
    model = Model(name, terms, USUAL_NOISE, {}, seen, machine, (), alone=alone)
    return replace(
        _with_noise(model, observations), tracing_s=_tracing(observations, untraced or {})
    )


def _tracing(observations: Sequence[Observation], untraced: Mapping[str, float]) -> float | None:
    """Median of what recording adds to a batch; launches differ by more, so pairs are needed."""
    added = [
        o.batch_s - untraced[o.source]
        for o in observations
        if o.source in untraced and route(o.case) == "blocking"
    ]
    return max(float(np.median(added)), 0.0) if len(added) >= _FEWEST else None


def _term(key: str, rows: Sequence[tuple[Part, float, Observation]]) -> Term:
    """Fit one part on the median launch of every case: what disturbs a launch only delays it."""
    amounts = tuple(rows[0][0].amounts)
    cases: dict[object, list[tuple[Part, float]]] = {}
    for part, seconds, o in rows:
        cases.setdefault(o.case.key, []).append((part, seconds))
    x = np.array(
        [[launches[0][0].amounts[name] for name in amounts] for launches in cases.values()]
    )
    medians = np.array([float(np.median([s for _, s in launches])) for launches in cases.values()])
    found = fit(x, medians)
    left = [
        residual + float(np.log(s / median))
        for launches, median, residual in zip(cases.values(), medians, found.residuals, strict=True)
        for _, s in launches
    ]
    noise = spread(np.array(left), np.ones(len(left)), int((found.coefficients > 0).sum()))
    noise = noise if len(rows) >= _FEWEST else max(noise, USUAL_NOISE)
    if len(cases) > 1:
        draws = resample(x, medians, np.arange(len(medians)), _RESAMPLES, _SEED)
        covariance = np.atleast_2d(np.cov(draws, rowvar=False))
    else:  # one configuration: only its own time is known, to the noise of its launches
        covariance = np.outer(found.coefficients, found.coefficients) * noise**2 / len(rows)
    return Term(
        key, amounts, found.coefficients, covariance, noise, x.max(axis=0), measured_space(x),
        tuple(dict.fromkeys(o.source for _, _, o in rows)),
    )  # fmt: skip


def _absent(observations: Sequence[Observation], terms: Mapping[str, Term]) -> dict[str, Term]:
    """Parts that took no time in any run: ranges of the user's own without work on one side.

    So is the delay of the first launch where no run waited for the GPU.
    """
    found = {}
    for o in observations:
        for part in parts_of(o.case):
            if part.key in terms or not (o.case.workload or part.name == "first launch"):
                continue
            names = tuple(part.amounts)
            none = np.zeros(len(names))
            found[part.key] = Term(
                part.key, names, none, np.diag(none), USUAL_NOISE, none + 1, np.eye(len(names)), ()
            )
    return found


def _gaps(
    observations: Sequence[Observation], terms: Mapping[str, Term], alone: Alone | None
) -> dict[str, Term]:
    """What a queued or replayed batch takes beyond its kernels, where the GPU is the slower one."""
    rows: dict[str, list[tuple[Part, float, Observation]]] = {}
    for o in observations:
        parts = parts_known(o.case, alone)
        gap = next((p for p in parts if p.name == "gaps"), None)
        others = [p for p in parts if p.clock == "gpu" and p is not gap]
        if gap is None or route(o.case) == "blocking":
            continue
        if any(p.key not in terms or not terms[p.key].told(p.amounts) for p in others):
            continue
        computed = sum(terms[p.key].seconds(p.amounts) for p in others)
        host = sum(o.parts.get(p.key, 0.0) for p in parts if p.clock == "host")
        bound_by_host = route(o.case) == "queued" and o.batch_s < 1.1 * host
        left = 0.0 if bound_by_host else max(o.batch_s - computed, 0.0)
        rows.setdefault(gap.key, []).append((gap, max(left, 1e-7), o))
    return {key: _term(key, measured) for key, measured in rows.items()}


def _with_noise(model: Model, observations: Sequence[Observation]) -> Model:
    """Estimate the noise of batches and phases from what the model leaves of its own runs."""
    batches: list[float] = []
    phases: dict[str, list[float]] = {}
    runs: list[Mapping[str, object]] = []
    for o in observations:
        try:
            said = predict(model, o.case)
        except ModelError:
            continue
        batches.append(float(np.log(o.batch_s / said.batch_s)))
        for phase in said.phases:
            if phase.name in o.phases and phase.seconds > 0 and o.phases[phase.name] > 0:
                error = float(np.log(o.phases[phase.name] / phase.seconds))
                phases.setdefault(phase.name, []).append(error)
        runs.append(_evidence(o, said.batch_s))
    return replace(
        model,
        batch_noise=_noise(batches, len(model.terms)),
        phase_noise={name: _noise(errors, 2) for name, errors in phases.items()},
        runs=tuple(runs),
    )


def _noise(errors: Sequence[float], used: int) -> float:
    """Root mean square of log errors, larger for the few degrees of freedom that are left."""
    if len(errors) < _FEWEST:
        return USUAL_NOISE
    degrees = max(len(errors) - min(used, len(errors) // 3), 1)
    return max(float(np.sqrt(np.sum(np.square(errors)) / degrees)), 0.005)


def _evidence(o: Observation, fitted_s: float) -> Mapping[str, object]:
    return {
        "source": o.source,
        "sizes": dict(o.case.sizes),
        "settings": dict(o.case.settings),
        "batch_s": o.batch_s,
        "fitted_s": fitted_s,
        "batches": o.batches,
    }


def configurations(observations: Sequence[Observation]) -> dict[tuple[object, ...], Case]:
    """Return the distinct cases by key."""
    return {o.case.key: o.case for o in observations}
