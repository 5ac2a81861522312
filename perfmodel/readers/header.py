"""The first hundred bytes of an SQLite file ("The Database Header" of its file format)."""

from __future__ import annotations

from perfmodel.readers.records import refuse


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
