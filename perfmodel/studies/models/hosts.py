"""Hosts: by how much one takes longer than the calibration's for the parts that hosts do.

A batch's host parts are of three kinds: launches (Python, the CUDA library and the driver), copies
and sums over ranks by MPI. Another host takes exp(f) times as long for a kind; what GPUs do takes
as long on any host. Before anything is known of a host, f is normal around 0 with the covariance
that hosts have among each other; a report of the host (an anchor) and its microbenchmarks are
observations of f, each with an error of its own, and the best estimate follows by Bayes' rule for
normal distributions.

Source: C. M. Bishop, Pattern Recognition and Machine Learning, 2006, equations 2.113 to 2.117.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.models.spread import Z90
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.terms import AHEAD, DERIVED, HOST_KINDS, Observation, Part

if TYPE_CHECKING:
    from perfmodel.machines.measure.measurement import MachineMeasurement

BETWEEN_HOSTS: Final = (0.18, 0.19, 0.25)
"""Standard deviations of log factors of a host that was not seen, by kind.

Of six hosts with H200s (`benchmarks.predict.launches.of_all_hosts`): 0.14, 0.15 and 0.19, times
1.3, because six are few (Student's t with 5 degrees of freedom, and their mean's own error)."""
_HOSTS_ALIKE: Final = 0.75
"""Correlation of two kinds' factors among these hosts."""
LAUNCHES_DIFFER: Final = (0.18, 0.16, 0.15)
"""Standard deviations of log factors that single launches on one host show, and configurations
against the model: an anchor is one launch of one configuration."""
_LAUNCHES_ALIKE: Final = 0.5
"""Correlation of two kinds in one launch."""
CALLS_DIFFER: Final = (0.15, 0.15, 0.15)
"""Of a host's factor from what its microbenchmarks say."""
_MOST_BYTES: Final = 16 << 20
"""Of a message: larger ones than a batch's say nothing of it."""
_CALLS: Final = (
    "python", "launch", "driver_launch", "copy_call", "synchronize", "event_record", "mpi_call",
)  # fmt: skip
"""Keys of a machine's latencies that are the host's time."""


@dataclass(frozen=True, eq=False)
class Host:
    """Known differences of a host from the calibration's.

    Attributes
    ----------
    factors : array, shape (3,)
        Logarithms of the best estimates, by `terms.HOST_KINDS`.
    covariance : array, shape (3, 3)
        Of these logarithms.
    evidence : tuple of str
        Sources that it is known by.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {
        "factors": "", "covariance": "", "ranges": "factors",
    }  # fmt: skip

    factors: Floats
    covariance: Floats
    evidence: tuple[str, ...] = ()

    def ratio(self, part: Part) -> float:
        """Return by how much a part takes longer than on the calibration's host."""
        kind = part.host_kind
        return 1.0 if kind is None else math.exp(self.factors[kind])

    @property
    def ranges(self) -> dict[str, tuple[float, float, float]]:
        """Return every kind's ratio to the calibration's host, with its 90 % interval."""
        found = {}
        for kind, log, variance in zip(
            HOST_KINDS, self.factors, np.diag(self.covariance), strict=True
        ):
            width = Z90 * math.sqrt(variance)
            found[kind] = math.exp(log), math.exp(log - width), math.exp(log + width)
        return found

    def moved(self, kind: int) -> Host:
        """Return the host with one factor a standard deviation higher."""
        step = np.zeros(len(HOST_KINDS))
        step[kind] = math.sqrt(self.covariance[kind, kind])
        return Host(self.factors + step, self.covariance, self.evidence)

    def given(self, y: Floats, errors: Floats, evidence: str) -> Host:
        """Return the host after an observation of its factors.

        Parameters
        ----------
        y : array, shape (3,)
            Observed logarithms; NaN where the observation has none of a kind.
        errors : array, shape (3, 3)
            Covariance of the observation's errors.
        """
        seen = np.flatnonzero(np.isfinite(y))
        if not len(seen):
            return self
        gain = self.covariance[:, seen] @ np.linalg.inv(
            self.covariance[np.ix_(seen, seen)] + errors[np.ix_(seen, seen)]
        )
        return Host(
            self.factors + gain @ (y - self.factors)[seen],
            self.covariance - gain @ self.covariance[seen],
            (*self.evidence, evidence),
        )


def covariance(deviations: Sequence[float] | Floats, alike: float) -> Floats:
    """Return the covariance of these standard deviations with one correlation."""
    sd = np.asarray(deviations, float)
    found: Floats = np.outer(sd, sd) * (alike + (1 - alike) * np.eye(len(sd)))
    return found


SAME: Final = Host(
    np.zeros(len(HOST_KINDS)), np.zeros((len(HOST_KINDS), len(HOST_KINDS))), ("the calibration's",)
)
"""The calibration's host."""


def unknown() -> Host:
    """Return a host of which nothing is known but that it is one."""
    return Host(np.zeros(len(HOST_KINDS)), covariance(BETWEEN_HOSTS, _HOSTS_ALIKE))


def by_report(host: Host, model: Model, observation: Observation) -> Host:
    """Correct by one launch on the host, of any configuration: an anchor.

    What its host's parts took together, kind by kind, over what the model says they take.

    Raises
    ------
    ModelError
        If the batch is replayed as a CUDA graph, or the model has none of the report's host parts.
    """
    if observation.case.route == "replayed":
        raise ModelError(
            f"{observation.source}: expected a report of batches whose kernels the host launches "
            f"one by one; got {observation.case.label}, a CUDA graph, in which the host does next "
            f"to nothing, so that it says nothing of the host; give a report without --graph"
        )
    y, noise = ratios(model, observation)
    if not np.isfinite(y).any():
        raise ModelError(
            f"{observation.source}: expected a report with host parts that the model has, such as "
            f"launches or copies; got {observation.case.label}, of which it has none; give a "
            "report of another configuration, or calibrate with more reports"
        )
    sd = np.maximum(LAUNCHES_DIFFER, noise)
    return host.given(y, covariance(sd, _LAUNCHES_ALIKE), observation.source)


def ratios(model: Model, observation: Observation) -> tuple[Floats, Floats]:
    """Return log(measured / said) of a launch's host parts by kind, and the terms' own noise.

    NaN where it has none.
    """
    measured, said, noise = (np.zeros(len(HOST_KINDS)) for _ in range(3))
    for part in observation.case.parts(model.alone):
        kind, term = part.host_kind, model.terms.get(part.key)
        seconds = observation.parts.get(part.key)
        if kind is None or term is None or seconds is None or part.name in DERIVED:
            continue
        if not term.identifiable(part.amounts) or (predicted := term.seconds(part.amounts)) <= 0:
            continue
        measured[kind] += seconds
        said[kind] += predicted
        noise[kind] += (predicted * term.noise) ** 2
    known = said > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.where(known, np.log(measured / said), np.nan)
        return y, np.where(known, np.sqrt(noise) / said, 1.0)


def factors_of(model: Model, observations: Sequence[Observation]) -> dict[str, Floats]:
    """Return the log factors of every host that launches ran on against the hosts' mean.

    The median over launches, without those of CUDA graphs, whose host does next to nothing.
    """
    found: dict[str, list[Floats]] = {}
    for o in observations:
        if o.case.route != "replayed":
            found.setdefault(o.host, []).append(ratios(model, o)[0])
    medians = {name: _medians(np.array(rows)) for name, rows in found.items()}
    centre = _medians(np.array(list(medians.values())), np.mean)
    return {name: np.nan_to_num(factors - centre) for name, factors in medians.items()}


def _medians(rows: Floats, of: Callable[[Floats], Any] = np.median) -> Floats:
    """Return the median of every column's numbers; NaN where it has none."""
    columns = (column[np.isfinite(column)] for column in rows.T)
    return np.array([float(of(c)) if len(c) else np.nan for c in columns])


def as_on_the_mean(observation: Observation, factors: Floats) -> Observation:
    """Return what a launch on a host would have been on the mean of hosts.

    What waits for nothing shrinks or grows; a batch that the GPU limits takes what it took.
    """
    o, parts, phases = observation, dict(observation.parts), dict(observation.phases)
    before = after = 0.0
    for part in o.case.parts():
        kind, seconds = part.host_kind, o.parts.get(part.key)
        if kind is None or seconds is None:
            continue
        parts[part.key] = seconds * math.exp(-factors[kind])
        before, after = before + seconds, after + parts[part.key]
        if part.phase in phases:
            phases[part.phase] = max(phases[part.phase] + parts[part.key] - seconds, 0.0)
    batch_s = o.batch_s
    if o.case.route == "blocking":
        batch_s += after - before
    elif before * AHEAD > batch_s:
        batch_s *= after / before
    return replace(o, parts=parts, phases=phases, batch_s=batch_s)


def calls_of(found: MachineMeasurement) -> dict[str, float]:
    """Return the host's times of a machine's measurement by name: calls, copies, sums by MPI."""
    latency = found.machine.latency_s
    calls = {f"launches: {key}": float(latency[key]) for key in _CALLS if key in latency}
    for series in found.series:
        kind = {"copy": "copies", "mpi_allreduce": "sums"}.get(series.kind)
        if kind is None or series.clock != "host":
            continue
        for size, seconds in zip(series.bytes, series.median_s, strict=True):
            if size <= _MOST_BYTES:
                how = f"{series.memory} {series.direction}, {series.ranks} ranks, {size} B"
                calls[f"{kind}: {how}"] = seconds
    return calls


def on_the_mean(calls: Mapping[str, float], factors: Sequence[float] | None) -> dict[str, float]:
    """Return a host's times as on the mean of hosts, by its factors; as they are without."""
    by_kind = dict(zip(HOST_KINDS, factors or (0.0,) * len(HOST_KINDS), strict=True))
    return {
        name: seconds * math.exp(-by_kind[name.partition(":")[0]])
        for name, seconds in calls.items()
    }


def by_calls(
    host: Host, calibration: Mapping[str, float], target: Mapping[str, float], source: str
) -> Host:
    """Correct by microbenchmarks: the mean log ratio of the calls that both hosts have, by kind.

    Raises
    ------
    ModelError
        If they have none in common.
    """
    y = np.full(len(HOST_KINDS), np.nan)
    for i, kind in enumerate(HOST_KINDS):
        both = [name for name in target if name in calibration and name.startswith(f"{kind}: ")]
        if both:
            y[i] = float(np.mean([math.log(target[n] / calibration[n]) for n in both]))
    if not np.isfinite(y).any():
        raise ModelError(
            f"{source}: expected host times that the calibration's machine file has, too; got "
            "none in common; calibrate with --machine FILE of the calibration's host, measured by "
            "the same version"
        )
    return host.given(y, covariance(CALLS_DIFFER, 0.0), source)
