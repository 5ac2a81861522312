"""Packs trimmed reports into .sqlite.xz, which perfmodel opens: python -m profiles.pack IN OUT.

Drops tables that perfmodel does not read, and puts the rows of a process together, in the order in
which they were recorded: what is alike lies side by side, and packs better. All that perfmodel
shows of a report stays as it is; `nsys stats` needs what `trim.py` leaves.
"""

from __future__ import annotations

import argparse
import lzma
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
DROPPED: Final = (
    f"{CUPTI}SYNCHRONIZATION", f"{CUPTI}CUDA_EVENT", "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
)  # fmt: skip
"""Tables that go, as do those whose names begin with ENUM_."""
COLUMN: Final = "gridId"
"""A column of kernels that goes: a count of each context's launches."""
GROUPED: Final = {
    f"{CUPTI}RUNTIME": "globalTid >> 24", f"{CUPTI}KERNEL": "globalPid",
    f"{CUPTI}MEMCPY": "globalPid", f"{CUPTI}MEMSET": "globalPid",
}  # fmt: skip
"""Tables of events, and the process of a row."""
SPARE: Final = {
    f"{CUPTI}RUNTIME": ("callchainId", "eventClass", "returnValue"),
    f"{CUPTI}KERNEL": ("mangledName", "cacheConfig", "launchType"),
}
"""Columns of a byte or none: the first so many go without which rows pack best."""
_TRIED: Final = tuple(
    {"lc": 3 - lp // 2, "lp": lp, "nice_len": n} for lp in (0, 2) for n in (64, 273)
)


def pack(report: Path, target: Path) -> Path:
    """Write a trimmed report to `target`, packed; return `target`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        copy.write_bytes(report.read_bytes())
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            _reduce(db)
            db.execute("VACUUM")
        for table, columns in SPARE.items():
            _fit(copy, table, columns)
        target.write_bytes(compressed(copy.read_bytes()))
    return target


def _reduce(db: sqlite3.Connection) -> None:
    made = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    for table in made:
        if table in DROPPED or table.startswith("ENUM_"):
            db.execute(f'DROP TABLE "{table}"')
    for table, process in GROUPED.items():
        if table not in made:
            continue
        db.execute(f'ALTER TABLE "{table}" RENAME TO recorded')
        db.execute(made[table])
        db.execute(f'INSERT INTO "{table}" SELECT * FROM recorded ORDER BY {process}, rowid')
        db.execute("DROP TABLE recorded")
        if COLUMN in {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')}:
            db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{COLUMN}"')


def _fit(copy: Path, table: str, columns: Sequence[str]) -> None:
    """Drop as many of a table's columns as make the file pack best: lengths of rows matter."""
    found = [copy.read_bytes()]
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        have = {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')}
        for column in (c for c in columns if c in have):
            db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
            db.execute("VACUUM")
            found.append(copy.read_bytes())
    copy.write_bytes(min(found, key=lambda data: len(lzma.compress(data))))


def compressed(data: bytes) -> bytes:
    """Return the smallest .xz of several settings, in whose dictionary all of it fits."""
    size = max(1 << 16, 1 << (len(data) - 1).bit_length())
    preset = 9 | lzma.PRESET_EXTREME
    return min(
        (
            lzma.compress(data, check=lzma.CHECK_CRC32, filters=[
                {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": size, **tried}
            ])
            for tried in _TRIED
        ),
        key=len,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    pack(arguments.source, arguments.target)
    sizes = [p.stat().st_size for p in (arguments.source, arguments.target)]
    print(f"{arguments.target}: {sizes[1]:,} bytes, {sizes[1] / sizes[0]:.0%} of {sizes[0]:,}")
