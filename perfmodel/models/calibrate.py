"""Calibration: observations of a few runs -> a model, with what they leave open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.analysis.predict import predict
from perfmodel.base.errors import ModelError
from perfmodel.models.alone import Alone
from perfmodel.models.micro import Evidence
from perfmodel.models.model import Model, Term, parts_known
from perfmodel.models.noise import MOST, estimate
from perfmodel.models.part import DERIVED, Part, route
from perfmodel.models.terms import FEWEST, RESAMPLES, Row, fit_term
from perfmodel.programs.mlp.case import MLP, Case
from perfmodel.programs.mlp.observe import Observation
from perfmodel.programs.mlp.parts import parts_of

_Rows = dict[str, list[Row]]


def calibrate(
    observations: Sequence[Observation],
    *,
    machine: str = "",
    untraced: Mapping[str, float] | None = None,
    alone: Alone | None = None,
    micro: Sequence[Evidence] = (),
    resamples: int = RESAMPLES,
    left_out: int = MOST,
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
    micro : sequence of Evidence, optional
        Microbenchmarks of copies, all-reduces and launches: evidence beside that of the runs.
    resamples : int
        Of the bootstrap that tells how well coefficients are known.
    left_out : int
        Configurations at most that are left out, one after the other, to estimate the noise.

    Raises
    ------
    ModelError
        If there is no run.
    """
    if not observations:
        raise ModelError("wanted reports to calibrate with; found none; give one at least")
    fitted = _model(observations, machine, alone, _Fits(micro, resamples))
    plain = _Fits(micro, 0)
    noise = estimate(observations, lambda runs: _model(runs, machine, alone, plain), left_out)
    return replace(
        fitted, batch_noise=noise.batch, phase_noise=noise.phase,
        runs=tuple(_evidence(fitted, observations)),
        tracing_s=_tracing(observations, untraced or {}),
    )  # fmt: skip


class _Fits:
    """Fits terms, each only once: a run that is left out changes the terms that it has."""

    def __init__(self, micro: Sequence[Evidence], resamples: int) -> None:
        self._micro, self._resamples = micro, resamples
        self._known: dict[object, Term] = {}

    def __call__(self, part: Part, rows: Sequence[Row]) -> Term:
        """Return the term of a part, from these rows and from microbenchmarks."""
        key = part.key, tuple((seconds, id(o)) for _, seconds, o in rows)
        if key not in self._known:
            self._known[key] = fit_term(part, rows, self._micro, self._resamples)
        return self._known[key]


def _model(
    observations: Sequence[Observation],
    machine: str,
    alone: Alone | None,
    fits: _Fits,
) -> Model:
    """Fit all terms; their noise is not known yet."""
    rows: _Rows = {}
    for o in observations:
        plain = parts_of(o.case)
        for part, known in zip(plain, parts_known(o.case, alone), strict=True):
            if part.key in o.parts and part.name not in DERIVED:
                rows.setdefault(known.key, []).append((known, o.parts[part.key], o))
    terms = {key: fits(found[0][0], found) for key, found in rows.items()}
    for key, found in _derived(observations, terms, alone).items():
        terms[key] = fits(found[0][0], found)
    terms |= _absent(observations, terms, fits)
    seen: dict[str, tuple[int, ...]] = {}
    for name in observations[0].case.sizes:
        seen[name] = tuple(sorted({o.case.sizes[name] for o in observations}))
    workload = observations[0].case.workload
    name = workload.name if workload else MLP
    return Model(name, terms, {}, {}, seen, machine, (), alone=alone)


def _tracing(observations: Sequence[Observation], untraced: Mapping[str, float]) -> float | None:
    """Median of what recording adds to a batch; launches differ by more, so pairs are needed."""
    added = [
        o.batch_s - untraced[o.source]
        for o in observations
        if o.source in untraced and route(o.case) == "blocking"
    ]
    return max(float(np.median(added)), 0.0) if len(added) >= FEWEST else None


def _absent(
    observations: Sequence[Observation],
    terms: Mapping[str, Term],
    fits: _Fits,
) -> dict[str, Term]:
    """Parts that took no time in any run: ranges of the user's own without work on one side.

    So are the delay of the first launch where no run waited for the GPU, gaps where none was paced
    by the GPU, and the wait for the slowest rank where all were: what microbenchmarks tell, or 0.
    """
    found = {}
    for o in observations:
        for part in parts_of(o.case):
            optional = part.name in ("first launch", *DERIVED)
            if part.key not in terms and (o.case.workload or optional):
                found[part.key] = fits(part, ())
    return found


def _derived(
    observations: Sequence[Observation],
    terms: Mapping[str, Term],
    alone: Alone | None,
) -> _Rows:
    """What a batch takes beyond the parts of the side that sets its pace.

    Where that is the GPU, the gaps between its kernels; where it is a host that queues, the wait
    for the slowest rank. What kernels take hardly changes from launch to launch, so that the
    launches of a configuration share it; where none tells it, the terms do.
    """
    rows: _Rows = {}
    for group in _grouped(observations):
        case = group[0].case
        if case.workload is not None or route(case) == "blocking":
            continue
        parts = parts_known(case, alone)
        plain = {p.name: p.key for p in parts_of(case)}
        gap, slow = (next((p for p in parts if p.name == name), None) for name in DERIVED)
        on_gpu = [p for p in parts if p.clock == "gpu" and p is not gap]
        computed = _computed(group, plain["gaps"], [plain[p.name] for p in on_gpu])
        if computed is None and all(
            p.key in terms and terms[p.key].told(p.amounts) for p in on_gpu
        ):
            computed = sum(terms[p.key].seconds(p.amounts) for p in on_gpu)
        if computed is None or gap is None:
            continue
        for o in group:
            host = sum(o.parts.get(p.key, 0.0) for p in parts if p.clock == "host")
            if route(case) == "replayed" or computed > host:
                rows.setdefault(gap.key, []).append((gap, max(o.batch_s - computed, 1e-7), o))
            elif slow is not None:
                rows.setdefault(slow.key, []).append((slow, max(o.batch_s - host, 1e-7), o))
    return rows


def _computed(group: Sequence[Observation], gap: str, others: Sequence[str]) -> float | None:
    """Median time of a batch's kernels over the launches that tell it."""
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


def _grouped(observations: Sequence[Observation]) -> list[list[Observation]]:
    groups: dict[object, list[Observation]] = {}
    for o in observations:
        groups.setdefault(o.case.key, []).append(o)
    return list(groups.values())


def configurations(observations: Sequence[Observation]) -> dict[tuple[object, ...], Case]:
    """Return the distinct cases by key."""
    return {o.case.key: o.case for o in observations}
