"""Finds the rows of an SQLite table on the b-tree pages of the file, and decodes them.

Records are decoded many at a time, integers and texts of a column. Pages are read, never mapped: a
mapped file that somebody truncates kills the process (SIGBUS).

Section names in quotes are those of https://www.sqlite.org/fileformat2.html. Whatever is not plain
is refused (`Unsupported`), never guessed: SQLite itself then reads the table.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.base.files import open_input
from perfmodel.readers.trace import NULL

Bytes = npt.NDArray[np.uint8]

PADDING: Final = 128
"""Bytes behind the last page: no look goes further than this past a checked position."""

ANY_HEADER: Final = (1, 1 << 40)
"""Least and most bytes of record headers, where a table's columns are not known."""

COUNT_BYTES: Final = 5
"""Longest varint of a length or serial type that SQLite writes."""

# By serial type 0 to 9 ("Record Format"): bytes of the value, bits to drop from the eight bytes
# that start with it, and the value where the type alone says it. 10 and 11 fit in no payload.
_SIZE: Final = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 1 << 40, 1 << 40])
_SHIFT: Final = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0])
_CONSTANT: Final = np.array([NULL, 0, 0, 0, 0, 0, 0, 0, 0, 1])
_REAL: Final = 7
_BITS: Final = (8, 9)
_FIRST_TEXT: Final = 13

_LONGEST_TEXT: Final = 100_000  # bytes; mangled names of kernels have a tenth of that
_SHORTENED: Final = 1000
_SHORT: Final = 64  # bytes of a text that are compared as words
_KEEP: Final = np.array([0, *(-1 << 8 * (8 - kept) for kept in range(1, 9))])
_MIX: Final = 0x2545F4914F6CDD1D  # odd, its bits well spread
_SLOT_BITS: Final = 16


class Unsupported(Exception):  # noqa: N818 (a finding, not a failure)
    """The file or table needs the ordinary SQLite reader; the message says why."""


class Damaged(Exception):  # noqa: N818 (as above)
    """The table's pages hold what SQLite would read without a word, and never wrote there."""


def refuse(when: bool | np.bool_, reason: str) -> None:
    """Raise `Unsupported` if a check fails."""
    if when:
        raise Unsupported(reason)


class Records(NamedTuple):
    """Rows: the record of each is `data[start:end]`, header first."""

    data: Bytes
    start: Int64
    end: Int64
    rowid: Int64


class Field(NamedTuple):
    """One column of some rows: serial types, and where in `data` the values lie."""

    column: int
    types: Int64
    at: Int64
    size: Int64


def varints(data: Bytes, at: Int64, longest: int = 9) -> tuple[Int64, Int64]:
    """Decode the varint at every position; return the values and the positions after them.

    Seven bits a byte, and the high bit says that another follows; the ninth byte gives all eight.
    """
    value = data.take(at).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(value > 127)
    value[more] &= 127
    for nth in range(2, 10):
        if len(more) == 0:
            break
        refuse(nth > longest, "a length beyond reason")
        byte = data.take(after[more]).astype(np.int64)
        value[more] = value[more] << 8 | byte if nth == 9 else value[more] << 7 | byte & 127
        after[more] += 1
        more = more[byte > 127]
    return value, after


def words(data: Bytes, at: Int64) -> Int64:
    """Return the eight bytes from every position, aligned or not, as a big-endian integer."""
    return np.ndarray(len(data) - 7, ">i8", data, strides=1)[at].astype(np.int64)


def cell_heads(data: Bytes, cells: Int64) -> tuple[Int64, Int64, Int64]:
    """Decode payload size and rowid of table leaf cells; return them and the records' starts.

    Neighbouring rowids mostly take equally many bytes, so one look at the first cell often gives
    a pattern of continuation bits that all cells share.
    """
    head = words(data, cells)
    length = (
        next((n for n in range(1, 7) if not head[0] >> 56 - 8 * n & 128), 7) if len(head) else 7
    )
    pattern = b"\0" + b"\x80" * (length - 1) + b"\0"
    bits, mask = (
        int.from_bytes(ones.ljust(8, b"\0"), "big", signed=True)
        for ones in (pattern, b"\x80" * (length + 1))
    )
    if length == 7 or (head & mask != bits).any():
        payload, at = varints(data, cells, COUNT_BYTES)
        rowid, start = varints(data, at)
        return payload, rowid, start
    rowid = head >> 48 & 127
    for byte in range(2, length + 1):
        rowid = rowid << 7 | head >> 56 - 8 * byte & 127
    return head >> 56, rowid, cells + (1 + length)


def fields(
    records: Records, expected: Collection[int], header_bytes: tuple[int, int] = ANY_HEADER
) -> Iterator[Field]:
    """Walk the record headers column by column; yield the expected columns ("Record Format").

    Rows may lack columns that were added to the table after them, but have none beyond.
    """
    data, start, end, _ = records
    header, at = varints(data, start, COUNT_BYTES)
    if (header > header_bytes[1]).any():
        raise Damaged("rows with more columns than their table")
    refuse((header < header_bytes[0]).any(), "rows with too few columns")
    stop = start + header
    refuse((stop > end).any(), "a record header beyond its payload")
    value = stop
    for column in range(max(expected, default=-1) + 1):
        types, at = varints(data, at, COUNT_BYTES)
        refuse((at > stop).any(), "a record with too few columns")
        size = _SIZE.take(types, mode="clip")
        long = np.flatnonzero(types >= len(_SIZE))
        size[long] = types[long] - 12 >> 1
        if column in expected:
            refuse((value + size > end).any(), "a value beyond its payload")
            yield Field(column, types, value, size)
        value = value + size


def integers(data: Bytes, field: Field) -> Int64:
    """Decode a column of NULLs and big-endian twos-complement integers of 0 to 8 bytes."""
    types = field.types
    refuse((types > 9).any() or (types == _REAL).any(), "a column with more than integers")
    value = words(data, field.at) >> _SHIFT.take(types)
    by_type = (types == 0) | (types > _REAL)
    return np.where(by_type, _CONSTANT.take(types), value) if by_type.any() else value


Numbered = tuple[Int64, Int64]
"""Begin of the numbers in every row's text, and the numbers of all rows."""


class Texts:
    """The distinct texts met so far, in the order of their first rows."""

    def __init__(self) -> None:
        self.codes: dict[bytes, int] = {}

    def encode(self, data: Bytes, field: Field) -> Int64:
        """Return the code of every row's text, -1 for NULL."""
        is_text = (field.types >= _FIRST_TEXT) & (field.types & 1 == 1)
        refuse((field.types[~is_text] > 0).any(), "a text column with more than texts")
        codes = np.full(len(is_text), -1)
        codes[is_text] = self.coded(data, field.at[is_text], field.size[is_text])
        return codes

    def coded(self, data: Bytes, at: Int64, size: Int64) -> Int64:
        """Return the code of every text."""
        twin, is_new = _twins(data, at, size)
        blob = data.tobytes()
        ends = zip(at[is_new].tolist(), (at + size)[is_new].tolist(), strict=True)
        code = np.empty(len(at), np.int64)
        code[is_new] = [self.codes.setdefault(blob[a:b], len(self.codes)) for a, b in ends]
        return code[twin]

    def numbered(self, codes: Int32) -> Numbered | None:
        """Return the numbers that were cut out of the texts of these codes; None if none are."""
        return None

    def strings(self, codes: Int32) -> tuple[Int32, list[str]]:
        """Decode the texts; those that come out equal come to share a code."""
        first: dict[str, int] = {}
        decoded = (decode(text) for text in self.codes)
        recode = [first.setdefault(text, len(first)) for text in decoded]
        if len(first) < len(recode):
            codes = np.array([*recode, -1], np.int32)[codes]
        return codes, list(first)


def decode(text: bytes) -> str:
    """Decode a stored text; of one that no screen takes, its start, its length and a digest."""
    if len(text) <= _LONGEST_TEXT:
        return text.decode("utf-8", "replace")
    import hashlib  # brings OpenSSL, which few readings need

    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    return f"{text[:_SHORTENED].decode('utf-8', 'replace')}… [{len(text)} bytes, {digest}]"


def _twins(data: Bytes, at: Int64, size: Int64) -> tuple[Int64, Bool]:
    """Find an earlier row with the same text for every row, without sorting.

    The first row of every hash slot stands for the slot; rows equal to it, word by word, are its
    twins. The others, and long texts, are left their own twins.

    Returns
    -------
    twin : int64 array, shape (rows,)
    is_own : bool array, shape (rows,)
        Whether a row is its own twin, which the first row of every text is.
    """
    row = np.arange(len(at))
    hashed = size * _MIX
    parts = []
    for offset in range(0, min(int(size.max(initial=0)), _SHORT), 8):
        kept = np.minimum(np.maximum(size - offset, 0), 8)
        part = words(data, at + offset) & _KEEP.take(kept)
        hashed = (hashed ^ part) * _MIX
        parts.append(part)
    slot = hashed >> 64 - _SLOT_BITS  # negative ones count from the end
    first = np.empty(1 << _SLOT_BITS, np.int64)
    first[slot[::-1]] = row[::-1]  # of equal slots the last assignment stays
    twin = first[slot]
    same = (size <= _SHORT) & (size == size[twin])
    for part in parts:
        same &= part == part[twin]
    twin = np.where(same, twin, row)
    return twin, twin == row


def as_text(value: Any) -> str | None:
    """Return a stored value as text: what SQLite itself would make of it."""
    if isinstance(value, bytes):
        return decode(value)
    return None if value is None else str(value)


__all__ = ["Damaged", "PageFile", "Unsupported"]

_INTERIOR: Final = 5
_LEAF: Final = 13
_CHUNK: Final = 1 << 20  # bytes of pages parsed at a time: what a CPU's cache holds
_JOINED: Final = 4  # of them make a chunk of rows
_SPREAD: Final = 4  # pages that lie closer than this on average are read with those between them
_SHAPES: Final = 8  # of record headers that are distinguished
_SPILL: Final = 1 << 25  # bytes of overflowing records put together at a time


class PageFile:
    """An SQLite file, opened once, that hands out columns of its ordinary tables.

    Parameters
    ----------
    path : Path
        The file; it must not change while it is open.

    Raises
    ------
    Unsupported
        If the file is not a whole SQLite file at rest with texts in UTF-8.
    """

    def __init__(self, path: Path) -> None:
        try:
            journal, log = (Path(f"{path.resolve()}{end}") for end in ("-journal", "-wal"))
            refuse(journal.exists() and journal.stat().st_size > 0, "a journal beside it")
            refuse(log.exists(), "a write-ahead log beside it")
            with open_input(path, buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                refuse(size < 512, "smaller than a page")
                self._size, self._usable, self._count = check_header(file.read(100), size)
            self._file = open_input(path, buffering=0)
        except OSError as error:
            raise Unsupported(str(error)) from error
        self._owner = np.zeros(self._count + 1, np.int64)  # root page of a page's table

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing read from it depends on it."""
        self._file.close()

    def read(
        self,
        root_page: int,
        columns: Sequence[int],
        rowid_alias: int | None = None,
        header_bytes: tuple[int, int] = ANY_HEADER,
    ) -> list[Int64]:
        """Read integer columns over all rows, in rowid order.

        Parameters
        ----------
        root_page : int
            `sqlite_master.rootpage` of the table.
        columns : sequence of int
            Positions in the stored record. None may be declared REAL: SQLite stores whole numbers
            there as integers and only makes floats of them when it reads.
        rowid_alias : int, optional
            Position of the INTEGER PRIMARY KEY, which the record leaves NULL.
        header_bytes : (int, int)
            Least and most bytes that a record's header has in this table.

        Returns
        -------
        list of int64 array, shape (rows,)
            One per entry of `columns`; SQL NULL is `perfmodel.readers.trace.NULL`.

        Raises
        ------
        Unsupported
            If a row holds something else there, or the table is not plain.
        Damaged
            If rows have more columns than the table.
        """
        parts: dict[int, list[Int64]] = {column: [] for column in columns}
        for records in self._records(self._leaves(root_page)) if parts else ():
            for column, values in _integers(records, parts, rowid_alias, header_bytes):
                parts[column].append(values)
        arrays = {column: np.concatenate(parts.pop(column)) for column in dict.fromkeys(columns)}
        return [arrays[column] for column in columns]

    def chunks(
        self,
        root_page: int,
        columns: Sequence[int],
        rowid_alias: int | None = None,
        header_bytes: tuple[int, int] = ANY_HEADER,
        chosen: Bool | None = None,
    ) -> Iterator[tuple[list[Int64], int]]:
        """Read integer columns as `read` does, some at a time, with the bytes of their pages.

        Where some are `chosen`, only these; `Unsupported` if there are not so many in all.
        """
        leaves = self._leaves(root_page)
        left = len(leaves) * self._size
        parts = [*self._chunks(leaves)]
        if chosen is not None:
            refuse(len(chosen) != -(-len(parts) // _JOINED), "other rows than were read before")
            parts = [
                part for part, keep in zip(parts, np.repeat(chosen, _JOINED), strict=False) if keep
            ]
        records = self._records(leaves, parts)
        while some := list(islice(records, _JOINED)):
            found = [dict(_integers(r, columns, rowid_alias, header_bytes)) for r in some]
            size = min(left, _JOINED * max(_CHUNK, self._size))
            left -= size
            yield [np.concatenate([part[column] for part in found]) for column in columns], size

    def check(self, root_page: int, header_bytes: tuple[int, int]) -> None:
        """Raise `Damaged` or `Unsupported` as `read` does, without reading a column."""
        for records in self._records(self._leaves(root_page)):
            next(fields(records, (), header_bytes), None)

    def read_text(
        self, root_page: int, column: int, kind: type[Texts] = Texts
    ) -> tuple[Int32, list[str], Numbered | None]:
        """Read a text column as codes into the list of its distinct strings; see `read`.

        Returns
        -------
        codes : int32 array, shape (rows,)
            Index into `strings`, -1 for NULL.
        strings : list of str
            In the order of their first rows; what is not UTF-8 in them is replaced by U+FFFD.
        numbers
            Those that this `kind` of texts cuts out of them; None if there are none.
        """
        texts = kind()
        parts: list[Int32] = []
        for records in self._records(self._leaves(root_page)):
            known = _by_shape(records, [column], None, ANY_HEADER)
            if known and (known[column] == NULL).all():
                parts.append(np.full(len(records.start), -1, np.int32))
                continue
            for field in fields(records, [column]):
                parts.append(texts.encode(records.data, field).astype(np.int32))
        codes = np.concatenate(parts)
        numbers = texts.numbered(codes)
        return *texts.strings(codes), numbers

    def _leaves(self, root_page: int) -> Int64:
        """Walk a b-tree level by level; return its leaf pages in key order.

        All leaves lie equally deep, and no page is used twice ("B-tree Pages").
        """
        seen = np.zeros(self._count + 1, np.bool_)
        level = np.array([root_page], np.int64)
        while True:  # every level is at least twice as wide as the one above: this ends
            outside = (level < 2) | (level > self._count)  # page 1 is the schema's root
            refuse(outside.any(), "a page number outside the file")
            refuse(seen[level].any() or len(np.unique(level)) < len(level), "a page used twice")
            seen[level] = True
            owner = self._owner[level]
            if ((owner > 0) & (owner != root_page)).any():
                raise Damaged("a page of two tables")
            self._owner[level] = root_page
            if self._page(level[0])[0] != _INTERIOR:
                return level
            level = np.concatenate([self._children(pages) for pages in self._chunks(level)])

    def _page(self, number: int) -> Bytes:
        page = np.empty(self._size, np.uint8)
        self._fill(page[None], np.array([number]))
        return page

    def _fill(self, grid: Bytes, pages: Int64) -> None:
        """Read pages into the rows of `grid`, in few calls; a hole in the file is refused."""
        first, last = int(pages.min()), int(pages.max())
        if last - first < _SPREAD * len(pages) and (np.diff(pages) != 1).any():
            whole = np.empty((last - first + 1, self._size), np.uint8)
            self._fill(whole, np.arange(first, last + 1))
            np.take(whole, pages - first, axis=0, out=grid, mode="clip")
            return
        ends = [*(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        begin = 0
        refuse(self._file.closed, "a closed file")
        try:
            for end in ends:
                self._file.seek((int(pages[begin]) - 1) * self._size)
                read = self._file.readinto(grid[begin:end].data)
                refuse(read != (end - begin) * self._size, "a file cut while it is read")
                begin = end
        except OSError as error:
            raise Unsupported(str(error)) from error

    def _chunks(self, pages: Int64) -> Iterator[Int64]:
        step = max(1, _CHUNK // self._size)
        return (pages[i : i + step] for i in range(0, len(pages), step))

    def _children(self, pages: Int64) -> Int64:
        """Child pages of interior pages: the left child of every cell, and last the rightmost."""
        data, cells, counts = self._load(pages, _INTERIOR, 12)
        refuse(counts.min() == 0, "an empty page")
        rightmost = np.arange(8, len(data) - PADDING, self._size)
        left, last = (words(data, at) >> 32 & 0xFFFFFFFF for at in (cells, rightmost))
        return np.insert(left, np.cumsum(counts), last)

    def _load(self, pages: Int64, kind: int, header: int) -> tuple[Bytes, Int64, Int64]:
        """Copy pages side by side and find their cells ("B-tree Pages", cell pointer array).

        Returns
        -------
        data : uint8 array
            The pages, then padding.
        cells : int64 array
            Where in `data` every cell starts, in key order.
        counts : int64 array, shape (pages,)
            Cells of every page.
        """
        data = np.empty(len(pages) * self._size + PADDING, np.uint8)
        data[-PADDING:] = 0
        grid = data[:-PADDING].reshape(len(pages), self._size)
        self._fill(grid, pages)
        refuse((grid[:, 0] != kind).any(), "a page of another kind")
        counts = grid[:, 3:5] @ np.array([256, 1])
        refuse(counts.max() > (self._size - 8) // 6, "more cells than fit in a page")
        most = int(counts.max())
        pointers = grid[:, header : header + 2 * most].view(">u2").astype(np.int64)
        used = np.arange(most) < counts[:, None]
        inside = (pointers >= header + 2 * counts[:, None]) & (pointers <= self._usable - 4)
        refuse((used & ~inside).any(), "a cell pointer out of range")
        return data, (pointers + np.arange(0, grid.size, self._size)[:, None])[used], counts

    def _records(self, leaves: Int64, parts: Iterable[Int64] | None = None) -> Iterator[Records]:
        """Find the records of leaf pages, chunk by chunk ("B-tree Pages", table leaf cell).

        `parts` are those of the pages that are read, all by default.
        """
        seen = np.zeros(self._count + 1, np.bool_)
        seen[leaves] = True
        before = np.empty(0, np.int64)
        for pages in self._chunks(leaves) if parts is None else parts:
            data, cells, counts = self._load(pages, _LEAF, 8)
            refuse(counts.min() == 0 and len(leaves) > 1, "an empty page")
            payload, rowid, start = cell_heads(data, cells)
            refuse((np.diff(rowid, prepend=before) <= 0).any(), "rows out of order")
            before = rowid[-1:]
            spilled = np.flatnonzero(payload > self._usable - 35)
            kept = payload.copy()
            kept[spilled] = self._kept(payload[spilled]) + 4  # and the first overflow page
            beyond = start - (cells & -self._size) + kept > self._usable
            refuse(beyond.any(), "a cell beyond its page")
            if len(spilled):
                data, start[spilled] = self._join(
                    data, start[spilled], kept[spilled] - 4, payload[spilled], seen
                )
            yield Records(data, start, start + payload, rowid)

    def _kept(self, payload: Int64) -> Int64:
        """Bytes of overflowing records that stay in the leaf ("Cell Payload Overflow Pages")."""
        least = (self._usable - 12) * 32 // 255 - 23
        kept = least + (payload - least) % (self._usable - 4)
        return np.where(kept <= self._usable - 35, kept, least)

    def _join(
        self, data: Bytes, start: Int64, kept: Int64, payload: Int64, seen: Bool
    ) -> tuple[Bytes, Int64]:
        """Put overflowing records together behind `data`; return it and where they start."""
        refuse(payload.sum() > _SPILL, "too many bytes in overflow pages")
        pieces = [data]
        for at, here, whole in zip(start.tolist(), kept.tolist(), payload.tolist(), strict=True):
            pieces.append(data[at : at + here])
            link = data[at + here : at + here + 4]
            for left in range(whole - here, 0, 4 - self._usable):
                page = int.from_bytes(link.tobytes(), "big")
                refuse(not 2 <= page <= self._count, "a page number outside the file")
                refuse(seen[page], "a page used twice")
                seen[page] = True
                overflow = self._page(page)
                link = overflow[:4]
                pieces.append(overflow[4 : min(4 + left, self._usable)])
        starts = len(data) + np.cumsum(payload) - payload
        return np.concatenate([*pieces, np.zeros(PADDING, np.uint8)]), starts


def _integers(
    records: Records, columns: Collection[int], alias: int | None, header_bytes: tuple[int, int]
) -> Iterator[tuple[int, Int64]]:
    """Decode integer columns of some records."""
    found = _by_shape(records, columns, alias, header_bytes)
    if found is not None:
        yield from found.items()
        return
    for field in fields(records, columns, header_bytes):
        if field.column == alias:
            refuse(field.types.any(), "a primary key that is no rowid")
            yield field.column, records.rowid
        else:
            yield field.column, integers(records.data, field)


def _by_shape(
    records: Records, columns: Collection[int], alias: int | None, header_bytes: tuple[int, int]
) -> dict[int, Int64] | None:
    """Decode integer columns of records whose headers are equal at once; None if they differ much.

    Neighbouring rows mostly have one of few headers, which fix where their values lie. A value of
    0 or 1 is in the header alone, and takes no other room.
    """
    data, start, end, rowid = records
    width = 2 + max(columns, default=0)  # bytes of a header up to the last column
    found = {column: np.empty(len(start), np.int64) for column in columns}
    left: Int64 | slice = slice(None)
    at = start
    for _ in range(_SHAPES):
        if len(at) == 0:
            return found
        head = data[at[0] : at[0] + width]
        types = head[1:].tolist()
        if not max(header_bytes[0], width) <= head[0] <= min(header_bytes[1], 127):
            return None
        odd = any(types[c] > 9 or types[c] == _REAL for c in columns)
        if odd or max(types) > 127 or {10, 11} & {*types}:
            return None
        sizes = [int(_SIZE[k]) if k < len(_SIZE) else (k - 12) >> 1 for k in types]
        offsets = list(accumulate(sizes, initial=int(head[0])))
        reach = max(offsets[-1], width) + 8
        if reach > PADDING:
            return None
        some = np.ndarray(len(data) - reach + 1, f"V{reach}", data, strides=1)[at]
        bits = [255 - (k in _BITS) for k in types]
        same = _begin_with(some, head, bytes([255, *bits]))
        rows, at = left, at[:0]
        if not same.all():
            mine, others = np.flatnonzero(same), np.flatnonzero(~same)
            if len(mine) < len(same) // (4 * _SHAPES):
                return None
            every = np.arange(len(start))[left]
            rows, left, some, at = every[mine], every[others], some[mine], start[every[others]]
        if (start[rows] + offsets[-1] > end[rows]).any():
            return None
        for column, values in found.items():
            kind = types[column]
            if column == alias and kind:
                return None
            if column == alias:
                values[rows] = rowid[rows]
            elif 0 < kind < _REAL:
                values[rows] = _words(some, offsets[column]) >> _SHIFT[kind]
            elif kind:
                values[rows] = np.ndarray(len(some), np.uint8, some, 1 + column, reach) & 1
            else:
                values[rows] = NULL
    return found if len(at) == 0 else None


def _begin_with(records: Any, head: Bytes, bits: bytes) -> Bool:
    """Whether records begin with the bytes of `head`, in some of their bits."""
    same = np.ones(len(records), np.bool_)
    for offset in range(0, len(head), 8):
        expected, mask = (
            int.from_bytes(part[offset : offset + 8].ljust(8, b"\0"), "big", signed=True)
            for part in (head.tobytes(), bits)
        )
        same &= _words(records, offset) & mask == expected & mask
    return same


def _words(records: Any, offset: int) -> Int64:
    """Return eight bytes of all records, which lie side by side, as a big-endian integer."""
    size = records.itemsize
    return np.ndarray(len(records), ">i8", records, offset, strides=size).astype(np.int64)


def check_header(head: bytes, size: int) -> tuple[int, int, int]:
    """Return page size, usable bytes of a page, and pages ("The Database Header")."""
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    usable = page - head[20]
    refuse(head[:16] != b"SQLite format 3\0", "not an SQLite file")
    refuse(head[18:20] != b"\1\1", "a write-ahead log")
    refuse(page < 512 or page & (page - 1) != 0 or usable < 480, "a strange page size")
    refuse(head[21:24] != b"\x40\x20\x20", "strange payload fractions")
    refuse(head[56:60] != b"\0\0\0\1", "texts not in UTF-8")
    pages = int.from_bytes(head[28:32], "big")
    if pages == 0 or head[24:28] != head[92:96]:  # an old SQLite wrote last and kept no count
        pages = size // page
    refuse(size % page != 0 or size < pages * page, "a truncated file")
    return page, usable, pages
