"""Fits a model of operators to recorded steps: factors of GPU times, host, collectives, noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.models.operator_times import Baseline, Timer, factors_of
from perfmodel.models.operators import (
    GPU_NOISE,
    HOST_NOISE,
    CallAt,
    Host,
    OperatorModel,
    PredictedStep,
    Wire,
    computes,
    distance,
    predict_operators,
    sent_bytes,
    structure_of,
)
from perfmodel.models.recorded import RecordedCall, RecordedStep

_HOST_SETS: Final = 1.15
"""A recorded step that is so much longer than its kernels is set by the host."""
_HOST_SETS_RANKS: Final = 1.5
"""The same of steps of several ranks, whose kernels collectives slow down."""
_FEW_NOISE: Final = 0.05
"""Least noise of the GPU where too few reports are there to leave one out."""
_CONTENTIONS: Final = tuple(i / 10 for i in range(16))
"""Largest share by which kernels may take longer during collectives."""
_USUAL_GAP_S: Final = 1.1e-6


def calibrate_operators(
    program: str,
    steps: Sequence[RecordedStep],
    baseline: Baseline,
    call_at: CallAt,
    take: Sequence[str] = (),
) -> OperatorModel:
    """Fit a model to recorded steps.

    Parameters
    ----------
    program : str
    steps : sequence of RecordedStep
        Those without calls, which have a time without a profiler alone, say what the host takes
        and how much faster or slower than predicted the GPU is.
    baseline : Baseline
        Of the machine that ran them.
    call_at : callable
    take : sequence of str
        Products of symbols that are meant where the reports allow several.

    Raises
    ------
    ModelError
        If no report names sizes, or one alone does.
    """
    sized = [s for s in steps if s.order]
    if len(sized) < 2:
        raise ModelError(
            f"expected two or more reports with operators' sizes, of different sizes of the "
            f"program; got {len(sized)}; record another with nsys profile "
            f"--pytorch=autograd-shapes-nvtx"
        )
    single = [s for s in sized if s.ranks == 1] or sized
    alone = factors_of(_calls(single, call_at), baseline)
    factors = {**factors_of(_calls(sized, call_at), baseline), **alone}
    gaps = [s.gap_s for s in sized if s.gap_s > 0]
    model = OperatorModel(
        program=program,
        gpu=sized[0].gpu,
        steps=tuple(steps),
        baseline=baseline,
        factors=factors,
        host={},
        wires=_wires(steps),
        contention=_contention(sized, Timer(baseline, factors), call_at),
        gap_s=float(np.median(gaps)) if gaps else _USUAL_GAP_S,
        take=tuple(take),
    )
    model = replace(model, steps=tuple(_counted(model, s, call_at) for s in steps))
    model = replace(model, host=_hosts(model))
    return _beside_collectives(_scaled(model, call_at), call_at)


def _beside_collectives(model: OperatorModel, call_at: CallAt) -> OperatorModel:
    """Fit how much longer kernels take during collectives, if times without them are known.

    What several ranks do besides, such as copies of gradients to buckets, is part of it.
    """
    mine = [s for s in model.steps if s.ranks > 1 and s.bare_s and not s.reference]
    if not mine or any(s.order and s.ranks > 1 for s in model.steps):
        return model
    alone = _exposed(replace(model, contention=0.0), mine, call_at)
    longest = max(mine, key=lambda s: alone[id(s)])
    gpu = [s for s in mine if s is longest and (s.bare_s or 0.0) < _HOST_SETS_RANKS * alone[id(s)]]
    best = (math.inf, model)
    for contention in _CONTENTIONS if gpu else ():
        tried = replace(model, contention=contention)
        times = _exposed(tried, gpu, call_at)
        error = _rms([math.log(times[id(s)] / (s.bare_s or 1.0)) for s in gpu])
        best = min(best, (error, tried), key=lambda pair: pair[0])
    found = best[1]
    return replace(found, host=_hosts(found, _exposed(found, mine, call_at)))


def _exposed(
    model: OperatorModel, steps: Sequence[RecordedStep], call_at: CallAt
) -> dict[int, float]:  # fmt: skip
    """Return times of the GPU and collectives in steps of several ranks, by the step's identity."""
    none = replace(model, host={})
    return {id(s): predict_operators(none, s.symbols, call_at).step_s for s in steps}


def _counted(model: OperatorModel, step: RecordedStep, call_at: CallAt) -> RecordedStep:
    """Count the launches and the kernels' time of a step that was timed, and not recorded."""
    if step.launches or step.bare_s is None:
        return step
    structure = structure_of(model, step.symbols)
    timer = Timer(model.baseline, model.factors)
    made = PredictedStep(model, structure, step.symbols, timer, call_at, None)
    launches, busy_s = made.counted()
    return replace(step, launches=launches, busy_s=busy_s)


def _calls(steps: Sequence[RecordedStep], call_at: CallAt) -> list[RecordedCall]:
    """Calls that compute, each with the work of today's formulas."""
    return [call_at(c, c.sizes) for s in steps for c in s.calls if computes(c)]


def _wires(steps: Sequence[RecordedStep]) -> dict[str, Wire]:
    """Alpha and beta of every collective, by the smallest relative errors."""
    points: dict[str, list[tuple[float, float]]] = {}
    for step in steps:
        for call in step.calls:
            if call.kind == "communication" and call.gpu_s > 0:
                sent = sent_bytes(call.name, call.bytes, step.ranks)
                points.setdefault(call.name, []).append((sent, call.gpu_s))
    found = {}
    for name, pairs in points.items():
        alpha, beta = _nonnegative([(1e-6 / s, n * 1e-12 / s) for n, s in pairs])
        found[name] = Wire(alpha * 1e-6, beta * 1e-12)
    return found


def _nonnegative(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Coefficients, at least 0, with which every row is nearest to 1."""
    from scipy.optimize import nnls

    (first, second), _ = nnls(np.array(rows), np.ones(len(rows)))
    return float(first), float(second)


def _contention(steps: Sequence[RecordedStep], timer: Timer, call_at: CallAt) -> float:
    """Share by which kernels of the backward pass take longer during collectives."""
    found = []
    for step in steps:
        talk = sum(step.calls[i].gpu_s for i in step.order
                   if step.calls[i].kind == "communication")  # fmt: skip
        mine = [step.calls[i] for i in step.order if step.calls[i].kind in ("gemm", "attention")]
        mine = [c for c in mine if c.phase == "backward"]
        if step.ranks > 1 and talk > 0 and mine:
            took = sum(c.gpu_s for c in mine)
            alone = sum(timer.seconds(call_at(c, c.sizes))[0] for c in mine)
            beside = min(talk / max(took, talk), 1.0)
            found.append(max((took / alone - 1) / beside, 0.0))
    return min(float(np.median(found)), 1.0) if found else 0.0


def _hosts(
    model: OperatorModel, others_s: Mapping[int, float] | None = None
) -> dict[bool, Host]:  # fmt: skip
    """Host seconds by launches, of the steps that the host sets; without a profiler if known.

    `others_s` is what else takes time, where it is not kernels and gaps alone.
    """
    known = others_s or {}
    found: dict[bool, Host] = {}
    for several in (False, True):
        mine = [s for s in model.steps if (s.ranks > 1) == several and not s.reference]
        busy = [known.get(id(s), s.busy_s + s.launches * model.gap_s) for s in mine]
        both = list(zip(mine, busy, strict=True))
        bare = [(s.launches, s.bare_s, b) for s, b in both if s.bare_s]
        traced = [(s.launches, s.step_s, b) for s, b in both if not s.order and s.launches]
        traced = traced or [(s.launches, s.step_s, b) for s, b in both]
        by_call = any(s.host_s for s in model.steps if s.ranks == 1 or several)
        rows = bare or ([] if by_call else traced)
        if not rows:
            continue
        slow = [(n, t) for n, t, b in rows if t > _HOST_SETS * b]
        if slow:
            many = len({n for n, _ in slow}) > 1
            if many:
                fitted = _nonnegative([(1e-3 / s, n * 1e-6 / s) for n, s in slow])
                step_s, launch_s = fitted[0] * 1e-3, fitted[1] * 1e-6
            elif False in found and found[False].runs:  # in the proportion of one rank
                alone = found[False]
                often = alone.step_s + alone.launch_s * slow[0][0]
                longer = float(np.median([t for _, t in slow])) / often
                step_s, launch_s = alone.step_s * longer, alone.launch_s * longer
            else:  # nothing separates the two: half of each
                step_s = float(np.median([t for _, t in slow])) / 2
                launch_s = step_s / slow[0][0]
            host = Host(step_s, launch_s, len(slow), not bare)
        else:
            least = min(t / n for n, t, _ in rows)
            host = Host(0.0, 0.8 * least, 0, not bare)
        found[several] = host
    return found


def _scaled(model: OperatorModel, call_at: CallAt) -> OperatorModel:
    """Compare the model with the calibration's own steps: a factor of the GPU, and noise."""
    gpu: list[float] = []
    host: list[float] = []
    for step in model.steps:
        if step.bare_s is None or step.reference:
            continue
        p = predict_operators(model, {**step.symbols}, call_at)
        error = math.log(step.bare_s / p.step_s)
        if p.bound == "host":
            host.append(error)
        elif p.lanes.host_s * _HOST_SETS < p.lanes.gpu_s:  # the host sets no part of the step
            gpu.append(error)
    scale = math.exp(float(np.median(gpu))) if gpu else 1.0
    left = [e - math.log(scale) for e in gpu]
    out = _left_out(model, call_at)
    return replace(
        model,
        scale=scale,
        gpu_noise=max(_rms([*left, *out]), GPU_NOISE if out else _FEW_NOISE),
        host_noise=max(_rms(host) * 1.3, HOST_NOISE),
    )


def _left_out(model: OperatorModel, call_at: CallAt) -> list[float]:
    """Recorded over predicted GPU time of every report by the others, as logarithms."""
    known = [k for k in model.structures if k.step.ranks == 1 and not k.step.reference]
    found = []
    for one in known if len(known) > 2 else ():
        others = [k for k in known if k is not one]
        factors = factors_of(_calls([k.step for k in others], call_at), model.baseline)
        timer = Timer(model.baseline, factors)
        near = min(others, key=lambda k: distance(k.step.symbols, one.step.symbols))
        seconds = 0.0
        for call, sizes in near.calls_at(one.step.symbols):
            if computes(call):
                grown = replace(call, arguments=near.arguments_at(call, sizes))
                seconds += timer.seconds(call_at(grown, sizes))[0]
        found.append(math.log(one.step.busy_s / seconds))
    return found


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else 0.0
