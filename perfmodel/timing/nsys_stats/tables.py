"""Summary reports as tables, of one report or of several, and their CSV as `nsys stats` writes it.

Values are gathered by group, chunk by chunk, merged and summarized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Arena, Bool, Int32, Int64
from perfmodel.base.table import Column, Table
from perfmodel.readers.codes import check_magnitude, magnitude, sums
from perfmodel.readers.trace import MPI_SOURCES, NO_NAME

Key = tuple[str | int | None, ...]
"""Labels of a group. Where ids of one text are separate groups, their number comes last."""

_BLOCK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Groups:
    """Summary of int64 values by group: `count` instances, of which `timed` have a value."""

    count: Int64
    timed: Int64
    total: Int64
    minimum: Int64
    maximum: Int64
    mean: Any
    median: Any
    stddev: Any


class Tally:
    """Values by group, added chunk by chunk: as many bytes as their exact medians need.

    A chunk is kept sorted by group, in 4 bytes a value where that is enough.
    """

    def __init__(self) -> None:
        self._chunks: list[npt.NDArray[Any]] = []
        self._codes: list[Int64] = []
        self._counts: list[Int64] = []
        self._magnitude = 0.0
        self._narrow, self._wide = Arena(np.uint32), Arena(np.int64)

    def add(self, codes: Int32 | Int64, values: Int64) -> None:
        """Add values with their group codes, which are not negative.

        Raises
        ------
        ReportError
            If the sum of all values leaves the range of 64-bit integers.
        """
        if len(values) == 0:
            return
        self._magnitude += magnitude(values)
        check_magnitude(self._magnitude)
        small = codes.astype(np.uint16) if int(codes.max()) < 2**16 else codes
        order = np.argsort(small, kind="stable")
        code, ordered = small[order], values[order]
        heads = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
        fits = ordered.min() >= 0 and ordered.max() < 2**32
        self._chunks.append((self._narrow if fits else self._wide).kept(ordered))
        self._codes.append(code[heads].astype(np.int64))
        self._counts.append(np.diff(np.append(heads, len(code))))

    def merge(self, other: Tally, recode: Int64) -> None:
        """Add another tally's values behind one's own; its code i is `recode[i]` here."""
        self._magnitude += other._magnitude
        check_magnitude(self._magnitude)
        self._chunks += other._chunks
        self._codes += [recode[codes] for codes in other._codes]
        self._counts += other._counts

    def groups(self, size: int) -> Groups:
        """Summarize the groups 0 to `size` - 1; a group without values counts none."""
        if not self._chunks:
            none = np.zeros(size, np.int64)
            nan = np.full(size, np.nan)
            return Groups(none, none, none, none, none, nan, nan.copy(), nan.copy())
        code, counts = np.concatenate(self._codes), np.concatenate(self._counts)
        chunk = np.repeat(np.arange(len(self._codes)), [len(c) for c in self._codes])
        first = np.concatenate([np.cumsum(c) - c for c in self._counts])
        order = np.argsort(code, kind="stable")
        pieces = np.searchsorted(code[order], np.arange(size + 1))
        timed, total, low, high = (np.zeros(size, np.int64) for _ in range(4))
        mean, median, stddev = (np.full(size, np.nan) for _ in range(3))
        for g, (lo, hi) in enumerate(pairwise(pieces.tolist())):
            if lo == hi:
                continue
            where = (a[order[lo:hi]].tolist() for a in (chunk, first, counts))
            part = np.concatenate(
                [self._chunks[c][f : f + n] for c, f, n in zip(*where, strict=True)]
            )
            n = len(part)
            timed[g], total[g] = n, part.sum(dtype=np.int64)
            mean[g] = total[g] / n
            stddev[g] = _deviation(part, float(mean[g])) if n > 1 else 0.0
            part.partition(((n - 1) // 2, n // 2))
            median[g] = (float(part[(n - 1) // 2]) + float(part[n // 2])) / 2
            low[g], high[g] = part.min(), part.max()
        return Groups(timed, timed, total, low, high, mean, median, stddev)


def _deviation(values: npt.NDArray[Any], mean: float) -> float:
    """Sample standard deviation, block by block: the same however the values came in."""
    squares = (
        float(np.square(values[i : i + _BLOCK].astype(np.float64) - mean).sum())
        for i in range(0, len(values), _BLOCK)
    )
    return math.sqrt(math.fsum(squares) / (len(values) - 1))


class Counted:
    """Values by group, of one report or of several.

    Attributes
    ----------
    keys : tuple of Key
        Of the codes 0, 1, ...; they may repeat while values are added. `joined` puts them in the
        order in which groups of equal totals are listed.
    tally : Tally
        The values.
    count : int64, shape (groups,)
        Instances, those without a time included.
    sums : mapping of str to int64, shape (groups,)
        Further totals.
    """

    def __init__(self, keys: Sequence[Key], sums: Iterable[str] = ()) -> None:
        self.keys = tuple(keys)
        self.tally = Tally()
        self.count = np.zeros(len(self.keys), np.int64)
        self.sums = {name: np.zeros(len(self.keys), np.int64) for name in sums}

    def add(
        self, codes: Int32 | Int64, values: Int64, valid: Bool | None = None, **more: Int64
    ) -> None:
        """Add values; those that are not `valid` count as instances only."""
        self.count += np.bincount(codes, minlength=len(self.keys))
        self.tally.add(*((codes, values) if valid is None else (codes[valid], values[valid])))
        for name, column in more.items():
            self.sums[name] += sums(codes, column, len(self.keys))

    def groups(self) -> Groups:
        """Return the figures of every group."""
        return replace(self.tally.groups(len(self.keys)), count=self.count)


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
    found = Counted(keys, dict.fromkeys(title for part in parts for title in part.sums))
    for part in parts:
        recode = np.array([at.get(key, -1) for key in part.keys], np.int64)
        mine = recode >= 0
        found.tally.merge(part.tally, recode)
        np.add.at(found.count, recode[mine], part.count[mine])
        for title, values in part.sums.items():
            np.add.at(found.sums[title], recode[mine], values[mine])
    return found


def _by_bytes(key: Key) -> tuple[Any, ...]:
    """Order texts as SQLite's BINARY collation has it, NULL first."""
    return tuple((v is not None, str(v or "").encode("utf-8", "surrogatepass")) for v in key)


_ORDER: Final[Mapping[str, Callable[[Key], Any]]] = {
    "cuda_api_sum": lambda _: 0,
    "mpi_event_sum": lambda key: sorted(MPI_SOURCES).index(str(key[0])),
}
"""Groups of equal totals are listed by their texts, but for these."""


API_VERSION: Final = re.compile(r"_v....$", re.DOTALL)
_SPECIAL: Final = re.compile(r'[,"\r\n]')
_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52
_BASE: Final = (
    "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)",
)  # fmt: skip


def to_csv(table: Table) -> str:
    """Write a summary as `nsys stats --format csv` does, without the blank line at its end.

    Fields that hold a comma, quote or line break are quoted, as RFC 4180 wants it; nsys doubles
    no quotes.
    """
    lines = [[c.key for c in table.columns]]
    lines += [list(map(_cell, row, table.columns)) for row in table.rows]
    return "".join(",".join(map(_field, line)) + "\n" for line in lines)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return ""
    return f"{value:.{column.digits}f}" if column.digits else str(value)


def _table(
    name: str, headers: Sequence[str], digits: Sequence[int | None], rows: Sequence[tuple[Any, ...]]
) -> Table:
    """Return a summary whose columns have so many decimals: 0 for integers, None for text."""
    columns = tuple(
        Column(header, header, "text" if n is None else "float" if n else "int", digits=n or None,
               wrap=False)
        for header, n in zip(headers, digits, strict=True)
    )  # fmt: skip
    return Table(name, columns, tuple(rows))


def to_table(name: str, counted: Counted) -> Table:
    """Make the summary report `name` of its material; keys are the headers that nsys uses."""
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
) -> Table:
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
    digits = (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in labels))
    return _table(name, (*headers, *(title for title, _ in labels)), digits, table)


def _sizes(counted: Counted, groups: Groups) -> Table:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        size = [groups.mean[g], groups.median[g], groups.minimum[g], groups.maximum[g]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, groups.stddev[g])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], counted.keys[g][0]))
    total, *titles = (f"{h} (MB)" for h in ("Total", "Avg", "Med", "Min", "Max", "StdDev"))
    digits = (3, 0, 3, 3, 3, 3, 3, None)
    return _table("cuda_gpu_mem_size_sum", (total, "Count", *titles, "Operation"), digits, table)


def _projected(counted: Counted, groups: Groups) -> Table:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        totals = {title: int(values[g]) for title, values in counted.sums.items()}
        means = (totals[k] / int(groups.count[g]) for k in ("ops", "level", "children"))
        table.append((
            *counted.keys[g], int(groups.total[g]), totals["host"], *_figures(groups, g),
            totals["ops"], *map(round_half_up, means),
        ))  # fmt: skip
    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    return _table("nvtx_gpu_proj_sum", headers, digits, table)


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


def round_half_up(value: float, digits: int = 1) -> float:
    """Round to one or more decimals, half away from zero, as SQLite before 3.43 does.

    Nsight Systems 2024.2 rounds with it. It adds half a unit, and below about 4e12 also 3e-16 of
    the value, in extended precision, and takes up to sixteen digits off the sum one by one, with
    their rounding errors: so 1.25 gives 1.3, and so does the double just below it.

    Source: `sqlite3_str_vappendf`, case etFLOAT, of SQLite 3.40.
    """
    if abs(value) > _WHOLE:
        return value
    left = np.longdouble(abs(value))
    half = np.longdouble(0.5) / 10**digits
    if digits + (math.frexp(value)[1] - 1) // 3 < _FINE:
        half += left * np.longdouble(3e-16)
    left += half
    exponent = max(len(str(int(left))) - 1, 0)
    left /= np.longdouble(10**exponent)
    while left < 1:
        left *= 10
        exponent -= 1
    wanted = exponent + 1 + digits
    units = 0
    for _ in range(min(wanted, _SIGNIFICANT)):
        digit = int(left)
        left = (left - digit) * 10
        units = 10 * units + digit
    return math.copysign(units * 10 ** max(wanted - _SIGNIFICANT, 0) / 10**digits, value)
