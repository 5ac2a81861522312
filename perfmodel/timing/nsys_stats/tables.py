"""Summary reports as tables, of one report or of several, and their CSV as `nsys stats` writes it.

Values are gathered by group, chunk by chunk, merged and summarized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Arena, Bool, Floats, Int8, Int32, Int64
from perfmodel.base.table import Column, Rows, Table
from perfmodel.readers.codes import check_magnitude, magnitude
from perfmodel.readers.trace import MPI_SOURCES, NO_NAME

Key = tuple[str | int | None, ...]
"""Labels of a group. Where ids of one text are separate groups, their number comes last."""

_BLOCK: Final = 1 << 18
_SMALL: Final = 64
"""Values of a group up to which groups of equal size are summarized together."""
API_VERSION: Final = re.compile(r"_v....$", re.DOTALL)
_SPECIAL: Final = re.compile(r'[,"\r\n]')
_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52
_POWERS: Final = np.cumprod(np.array([1, *[10] * 17], np.longdouble))  # exact
_BASE: Final = (
    "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)",
)  # fmt: skip


class Tally:
    """Values by group, added chunk by chunk: as many bytes as their exact medians need.

    A chunk is kept sorted by group, in 4 bytes a value where that is enough.
    """

    def __init__(self) -> None:
        self.chunks: list[npt.NDArray[Any]] = []
        self.pieces: list[Pieces] = []
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
        self.chunks.append((self._narrow if fits else self._wide).kept(ordered))
        self.pieces.append(Pieces(
            code[heads].astype(np.int32), np.diff(np.append(heads, len(code))).astype(np.int32),
            np.add.reduceat(ordered, heads),
        ))  # fmt: skip

    def merge(self, other: Tally, recode: Int64) -> None:
        """Add another tally's values behind one's own; its code i is `recode[i]` here."""
        self._magnitude += other._magnitude
        check_magnitude(self._magnitude)
        self.chunks += other.chunks
        self.pieces += [p._replace(code=recode[p.code].astype(np.int32)) for p in other.pieces]

    def groups(self, size: int, count: Int64 | None = None) -> Groups:
        """Summarize the groups 0 to `size` - 1, of `count` instances; see `Groups`."""
        return Groups(self, size, count)


class Pieces(NamedTuple):
    """The values of each group in a chunk that is sorted by group.

    Attributes
    ----------
    code : int32, shape (k,)
        Groups; the values of the first come first.
    values : int32, shape (k,)
        Number of values.
    total : int64, shape (k,)
    """

    code: Int32
    values: Int32
    total: Int64


class Figures(NamedTuple):
    """Summary of the values of some groups; NaN and 0 for those without values."""

    minimum: Int64
    maximum: Int64
    mean: Floats
    median: Floats
    stddev: Floats


class Groups:
    """Summary of int64 values by group.

    Attributes
    ----------
    count : int64, shape (groups,)
        Instances, those without a value included.
    timed : int64, shape (groups,)
        Those that have a value.
    total : int64, shape (groups,)
        Sums of the values; other figures are made of the groups that are asked for.
    """

    def __init__(self, tally: Tally, size: int, count: Int64 | None = None) -> None:
        self._chunks = tally.chunks
        self._large: dict[int, Figures] = {}
        self.timed, self.total = (np.zeros(size, np.int64) for _ in range(2))
        for code, values, total in tally.pieces:
            np.add.at(self.timed, code, values)
            np.add.at(self.total, code, total)
        self.count = self.timed if count is None else count
        firsts = [np.cumsum(values, dtype=np.int64) - values for _, values, _ in tally.pieces]
        chunk = [np.full(len(p.code), i, np.int32) for i, p in enumerate(tally.pieces)]
        code, self._counts, self._first, self._chunk = (
            parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])
            for parts in (
                [p.code for p in tally.pieces], [p.values for p in tally.pieces], firsts, chunk
            )
        )  # fmt: skip
        if (code[1:] < code[:-1]).any():
            order = np.argsort(code, kind="stable")
            code, self._counts = code[order], self._counts[order]
            self._first, self._chunk = self._first[order], self._chunk[order]
        self._pieces = np.searchsorted(code, np.arange(size + 1))

    def figures(self, at: Int64) -> Figures:
        """Summarize some groups."""
        least, most = (np.zeros(len(at), np.int64) for _ in range(2))
        found = Figures(least, most, *(np.full(len(at), np.nan) for _ in range(3)))
        timed = self.timed[at]
        small = np.flatnonzero((timed > 0) & (timed <= _SMALL))
        for n in np.unique(timed[small]).tolist():
            alike = small[timed[small] == n]
            values = self._gathered(_spread(self._pieces, at[alike])).reshape(len(alike), n)
            for mine, figure in zip(found, _figures_of(values), strict=True):
                mine[alike] = figure
        for i in np.flatnonzero(timed > _SMALL).tolist():
            group = int(at[i])
            if group not in self._large:
                pieces = np.arange(self._pieces[group], self._pieces[group + 1])
                where = (c[pieces].tolist() for c in (self._chunk, self._first, self._counts))
                self._large[group] = _figures_of(np.concatenate(
                    [self._chunks[c][f : f + n] for c, f, n in zip(*where, strict=True)]
                ))  # fmt: skip
            for mine, figure in zip(found, self._large[group], strict=True):
                mine[i] = figure
        return found

    def _gathered(self, pieces: Int64) -> Int64:
        """Return the values of pieces, one piece after the other."""
        counts, chunk = self._counts[pieces].astype(np.int64), self._chunk[pieces]
        ends = np.cumsum(counts)
        at = np.repeat(self._first[pieces] - ends + counts, counts) + np.arange(ends[-1])
        source = np.repeat(chunk, counts)
        found = np.empty(len(at), np.int64)
        for c in np.unique(chunk).tolist():
            mine = source == c
            found[mine] = self._chunks[c][at[mine]]
        return found


def _figures_of(values: npt.NDArray[Any]) -> Figures:
    """Summarize the values of a group, or of several: `values` has a row for each."""
    n = values.shape[-1]
    values.sort(axis=-1)  # so that the deviation's rounding does not depend on their order
    mean = values.sum(axis=-1, dtype=np.int64) / n
    lower, upper = (values[..., i].astype(np.float64) for i in ((n - 1) // 2, n // 2))
    stddev = _deviation(values, mean) if n > 1 else np.zeros(values.shape[:-1])
    return Figures(values[..., 0], values[..., -1], mean, (lower + upper) / 2, stddev)


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

    def __init__(self, keys: Sequence[Key], titles: Iterable[str] = ()) -> None:
        self.keys = keys
        self.warnings: tuple[str, ...] = ()
        self.tally = Tally()
        self.count = np.zeros(len(self.keys), np.int64)
        self.sums = {title: np.zeros(len(self.keys), np.int64) for title in titles}

    def add(self, codes: Int32 | Int64, values: Int64, valid: Bool | None = None) -> None:
        """Add values; those that are not `valid` count as instances only."""
        found = np.bincount(codes)
        self.count[: len(found)] += found
        self.tally.add(*((codes, values) if valid is None else (codes[valid], values[valid])))

    def keys_of(self, codes: Sequence[int]) -> Sequence[Any]:
        """Keys of several codes; their texts where that is all there is to the keys."""
        keys = self.keys
        if isinstance(keys, Texts | Numbered):
            return keys.of(codes)
        return [keys[code] for code in codes]

    def groups(self) -> Groups:
        """Return the figures of every group."""
        return self.tally.groups(len(self.keys), self.count)


class Texts(Sequence[Key]):
    """Keys of one text each, made when they are asked for; equal texts are one group.

    Parameters
    ----------
    texts : sequence of str or None
    at : int array, shape (groups,), optional
        The position of every group's text, `NO_NAME` for none; by default all in their order.
    labels : sequence of str
        A second label of every group, if there are any.
    label : int array, shape (groups,), optional
        Which of `labels`.
    """

    def __init__(
        self,
        texts: Sequence[str | None],
        at: Int32 | None = None,
        labels: Sequence[str] = (),
        label: Int8 | None = None,
    ) -> None:
        self._texts, self._at, self._labels, self._label = texts, at, labels, label

    @classmethod
    def named(cls, texts: Sequence[str]) -> Texts:
        """Return the keys of the codes -1 (no name), 0, 1, ... of texts, plus one."""
        return cls((None, *texts))

    @property
    def bare(self) -> bool:
        """Whether a text is all there is to a key."""
        return self._label is None

    def of(self, codes: Sequence[int]) -> list[Any]:
        """Keys of several codes; their texts where that is all there is to the keys."""
        at = codes if self._at is None else self._at[np.asarray(codes, np.int64)].tolist()
        texts = [None if i == NO_NAME else self._texts[i] for i in at]
        if self._label is None:
            return texts
        label = self._label[np.asarray(codes, np.int64)].tolist()
        return [(text, self._labels[i]) for text, i in zip(texts, label, strict=True)]

    def __len__(self) -> int:
        return len(self._texts) if self._at is None else len(self._at)

    def __getitem__(self, at: Any) -> Any:
        codes = range(*at.indices(len(self))) if isinstance(at, slice) else [at]
        found = [(text,) for text in self.of(codes)] if self.bare else self.of(codes)
        return found if isinstance(at, slice) else found[0]


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
    bare = all(isinstance(part.keys, Texts) and part.keys.bare for part in parts)
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
    for block in table.blocks():
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
        return [*first, *_figures(groups, at), *_labels(keys, at)[: len(titles)]]

    if order is None:
        order = np.lexsort((-groups.total, groups.timed == 0))  # stable, the longest first
    headers = ("Time (%)", *(counted if h == "Instances" else h for h in _BASE), *titles)
    digits = (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in titles))
    return _table(name, headers, digits, Rows(order, make))


def _sizes(counted: Counted, groups: Groups) -> Table:
    table = []
    order = np.argsort(-groups.total, kind="stable")
    found = groups.figures(order)
    for i, g in enumerate(order.tolist()):
        size = [found.mean[i], found.median[i], found.minimum[i], found.maximum[i]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, found.stddev[i])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], counted.keys[g][0]))
    total, *titles = (f"{h} (MB)" for h in ("Total", "Avg", "Med", "Min", "Max", "StdDev"))
    digits = (3, 0, 3, 3, 3, 3, 3, None)
    return _table("cuda_gpu_mem_size_sum", (total, "Count", *titles, "Operation"), digits, table)


def _projected(counted: Counted, groups: Groups) -> Table:
    sums = counted.sums

    def make(at: Int64) -> list[Sequence[Any]]:
        means = (
            round_half_up(sums[k][at] / groups.count[at]).tolist()
            for k in ("ops", "level", "children")
        )
        total, host, ops = (v[at].tolist() for v in (groups.total, sums["host"], sums["ops"]))
        return [*_labels(counted.keys, at), total, host, *_figures(groups, at), ops, *means]

    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    order = np.argsort(-groups.total, kind="stable")
    return _table("nvtx_gpu_proj_sum", headers, digits, Rows(order, make))


def _figures(groups: Groups, at: Int64) -> list[list[Any]]:
    """Count, average, median, minimum, maximum, standard deviation of some groups."""
    timed, found = groups.timed[at] > 0, groups.figures(at)
    mean, median, stddev = map(round_half_up, (found.mean, found.median, found.stddev))
    figures = (_where(timed, v) for v in (mean, median, found.minimum, found.maximum))
    return [groups.count[at].tolist(), *figures, np.where(timed, stddev, 0.0).tolist()]


def _labels(keys: Sequence[Key], at: Int64) -> list[Sequence[Any]]:
    """Return the columns of the keys of some groups."""
    if isinstance(keys, Texts):
        found = keys.of(at.tolist())
        return [found] if keys.bare else [*zip(*found, strict=True)]
    return [*zip(*(keys[g] for g in at.tolist()), strict=True)]


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
    exact = units / 10**digits  # rounded once where a float holds the units
    for i in np.flatnonzero((units > _WHOLE) | (wanted > _SIGNIFICANT)).tolist():
        # Python divides integers of any size and rounds once
        exact[i] = int(units[i]) * 10 ** max(int(wanted[i]) - _SIGNIFICANT, 0) / 10**digits
    found[rounds] = np.copysign(exact, values[rounds])
    return found
