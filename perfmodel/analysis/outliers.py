"""Outliers: ranks, GPUs and hosts that are slower than the others of a run, and missing ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from perfmodel.analysis.result import Outlier, OutlierKind, RankRow
from perfmodel.base.arrays import Floats
from perfmodel.readers.trace import NcclRank, Trace
from perfmodel.timing.run import Run

_FEWEST: Final = 4
"""Of fewer ranks, GPUs or hosts none is unusual."""
_ALARM: Final = 0.01
"""Chance that a healthy job has an outlier of a kind: of a thousand ranks with normal noise some
one has a modified z-score above the usual 3.5."""
_NORMAL: Final = 0.6745  # median absolute deviation of a normal distribution over its sigma
_LEAST: Final = 0.02
"""Least excess of an outlier, however equal the others are."""
_MOST: Final = 0.75
"""A host, or a GPU number, of whose ranks this share are outliers is named in their place."""
_SHOWN: Final = 10


def hosts_of(run: Run, *, named: bool = False) -> dict[int, str]:
    """Host of every rank, if the reports have it: its name, or its number by the lowest rank."""
    pairs = zip(run.traces, run.rank_of, strict=True)
    found = {rank: t.host for t, ranks in pairs if t.host for rank in ranks.values()}
    number = {host: str(i) for i, host in enumerate(dict.fromkeys(found[r] for r in sorted(found)))}
    return found if named else {rank: number[host] for rank, host in found.items()}


def own_seconds(rank: RankRow) -> float | None:
    """Time of a rank's step without its waiting for others; None where that is unknown."""
    if rank.step_s is None or rank.waiting_s is None:
        return None
    return rank.step_s - rank.waiting_s


def find_outliers(ranks: Sequence[RankRow], hosts: Mapping[int, str]) -> tuple[Outlier, ...]:
    """Find the hosts, GPUs and single ranks that are slower than the others; the slowest first.

    A rank is not named again on a host or GPU that is an outlier itself.
    """
    gpus = {r.rank: str(r.gpu) for r in ranks if r.gpu is not None}
    several = len(set(hosts.values())) > 1
    measures = {
        "own time": {r.rank: s for r in ranks if (s := own_seconds(r)) is not None},
        "computing": {r.rank: r.compute_s for r in ranks if r.compute_s},
    }
    found: list[Outlier] = []
    for measure, seconds in measures.items():
        groups = [*_groups("host", hosts, measure, seconds)]
        groups += _groups("GPU", gpus if several else {}, measure, seconds)
        named = {rank for one in groups for rank in one.ranks}
        alone = {r: str(r) for r in seconds if r not in named}
        single = [*_groups("rank", alone, measure, seconds)]
        kinds: tuple[tuple[OutlierKind, Mapping[int, str]], ...]
        kinds = ("host", hosts), ("GPU", gpus if several else {})
        for kind, member in kinds:
            together = [*_together(kind, member, single)]
            named = {rank for one in together for rank in one.ranks}
            single = [one for one in single if not named.issuperset(one.ranks)]
            groups += together
        found += [*groups, *single]
    return tuple(sorted(found, key=lambda one: (-one.excess, one.kind, one.name)))


def _together(
    kind: OutlierKind, member: Mapping[int, str], single: Sequence[Outlier]
) -> Iterator[Outlier]:
    """Hosts, or GPUs, most of whose ranks are outliers, which a few groups may not show."""
    slow: dict[str, list[Outlier]] = {}
    for one in single:
        if one.ranks[0] in member:
            slow.setdefault(member[one.ranks[0]], []).append(one)
    for name, some in slow.items():
        ranks = tuple(sorted(rank for rank, group in member.items() if group == name))
        if len(some) >= max(_FEWEST, _MOST * len(ranks)):
            seconds = float(np.median([one.seconds for one in some]))
            yield Outlier(kind, name, some[0].measure, seconds, some[0].usual_s, ranks)


def _groups(
    kind: OutlierKind, member: Mapping[int, str], measure: str, seconds: Mapping[int, float]
) -> Iterator[Outlier]:
    """Groups of ranks whose median is an outlier among those of all groups."""
    ranks: dict[str, list[int]] = {}
    for rank, name in member.items():
        if rank in seconds:
            ranks.setdefault(name, []).append(rank)
    if len(ranks) < _FEWEST:
        return
    medians = np.array([np.median([seconds[r] for r in some]) for some in ranks.values()])
    usual = float(np.median(medians))
    for i in np.flatnonzero(_slow(medians, usual)).tolist():
        name = [*ranks][i]
        yield Outlier(kind, name, measure, float(medians[i]), usual, tuple(sorted(ranks[name])))


def _slow(values: Floats, usual: float) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return whether values are outliers above the median."""
    excess = values - usual
    spread = float(np.median(np.abs(excess)))
    slow: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (
        _NORMAL * excess > least_score(len(values)) * spread
    ) & (excess > _LEAST * usual)
    return slow & (usual > 0)


def least_score(count: int) -> float:
    """Least modified z-score (Iglewicz and Hoaglin 1993) of an outlier among `count` values.

    That of the normal distribution for `_ALARM` shared by all (Bonferroni), raised by 10 / count
    because the spread of few values is uncertain: simulated normal samples of 4 to 1,024 values
    have a higher one in 1 to 2 % of the cases.
    """
    from statistics import NormalDist  # few jobs need it

    return NormalDist().inv_cdf(1.0 - _ALARM / count) * (1.0 + 10.0 / count)


def missing_ranks(run: Run) -> tuple[int, ...]:
    """Ranks of the world that no report holds; none where the reports do not say how many.

    The world is MPI's, or torch.distributed's; without either the largest communicator of NCCL
    that was made while the reports were recorded, whose ranks may be numbered otherwise.
    """
    world = max((trace.world_size or 0 for trace in run.traces), default=0)
    present = {rank for trace in run.traces for rank in trace.ranks.values()}
    if not present:
        members = [member for trace in run.traces for member in trace.nccl_ranks]
        largest = max(members, key=lambda member: member.ranks, default=None)
        if largest is None or not all(_of(trace, largest) for trace in run.traces):
            return ()
        world, present = largest.ranks, {r for t in run.traces for r in _of(t, largest)}
    return tuple(sorted({*range(world)} - present)) if present else ()


def _of(trace: Trace, one: NcclRank) -> set[int]:
    """Ranks of a report in the communicator that a rank is in."""
    return {m.rank for m in trace.nccl_ranks if m.communicator == one.communicator}


def check_ranks(run: Run) -> Iterator[str]:
    """Warn of ranks without a report, where others of them have one of their own."""
    missing = missing_ranks(run) if len(run.traces) > 1 else ()
    if missing:
        shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        yield (
            f"{run.label}: no report has rank{'s' * (len(missing) > 1)} {shown}; the others are "
            f"analyzed: give the missing reports, too"
        )
