"""Decodes SQLite records, the rows of a table, many at a time: integers and texts of a column.

Section names in quotes are those of https://www.sqlite.org/fileformat2.html. Whatever is not plain
is refused (`Unsupported`), never guessed: SQLite itself then reads the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Bool, Int32, Int64
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


class Texts:
    """The distinct texts met so far, in the order of their first rows."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}

    def encode(self, data: Bytes, field: Field) -> Int64:
        """Return the code of every row's text, -1 for NULL."""
        is_text = (field.types >= _FIRST_TEXT) & (field.types & 1 == 1)
        refuse((field.types[~is_text] > 0).any(), "a text column with more than texts")
        at, size = field.at[is_text], field.size[is_text]
        twin, is_new = _twins(data, at, size)
        blob = data.tobytes()
        ends = zip(at[is_new].tolist(), (at + size)[is_new].tolist(), strict=True)
        code = np.empty(len(at), np.int64)
        code[is_new] = [self._codes.setdefault(blob[a:b], len(self._codes)) for a, b in ends]
        codes = np.full(len(is_text), -1)
        codes[is_text] = code[twin]
        return codes

    def strings(self, codes: Int32) -> tuple[Int32, list[str]]:
        """Decode the texts; those that come out equal come to share a code."""
        first: dict[str, int] = {}
        decoded = (decode(text) for text in self._codes)
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
