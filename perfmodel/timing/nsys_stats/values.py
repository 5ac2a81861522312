"""Values by group, of one report or of several: gathered chunk by chunk, merged and summarized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Arena, Bool, Int32, Int64
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
