"""Summary reports as tables, of one report or of several, and their CSV as `nsys stats` writes it.

Values are gathered by group, chunk by chunk, merged and summarized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Arena, Bool, Floats, Int32, Int64
from perfmodel.base.table import Column, Table
from perfmodel.readers.codes import check_magnitude, magnitude, sums
from perfmodel.readers.trace import MPI_SOURCES, NO_NAME

Key = tuple[str | int | None, ...]
"""Labels of a group. Where ids of one text are separate groups, their number comes last."""

_BLOCK: Final = 1 << 18
_SMALL: Final = 64
"""Values of a group up to which groups of equal size are summarized together."""
API_VERSION: Final = re.compile(r"_v....$", re.DOTALL)
_SPECIAL: Final = re.compile(r'[,"\r\n]')
_ROWS_AT_ONCE: Final = 1 << 14
_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52
_POWERS: Final = np.cumprod(np.array([1, *[10] * 17], np.longdouble))  # exact
_BASE: Final = (
    "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)",
)  # fmt: skip


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
        chunk, first, counts = chunk[order], first[order], counts[order]
        values = np.concatenate([[0], np.cumsum(counts)])[pieces]
        timed[:] = np.diff(values)

        def fill(g: Any, part: npt.NDArray[Any]) -> None:
            """Set the figures of a group, or of several: `part` has a row for each."""
            n = part.shape[-1]
            part.sort(axis=-1)  # so that the deviation's rounding does not depend on their order
            total[g] = part.sum(axis=-1, dtype=np.int64)
            mean[g] = total[g] / n
            stddev[g] = _deviation(part, mean[g]) if n > 1 else 0.0
            lower, upper = (part[..., i].astype(np.float64) for i in ((n - 1) // 2, n // 2))
            median[g] = (lower + upper) / 2
            low[g], high[g] = part[..., 0], part[..., -1]

        small = np.flatnonzero((timed > 0) & (timed <= _SMALL))
        for block in np.array_split(small, -(-len(small) // _BLOCK) or 1):
            for n in np.unique(timed[block]).tolist():
                alike = block[timed[block] == n]
                of = _spread(pieces, alike)
                flat = self._gathered(chunk[of], first[of], counts[of])
                fill(alike, flat.reshape(len(alike), n))
        for g in np.flatnonzero(timed > _SMALL).tolist():
            at = slice(pieces[g], pieces[g + 1])
            where = (column[at].tolist() for column in (chunk, first, counts))
            fill(g, np.concatenate(
                [self._chunks[c][f : f + n] for c, f, n in zip(*where, strict=True)]
            ))  # fmt: skip
        return Groups(timed, timed, total, low, high, mean, median, stddev)

    def _gathered(self, chunk: Int64, first: Int64, counts: Int64) -> Int64:
        """Return the values of pieces of chunks, one piece after the other."""
        ends = np.cumsum(counts)
        at = np.repeat(first - ends + counts, counts) + np.arange(ends[-1])
        source = np.repeat(chunk, counts)
        found = np.empty(len(at), np.int64)
        for c in np.unique(chunk).tolist():
            mine = source == c
            found[mine] = self._chunks[c][at[mine]]
        return found


def _spread(pieces: Int64, groups: Int64) -> Int64:
    """Return the indices of all pieces of some groups: those from pieces[g] to pieces[g + 1]."""
    counts = pieces[groups + 1] - pieces[groups]
    ends = np.cumsum(counts)
    spread: Int64 = np.repeat(pieces[groups] - ends + counts, counts) + np.arange(ends[-1])
    return spread


def _deviation(values: npt.NDArray[Any], mean: Any) -> Any:
    """Sample standard deviation of sorted values along the last axis."""
    if values.ndim > 1:
        squares = np.square(values.astype(np.float64) - mean[:, None]).sum(axis=-1)
        return np.sqrt(squares / (values.shape[-1] - 1))
    parts = (
        float(np.square(values[i : i + _BLOCK].astype(np.float64) - mean).sum())
        for i in range(0, len(values), _BLOCK)
    )
    return math.sqrt(math.fsum(parts) / (len(values) - 1))


class Counted:
    """Values by group, of one report or of several.

    Attributes
    ----------
    keys : sequence of Key
        Of the codes 0, 1, ...; they may repeat while values are added. `joined` puts them in the
        order in which groups of equal totals are listed.
    tally : Tally
        The values.
    count : int64, shape (groups,)
        Instances, those without a time included.
    sums : mapping of str to int64, shape (groups,)
        Further totals.
    warnings : tuple of str
        What is missing.
    """

    def __init__(self, keys: Sequence[Key], sums: Iterable[str] = ()) -> None:
        self.keys = keys
        self.warnings: tuple[str, ...] = ()
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

    def keys_of(self, codes: Sequence[int]) -> Sequence[Any]:
        """Keys of several codes; their texts where that is all there is to the keys."""
        keys = self.keys
        if isinstance(keys, Texts):
            return [keys.texts[code] for code in codes]
        return keys.of(codes) if isinstance(keys, Numbered) else [keys[code] for code in codes]

    def groups(self) -> Groups:
        """Return the figures of every group."""
        return replace(self.tally.groups(len(self.keys)), count=self.count)


class Texts(Sequence[Key]):
    """Keys of one text each, made when they are asked for; equal texts are one group.

    Parameters
    ----------
    texts : sequence of str or None
        By code.
    """

    def __init__(self, texts: Sequence[str | None]) -> None:
        self.texts = texts

    @classmethod
    def named(cls, texts: Sequence[str]) -> Texts:
        """Return the keys of the codes -1 (no name), 0, 1, ... of texts, plus one."""
        return cls((None, *texts))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: Any) -> Any:
        return [(t,) for t in self.texts[at]] if isinstance(at, slice) else (self.texts[at],)


class Numbered(Sequence[Key]):
    """Keys of the codes of `Texts.named`, where every code is a group: equal texts are numbered."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts) + 1

    def __getitem__(self, at: Any) -> Any:
        return self.of(range(*at.indices(len(self)))) if isinstance(at, slice) else self.of([at])[0]

    def of(self, codes: Sequence[int]) -> list[Key]:
        """Keys of several codes, with how many equal texts come before each."""
        asked = {code - 1 for code in codes}
        seen = dict.fromkeys((self._texts[i] for i in asked if i >= 0), NO_NAME)
        number = {}
        for i, text in enumerate(self._texts):
            if text in seen:
                seen[text] += 1
                if i in asked:
                    number[i] = seen[text]
        return [(self._texts[c - 1], number[c - 1]) if c else (None, 0) for c in codes]


def joined(name: str, parts: Sequence[Counted]) -> Counted:
    """Put groups of equal keys together, in the order of the parts; empty groups are left out."""
    used = [np.flatnonzero(part.count) for part in parts]
    keys_of = [part.keys_of(codes.tolist()) for part, codes in zip(parts, used, strict=True)]
    at = dict.fromkeys(key for keys in keys_of for key in keys)
    keys = sorted(at, key=_ORDER[name]) if name in _ORDER else _by_bytes(at)
    at.update(zip(keys, range(len(keys)), strict=True))
    bare = all(isinstance(part.keys, Texts) for part in parts)
    found = Counted(
        Texts(keys) if bare else keys, dict.fromkeys(title for part in parts for title in part.sums)
    )
    found.warnings = tuple(dict.fromkeys(text for part in parts for text in part.warnings))
    for part, mine, own in zip(parts, used, keys_of, strict=True):
        recode = np.full(len(part.keys), -1, np.int64)
        recode[mine] = np.fromiter(map(at.__getitem__, own), np.int64, len(own))
        found.tally.merge(part.tally, recode)
        np.add.at(found.count, recode[mine], part.count[mine])
        for title, values in part.sums.items():
            np.add.at(found.sums[title], recode[mine], values[mine])
    return found


def _by_bytes(keys: Iterable[Any]) -> list[Any]:
    """Order texts, or keys, as SQLite's BINARY collation has it, NULL first.

    UTF-8 keeps the order of characters, so that texts compare as they are.
    """

    def is_null(key: Any) -> bool:
        return key is None or (type(key) is tuple and None in key)

    return [*filter(is_null, keys), *sorted(filterfalse(is_null, keys))]


_ORDER: Final[Mapping[str, Callable[[Key], Any]]] = {
    "cuda_api_sum": lambda _: 0,
    "mpi_event_sum": lambda key: sorted(MPI_SOURCES).index(str(key[0])),
}
"""Groups of equal totals are listed by their texts, but for these."""


def to_csv(table: Table) -> str:
    """Write a summary as `nsys stats --format csv` does, without the blank line at its end.

    Fields that hold a comma, quote or line break are quoted, as RFC 4180 wants it; nsys doubles
    no quotes.
    """
    return "".join(csv_parts(table))


def csv_parts(table: Table) -> Iterator[str]:
    """Yield `to_csv` in parts: of a million rows all lines take more room than the summary."""
    yield ",".join(_field(c.key) for c in table.columns) + "\n"
    rows = table.rows
    for block in rows.blocks() if isinstance(rows, _Rows) else [[*zip(*rows, strict=True)]]:
        cells = map(_cells, block, table.columns)
        yield "".join(f"{line}\n" for line in map(",".join, zip(*cells, strict=True)))


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _cells(values: Sequence[Any], column: Column) -> Iterable[str]:
    """Write the values of one column, nothing where there is none."""
    write: Callable[[Any], str] = str if column.kind == "int" else _field
    if column.digits:
        write = f"%.{column.digits}f".__mod__
    if None not in values:
        return map(write, values)
    return ["" if v is None else write(v) for v in values]


class _Rows(Sequence[tuple[Any, ...]]):
    """The rows of a summary in the order of `order`: `make` gives the columns of some of them.

    A report with a million range names has a million groups, of which a screen shows few.
    """

    def __init__(self, order: Int64, make: Callable[[Int64], Sequence[Sequence[Any]]]) -> None:
        self._order, self._make = order, make

    def __len__(self) -> int:
        return len(self._order)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and [*self] == [*other]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for columns in self.blocks():
            yield from zip(*columns, strict=True)

    def blocks(self) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the columns of some rows at a time."""
        for start in range(0, len(self._order), _ROWS_AT_ONCE):
            yield self._make(self._order[start : start + _ROWS_AT_ONCE])

    def __getitem__(self, at: Any) -> Any:
        rows = zip(*self._make(self._order[at if isinstance(at, slice) else [at]]), strict=True)
        return tuple(rows) if isinstance(at, slice) else next(rows)


def _table(
    name: str, headers: Sequence[str], digits: Sequence[int | None], rows: Sequence[tuple[Any, ...]]
) -> Table:
    """Return a summary whose columns have so many decimals: 0 for integers, None for text."""
    columns = tuple(
        Column(header, header, "text" if n is None else "float" if n else "int", digits=n or None,
               wrap=False)
        for header, n in zip(headers, digits, strict=True)
    )  # fmt: skip
    return Table(name, columns, rows)


def to_table(name: str, counted: Counted) -> Table:
    """Make the summary report `name` of its material; keys are the headers that nsys uses."""
    groups, keys = counted.groups(), counted.keys
    if name == "nvtx_gpu_proj_sum":
        return _projected(counted, groups)
    if name == "cuda_gpu_mem_size_sum":
        return _sizes(counted, groups)
    if name == "cuda_gpu_kern_sum":
        order = sorted(
            range(len(keys)), key=lambda g: (-groups.total[g], groups.count[g], keys[g][0] or "")
        )
        return _timed(name, groups, keys, ("Name",), order=np.array(order, np.int64))
    if name == "cuda_api_sum":
        keys = tuple((None if k[0] is None else API_VERSION.sub("", str(k[0])),) for k in keys)
        return _timed(name, groups, keys, ("Name",), counted="Num Calls")
    if name == "mpi_event_sum":
        return _timed(name, groups, keys, ("Source", "Name"))
    of_copies = name == "cuda_gpu_mem_time_sum"
    title, what = ("Operation", "Count") if of_copies else ("Range", "Instances")
    return _timed(name, groups, keys, (title,), counted=what)


def _timed(
    name: str,
    groups: Groups,
    keys: Sequence[Key],
    titles: tuple[str, ...],
    *,
    counted: str = "Instances",
    order: Int64 | None = None,
) -> Table:
    """Time %, total, count, average, median, minimum, maximum, deviation and labels by group."""
    grand = int(groups.total.sum())

    def make(at: Int64) -> list[Sequence[Any]]:
        timed = groups.timed[at] > 0
        shares = round_half_up(groups.total[at] * 100.0 / (grand or 1))
        first = [_where(timed & (grand != 0), shares), _where(timed, groups.total[at])]
        labels = [*zip(*(keys[g] for g in at.tolist()), strict=True)]
        return [*first, *_figures(groups, at), *labels[: len(titles)]]

    if order is None:
        order = np.lexsort((-groups.total, groups.timed == 0))  # stable, the longest first
    headers = ("Time (%)", *(counted if h == "Instances" else h for h in _BASE), *titles)
    digits = (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in titles))
    return _table(name, headers, digits, _Rows(order, make))


def _sizes(counted: Counted, groups: Groups) -> Table:
    table = []
    for g in np.argsort(-groups.total, kind="stable").tolist():
        size = [groups.mean[g], groups.median[g], groups.minimum[g], groups.maximum[g]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, groups.stddev[g])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], counted.keys[g][0]))
    total, *titles = (f"{h} (MB)" for h in ("Total", "Avg", "Med", "Min", "Max", "StdDev"))
    digits = (3, 0, 3, 3, 3, 3, 3, None)
    return _table("cuda_gpu_mem_size_sum", (total, "Count", *titles, "Operation"), digits, table)


def _projected(counted: Counted, groups: Groups) -> Table:
    sums = counted.sums

    def make(at: Int64) -> list[Sequence[Any]]:
        labels = zip(*(counted.keys[g] for g in at.tolist()), strict=True)
        means = (
            round_half_up(sums[k][at] / groups.count[at]).tolist()
            for k in ("ops", "level", "children")
        )
        total, host, ops = (v[at].tolist() for v in (groups.total, sums["host"], sums["ops"]))
        return [*labels, total, host, *_figures(groups, at), ops, *means]

    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    order = np.argsort(-groups.total, kind="stable")
    return _table("nvtx_gpu_proj_sum", headers, digits, _Rows(order, make))


def _figures(groups: Groups, at: Int64) -> list[list[Any]]:
    """Count, average, median, minimum, maximum, standard deviation of some groups."""
    timed = groups.timed[at] > 0
    mean, median, stddev = (
        round_half_up(v[at]) for v in (groups.mean, groups.median, groups.stddev)
    )
    figures = (_where(timed, v) for v in (mean, median, groups.minimum[at], groups.maximum[at]))
    return [groups.count[at].tolist(), *figures, np.where(timed, stddev, 0.0).tolist()]


def _where(there: Bool, values: npt.NDArray[Any]) -> list[Any]:
    """Return the values that are there, None for the others."""
    found: list[Any] = values.tolist()
    for i in np.flatnonzero(~there).tolist():
        found[i] = None
    return found


def round_half_up(values: Any, digits: int = 1) -> Floats:
    """Round to one or more decimals, half away from zero, as SQLite before 3.43 does.

    Nsight Systems 2024.2 rounds with it. It adds half a unit, and below about 4e12 also 3e-16 of
    the value, in extended precision, and takes up to sixteen digits off the sum one by one, with
    their rounding errors: so 1.25 gives 1.3, and so does the double just below it.

    Parameters
    ----------
    values : array of float
        NaN stays what it is, as do values above 2^52.

    Source: `sqlite3_str_vappendf`, case etFLOAT, of SQLite 3.40.
    """
    values = np.asarray(values, np.float64)
    rounds = np.abs(values) <= _WHOLE
    size = np.abs(values[rounds])
    left = size.astype(np.longdouble)
    half = np.full(len(size), np.longdouble(0.5) / 10**digits)
    fine = digits + (np.frexp(size)[1] - 1) // 3 < _FINE
    half[fine] += left[fine] * np.longdouble(3e-16)
    left += half
    exponent = np.zeros(len(size), np.int64)
    whole = left.astype(np.int64)
    for power in range(1, 17):
        exponent += whole >= 10**power
    left /= _POWERS[exponent]
    while (low := left < 1).any():
        left[low] *= 10
        exponent[low] -= 1
    wanted = exponent + 1 + digits
    units = np.zeros(len(size), np.int64)
    for place in range(int(min(wanted.max(initial=0), _SIGNIFICANT))):
        more = place < wanted
        digit = left[more].astype(np.int64)
        left[more] = (left[more] - digit) * 10
        units[more] = 10 * units[more] + digit
    found: Floats = values.copy()
    exact = [  # Python divides integers of any size and rounds once
        u * 10 ** max(w - _SIGNIFICANT, 0) / 10**digits
        for u, w in zip(units.tolist(), wanted.tolist(), strict=True)
    ]
    found[rounds] = np.copysign(exact, values[rounds])
    return found
