"""Finds the rows of an SQLite table straight on the b-tree pages of a memory-mapped file.

Section names in quotes are those of https://www.sqlite.org/fileformat2.html. Whatever is not plain
is refused (`Unsupported`), never guessed: SQLite itself then reads the table.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np

from perfmodel.readers.records import (
    PADDING,
    Bytes,
    Records,
    Texts,
    Unsupported,
    cell_heads,
    fields,
    integers,
    refuse,
    words,
)
from perfmodel.trace import Bool, Int32, Int64

__all__ = ["PageFile", "Unsupported"]

_INTERIOR: Final = 5
_LEAF: Final = 13
_CHUNK: Final = 1 << 20  # bytes of pages parsed at a time: what a CPU's cache holds
_JOINED: Final = 4  # of them make a chunk of rows
_REMEMBERED: Final = 64  # chunks that stay mapped at a time
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
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                refuse(size < 512, "smaller than a page")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            journal, log = (Path(f"{path.resolve()}{end}") for end in ("-journal", "-wal"))
            refuse(journal.exists() and journal.stat().st_size > 0, "a journal beside it")
            refuse(log.exists(), "a write-ahead log beside it")
        except OSError as error:
            raise Unsupported(str(error)) from error
        self._mapped: mmap.mmap | None = mapped
        self._size, self._usable, count = _check_header(mapped[:100], len(mapped))
        self._pages = np.frombuffer(mapped, np.uint8).reshape(-1, self._size)[:count]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; nothing read from it depends on it."""
        self._pages = self._pages[:0].copy()
        self._mapped = None

    def read(
        self, root_page: int, columns: Sequence[int], *, rowid_alias: int | None = None
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

        Returns
        -------
        list of int64 array, shape (rows,)
            One per entry of `columns`; SQL NULL is `perfmodel.trace.NULL`.

        Raises
        ------
        Unsupported
            If a row holds something else there, or the table is not plain.
        """
        leaves = self._leaves(root_page)
        rows = self._rows(leaves)
        arrays = [np.empty(rows, np.int64) for _ in columns]
        done = 0
        for records in self._records(leaves) if arrays else ():
            part = slice(done, done + len(records.rowid))
            for array, values in zip(arrays, _integers(records, columns, rowid_alias), strict=True):
                array[part] = values
            done = part.stop
        return arrays

    def chunks(
        self, root_page: int, columns: Sequence[int], *, rowid_alias: int | None = None
    ) -> Iterator[tuple[list[Int64], int]]:
        """Read integer columns as `read` does, some rows at a time.

        Yields
        ------
        columns : list of int64 array
        bytes : int
            Of the pages they were on.
        """
        waiting: list[list[Int64]] = []
        pages = 0
        leaves = self._leaves(root_page)
        for nth, records in enumerate(self._records(leaves), 1):
            waiting.append(_integers(records, columns, rowid_alias))
            if nth % _JOINED == 0:
                yield [np.concatenate(c) for c in zip(*waiting, strict=True)], _JOINED * _CHUNK
                waiting, pages = [], nth
        if waiting:
            joined = [np.concatenate(c) for c in zip(*waiting, strict=True)]
            yield joined, len(leaves) * self._size - pages * _CHUNK

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
        leaves = self._leaves(root_page)
        rows = self._rows(leaves)
        codes = np.empty(rows, np.int32)
        texts = Texts()
        done = 0
        for records in self._records(leaves):
            part = slice(done, done + len(records.rowid))
            for field in fields(records, [column]):
                codes[part] = texts.encode(records.data, field)
            done = part.stop
        return texts.strings(codes)

    def _leaves(self, root_page: int) -> Int64:
        """Walk a b-tree level by level; return its leaf pages in key order.

        All leaves lie equally deep, and no page is used twice ("B-tree Pages").
        """
        seen = np.zeros(len(self._pages) + 1, np.bool_)
        level = np.array([root_page], np.int64)
        while True:  # every level is at least twice as wide as the one above: this ends
            outside = (level < 2) | (level > len(self._pages))  # page 1 is the schema's root
            refuse(outside.any(), "a page number outside the file")
            refuse(seen[level].any() or len(np.unique(level)) < len(level), "a page used twice")
            seen[level] = True
            if self._pages[level[0] - 1, 0] != _INTERIOR:
                return level
            level = np.concatenate([self._children(pages) for pages in self._chunks(level)])

    def _rows(self, leaves: Int64) -> int:
        """Count the rows on leaf pages."""
        rows = 0
        for nth, pages in enumerate(self._chunks(leaves), 1):
            cells = self._pages[pages - 1, 3:5] @ np.array([256, 1])
            self._check_cells(cells, empty=len(leaves) == 1)
            rows += int(cells.sum())
            if nth % _REMEMBERED == 0:
                self._forget()
        return rows

    def _check_cells(self, cells: Int64, *, empty: bool) -> None:
        refuse(cells.min() == 0 and not empty, "an empty page")
        refuse(cells.max() > (self._size - 8) // 6, "more cells than fit in a page")

    def _forget(self) -> None:
        """Drop the pages looked at from this process; the system keeps them cached."""
        if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def _chunks(self, pages: Int64) -> Iterator[Int64]:
        step = max(1, _CHUNK // self._size)
        return (pages[i : i + step] for i in range(0, len(pages), step))

    def _children(self, pages: Int64) -> Int64:
        """Child pages of interior pages: the left child of every cell, and last the rightmost."""
        data, cells, counts = self._load(pages, _INTERIOR, 12, empty=False)
        rightmost = np.arange(8, len(data) - PADDING, self._size)
        left, last = (words(data, at) >> 32 & 0xFFFFFFFF for at in (cells, rightmost))
        return np.insert(left, np.cumsum(counts), last)

    def _load(
        self, pages: Int64, kind: int, header: int, *, empty: bool
    ) -> tuple[Bytes, Int64, Int64]:
        """Copy pages side by side and find their cells ("B-tree Pages", cell pointer array).

        Only a table without rows has an `empty` page.

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
        np.take(self._pages, pages - 1, axis=0, out=grid, mode="clip")
        refuse((grid[:, 0] != kind).any(), "a page of another kind")
        counts = grid[:, 3:5] @ np.array([256, 1])
        self._check_cells(counts, empty=empty)
        most = int(counts.max())
        pointers = grid[:, header : header + 2 * most].view(">u2").astype(np.int64)
        used = np.arange(most) < counts[:, None]
        inside = (pointers >= header + 2 * counts[:, None]) & (pointers <= self._usable - 4)
        refuse((used & ~inside).any(), "a cell pointer out of range")
        return data, (pointers + np.arange(0, grid.size, self._size)[:, None])[used], counts

    def _records(self, leaves: Int64) -> Iterator[Records]:
        """Find the records of leaf pages, chunk by chunk ("B-tree Pages", table leaf cell)."""
        seen = np.zeros(len(self._pages) + 1, np.bool_)
        seen[leaves] = True
        for nth, pages in enumerate(self._chunks(leaves), 1):
            data, cells, _ = self._load(pages, _LEAF, 8, empty=len(leaves) == 1)
            if nth % _REMEMBERED == 0:
                self._forget()
            payload, rowid, start = cell_heads(data, cells)
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
                refuse(not 2 <= page <= len(self._pages), "a page number outside the file")
                refuse(seen[page], "a page used twice")
                seen[page] = True
                link = self._pages[page - 1, :4]
                pieces.append(self._pages[page - 1, 4 : min(4 + left, self._usable)])
        starts = len(data) + np.cumsum(payload) - payload
        return np.concatenate([*pieces, np.zeros(PADDING, np.uint8)]), starts


def _integers(records: Records, columns: Sequence[int], alias: int | None) -> list[Int64]:
    """Decode integer columns of some records."""
    found: dict[int, Int64] = {}
    for field in fields(records, columns):
        found[field.column] = integers(records.data, field)
        if field.column == alias:
            refuse(field.types.any(), "a primary key that is no rowid")
            found[field.column] = records.rowid
    return [found[column] for column in columns]


def _check_header(head: bytes, size: int) -> tuple[int, int, int]:
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
