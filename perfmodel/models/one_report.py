"""A step of other sizes from one report: its calls with new sizes, in its order, timed anew.

Every call keeps what the report says of it: the host's time before it without the profiler, whether
the host waits for the GPU there, and how much longer its kernels take than the GPU's grid of GEMMs
and attention, or its bytes, say. The host's times are of this host, and per call, so that no cost
of a launch has to be told apart from a cost of a step. What one report cannot say has a usual value
with its spread, in `usual.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.models.lifetimes import Peak
from perfmodel.models.operator_times import Baseline, Timer, factors_of
from perfmodel.models.operators import (
    CallAt,
    Network,
    OperatorModel,
    OperatorPrediction,
    PredictedStep,
    Wire,
    computes,
)
from perfmodel.models.recorded import RecordedCall, RecordedStep
from perfmodel.models.roles import Role, Roles
from perfmodel.models.structure import Structure

_DTYPES: Final = ("gemm", "attention", "convolution")
"""Kinds of calls whose time another data type changes."""
_MOST_BATCH: Final = 1 << 24
_SHARED: Final = 0.85
"""Share of the host's time of two reports that must be of operators which both have. GPTs, Llamas
and BERTs share 0.87 and more, and tell each other's host within 0.6 to 1.5 times; CNNs share less
with them, and are off by up to 2.1 times (six reports of one host in profiles/programs)."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts in general, as a distribution of the time per operator that launches GPU work.

    Attributes
    ----------
    call_s : float
        Geometric mean over hosts.
    spread, program, other : float
        Standard deviations of logarithms: between hosts; between usual programs on one host; of
        programs that are not usual.
    usual : float
        Share of programs that are.
    """

    call_s: float
    spread: float
    program: float
    other: float
    usual: float

    def ratio(self, call_s: float, noise: float) -> tuple[float, float]:
        """How much longer another host takes than one that takes `call_s` for this program.

        What a program takes on a host is the product of both. By Bayes' rule a short time of the
        report is of a fast host or of a program with quick operators, as far as each varies; a
        program beyond what usual ones take is of another kind, and tells all by itself.

        Returns
        -------
        tuple of float
            The logarithm of the ratio, and its standard deviation.

        Examples
        --------
        >>> hosts = Hosts(30e-6, 0.2, 0.1, 1.0, 0.8)
        >>> [round(x, 2) for x in hosts.ratio(25e-6, 0.1)]
        [0.15, 0.22]
        >>> [round(x, 2) for x in hosts.ratio(300e-6, 0.1)]
        [-0.11, 0.3]
        """
        far = math.log(call_s / self.call_s)
        found = []
        for share, spread in ((self.usual, self.program), (1 - self.usual, self.other)):
            variance = spread**2 + self.spread**2 + noise**2
            kept = spread**2 / variance
            weight = share * math.exp(-(far**2) / (2 * variance)) / math.sqrt(variance)
            found.append((weight, far * kept, spread**2 * (1 - kept)))
        whole = sum(weight for weight, _, _ in found)
        mean = sum(weight * at for weight, at, _ in found) / whole
        variance = sum(w * (v + (at - mean) ** 2) for w, at, v in found) / whole
        return mean - far, math.sqrt(variance + self.spread**2)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes besides the sizes.

    Attributes
    ----------
    machine : Baseline or None
        Another GPU.
    dtype : str or None
        Data type of GEMMs and attention.
    graphs : bool
        Whether the step is replayed as a CUDA graph: the host launches once.
    compiled : bool
        Whether torch.compile makes one kernel of what lies between two products.
    memory_bytes : int or None
        Of the GPU to predict.
    hosts : Hosts or None
        Of which the host to predict is any; None for the report's host.
    micro_batches : int
        Of which the gradients are accumulated before the optimizer's step.
    shards : bool
        Whether ranks share parameters and states by FullyShardedDataParallel.
    """

    machine: Baseline | None = None
    dtype: str | None = None
    graphs: bool = False
    compiled: bool = False
    memory_bytes: int | None = None
    hosts: Hosts | None = None
    micro_batches: int = 1
    shards: bool = False


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that was timed without a profiler on the host to predict.

    Attributes
    ----------
    sizes : mapping
        By role, where they are not the report's.
    step_s : float
    """

    sizes: Mapping[str, int]
    step_s: float


@dataclass(frozen=True, slots=True)
class HostRatio:
    """By how much the host to predict takes longer than the report's.

    Attributes
    ----------
    factor : float
    noise : float
        A standard deviation of its logarithm.
    evidence : tuple of str
        What it is known by; empty where it is not.
    """

    factor: float
    noise: float
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportPrediction:
    """A step of other sizes, by one report.

    Attributes
    ----------
    step : OperatorPrediction
    recorded : OperatorPrediction
        The same for the sizes as recorded.
    roles : tuple of Role
    sizes : mapping
        Of the predicted step, by role.
    host : HostRatio
    peak : Peak or None
        Most memory of PyTorch's allocator; None where the report does not say which operator reads
        what another made (a trace of torch.profiler, a compiled program), or is of several ranks or
        of an optimizer that is not fused, or another data type or torch.compile was asked for.
    largest_batch : int or None
        That fits the GPU besides CUDA's context, without what the allocator loses by cutting.
    mfu : float or None
        FLOPs of the operators' formulas over the peak of the GPUs in the type of most of them.
    micro_batches : int
    """

    step: OperatorPrediction
    recorded: OperatorPrediction
    roles: tuple[Role, ...]
    sizes: Mapping[str, int]
    host: HostRatio
    peak: Peak | None
    largest_batch: int | None
    mfu: float | None = None
    micro_batches: int = 1


@cache
def usual() -> Mapping[str, Any]:
    """Return what one report cannot say, with its spread; sources are in the file."""
    text = files("perfmodel.models").joinpath("usual.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def predict_report(
    step: RecordedStep,
    roles: Roles,
    given: Mapping[str, int],
    baseline: Baseline,
    call_at: CallAt,
    changes: Changes,
    anchors: Sequence[RecordedStep | TimedStep] = (),
) -> ReportPrediction:
    """Predict a step of a report's program with other sizes, ranks, GPU or data type.

    Parameters
    ----------
    step : RecordedStep
        With sizes.
    roles : Roles
        Of the step.
    given : mapping
        Sizes to change by role; 'p', the ranks, stays without.
    baseline : Baseline
        Of the GPU that ran the report.
    call_at : callable
    changes : Changes
    anchors : sequence of RecordedStep or TimedStep
        Of the host to predict, which is the report's without them: a report of it, of any program,
        or the time of a step of this program. Reports of the same GPU also say how long its
        kernels take at more sizes.

    Raises
    ------
    ModelError
        If the sizes fit no program of this kind, the host's times are not known, or an anchor says
        nothing of the host.
    """
    for one in (step, *anchors):
        if isinstance(one, RecordedStep) and not one.host_s:
            raise ModelError(
                f"{one.source}: expected a report with calls to CUDA, which say what the host "
                f"takes; got none; record with nsys profile -t cuda,nvtx"
            )
    if changes.compiled and not step.tensors:
        raise ModelError(
            f"{step.source}: expected a report that says which operator made what another reads; "
            f"got none, so that --compile cannot be predicted; record the program without "
            f"torch.compile by nsys profile --pytorch=autograd-shapes-nvtx"
        )
    sizes, notes = roles.sizes_at(given)
    ranks = given.get("p", step.ranks)
    depth = "n_layer" if "n_layer" in sizes else ""
    old = replace(step, symbols={**roles.values, "p": step.ranks})
    structure = Structure(old, depth, roles.terms)
    more = [a for a in anchors if isinstance(a, RecordedStep) and a.gpu == step.gpu]
    model = _model(old, more, baseline, call_at)
    own = HostRatio(1.0, step.host_noise)

    def made(values: Mapping[str, int]) -> PredictedStep:
        return _made(model, structure, values, call_at, changes, own)

    ratios = [
        _ratio_of_report(old, a) if isinstance(a, RecordedStep)
        else _ratio_of_time(a, roles, step.ranks, made)
        for a in anchors
    ]  # fmt: skip
    mine = _own_host(_made(model, structure, old.symbols, call_at, Changes(), own), own)
    if changes.hosts is not None:
        ratios.append(_any_of(changes.hosts, old, mine))
    host = _together(ratios) if ratios else mine
    recorded = _predicted(
        _made(model, structure, old.symbols, call_at, Changes(), mine), mine, Changes(), ()
    )
    values = {**sizes, "p": ranks}
    at = _made(model, structure, values, call_at, changes, host)
    found = _predicted(at, host, changes, notes)
    same = changes.dtype is None and not changes.compiled
    peak = at.peak(_workspace()) if same else None
    if peak is not None and changes.memory_bytes is not None and peak.bytes > changes.memory_bytes:
        said = f"the GPU has {si(changes.memory_bytes, 'B')} of memory; the step needs "
        found = replace(found, warnings=(*found.warnings, said + si(peak.bytes, "B")))
    largest = _largest(made, values, changes.memory_bytes) if peak is not None else None
    return ReportPrediction(
        found, recorded, roles.found, values, host, peak, largest,
        _mfu(found, at.timer.baseline), changes.micro_batches,
    )  # fmt: skip


def _mfu(found: OperatorPrediction, baseline: Baseline) -> float | None:
    """Share of the peak, in the data type of most FLOPs."""
    flops: dict[str, float] = {}
    for count, call in found.calls:
        if call.flops and call.dtype:
            flops[call.dtype] = flops.get(call.dtype, 0.0) + count * call.flops
    if not flops:
        return None
    peak = baseline.peak_flops_per_s(max(flops, key=lambda dtype: flops[dtype]))
    return sum(flops.values()) / found.step_s / peak if peak else None


def _workspace() -> int:
    said = usual()["memory"]
    return int(said["threads"] * said["cublas_bytes"])


def _largest(
    made: Callable[[Mapping[str, int]], PredictedStep],
    values: Mapping[str, int],
    memory_bytes: int | None,
) -> int | None:
    """The largest batch whose peak fits; None without a batch or the size of the memory."""
    if memory_bytes is None or "batch" not in values:
        return None
    room = memory_bytes - usual()["memory"]["context_bytes"]

    def fits(batch: int) -> bool:
        peak = made({**values, "batch": batch}).peak(_workspace())
        return peak is not None and peak.bytes <= room

    low, high = 0, 1
    while high <= _MOST_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _own_host(recorded: PredictedStep, estimated: HostRatio) -> HostRatio:
    """The report's host by the time that the program took before it was recorded, if it says it."""
    step_s = recorded.structure.step.bare_s
    factor = None if step_s is None else recorded.host_factor(step_s)
    if step_s is None or factor is None:
        return estimated
    evidence = f"{si(step_s, 's')} before it was recorded"
    return HostRatio(factor, usual()["host"]["timed"], (evidence,))


def hosts() -> Hosts:
    """Hosts in general, as `usual.toml` has them."""
    return Hosts(**usual()["hosts"])


def _any_of(hosts: Hosts, step: RecordedStep, mine: HostRatio) -> HostRatio:
    """Another host than the report's, of which nothing is known."""
    call_s = mine.factor * sum(step.host_s) / len(step.host_s)
    log, noise = hosts.ratio(call_s, math.hypot(mine.noise, usual()["host"]["noise"]))
    evidence = f"another host: {si(hosts.call_s, 's')} an operator on hosts in general"
    return HostRatio(math.exp(log), noise, (f"{evidence}, {si(call_s, 's')} on the report's",))


def _ratio_of_time(
    timed: TimedStep, roles: Roles, ranks: int, made: Callable[[Mapping[str, int]], PredictedStep]
) -> HostRatio:
    """How slow a host is on which a step of this program takes so long."""
    sizes, _ = roles.sizes_at(timed.sizes)
    said = " ".join(f"{k}={v}" for k, v in timed.sizes.items()) or "the report's sizes"
    factor = made({**sizes, "p": timed.sizes.get("p", ranks)}).host_factor(timed.step_s)
    if factor is None:
        raise ModelError(
            f"{si(timed.step_s, 's')} at {said}: expected a step that the host sets; got one that "
            f"takes the GPU as long, which says nothing of the host; time one of a smaller batch"
        )
    evidence = f"{si(timed.step_s, 's')} at {said}"
    return HostRatio(factor, usual()["host"]["timed"], (evidence,))


def _ratio_of_report(step: RecordedStep, other: RecordedStep) -> HostRatio:
    """How slow a host is by the calls that its report has in common with another host's."""

    def by_name(of: RecordedStep) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, str], list[float]] = {}
        for i, seconds in zip(of.order, of.host_s, strict=True):
            found.setdefault((of.calls[i].name, of.calls[i].phase), []).append(seconds)
        return found

    here, there = by_name(step), by_name(other)
    both = here.keys() & there.keys()
    theirs = sum(sum(there[k]) for k in both)
    shared = min(theirs / sum(other.host_s), sum(sum(here[k]) for k in both) / sum(step.host_s))
    if shared < _SHARED:
        raise ModelError(
            f"{other.source}: expected a report of the operators of {step.source}; got one that "
            f"shares {shared:.0%} of the host's time with it; record the same program on the host "
            f"to predict, or give the time of a step there by --timed"
        )
    ours = sum(len(there[k]) * sum(here[k]) / len(here[k]) for k in both)
    noise = math.hypot(other.host_noise, usual()["host"]["timed"])
    return HostRatio(theirs / ours, noise, (other.source,))


def _together(ratios: Sequence[HostRatio]) -> HostRatio:
    """The mean of what several anchors say of one host, by how sure each is."""
    weights = [1 / max(r.noise, 0.01) ** 2 for r in ratios]
    mean = sum(w * math.log(r.factor) for w, r in zip(weights, ratios, strict=True)) / sum(weights)
    evidence = tuple(word for r in ratios for word in r.evidence)
    return HostRatio(math.exp(mean), sum(weights) ** -0.5, evidence)


def _model(
    step: RecordedStep, more: Sequence[RecordedStep], baseline: Baseline, call_at: CallAt
) -> OperatorModel:
    said = usual()
    calls = [call_at(c, c.sizes) for s in (step, *more) for c in s.calls if computes(c)]
    wires = {
        name: Wire(w["alpha_s"], w["beta_s_per_byte"]) for name, w in said["collectives"].items()
    }
    network = Network(**said["network"])
    return OperatorModel(
        program="",
        gpu=step.gpu,
        steps=(step,),
        baseline=baseline,
        factors=factors_of(calls, baseline),
        host={},
        wires=wires,
        network=network,
        contention=said["ranks"]["contention"],
        gap_s=step.gap_s or said["gpu"]["gap_s"],
        gpu_noise=said["gpu"]["noise"],
        host_noise=said["host"]["noise"],
    )


def _made(
    model: OperatorModel,
    structure: Structure,
    values: Mapping[str, int],
    call_at: CallAt,
    changes: Changes,
    host: HostRatio,
) -> PredictedStep:
    """The step of some sizes on some host, not yet timed."""
    said, step = usual(), structure.step
    if changes.dtype is not None:
        calls = tuple(
            _of_dtype(c, changes.dtype, model.baseline) if c.kind in _DTYPES else c
            for c in step.calls
        )
        structure = replace(structure, step=replace(step, calls=calls))
    scale = host.factor * (said["ranks"]["host"] if values["p"] > 1 and step.ranks == 1 else 1.0)
    if changes.graphs:
        scale = host.factor * said["graphs"]["launch_s"] / max(sum(step.host_s), 1e-9)
    recorded = model.baseline if changes.machine is not None else None
    timer = Timer(changes.machine or model.baseline, model.factors, recorded)
    unit_s = None
    if changes.shards and values["p"] > 1:
        scale = host.factor
        pace = sum(step.host_s) / len(step.host_s) / said["shards"]["call_s"]
        unit_s = said["shards"]["unit_s"] * pace
    return PredictedStep(
        model, structure, values, timer, call_at, scale, fuses=changes.compiled,
        micro_batches=changes.micro_batches, unit_s=unit_s,
    )  # fmt: skip


def _of_dtype(call: RecordedCall, dtype: str, baseline: Baseline) -> RecordedCall:
    """A call in another data type; a convolution's share of what the GPU can do stays."""
    other = replace(call, dtype=dtype)
    longer = baseline.seconds(other)[0] / baseline.seconds(call)[0]
    return replace(other, gpu_s=call.gpu_s * longer)


def _predicted(
    made: PredictedStep, host: HostRatio, changes: Changes, notes: tuple[str, ...]
) -> OperatorPrediction:
    said, step = usual(), made.structure.step
    noise = said["ranks"]["noise"] * abs(math.log2(made.values["p"] / step.ranks))
    if made.unit_s is not None:
        noise = math.hypot(noise, said["shards"]["noise"])
    if changes.graphs:
        launches = sum(made.structure.step.calls[i].launches for i in step.order)
        notes += (f"a CUDA graph launches the step's {launches} operations at once",)
    other = changes.machine is not None
    fused = said["compile"]["noise"] if changes.compiled else 0.0
    made.host_error = math.hypot(noise, host.noise, fused)
    made.gpu_error = math.hypot(said["gpu"]["other"] if other else 0.0, noise, fused)
    found = made.predicted((step,))
    return replace(found, warnings=(*notes, *found.warnings))
