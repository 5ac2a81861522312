"""A step of other sizes from a report: its calls with new sizes, in its order, timed anew.

Every call keeps what the report says of it: the host's time before it without the profiler, whether
the host waits for the GPU there, and how much longer its kernels take than the GPU's grid of GEMMs
and attention, or its bytes, say. The host's times are of this host, and per call, so that no cost
of a launch has to be told apart from a cost of a step. What one report cannot say has a usual value
with its spread, in `usual.toml`. More reports of the program on the same host say how long kernels
take at more sizes, and each says anew how fast the host is.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, ClassVar, Final

from perfmodel.base.errors import ModelError
from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.base.units import si
from perfmodel.models.lifetimes import Peak
from perfmodel.models.operator_times import Baseline, Factors, Timer, factors_of
from perfmodel.models.operators import (
    CallAt,
    Network,
    Noise,
    OperatorPrediction,
    PredictedStep,
    Rates,
    Wire,
    computes,
)
from perfmodel.models.recorded import RecordedCall, RecordedStep
from perfmodel.models.roles import Role, Roles
from perfmodel.models.spread import chi2_quantile
from perfmodel.models.structure import Structure

_DTYPES: Final = ("gemm", "attention", "convolution")
"""Kinds of calls whose time another data type changes."""
_MOST_BATCH: Final = 1 << 24
_SHARED: Final = 0.85
"""Share of the host's time of two reports that must be of operators which both have. GPTs, Llamas
and BERTs share 0.87 and more, and tell each other's host within 0.6 to 1.5 times; CNNs share less
with them, and are off by up to 2.1 times (six reports of one host in profiles/programs)."""
_MOST_HOST: Final = 8
"""Hosts differ by less than 2 times (`usual.toml`), and host times of reports by less than 2."""
_CHECKED: Final = math.log(8)
"""Sizes were changed by so much where predictions were checked (`benchmarks.predict.two_hosts`)."""
_LEAST_CALL_S: Final = 1e-9
"""Of a host that takes no time; its logarithm is taken."""
_SAME: Final = 0.98
"""The same share of reports of one program: GPTs of several sizes share all of it."""


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
        mean, variance = self._believed(call_s, noise, 0.0)
        far = math.log(call_s / self.call_s)
        return mean - far, math.sqrt(variance + self.spread**2)

    def own(self, call_s: float, noise: float) -> tuple[float, float]:
        """How much longer this program takes on its host than a report says that is so unsure.

        By Bayes' rule again: what no host and no usual program take is less likely.

        Returns
        -------
        tuple of float
            The logarithm of the ratio, and its standard deviation.

        Examples
        --------
        >>> hosts = Hosts(30e-6, 0.2, 0.1, 1.0, 0.8)
        >>> [round(x, 2) for x in hosts.own(25e-6, 0.2)]
        [0.07, 0.15]
        >>> [round(x, 2) for x in hosts.own(25e-6, 0.01)]
        [0.0, 0.01]
        """
        mean, variance = self._believed(call_s, noise, self.spread)
        return mean - math.log(call_s / self.call_s), math.sqrt(variance)

    def _believed(self, call_s: float, noise: float, host: float) -> tuple[float, float]:
        """Mean and variance of how far a program is from the usual time of an operator.

        With its host (`host` is the spread then) or as on the usual one (0).
        """
        far = math.log(call_s / self.call_s)
        found = []
        for share, spread in ((self.usual, self.program), (1 - self.usual, self.other)):
            variance = spread**2 + self.spread**2 + noise**2
            kept = (spread**2 + host**2) / variance
            weight = share * math.exp(-(far**2) / (2 * variance)) / math.sqrt(variance)
            found.append((weight, far * kept, (spread**2 + host**2) * (1 - kept)))
        whole = sum(weight for weight, _, _ in found)
        mean = sum(weight * at for weight, at, _ in found) / whole
        return mean, sum(w * (v + (at - mean) ** 2) for w, at, v in found) / whole


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
    other_host : bool
        Whether the host to predict is not the report's.
    micro_batches : int
        Of which the gradients are accumulated before the optimizer's step.
    shards : bool
        Whether ranks share parameters and states by FullyShardedDataParallel.
    float32_shards : bool
        Whether they are gathered and reduced in float32, not in the data type of the products.
    """

    machine: Baseline | None = None
    dtype: str | None = None
    graphs: bool = False
    compiled: bool = False
    memory_bytes: int | None = None
    other_host: bool = False
    micro_batches: int = 1
    shards: bool = False
    float32_shards: bool = False


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
        Sources that it is known by; empty where it is not known.
    """

    factor: float
    noise: float
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportPrediction:
    """A step of other sizes, by a report.

    Attributes
    ----------
    step : OperatorPrediction
    recorded : OperatorPrediction
        What the model says of the sizes as recorded.
    recorded_s : float
        The step as recorded, without the profiler: as `perfmodel analyze` says where the report was
        analyzed, else by the model. Nothing changed is predicted to take as long.
    roles : tuple of Role
    sizes : mapping
        Of the predicted step, by role.
    host : HostRatio
    peak : Peak or None
        Most memory of PyTorch's allocator; None where the report does not say which operator reads
        what another made (a trace of torch.profiler, a compiled program), or is of ranks that share
        parameters or of several optimizers: a warning says which.
    largest_batch : int or None
        That fits the GPU besides CUDA's context, without what the allocator loses by cutting.
    mfu : float or None
        FLOPs of the operators' formulas over the peak of the GPUs in the type of most of them.
    micro_batches : int
    batches : int
        Of different samples in a step: one for each rank, but where ranks share layers.
    no_peak : str
        Why there is no peak.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = dict.fromkeys(("step", "sizes", "peak", "no_peak"), "")

    step: OperatorPrediction
    recorded: OperatorPrediction
    recorded_s: float
    roles: tuple[Role, ...]
    sizes: Mapping[str, int]
    host: HostRatio
    peak: Peak | None
    largest_batch: int | None
    mfu: float | None = None
    micro_batches: int = 1
    batches: int = 1
    no_peak: str = ""


@cache
def usual() -> Mapping[str, Any]:
    """Return what one report cannot say, with its spread; sources are in the file."""
    text = files("perfmodel.models").joinpath("usual.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


Report = tuple[RecordedStep, Roles]
"""A step with sizes, and the roles of its numbers."""


def predict_report(
    reports: Sequence[Report],
    given: Mapping[str, int],
    baseline: Baseline,
    call_at: CallAt,
    changes: Changes,
    anchors: Sequence[Report | TimedStep] = (),
    hosts: Hosts | None = None,
) -> ReportPrediction:
    """Predict a step of a report's program with other sizes, ranks, GPU or data type.

    Parameters
    ----------
    reports : sequence of Report
        Of one program on one host and GPU. What is not given is as in the first; the calls are
        those of the one that is nearest in sizes.
    given : mapping
        Sizes to change by role; 'p', the ranks, stays without.
    baseline : Baseline
        Of the GPU that ran the reports.
    call_at : callable
    changes : Changes
    anchors : sequence of Report or TimedStep
        Of the host to predict, which is the report's without them: a report of it, of any program,
        or the time of a step of this program. Reports of the same GPU also say how long its
        kernels take at more sizes.
    hosts : Hosts, optional
        In general; those of `usual.toml` without.

    Raises
    ------
    ModelError
        If the sizes fit no program of this kind, the host's times are not known, reports are of
        several programs or GPUs, or an anchor says nothing of the host.
    """
    there = [a for a in anchors if not isinstance(a, TimedStep)]
    for one, _ in (*reports, *there):
        if not one.host_s:
            raise ModelError(
                f"{one.source}: expected a report with calls to CUDA, which say what the host "
                f"takes; got none; record with nsys profile -t cuda,nvtx"
            )
    sizes, notes = reports[0][1].sizes_at(given)
    values = {**sizes, "p": given.get("p", reports[0][0].ranks)}
    step, roles = nearest(reports, values)
    _check_gpus(reports)
    sizes = {role.name: values.get(role.name, role.value) for role in roles.found}
    values = {**roles.sizes_at(sizes)[0], "p": values["p"]}
    if changes.compiled and not step.tensors:
        raise ModelError(
            f"{step.source}: expected a report that says which operator made what another reads; "
            f"got none, so that --compile cannot be predicted; record the program without "
            f"torch.compile by nsys profile --pytorch=autograd-shapes-nvtx"
        )
    same_gpu = [s for s, _ in (*reports, *there) if s.gpu == step.gpu]
    factors = factors_of(
        [call_at(c, c.sizes) for s in same_gpu for c in s.calls if computes(c)], baseline
    )

    def at(values: Mapping[str, int], host: HostRatio, changes: Changes) -> PredictedStep:
        return _made(_structure(step, roles), values, call_at, changes, host, factors, baseline)

    def made(values: Mapping[str, int]) -> PredictedStep:
        return at(values, HostRatio(1.0, 0.0), changes)

    def own(report: Report) -> HostRatio:
        there, plain = _structure(*report), HostRatio(1.0, report[0].host_noise)
        if report[0].gpu != step.gpu:  # the times of its kernels are not known
            return plain
        known = _made(there, there.sizes, call_at, Changes(), plain, factors, baseline)
        timed = _timed_itself(known)
        return plain if timed is None else _together([timed, plain])

    between = usual()["hosts"]["program"]
    itself = own((step, roles))
    said = _together([
        itself,
        *(
            _ratio_of_report(step, r[0], own(r), between, least=_SAME)
            for r in reports if r[0] is not step
        ),
    ])  # fmt: skip
    hosts = hosts or usual_hosts()
    call_s = max(said.factor * sum(step.host_s) / len(step.host_s), _LEAST_CALL_S)
    mine = _as_usual(hosts, call_s, said)
    ratios = [
        _ratio_of_time(a, roles, step.ranks, made) if isinstance(a, TimedStep)
        else _ratio_of_report(step, a[0], own(a), usual()["host"]["timed"])
        for a in anchors
    ]  # fmt: skip
    if changes.other_host or anchors:
        ratios.append(_any_of(hosts, call_s, said))
    host = _together(ratios) if ratios else mine
    seen = [{**r.values, "p": s.ranks} for s, r in reports]
    old = {**roles.values, "p": step.ranks}
    before = _timed_itself(at(old, HostRatio(1.0, 0.0), Changes())) or mine
    recorded = _predicted(at(old, before, Changes()), before, Changes(), seen)
    changed = at(values, host, changes)
    if changed.shares_layers and values["p"] != step.ranks:
        raise ModelError(
            f"expected the {step.ranks} ranks of the report, which share its layers; got "
            f"{values['p']}; record as many ranks as are to share them"
        )
    found = _predicted(changed, host, changes, seen)
    recorded_s = recorded.step_s if step.step_s is None else step.step_s
    if step.step_s is not None and values == old and not anchors and _as_it_is(changes):
        found = _times(found, recorded_s / found.step_s)
    guesses = tuple(
        f"{role.name} = {role.value} is a guess, by the {role.why}; where it is another number, "
        f"give --name N={role.name}"
        for role in roles.found
        if role.certainty == "guess" and values[role.name] != role.value
    )
    found = replace(found, warnings=(*guesses, *notes, *found.warnings))
    unknown = changed.no_peak()
    peak = None if unknown else changed.peak(_workspace())
    if unknown:
        found = replace(found, warnings=(*found.warnings, f"no peak of memory: {unknown}"))
    room = _room(changes.memory_bytes)
    if peak is not None and room is not None and peak.bytes > room:
        note = f"CUDA leaves {si(room, 'B', 4)} of the GPU's memory; the step needs "
        note += si(peak.bytes, "B", 4)
        found = replace(found, warnings=(*found.warnings, note))
    largest = _largest(made, values, changes.memory_bytes) if peak is not None else None
    return ReportPrediction(
        found, recorded, recorded_s, roles.found, values, host, peak, largest,
        _mfu(found, changed.rates.timer.baseline), changes.micro_batches,
        1 if changed.shares_layers else values["p"], unknown,
    )  # fmt: skip


def nearest(reports: Sequence[Report], values: Mapping[str, int]) -> Report:
    """The report whose sizes and ranks differ least, as the sum of their logarithms' differences.

    Of those that show all of the first one's roles.
    """

    def distance(report: Report) -> float:
        known = {**report[1].values, "p": report[0].ranks}
        return sum(abs(math.log(values[k] / known[k])) for k in values.keys() & known.keys())

    names = {role.name for role in reports[0][1].found}
    complete = [r for r in reports if names <= {role.name for role in r[1].found}]
    return min(complete, key=distance)


def _structure(step: RecordedStep, roles: Roles) -> Structure:
    sizes = {**roles.values, "p": step.ranks}
    return Structure(step, sizes, "n_layer" if "n_layer" in sizes else "", roles.terms)


def _check_gpus(reports: Sequence[Report]) -> None:
    gpus = sorted({step.gpu for step, _ in reports})
    if len(gpus) > 1:
        raise ModelError(
            f"expected reports of one GPU; got {', '.join(gpus)}; give those of one, and another "
            f"GPU by --gpu or --anchor REPORT"
        )


def _mfu(found: OperatorPrediction, baseline: Baseline) -> float | None:
    """Share of the peak, in the data type of most FLOPs."""
    flops: dict[str, float] = {}
    for count, call in found.calls:
        if call.flops and call.dtype:
            flops[call.dtype] = flops.get(call.dtype, 0.0) + count * call.flops
    if not flops:
        return None
    machine, most = baseline.machine, max(flops, key=lambda dtype: flops[dtype])
    unit = machine.usable_unit("float32" if most == "tf32" else most)
    if unit is None or machine.published is None:
        return None
    return sum(flops.values()) / found.step_s / machine.published.peak_flops_per_s[unit]


def _workspace() -> int:
    said = usual()["memory"]
    return int(said["threads"] * said["cublas_bytes"])


def _largest(
    made: Callable[[Mapping[str, int]], PredictedStep],
    values: Mapping[str, int],
    memory_bytes: int | None,
) -> int | None:
    """The largest batch whose peak fits; None without a batch or the size of the memory."""
    room = _room(memory_bytes)
    if room is None or "batch" not in values:
        return None

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


def _room(memory_bytes: int | None) -> int | None:
    """Bytes of a GPU's memory besides CUDA's context."""
    return None if memory_bytes is None else memory_bytes - usual()["memory"]["context_bytes"]


def _timed_itself(recorded: PredictedStep) -> HostRatio | None:
    """The report's host by the time that the program took before it was recorded.

    None where it did not time itself, or the GPU set that step. One step is a sample: a host is
    faster one minute and slower the next.
    """
    step_s = recorded.structure.step.bare_s
    factor = None if step_s is None else recorded.host_factor(step_s)
    if step_s is None or factor is None:
        return None
    evidence = f"{si(step_s, 's')} before it was recorded"
    return HostRatio(factor, usual()["host"]["timed"], (evidence,))


def usual_hosts() -> Hosts:
    """Hosts in general, as `usual.toml` has them."""
    return Hosts(**usual()["hosts"])


def _as_usual(hosts: Hosts, call_s: float, said: HostRatio) -> HostRatio:
    """The report's own host: what the report says of it, and what hosts take in general."""
    log, noise = hosts.own(call_s, said.noise)
    return replace(said, factor=said.factor * math.exp(log), noise=noise)


def _any_of(hosts: Hosts, call_s: float, said: HostRatio) -> HostRatio:
    """Another host than the report's, of which nothing is known."""
    log, noise = hosts.ratio(call_s, math.hypot(said.noise, usual()["host"]["noise"]))
    evidence = f"{si(hosts.call_s, 's')} an operator on hosts in general"
    shown = f"{evidence}, {si(call_s, 's')} on the report's"
    return HostRatio(said.factor * math.exp(log), noise, (shown,))


def _ratio_of_time(
    timed: TimedStep, roles: Roles, ranks: int, made: Callable[[Mapping[str, int]], PredictedStep]
) -> HostRatio:
    """How slow a host is on which a step of this program takes so long."""
    sizes, _ = roles.sizes_at(timed.sizes)
    said = " ".join(f"{k}={v}" for k, v in timed.sizes.items()) or "the report's sizes"
    factor = made({**sizes, "p": timed.sizes.get("p", ranks)}).host_factor(timed.step_s)
    if factor is None:
        raise ModelError(
            f"--timed {si(timed.step_s, 's')} at {said}: expected a step that the host sets; got "
            f"one that takes the GPU as long, which says nothing of the host; time one of a "
            f"smaller batch"
        )
    if not 1 / _MOST_HOST < factor < _MOST_HOST:
        raise ModelError(
            f"--timed {si(timed.step_s, 's')} at {said}: expected a time within {_MOST_HOST} times "
            f"what the report says; got another; give seconds of one step"
        )
    evidence = f"{si(timed.step_s, 's')} at {said}"
    return HostRatio(factor, usual()["host"]["timed"], (evidence,))


def _ratio_of_report(
    step: RecordedStep, other: RecordedStep, own: HostRatio, between: float, least: float = _SHARED
) -> HostRatio:
    """How slow a host is by the calls that its report has in common with another.

    Parameters
    ----------
    step, other : RecordedStep
    own : HostRatio
        Of the other report's host over the times that it says.
    between : float
        How far two reports of one host differ, a standard deviation of logarithms.
    least : float
        Share of the host's time that must be of operators which both have.
    """

    def by_name(of: RecordedStep) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, str], list[float]] = {}
        for i, seconds in zip(of.order, of.host_s, strict=True):
            found.setdefault((of.calls[i].name, of.calls[i].phase), []).append(seconds)
        return found

    here, there = by_name(step), by_name(other)
    both = here.keys() & there.keys()
    theirs = sum(sum(there[k]) for k in both)
    shared = min(theirs / sum(other.host_s), sum(sum(here[k]) for k in both) / sum(step.host_s))
    if shared < least:
        what = "the program" if least == _SAME else "the operators"
        raise ModelError(
            f"{other.source}: expected a report of {what} of {step.source}; got one that shares "
            f"{shared:.0%} of the host's time with it; record the same program on the host to "
            f"predict, or give the time of a step there by --timed"
        )
    ours = sum(len(there[k]) * sum(here[k]) / len(here[k]) for k in both)
    noise = math.hypot(own.noise, between)
    return HostRatio(own.factor * theirs / ours, noise, (other.source,))


def _as_it_is(changes: Changes) -> bool:
    """Whether nothing but the size of the memory is given."""
    return replace(changes, memory_bytes=None) == Changes()


def _times(found: OperatorPrediction, ratio: float) -> OperatorPrediction:
    """A prediction that takes so many times as long."""
    lanes = found.lanes
    return replace(
        found,
        step_s=ratio * found.step_s,
        low_s=ratio * found.low_s,
        high_s=ratio * found.high_s,
        lanes=replace(lanes, **{f.name: ratio * getattr(lanes, f.name) for f in fields(lanes)}),
        by_kind={kind: ratio * seconds for kind, seconds in found.by_kind.items()},
    )


def _together(ratios: Sequence[HostRatio]) -> HostRatio:
    """The mean of what several say of one host, by how sure each is.

    Where they differ significantly (5 %) for what each is unsure, all are less sure by as much: the
    scale factor of the Particle Data Group (Review of Particle Physics 2022, section 5.2.2).
    """
    weights = [1 / max(r.noise, 0.01) ** 2 for r in ratios]
    logs = [math.log(r.factor) for r in ratios]
    mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
    squares = sum(w * (x - mean) ** 2 for w, x in zip(weights, logs, strict=True))
    free = len(ratios) - 1
    differ = free > 0 and squares > chi2_quantile(0.95, free)
    scale = math.sqrt(squares / free) if differ else 1.0
    evidence = tuple(word for r in ratios for word in r.evidence)
    return HostRatio(math.exp(mean), scale * sum(weights) ** -0.5, evidence)


def _made(
    structure: Structure,
    values: Mapping[str, int],
    call_at: CallAt,
    changes: Changes,
    host: HostRatio,
    factors: Mapping[tuple[str, ...], Factors],
    baseline: Baseline,
) -> PredictedStep:
    """The step of some sizes on some host, not yet timed."""
    said, step = usual(), structure.step
    if changes.dtype is not None:
        calls = tuple(
            _of_dtype(c, changes.dtype, baseline) if c.kind in _DTYPES else c for c in step.calls
        )
        structure = replace(structure, step=replace(step, calls=calls))
    scale = host.factor * _slowest(values["p"], step.ranks)
    if values["p"] > 1 and step.ranks == 1 and not changes.shards:
        scale *= said["ranks"]["host"]
    if changes.graphs:
        scale = host.factor * said["graphs"]["launch_s"] / max(sum(step.host_s), 1e-9)
    recorded = baseline if changes.machine is not None else None
    unit_s = None
    if changes.shards and values["p"] > 1:
        pace = sum(step.host_s) / len(step.host_s) / said["shards"]["call_s"]
        unit_s = said["shards"]["unit_s"] * pace
    rates = Rates(
        timer=Timer(changes.machine or baseline, factors, recorded),
        wires={name: Wire(**wire) for name, wire in said["collectives"].items()},
        network=Network(**said["network"]),
        contention=said["ranks"]["contention"],
        gap_s=step.gap_s or said["gpu"]["gap_s"],
    )
    return PredictedStep(
        rates, structure, values, call_at, scale, fuses=changes.compiled,
        micro_batches=changes.micro_batches, unit_s=unit_s,
        item_bytes=ITEM_BYTES.get(changes.dtype) if changes.dtype else None,
        narrow=not changes.float32_shards,
    )  # fmt: skip


def _slowest(ranks: int, recorded: int) -> float:
    """By how much the host of the slowest of some ranks takes longer than of those recorded.

    Ranks differ by chance: the expected greatest of n normal numbers (G. Blom, Statistical
    Estimates and Transformed Beta-Variables, 1958). What two ranks of DDP take is known of two.
    """

    def greatest(n: int) -> float:
        return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))

    if ranks == 1:
        return 1.0
    return math.exp(usual()["ranks"]["spread"] * (greatest(ranks) - greatest(max(recorded, 2))))


def _of_dtype(call: RecordedCall, dtype: str, baseline: Baseline) -> RecordedCall:
    """A call in another data type; a convolution's share of what the GPU can do stays."""
    other = replace(call, dtype=dtype)
    longer = baseline.seconds(other) / baseline.seconds(call)
    return replace(other, gpu_s=call.gpu_s * longer)


def _predicted(
    made: PredictedStep, host: HostRatio, changes: Changes, seen: Sequence[Mapping[str, int]]
) -> OperatorPrediction:
    said, step = usual(), made.structure.step
    ranks = said["ranks"]["noise"] * abs(math.log2(made.values["p"] / step.ranks))
    if made.unit_s is not None:
        ranks = math.hypot(ranks, said["shards"]["noise"])
    fused = said["compile"]["noise"] if changes.compiled else 0.0
    other = said["gpu"]["other"] if changes.machine is not None else 0.0
    far = max(
        min(abs(math.log(value / sizes.get(name, value))) for sizes in seen)
        for name, value in made.values.items()
    )
    noise = Noise(
        gpu=math.hypot(said["gpu"]["noise"] * max(far / _CHECKED, 1.0), other, ranks, fused),
        host=math.hypot(said["host"]["noise"], host.noise, ranks, fused),
    )
    found = made.predicted(noise, seen)
    if not changes.graphs:
        return found
    launches = sum(step.calls[i].launches for i in step.order)
    note = f"a CUDA graph launches the step's {launches} operations at once"
    return replace(found, warnings=(note, *found.warnings))
