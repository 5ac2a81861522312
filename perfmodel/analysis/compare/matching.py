"""Matching: which range, link or kernel of one side is which of the other, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.analysis.compare.links import (
    COLLECTIVES,
    GPU_BUSY,
    GPU_IDLE,
    GRAPHS,
    GROUPS,
    Key,
)
from perfmodel.analysis.compare.series import Launch
from perfmodel.timing.collectives import NCCL
from perfmodel.timing.range_times import Path

Launches = Sequence[Launch]


def align(before: Launches, after: Launches) -> tuple[Launches, Launches]:
    """Make the sides' keys comparable.

    A range that moved to another parent takes its path before, if its label is unique on both
    sides. What one side's collection did not record is left out on the other: missing is not
    zero.
    """
    old, new = _paths(before), _paths(after)
    moved = {}
    for path in new:
        at = [p for p in old if p[-1] == path[-1]]
        alone = len(at) == 1 and [p[-1] for p in new].count(path[-1]) == 1
        if alone and path not in old and at[0] not in new:
            moved[path] = at[0]
    after = [
        replace(one, series={_moved(k, moved): s for k, s in one.series.items()}) for one in after
    ]
    recorded = [frozenset.intersection(*(launch.recorded for launch in s)) for s in (before, after)]
    one_sided = recorded[0] ^ recorded[1]
    return [_without(x, one_sided) for x in before], [_without(x, one_sided) for x in after]


def _paths(launches: Launches) -> dict[Path, None]:
    return dict.fromkeys(p for one in launches for g, p in one.series if g == "range")


def _moved(key: Key, moved: dict[Path, Path]) -> Key:
    group, path = key
    return (group, moved.get(path, path)) if group == "range" else key


def _without(launch: Launch, sources: frozenset[str]) -> Launch:
    """Leave out what comes from sources that one of the sides did not record."""
    kept = {k: s for k, s in launch.series.items() if _source(k) not in sources}
    return replace(launch, series=kept)


def _source(key: Key) -> str:
    group, path = key
    if group == "range":
        return "nvtx"
    if path[0] in COLLECTIVES:
        return "nodes" if path[-1].startswith(NCCL) else "mpi"
    return "gpu" if path[0] in (GPU_BUSY, GPU_IDLE, GRAPHS) else "nodes"


def order(before: Launches, after: Launches) -> list[Key]:
    """All keys as trees: those before in their order, those only after behind their siblings."""
    found = list(dict.fromkeys(k for launch in before for k in launch.series))
    found.sort(key=lambda k: GROUPS.index(k[0]))  # launches may have added some at the end
    for group in GROUPS:
        known = [k for k in found if k[0] == group]
        rest = [k for k in found if k[0] != group]
        for key in dict.fromkeys(k for one in after for k in one.series if k[0] == group):
            if key not in known:
                siblings = [i for i, k in enumerate(known) if _inside(k, key)]
                known.insert(siblings[-1] + 1 if siblings else len(known), key)
        found = rest + known
    return found


def _inside(key: Key, other: Key) -> bool:
    """Whether `key` is the range that `other` lies in, or lies in that range, too."""
    parent = other[1][:-1]
    return key[1][: len(parent)] == parent and (bool(parent) or key[1] == other[1][:1])


def without_repeats(keys: Sequence[Key]) -> list[Key]:
    """Leave out totals of a single part: they would say the same twice."""
    parts: dict[Key, int] = {}
    for group, path in keys:
        if group != "range" and len(path) > 1:
            parts[group, path[:1]] = parts.get((group, path[:1]), 0) + 1
    return [key for key in keys if parts.get(key, 0) != 1]
