"""What is predicted of a case: the parts of its batch, and their terms.

A term is one part's coefficients from all runs that have it, by robust, non-negative regression.
scipy.optimize.least_squares(loss="huber", bounds=(0, inf)), its scale set anew until it stays,
finds the same minimum: on 118 terms of 16 reports predictions agree within 2e-5, where the rounds
here stop. It is not used because a fit takes 23 ms instead of 1, and a bootstrap 100 fits a term.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Literal, Self

import numpy as np

from perfmodel.base.arrays import Floats

Clock = Literal["host", "gpu"]
Role = Literal["", "launches", "computes", "waits", "follows", "optional"]
Route = Literal["blocking", "queued", "replayed"]
"""Modes of host and GPU: the host waits for the GPU, queues, or replays a graph."""

BETWEEN: Final = "between ranges"
"""Phase of the time between the ranges of a batch."""

DERIVED: Final = ("gaps", "slowest rank")
"""Parts without a clock: the rest of a batch beyond the side that limits it."""

AHEAD: Final = 1.1
"""A GPU that takes longer than this many times the host's own time is what the batch waits for."""

HOST_KINDS: Final = ("launches", "copies", "sums")
"""Kinds of what hosts do: Python, the library and the driver; copies; sums over ranks by MPI."""

BOUNDS: Final[Mapping[str, str]] = {
    "batches": "host",
    "spilled": "host",
    "paged": "host",
    "launches": "host",
    "kernels": "launch latency",
    "copies": "link latency",
    "messages": "link latency",
    "bytes": "link bandwidth",
    "moved": "memory",
    "flops": "compute",
    "tail": "compute",
    "alone": "compute",
    "ramp": "link bandwidth",
    "slower": "host",
    "NCCL sums": "link latency",
}
"""Bounds of a part, by the amount that takes most of its time."""

UNITS: Final[Mapping[str, str]] = {
    "batches": "s",
    "spilled": "s/B^0.5",
    "paged": "s",
    "launches": "s/launch",
    "kernels": "s/kernel",
    "copies": "s/copy",
    "messages": "s/message",
    "bytes": "s/B",
    "moved": "s/B",
    "flops": "s/FLOP",
    "tail": "s/FLOP^0.5",
    "alone": "s/s",
    "ramp": "s/B^0.5",
    "slower": "s/sd",
    "NCCL sums": "s/sum",
}
"""Unit of an amount's coefficient."""


@dataclass(frozen=True, slots=True)
class Part:
    """One term of a batch: seconds = sum of coefficients times amounts.

    Attributes
    ----------
    name : str
        What it does; parts of one name and `group` share their coefficients.
    group : str
        What it does it with: a kind of memory, a library, a transport.
    phase : str
        The NVTX range whose time it is part of.
    clock : {'host', 'gpu'}
    amounts : mapping of str to float
        Keys of `UNITS`.
    role : {'', 'launches', 'computes', 'waits', 'follows', 'optional'}
        Where the host waits for the GPU: parts that launch kernels, these kernels, the part in
        which the host waits for them, and those at the end of the batch. 'optional' takes no time
        in some runs.
    """

    name: str
    group: str
    phase: str
    clock: Clock
    amounts: Mapping[str, float]
    role: Role = ""

    @property
    def key(self) -> str:
        """Name in a model's file."""
        return f"{self.name} [{self.group}]"

    @property
    def host_kind(self) -> int | None:
        """The place in `HOST_KINDS` of what a host does here; None where a GPU does it."""
        if self.clock != "host":
            return None
        if "copies" in self.amounts:
            return 1
        return 2 if "messages" in self.amounts else 0


@dataclass(frozen=True)
class Case(ABC):
    """One run of a program, which says what the parts of its batch are.

    Attributes
    ----------
    sizes : mapping of str to int
        Values of the workload's symbols.
    settings : mapping of str to str
        What else changes the time of a batch, by name.
    """

    sizes: Mapping[str, int]
    settings: Mapping[str, str]

    @property
    @abstractmethod
    def workload(self) -> str:
        """Name of the workload that a model is calibrated for."""

    @property
    def key(self) -> tuple[tuple[str, object], ...]:
        """Return the key that two launches of one configuration share."""
        return (*sorted(self.sizes.items()), *sorted(self.settings.items()))

    @property
    def label(self) -> str:
        """A short name: the sizes."""
        return " ".join(f"{k}={v}" for k, v in self.sizes.items() if k not in ("D", "C"))

    @property
    def route(self) -> Route:
        """Return the mode in which host and GPU take turns."""
        return "queued"

    @property
    def command(self) -> str:
        """Return the command that runs the program."""
        return "the program"

    @abstractmethod
    def parts(self, alone: Alone | None = None) -> tuple[Part, ...]:
        """Return the parts of one rank's batch in the order in which they run.

        GEMMs that were measured alone have those seconds as their amounts.
        """

    def resized(self, sizes: Mapping[str, int]) -> Self:
        """Return the case with other sizes, those that are given."""
        return replace(self, sizes={**self.sizes, **sizes})


@dataclass(frozen=True)
class Observation:
    """One launch of one case: medians over the batches after the warm-up, in seconds.

    Attributes
    ----------
    source : str
        File name of the report.
    batch_s : float
        Median host time of a batch; to the end of its GPU work where the host only queues.
    parts : mapping of str to float
        Seconds by `Part.key`, of the parts that the report has.
    phases : mapping of str to float
        Seconds by NVTX range along the critical path: of the rank that reaches the all-reduce
        last, without the ranges inside.
    batches : int
        Number of batches of the medians.
    host : str
        A name of the machine that it ran on; '' where it is that of all others.
    """

    source: str
    case: Case
    batch_s: float
    parts: Mapping[str, float]
    phases: Mapping[str, float]
    batches: int
    host: str = ""


@dataclass(frozen=True)
class Alone:
    """Device seconds of GEMMs by two sizes, from microbenchmarks.

    Attributes
    ----------
    source : str
        The microbenchmarks' file.
    seconds : mapping
        By (name of the GEMM, data type): rows (h, k, seconds).
    kernel_s : float
        What a queued kernel takes that does nothing: it is part of every row.
    """

    source: str
    seconds: Mapping[tuple[str, str], tuple[tuple[int, int, float], ...]]
    kernel_s: float


def kernels_of(parts: Iterable[Part]) -> float:
    """Return the kernels of a batch; 0 where its parts do not say."""
    known = tuple(parts)
    between = [p for p in known if p.name == "gaps"] or known  # which counts NCCL's kernels, too
    return sum(p.amounts.get("kernels", 0.0) + p.amounts.get("NCCL sums", 0.0) for p in between)


def interpolate(rows: Iterable[tuple[int, int, float]], h: float, k: float) -> float:
    """Return seconds at (h, k): linear in the logarithms between the nearest measured ones.

    Above the measured sizes time grows with the work; below them it stays what the smallest takes.
    """
    table = {(a, b): s for a, b, s in rows}
    hs, ks = (np.array(sorted({key[i] for key in table})) for i in (0, 1))
    grid = np.log([[table[a, b] for b in ks] for a in hs])
    inside_h, inside_k = (float(np.clip(at, x[0], x[-1])) for at, x in ((h, hs), (k, ks)))
    columns = [float(np.interp(np.log(inside_k), np.log(ks), row)) for row in grid]
    found = float(np.exp(np.interp(np.log(inside_h), np.log(hs), columns)))
    return found * max(h / float(hs[-1]), 1.0) * max(k / float(ks[-1]), 1.0)


ROUNDS: Final = 20
_SETTLED: Final = 1e-5
_HUBER: Final = 1.5
"""Standard deviations beyond which residuals count linearly: 96 % efficient on Gaussian noise."""
_LEAST_SCALE: Final = 0.003
"""Relative noise that no clock of a report is below."""
_SAME_DIRECTION: Final = 1e-6
"""Directions of the design matrix below this share of the largest are not measured."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients (k,), residuals log(measured / fitted) (n,) and their robust scale."""

    coefficients: Floats
    residuals: Floats
    scale: float


def fit(
    x: Floats,
    seconds: Floats,
    weights: Floats | None = None,
    start: Floats | None = None,
    rounds: int = ROUNDS,
) -> Fitted:
    """Fit t = x c in log time, with c at least 0 and Huber's weights.

    Gauss-Newton: log(x c) = log t0 + x c / t0 - 1 around the times t0 of the round before, so that
    every round is a non-negative linear least-squares problem.

    Parameters
    ----------
    x : array, shape (n, k)
        Amounts of work, all at least 0.
    seconds : array, shape (n,)
        Measured times, all above 0.
    weights : array, shape (n,), optional
        How often every row counts.
    start : array, shape (n,), optional
        Fitted times to begin with, by default the measured ones.
    rounds : int
        At most.
    """
    usual = np.where(x.max(axis=0) > 0, np.abs(x).max(axis=0), 1.0)
    scaled = x / usual
    often = np.ones(len(seconds)) if weights is None else weights
    fitted = seconds if start is None else start
    weight = often
    c = np.zeros(x.shape[1])
    for _ in range(rounds):
        target = 1.0 + np.log(seconds / fitted)
        before, c = c, nonnegative(scaled / fitted[:, None], target, weight)
        fitted = np.maximum(scaled @ c, 1e-12)
        residual = np.log(seconds / fitted)
        scale = spread(residual, often, int((c > 0).sum()))
        weight = often * np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-12))
        if (np.abs(c - before) <= 1e-12 + _SETTLED * np.abs(before)).all():
            break
    return Fitted(c / usual, residual, scale)


def nonnegative(a: Floats, y: Floats, weights: Floats) -> Floats:
    """Minimize sum of weights (y - a c)^2 over c at least 0, by trying every set of free c.

    There are a few coefficients at most. Where columns are nearly collinear, as FLOPs and bytes of
    ranges are, scipy.optimize.nnls stops short of the least.
    """
    count = a.shape[1]
    root = np.sqrt(weights)
    rows, wanted = a * root[:, None], y * root
    whole = np.asarray(np.linalg.lstsq(rows, wanted, rcond=None)[0])
    if (whole >= 0).all():
        return whole
    best, least = np.zeros(count), np.inf
    for size in range(count - 1, 0, -1):
        for free in combinations(range(count), size):
            part, *_ = np.linalg.lstsq(rows[:, free], wanted, rcond=None)
            if (part < 0).any():
                continue
            error = float(np.sum(weights * (y - a[:, free] @ part) ** 2))
            if error < least * (1 - 1e-9):
                best, least = np.zeros(count), error
                best[list(free)] = part
    return best


def spread(residuals: Floats, often: Floats, used: int) -> float:
    """Estimate the standard deviation of residuals as 1.4826 times the median absolute one."""
    values = np.repeat(np.abs(residuals), np.maximum(often, 0).astype(int))
    if len(values) == 0:
        return _LEAST_SCALE
    degrees = max(len(values) - used, 1)
    usual = 1.4826 * float(np.median(values)) * math.sqrt(len(values) / degrees)
    return max(usual, _LEAST_SCALE)


def measured_space(x: Floats) -> Floats:
    """Return an orthonormal basis (r, k) of the directions of the scaled columns that x measures.

    Columns are divided by their largest entry first. A case whose scaled amounts lie in this space
    can be predicted, whatever the coefficients that cannot be separated.
    """
    usual = np.where(x.max(axis=0) > 0, x.max(axis=0), 1.0)
    _, sizes, rows = np.linalg.svd(x / usual, full_matrices=False)
    return np.asarray(rows[sizes > _SAME_DIRECTION * max(sizes[0], 1e-300)])


USUAL_NOISE: Final = 0.08
"""Relative standard deviation of a batch from launch to launch, where it cannot be estimated."""
IN_A_BATCH: Final = 0.3
"""Relative deviation of a transfer in a batch from the same one alone: where microbenchmarks are
the only evidence, they are believed to this."""
RESAMPLES: Final = 100
FEWEST: Final = 4
"""Launches below which noise is not estimated but taken to be the usual."""
_SEED: Final = 213
_ROUNDS: Final = 5
"""Of a resampled fit, which begins near its end."""

Row = tuple[Part, float, Observation]
"""A part as it is known, its seconds in one launch, and the launch."""


@dataclass(frozen=True)
class Term:
    """One calibrated part.

    Attributes
    ----------
    key : str
        `Part.key`.
    amounts : tuple of str
        Names of the amounts, in the order of the arrays.
    coefficients : array, shape (k,)
        Seconds per unit of each amount, at least 0.
    covariance : array, shape (k, k)
        Of the coefficients, by bootstrap over configurations.
    noise : float
        Standard deviation of log(measured / fitted) from launch to launch.
    largest : array, shape (k,)
        Largest amount of the runs it was fitted on.
    space : array, shape (r, k)
        Directions of amounts / largest that the runs separate.
    runs : tuple of str
        Reports it was fitted on.
    microbenchmarks : tuple of str
        Series of a machine's measurement that it was fitted on, besides the reports.
    """

    key: str
    amounts: tuple[str, ...]
    coefficients: Floats
    covariance: Floats
    noise: float
    largest: Floats
    space: Floats
    runs: tuple[str, ...]
    microbenchmarks: tuple[str, ...] = ()

    def vector(self, amounts: Mapping[str, float]) -> Floats:
        """Arrange amounts in the order of the coefficients."""
        return np.array([amounts.get(name, 0.0) for name in self.amounts])

    def seconds(self, amounts: Mapping[str, float]) -> float:
        """Return the time of these amounts of work."""
        return float(self.vector(amounts) @ self.coefficients)

    def variance(self, amounts: Mapping[str, float]) -> float:
        """Return the variance of `seconds` that the coefficients leave, in s^2."""
        x = self.vector(amounts)
        return max(float(x @ self.covariance @ x), 0.0)

    def identifiable(self, amounts: Mapping[str, float]) -> bool:
        """Whether the runs determine the time of these amounts, though not every coefficient."""
        scaled = self.vector(amounts) / np.where(self.largest > 0, self.largest, 1.0)
        if ((self.largest <= 0) & (self.vector(amounts) > 0)).any():
            return False
        rest = scaled - self.space.T @ (self.space @ scaled)
        return bool(np.linalg.norm(rest) <= 1e-6 * max(float(np.linalg.norm(scaled)), 1.0))


@dataclass(frozen=True, slots=True)
class Microbenchmark:
    """Times of one part's work alone: all rows together count as one configuration.

    Attributes
    ----------
    source : str
        File and series, as a text.
    key : str
        Of the part (`Part.key`).
    rows : tuple of (mapping of str to float, float)
        Amounts of work, and seconds.
    """

    source: str
    key: str
    rows: tuple[tuple[Mapping[str, float], float], ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """Data of a fit: configurations' medians, then rows of microbenchmarks.

    Attributes
    ----------
    x : array, shape (n, k)
        Amounts.
    seconds : array, shape (n,)
    weights : array, shape (n,)
        1 for a configuration; the rows of one series share one.
    series : tuple of int
        For every row the number of its series, -1 for a configuration.
    """

    x: Floats
    seconds: Floats
    weights: Floats
    series: tuple[int, ...]

    @property
    def measured(self) -> int:
        """Return the number of rows that are configurations."""
        return self.series.count(-1)


def fit_term(
    part: Part, rows: Sequence[Row], micro: Sequence[Microbenchmark], resamples: int = RESAMPLES
) -> Term:
    """Fit one part on the median launch of every case: what disturbs a launch only delays it.

    Parameters
    ----------
    part : Part
        Any with its key and its amounts.
    rows : sequence of Row
    micro : sequence of Microbenchmark
        Those of this key are taken. Without them and without rows it takes no time.
    resamples : int
        Of the bootstrap; 0 leaves the covariance at 0.
    """
    amounts = tuple(part.amounts)
    cases: dict[object, list[tuple[Part, float]]] = {}
    for known, seconds, o in rows:
        cases.setdefault(o.case.key, []).append((known, seconds))
    mine = [e for e in micro if e.key == part.key and e.rows]
    if not rows and not mine:
        none = np.zeros(len(amounts))
        space = np.eye(len(amounts))
        return Term(part.key, amounts, none, np.diag(none), USUAL_NOISE, none + 1, space, ())
    table = _table(amounts, list(cases.values()), mine)
    found = fit(table.x, table.seconds, table.weights)
    left = [
        residual + float(np.log(s / median))
        for launches, median, residual in zip(
            cases.values(), table.seconds, found.residuals, strict=False
        )
        for _, s in launches
    ]
    noise = spread(np.array(left), np.ones(len(left)), int((found.coefficients > 0).sum()))
    noise = noise if len(rows) >= FEWEST else max(noise, USUAL_NOISE)
    return Term(
        part.key, amounts, found.coefficients,
        _covariance(table, found, noise / np.sqrt(max(len(rows), 1)), resamples), noise,
        table.x.max(axis=0), measured_space(table.x),
        tuple(dict.fromkeys(o.source for _, _, o in rows)), tuple(e.source for e in mine),
    )  # fmt: skip


def _table(
    amounts: Sequence[str],
    cases: Sequence[Sequence[tuple[Part, float]]],
    micro: Sequence[Microbenchmark],
) -> _Table:
    work: list[Mapping[str, float]] = [launches[0][0].amounts for launches in cases]
    seconds = [float(np.median([s for _, s in launches])) for launches in cases]
    weights, series = [1.0] * len(cases), [-1] * len(cases)
    for number, evidence in enumerate(micro):
        for row, taken in evidence.rows:
            work.append(row)
            seconds.append(taken)
            weights.append(1 / len(evidence.rows))
            series.append(number)
    x = np.array([[each.get(name, 0.0) for name in amounts] for each in work])
    return _Table(x, np.array(seconds), np.array(weights), tuple(series))


def _covariance(table: _Table, found: Fitted, one: float, resamples: int) -> Floats:
    """Bootstrap over configurations; a microbenchmark is off by as much as batches differ from it.

    One configuration alone determines only its own time, to the noise of its launches (`one`).
    """
    count = len(found.coefficients)
    if not resamples:
        return np.zeros((count, count))
    if len(table.seconds) == 1:
        return np.outer(found.coefficients, found.coefficients) * one**2
    generator = np.random.default_rng(_SEED)
    series = np.array(table.series)
    usual = np.maximum(table.x @ found.coefficients, 1e-12)
    draws = []
    for _ in range(resamples):
        drawn = generator.integers(0, max(table.measured, 1), table.measured)
        often = np.bincount(drawn, minlength=len(series))
        weights = np.where(series < 0, often, table.weights)
        off = generator.normal(0.0, IN_A_BATCH, max(table.series) + 1)
        moved = np.where(series < 0, 0.0, np.append(off, 0.0)[series])
        if table.measured == 1:
            moved[0] = generator.normal(0.0, one)
        keep = weights > 0
        seconds = (table.seconds * np.exp(moved))[keep]
        again = fit(table.x[keep], seconds, weights[keep], usual[keep], _ROUNDS)
        draws.append(again.coefficients)
    return np.atleast_2d(np.cov(np.array(draws), rowvar=False))
