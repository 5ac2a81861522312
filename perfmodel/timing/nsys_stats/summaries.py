"""The material of one summary report, values by group: gathered, merged, and made into a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import MPI_SOURCES, NO_NAME
from perfmodel.timing.nsys_stats.figures import Groups, Tally, round_half_up
from perfmodel.timing.nsys_stats.statistic import Statistic

Key = tuple[str | int | None, ...]
"""Labels of a group. Where ids of one text are told apart, their number comes last."""

API_VERSION: Final = re.compile(r"_v....$", re.DOTALL)
_BASE: Final = (
    "Total Time (ns)",
    "Instances",
    "Avg (ns)",
    "Med (ns)",
    "Min (ns)",
    "Max (ns)",
    "StdDev (ns)",
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Values by group, of one report or of several.

    Attributes
    ----------
    keys : tuple of Key
        In the order in which groups of equal totals are listed.
    tally : Tally
        The values.
    count : int64, shape (groups,)
        Instances, those without a time included.
    sums : mapping of str to int64, shape (groups,)
        Further totals.
    """

    keys: tuple[Key, ...]
    tally: Tally
    count: Int64
    sums: Mapping[str, Int64]

    def groups(self) -> Groups:
        """Return the figures of every group."""
        return replace(self.tally.groups(len(self.keys)), count=self.count)


class Counter:
    """Gathers one summary's values; codes are positions in `keys`, which may repeat."""

    def __init__(self, keys: Sequence[Key], sums: Sequence[str] = ()) -> None:
        self._keys = tuple(keys)
        self._tally = Tally()
        self._count = np.zeros(len(self._keys), np.int64)
        self._sums = {name: np.zeros(len(self._keys), np.int64) for name in sums}

    def add(
        self, codes: Int32 | Int64, values: Int64, valid: Bool | None = None, **more: Int64
    ) -> None:
        """Add values; those that are not `valid` count as instances only."""
        self._count += np.bincount(codes, minlength=len(self._keys))
        self._tally.add(*((codes, values) if valid is None else (codes[valid], values[valid])))
        for name, column in more.items():
            self._sums[name] += sums(codes, column, len(self._keys))

    def counted(self, name: str) -> Counted | None:
        """Return what summary `name` is made of, None if nothing was added."""
        if not self._count.any():
            return None
        return joined(name, [Counted(self._keys, self._tally, self._count, self._sums)])


def named(texts: Sequence[str]) -> list[Key]:
    """Keys of the codes -1 (no name), 0, 1, ... of texts, plus one; equal texts are one group."""
    return [(None,), *((text,) for text in texts)]


def numbered(texts: Sequence[str]) -> list[Key]:
    """Keys of the codes -1 (no name), 0, 1, ... of texts, plus one; every code is a group."""
    seen: dict[str, int] = {}
    keys: list[Key] = [(None, 0)]
    for text in texts:
        seen[text] = seen.get(text, NO_NAME) + 1
        keys.append((text, seen[text]))
    return keys


def joined(name: str, parts: Sequence[Counted]) -> Counted:
    """Put groups of equal keys together, in the order of the parts; empty groups are left out."""
    used = dict.fromkeys(
        key for part in parts for key, n in zip(part.keys, part.count.tolist(), strict=True) if n
    )
    keys = sorted(used, key=_ORDER.get(name, _by_bytes))
    at = {key: i for i, key in enumerate(keys)}
    tally, count = Tally(), np.zeros(len(keys), np.int64)
    totals = {title: np.zeros(len(keys), np.int64) for part in parts for title in part.sums}
    for part in parts:
        recode = np.array([at.get(key, -1) for key in part.keys], np.int64)
        mine = recode >= 0
        tally.merge(part.tally, recode)
        np.add.at(count, recode[mine], part.count[mine])
        for title, values in part.sums.items():
            np.add.at(totals[title], recode[mine], values[mine])
    return Counted(tuple(keys), tally, count, totals)


def _by_bytes(key: Key) -> tuple[Any, ...]:
    """Order texts as SQLite's BINARY collation has it, NULL first."""
    return tuple((v is not None, str(v or "").encode("utf-8", "surrogatepass")) for v in key)


_ORDER: Final[Mapping[str, Callable[[Key], Any]]] = {
    "cuda_api_sum": lambda _: 0,
    "mpi_event_sum": lambda key: sorted(MPI_SOURCES).index(str(key[0])),
}
"""Groups of equal totals are listed by their texts, but for these."""


def to_statistic(name: str, counted: Counted) -> Statistic:
    """Make the summary report `name` of its material."""
    groups, keys = counted.groups(), counted.keys
    if name == "nvtx_gpu_proj_sum":
        return _projected(counted, groups)
    if name == "cuda_gpu_mem_size_sum":
        return _sizes(counted, groups)
    if name == "cuda_gpu_kern_sum":
        kernels = lambda g: (-groups.total[g], groups.count[g], keys[g][0] or "")  # noqa: E731
        return _timed(name, groups, [("Name", [k[0] for k in keys])], key=kernels)
    if name == "cuda_api_sum":
        texts = [None if k[0] is None else API_VERSION.sub("", str(k[0])) for k in keys]
        return _timed(name, groups, [("Name", texts)], counted="Num Calls")
    if name == "mpi_event_sum":
        labels = [(title, [k[i] for k in keys]) for i, title in enumerate(("Source", "Name"))]
        return _timed(name, groups, labels)
    of_copies = name == "cuda_gpu_mem_time_sum"
    title, what = ("Operation", "Count") if of_copies else ("Range", "Instances")
    return _timed(name, groups, [(title, [k[0] for k in keys])], counted=what)


def _timed(
    name: str,
    groups: Groups,
    labels: list[tuple[str, list[Any]]],
    *,
    counted: str = "Instances",
    key: Callable[[int], Any] | None = None,
) -> Statistic:
    """Time %, total, count, average, median, minimum, maximum, deviation and labels by group."""
    grand = int(groups.total.sum())
    longest_first = key or (lambda g: (groups.timed[g] == 0, -groups.total[g]))
    table = []
    for g in sorted(range(len(groups.count)), key=longest_first):
        total = int(groups.total[g]) if groups.timed[g] else None
        share = None if total is None or not grand else round_half_up(total * 100.0 / grand)
        texts = (values[g] for _, values in labels)
        table.append((share, total, *_figures(groups, g), *texts))
    headers = ("Time (%)", *(counted if h == "Instances" else h for h in _BASE))
    return Statistic(
        name,
        (*headers, *(title for title, _ in labels)),
        (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in labels)),
        tuple(table),
    )


def _sizes(counted: Counted, groups: Groups) -> Statistic:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        size = [groups.mean[g], groups.median[g], groups.minimum[g], groups.maximum[g]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, groups.stddev[g])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], counted.keys[g][0]))
    headers = ("Total", "Avg", "Med", "Min", "Max", "StdDev")
    titles = [f"{h} (MB)" for h in headers]
    return Statistic(
        "cuda_gpu_mem_size_sum",
        (titles[0], "Count", *titles[1:], "Operation"),
        (3, 0, 3, 3, 3, 3, 3, None),
        tuple(table),
    )


def _projected(counted: Counted, groups: Groups) -> Statistic:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        totals = {title: int(values[g]) for title, values in counted.sums.items()}
        table.append(
            (
                *counted.keys[g],
                int(groups.total[g]),
                totals["host"],
                *_figures(groups, g),
                totals["ops"],
                *(
                    round_half_up(float(totals[k]) / int(groups.count[g]))
                    for k in ("ops", "level", "children")
                ),
            )
        )
    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    return Statistic("nvtx_gpu_proj_sum", headers, digits, tuple(table))


def _figures(groups: Groups, g: int) -> tuple[Any, ...]:
    """Count, average, median, minimum, maximum, standard deviation of one group."""
    if groups.timed[g] == 0:
        return (int(groups.count[g]), None, None, None, None, 0.0)
    return (
        int(groups.count[g]),
        round_half_up(float(groups.mean[g])),
        round_half_up(float(groups.median[g])),
        int(groups.minimum[g]),
        int(groups.maximum[g]),
        round_half_up(float(groups.stddev[g])),
    )
