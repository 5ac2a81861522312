"""Scaling of launches: speed-ups with intervals, laws fitted to them; all-reduces by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Link, bus_bytes_per_s
from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.models.launches import drawn_medians
from perfmodel.models.scaling_laws import INTERVAL, Fit, Law, fit, karp_flatt, weak_fraction
from perfmodel.studies.analysis.measure import Launch, Split
from perfmodel.studies.models.collectives import cost, fit_link
from perfmodel.studies.models.predict import Scaling
from perfmodel.timing.collectives import NCCL

_RESAMPLES: Final = 1000
_SEED: Final = 4
_KINDS: Final[tuple[Scaling, ...]] = ("strong", "weak")


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One number of ranks of a series.

    Attributes
    ----------
    ranks : int
    batch : int or None
        B, images of all ranks together; None where the report does not give it.
    launches : tuple of Launch
    batch_s : float
        Median over the launches of their median batches.
    low_s, high_s : float or None
        95 % interval by resampling the launches; of a single launch that of its own batches, as
        `perfmodel.analysis.estimates` has it. None from one number.
    speedup, efficiency : float
        In images per second against the fewest ranks, and over the ratio of ranks.
    speedup_low, speedup_high : float or None
        95 % interval.
    serial_fraction : float or None
        What this point alone says of the serial fraction: by Karp and Flatt in strong scaling, of
        Gustafson's law in weak scaling. None on one rank, and without a run of one rank.
    split : Split or None
        Of the first launch that gives it.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"launches": "", "labels": "launches"}

    ranks: int
    batch: int | None
    launches: tuple[Launch, ...]
    batch_s: float
    low_s: float | None
    high_s: float | None
    speedup: float
    efficiency: float
    speedup_low: float | None
    speedup_high: float | None
    serial_fraction: float | None
    split: Split | None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the launches."""
        return tuple(launch.label for launch in self.launches)


@dataclass(frozen=True, slots=True)
class ScalingSeries:
    """Points that differ in ranks alone: `kind` says what of the batch stays, B or B/p.

    Attributes
    ----------
    kind : {'strong', 'weak'}
    sizes, settings : mapping
        Values that all points have in common; B is one in strong scaling.
    unusual : sequence of str
        Settings that are not the program's default, in words.
    batch_per_rank : float or None
        B/p of weak scaling.
    points : tuple of ScalingPoint
        By ranks, rising.
    fit : Fit or None
        Amdahl's law in strong, Gustafson's in weak scaling; None without a run of one rank.
    by_launches : bool
        Whether every point has several launches, so that intervals hold how launches differ.
    """

    kind: Scaling
    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    unusual: Sequence[str]
    batch_per_rank: float | None
    points: tuple[ScalingPoint, ...]
    fit: Fit | None
    by_launches: bool

    @property
    def label(self) -> str:
        """Return the settings that the points share, in a few words."""
        shown = [f"{k}={v}" for k, v in sorted(self.sizes.items()) if k in ("H", "B")]
        if self.batch_per_rank is not None:
            shown.append(f"B/p={self.batch_per_rank:g}")
        names = [label for point in self.points for label in point.labels]
        return " ".join([*shown, *self.unusual]) or ", ".join(names)


@dataclass(frozen=True, slots=True)
class Study:
    """All series that the launches make, strong scaling first, and what to be careful about."""

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"launches": ""}

    series: tuple[ScalingSeries, ...]
    launches: tuple[Launch, ...]
    warnings: tuple[str, ...]


def study(launches: Sequence[Launch]) -> Study:
    """Group launches into strong and weak scaling and measure each.

    Launches belong together if they share their source, settings and sizes; strong scaling also
    shares B, weak scaling B/p. Where B is unknown, the FLOPs of a step stand for it; launches of
    which neither is known are left out. A run of one rank that sums nothing (`--transport none`)
    stands for the first rank of any transport that has none of its own.

    Raises
    ------
    ModelError
        If no two launches differ in ranks alone.
    """
    found = [
        _series(kind, group)
        for kind in _KINDS
        for group in _groups(launches, kind)
        if len({launch.ranks for launch in group}) > 1
    ]
    if not found:
        given = ", ".join(f"{x.label} (p={x.ranks})" for x in launches)
        lacking = [x.label for x in launches if _work(x) is None]
        unknown = f", and neither B nor FLOPs of {', '.join(lacking)}" if lacking else ""
        do = (
            "give --set B=N1,N2,... in the order of the reports" if lacking else "give such reports"
        )
        raise ModelError(
            "expected runs of one configuration on two or more numbers of ranks, with B or B/p "
            f"the same; got {given or 'none'}{unknown}; {do}"
        )
    used = {id(x) for s in found for p in s.points for x in p.launches}
    alone = [x.label for x in launches if id(x) not in used]
    warnings = [w for x in launches for w in x.warnings]
    if alone:
        warnings.append(
            f"left out, as nothing differs from them in ranks alone: {', '.join(alone)}"
        )
    if any(not s.by_launches for s in found):
        warnings.append(
            "intervals hold the difference of batches in one run, not of runs; give several runs "
            "of every number of ranks"
        )
    for s in found:
        if s.fit is None:
            warnings.append(f"{s.label}: no run of one rank, so no serial fraction; give one")
    return Study(tuple(found), tuple(launches), tuple(dict.fromkeys(warnings)))


def _groups(launches: Sequence[Launch], kind: Scaling) -> Iterable[list[Launch]]:
    """Launches that differ in ranks (and, in weak scaling, in B with them) alone."""
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in launches:
        if _work(launch) is None:
            continue
        groups.setdefault(_key(launch, kind), []).append(launch)
    bases = {
        key: group for key, group in groups.items()
        if group[0].settings == group[0].alone
    }  # fmt: skip
    for key, group in groups.items():
        if key in bases:
            continue
        base: list[Launch] = []
        if all(launch.ranks > 1 for launch in group):
            other = _key(group[0], kind, group[0].alone)
            base = [x for x in bases.get(other, []) if x.ranks == 1]
        yield [*base, *group]


def _key(
    launch: Launch, kind: Scaling, settings: Mapping[str, str] | None = None
) -> tuple[object, ...]:
    sizes = dict(launch.sizes)
    work = _work(launch)
    if kind == "weak":
        sizes.pop("B", None)
    # FLOPs are sums of floats: equal to many digits where the work is equal
    share = work and f"{work / (launch.ranks if kind == 'weak' else 1):.9g}"
    chosen = launch.settings if settings is None else settings
    return launch.source, share, tuple(sorted(sizes.items())), tuple(sorted(chosen.items()))


def _work(launch: Launch) -> float | None:
    """Return B, or where it is unknown the FLOPs of a step of all ranks; None without either."""
    if "B" in launch.sizes:
        return launch.sizes["B"]
    return None if launch.flops is None else launch.flops * launch.ranks


def _series(kind: Scaling, group: Sequence[Launch]) -> ScalingSeries:
    by_ranks: dict[int, list[Launch]] = {}
    for launch in sorted(group, key=lambda x: x.ranks):
        by_ranks.setdefault(launch.ranks, []).append(launch)
    drawn = {p: _resampled(mine, p) for p, mine in by_ranks.items()}
    first = next(iter(by_ranks))
    points = tuple(_point(kind, by_ranks, drawn, p, first) for p in by_ranks)
    law = None
    more = [p for p in points if p.ranks > 1]
    if first == 1:
        ratios = [_ratio(kind, drawn, p.ranks, first) for p in more]
        columns = [r for r in ratios if r is not None]
        whole = None
        if len(columns) == len(more):
            count = min(map(len, columns))
            whole = np.stack([column[:count] for column in columns], axis=1)
        name: Law = "Amdahl" if kind == "strong" else "Gustafson"
        law = fit(name, [p.ranks for p in more], [p.speedup for p in more], whole)
    last = group[-1]
    sizes = {k: v for k, v in last.sizes.items() if kind == "strong" or k != "B"}
    return ScalingSeries(
        kind=kind,
        sizes=sizes,
        settings=dict(last.settings),
        unusual=last.calibrated.unusual(last.settings) if last.calibrated else (),
        batch_per_rank=last.sizes["B"] / last.ranks
        if kind == "weak" and "B" in last.sizes
        else None,
        points=points,
        fit=law,
        by_launches=all(len(mine) > 1 for mine in by_ranks.values()),
    )


def _point(
    kind: Scaling, by_ranks: Mapping[int, list[Launch]], drawn: Mapping[int, Floats | None],
    ranks: int, first: int,
) -> ScalingPoint:  # fmt: skip
    mine = by_ranks[ranks]
    batch_s, base_s = (float(np.median([x.median_s for x in by_ranks[p]])) for p in (ranks, first))
    more = ranks / first if kind == "weak" else 1.0  # B of weak scaling grows with p
    speedup = more * base_s / batch_s
    ratio = _ratio(kind, drawn, ranks, first)
    serial = None
    if first == 1 < ranks:
        serial = (karp_flatt if kind == "strong" else weak_fraction)(speedup, ranks)
    low_s, high_s = _interval(drawn[ranks])
    low, high = _interval(ratio) if ranks > first else (None, None)
    return ScalingPoint(
        ranks=ranks,
        batch=mine[0].sizes.get("B"),
        launches=tuple(mine),
        batch_s=batch_s,
        low_s=low_s,
        high_s=high_s,
        speedup=speedup,
        efficiency=speedup * first / ranks,
        speedup_low=low,
        speedup_high=high,
        serial_fraction=serial,
        split=next((x.split for x in mine if x.split is not None), None),
    )


def _resampled(launches: Sequence[Launch], ranks: int) -> Floats | None:
    """Draw medians: of the launches, or what a single one leaves open; None from one number."""
    generator = np.random.default_rng((_SEED, ranks))  # no two points share their draws
    if len(launches) > 1:
        medians = np.array([x.median_s for x in launches])
        at = generator.integers(0, len(medians), size=(_RESAMPLES, len(medians)))
        found: Floats = np.median(medians[at], axis=1)
        return found
    if launches[0].seconds.shape[1] < 2:
        return None
    drawn = drawn_medians([launches[0].seconds], _RESAMPLES, seed=_SEED + ranks)
    return drawn[:, 0]


def _ratio(
    kind: Scaling, drawn: Mapping[int, Floats | None], ranks: int, first: int
) -> Floats | None:
    """Resampled speed-ups."""
    base, mine = drawn[first], drawn[ranks]
    if base is None or mine is None:
        return None
    count = min(len(base), len(mine), _RESAMPLES)
    more = ranks / first if kind == "weak" else 1.0
    return more * base[:count] / mine[:count]


def _interval(drawn: Floats | None) -> tuple[float | None, float | None]:
    if drawn is None:
        return None, None
    low, high = np.nanpercentile(drawn, INTERVAL)
    return float(low), float(high)


_LIBRARIES: Final = {"mpi_allreduce": "MPI", "nccl_allreduce": "NCCL"}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """All-reduces of one size over `ranks` ranks.

    Attributes
    ----------
    source : str
        'training', measured inside batches, or the machine whose file it is.
    through : {'MPI', 'NCCL'}
    ranks, bytes : int
        p, and n, the size of the vector on every rank.
    seconds : float
        Median, without waiting for the last rank where that is known.
    sent_bytes : float
        What a ring sends per rank, 2 (p - 1)/p n (`perfmodel.studies.models.collectives`, [P]).
    algorithm_bytes_per_s, bus_bytes_per_s : float
        n / t, and 2 (p - 1)/p n / t (nccl-tests, doc/PERFORMANCE.md).
    """

    source: str
    through: str
    ranks: int
    bytes: int
    seconds: float
    sent_bytes: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float

    @property
    def series(self) -> tuple[str, str, int]:
        """Return the key that rows of other sizes share."""
        return self.source, self.through, self.ranks


def of_launches(launches: Sequence[Launch]) -> tuple[Bandwidth, ...]:
    """Return the all-reduces of reports by size, medians over launches."""
    found: dict[tuple[str, int, int], list[float]] = {}
    for launch in launches:
        for group in launch.reduced:
            seconds = group.own_s
            if group.bytes and seconds > 0 and launch.ranks > 1:
                through = "NCCL" if group.name.startswith(NCCL) else "MPI"
                found.setdefault((through, launch.ranks, group.bytes), []).append(seconds)
    return tuple(
        _bandwidth("training", through, ranks, size, float(np.median(seconds)))
        for (through, ranks, size), seconds in sorted(found.items())
    )


def of_machine(measured: MachineMeasurement) -> tuple[Bandwidth, ...]:
    """Return the all-reduces that `perfmodel machine measure` timed, on the GPU's clock if it did.

    ScalingSeries of one rank are left out.
    """
    best = {}
    for series in measured.series:
        through = _LIBRARIES.get(series.kind)
        if through and series.ranks > 1 and (series.clock == "device" or through not in best):
            best[through] = series
    return tuple(
        _bandwidth(measured.machine.name, through, series.ranks, size, seconds)
        for through, series in sorted(best.items())
        for size, seconds in zip(series.bytes, series.median_s, strict=True)
    )


def links(rows: Iterable[Bandwidth]) -> dict[tuple[str, str, int], Link | None]:
    """Fit a ring's alpha and beta to every series; None where its times do not give them."""
    series: dict[tuple[str, str, int], list[Bandwidth]] = {}
    for row in rows:
        series.setdefault(row.series, []).append(row)
    found: dict[tuple[str, str, int], Link | None] = {}
    for key, mine in series.items():
        try:
            found[key] = fit_link([r.bytes for r in mine], [r.seconds for r in mine], key[2])
        except ModelError:  # one size, or times that do not grow
            found[key] = None
    return found


def _bandwidth(source: str, through: str, ranks: int, size: int, seconds: float) -> Bandwidth:
    return Bandwidth(
        source=source,
        through=through,
        ranks=ranks,
        bytes=size,
        seconds=seconds,
        sent_bytes=cost("all-reduce", size, ranks, "ring").sent_bytes,
        algorithm_bytes_per_s=size / seconds,
        bus_bytes_per_s=bus_bytes_per_s("all-reduce", size, seconds, ranks),
    )
