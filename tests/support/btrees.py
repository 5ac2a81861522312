"""B-trees that SQLite never writes: a table that seems endless because its pages are shared."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

PAGE: Final = 4096
_CELLS: Final = 300
_LEVELS: Final = 15


def root_of(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    return int(found[0])


def endless(data: bytes, root: int) -> bytes:
    """Let 15 levels of pages name the page below 301 times each: 10^37 rows in 64 kB more.

    `root` 1 is the schema itself. The first leaf of the old tree lies at the bottom.
    """
    pages = bytearray(data)
    head = 100 if root == 1 else 0
    node = old = pages[(root - 1) * PAGE : root * PAGE]
    at = head
    while node[at] == 5:
        cell = struct.unpack_from(">H", node, at + 12)[0]
        child = struct.unpack_from(">I", node, cell)[0]
        node, at = pages[(child - 1) * PAGE : child * PAGE], 0
    assert at == 0 or root > 1, "wanted a schema of several pages"
    below = len(data) // PAGE + 1
    pages[(root - 1) * PAGE : root * PAGE] = old[:head] + _interior(below, head)[head:]
    for level in range(below + 1, below + _LEVELS):
        pages += _interior(level)
    pages += node
    struct.pack_into(">I", pages, 28, len(pages) // PAGE)
    pages[92:96] = pages[24:28]  # so that the page count is valid
    return bytes(pages)


def _interior(child: int, head: int = 0) -> bytes:
    """Make an interior page whose cells all lead to one page."""
    page = bytearray(PAGE)
    first = PAGE - 5 * _CELLS
    page[first:] = (struct.pack(">I", child) + b"\x01") * _CELLS
    struct.pack_into(">BHHHBI", page, head, 5, 0, _CELLS, first, 0, child)
    struct.pack_into(f">{_CELLS}H", page, head + 12, *range(PAGE - 5, first - 1, -5))
    return bytes(page)
