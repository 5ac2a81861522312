"""Finds the rows of an SQLite table straight on the b-tree pages of the file.

Pages are read, never mapped: a mapped file that somebody truncates kills the process (SIGBUS).

Section names in quotes are those of https://www.sqlite.org/fileformat2.html. Whatever is not plain
is refused (`Unsupported`), never guessed: SQLite itself then reads the table.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Self

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.records import (
    ANY_HEADER,
    PADDING,
    Bytes,
    Damaged,
    Records,
    Texts,
    Unsupported,
    cell_heads,
    fields,
    integers,
    refuse,
    words,
)

__all__ = ["Damaged", "PageFile", "Unsupported"]

_INTERIOR: Final = 5
_LEAF: Final = 13
_CHUNK: Final = 1 << 20  # bytes of pages parsed at a time: what a CPU's cache holds
_JOINED: Final = 4  # of them make a chunk of rows
_SPREAD: Final = 4  # pages that lie closer than this on average are read with those between them
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
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                refuse(size < 512, "smaller than a page")
                self._size, self._usable, self._count = check_header(file.read(100), size)
            self._file = path.open("rb", buffering=0)
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
        *,
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
        *,
        rowid_alias: int | None = None,
        header_bytes: tuple[int, int] = ANY_HEADER,
    ) -> Iterator[tuple[list[Int64], int]]:
        """Read integer columns as `read` does, some rows at a time.

        Yields
        ------
        columns : list of int64 array
        bytes : int
            Of the pages they were on.
        """
        leaves = self._leaves(root_page)
        left = len(leaves) * self._size
        records = self._records(leaves)
        while some := list(islice(records, _JOINED)):
            found = [dict(_integers(r, columns, rowid_alias, header_bytes)) for r in some]
            size = min(left, _JOINED * max(_CHUNK, self._size))
            left -= size
            yield [np.concatenate([part[column] for part in found]) for column in columns], size

    def check(self, root_page: int, header_bytes: tuple[int, int]) -> None:
        """Raise `Damaged` or `Unsupported` as `read` does, without reading a column."""
        for records in self._records(self._leaves(root_page)):
            next(fields(records, (), header_bytes), None)

    def read_text(self, root_page: int, column: int) -> tuple[Int32, list[str]]:
        """Read a text column as codes into the list of its distinct strings.

        Parameters
        ----------
        root_page : int
            `sqlite_master.rootpage` of the table.
        column : int
            Position in the stored record.

        Returns
        -------
        codes : int32 array, shape (rows,)
            Index into `strings`, -1 for NULL.
        strings : list of str
            In the order of their first rows; what is not UTF-8 in them is replaced by U+FFFD.

        Raises
        ------
        Unsupported
            If a row holds something else there, or the table is not plain.
        """
        texts = Texts()
        parts = [
            texts.encode(records.data, field).astype(np.int32)
            for records in self._records(self._leaves(root_page))
            for field in fields(records, [column])
        ]
        return texts.strings(np.concatenate(parts))

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
        data = np.zeros(len(pages) * self._size + PADDING, np.uint8)
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

    def _records(self, leaves: Int64) -> Iterator[Records]:
        """Find the records of leaf pages, chunk by chunk ("B-tree Pages", table leaf cell)."""
        seen = np.zeros(self._count + 1, np.bool_)
        seen[leaves] = True
        before = np.empty(0, np.int64)
        for pages in self._chunks(leaves):
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
    records: Records,
    columns: Collection[int],
    alias: int | None,
    header_bytes: tuple[int, int],
) -> Iterator[tuple[int, Int64]]:
    """Decode integer columns of some records."""
    for field in fields(records, columns, header_bytes):
        if field.column == alias:
            refuse(field.types.any(), "a primary key that is no rowid")
            yield field.column, records.rowid
        else:
            yield field.column, integers(records.data, field)


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
