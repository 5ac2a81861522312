"""Packs trimmed reports into .sqlite.xz, which perfmodel opens: python -m profiles.pack IN OUT.

Drops tables and columns that perfmodel does not read, numbers strings and API calls anew, and puts
rows of the same length one after the other, so that a row differs from the one before in few bytes:
these differences are what is packed (LZMA's delta filter). A file is several .xz streams, one for
every run of rows; `xz -d` and Python read them as one. All that perfmodel shows of a report stays
as it is; `nsys stats` needs what `trim.py` leaves. A packed report can be packed again.
"""

from __future__ import annotations

import argparse
import lzma
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
CALLS: Final = f"{CUPTI}RUNTIME"
RANGES: Final = "NVTX_EVENTS"
STRINGS: Final = "StringIds"
DROPPED: Final = (
    "ENUM_", f"{CUPTI}SYNCHRONIZATION", f"{CUPTI}CUDA_EVENT", "CUDA_GRAPH_EVENTS", "NVTX_PAYLOAD_",
    "TARGET_INFO_CUDA_STREAM", "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_NVTX_", "sqlite_",
)  # fmt: skip
"""How names of tables begin that go."""

_TIMES: Final = ("start", "end")
_WORK: Final = ("globalPid", "deviceId", "streamId", "graphNodeId", "correlationId")
_MPI: Final = (
    "globalTid", "textId", "size", "recvSize", "commHandle", "remoteRank", "tag", "requestHandle",
    "rootRank", *_TIMES,
)  # fmt: skip
READ: Final = {
    RANGES: (
        "eventType", "domainId", "globalTid", "endGlobalTid", "textId", "text", "jsonTextId",
        "jsonText", *_TIMES,
    ),
    CALLS: ("correlationId", "globalTid", "nameId", *_TIMES),
    f"{CUPTI}KERNEL": (
        *_WORK, "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", *_TIMES,
    ),
    f"{CUPTI}MEMCPY": (*_WORK, "bytes", "copyKind", "srcKind", "dstKind", *_TIMES),
    f"{CUPTI}MEMSET": (*_WORK, "bytes", *_TIMES),
    "MPI_P2P_EVENTS": _MPI,
    "MPI_START_WAIT_EVENTS": _MPI,
    "MPI_OTHER_EVENTS": _MPI,
    "MPI_COLLECTIVES_EVENTS": _MPI,
}  # fmt: skip
"""Tables of events and their columns that stay; their rows are sorted. Others stay whole."""
NAMES: Final = ("textId", "jsonTextId", "nameId", "demangledName")
"""Columns that are ids of strings."""
CALL: Final = "correlationId"

FILLER: Final = "filler"
"""A column that makes the length of a row a multiple of `WORD` bytes."""
WORD: Final = 4
_FILLERS: Final = (None, 2, 1 << 8, 1 << 16)  # they take 0, 1, 2 and 3 bytes
FIRST: Final = 1 << 15
"""The first number of a row: all take three bytes, for the two million rows that may follow."""

_HEAD: Final = 5  # bytes of a row's number, of the length of its record and of that of its types
_KEY: Final = "INTEGER PRIMARY KEY"  # the row's number
_PAGE: Final = 4096
_LEAF: Final = 13  # the first byte of a page of rows
_FEW: Final = 4  # pages that are no run of their own
_LARGEST_STEP: Final = 256  # of LZMA's delta filter
_SETTINGS: Final = ((3, 0, 2), (0, 2, 2))  # lc, lp, pb of LZMA
_SETTINGS_OF_RUNS: Final = ((0, 2, 2), (1, 3, 4), (0, 4, 4))


def pack(report: Path, target: Path) -> Path:
    """Write a trimmed report to `target`, packed; return `target`."""
    with tempfile.TemporaryDirectory() as folder:
        copy, tidy = Path(folder) / "copy.sqlite", Path(folder) / "tidy.sqlite"
        copy.write_bytes(report.read_bytes())
        with closing(sqlite3.connect(copy)) as before, closing(sqlite3.connect(tidy)) as after:
            after.execute(f"PRAGMA page_size = {_PAGE}")
            _copy(before, after)
            after.commit()
        data = tidy.read_bytes()
    target.write_bytes(b"".join(compressed(pages, step) for step, pages in _runs(data)))
    return target


# --- tables

Columns = dict[str, list[Any]]


def _copy(before: sqlite3.Connection, after: sqlite3.Connection) -> None:
    """Copy tables that stay as they are, then those whose rows are sorted."""
    asked = "SELECT name FROM sqlite_master WHERE type = 'table'"
    names = [name for (name,) in before.execute(asked) if not name.startswith(DROPPED)]
    types = {name: _types(before, name) for name in names}
    tables = {name: _columns(before, name, types[name]) for name in names}
    if STRINGS in tables:
        _number_strings(tables)
    for name in READ:
        if name in tables:
            tables[name] = _sorted(tables[name])
    if CALLS in tables:
        _number_calls(tables)
    for name in sorted(tables, key=lambda name: name in READ):
        _write(after, name, tables[name], types[name])


def _types(file: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the types of a table's columns that stay, by name."""
    types = {
        name: _KEY if (table, name) == (STRINGS, "id") else kind
        for _, name, kind, *_ in file.execute(f'PRAGMA table_info("{table}")')
    }
    return {name: types[name] for name in READ.get(table, types) if name in types}


def _columns(file: sqlite3.Connection, table: str, names: Iterable[str]) -> Columns:
    listed = ", ".join(f'"{name}"' for name in names)
    rows = file.execute(f'SELECT {listed} FROM "{table}"').fetchall()
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _number_strings(tables: dict[str, Columns]) -> None:
    """Number the strings in use from one number on."""
    strings = dict(zip(*tables[STRINGS].values(), strict=True))
    named = [found[name] for found in tables.values() for name in NAMES if name in found]
    texts = dict.fromkeys(strings[i] for found in named for i in found if i in strings)
    first = 2 if len(texts) < 126 else 1 << 8 if len(texts) < 32_000 else FIRST
    number = {text: first + i for i, text in enumerate(texts)}
    unknown = first + len(number)
    for found in named:
        found[:] = [i if i is None else number.get(strings.get(i), unknown) for i in found]
    tables[STRINGS] = {"id": [*number.values()], "value": [*number]}


def _number_calls(tables: dict[str, Columns]) -> None:
    """Give API calls the numbers of their rows, and GPU work that of its call."""
    calls = tables[CALLS]
    process = [thread >> 24 for thread in calls["globalTid"]]
    number = {call: FIRST + row for row, call in enumerate(zip(process, calls[CALL], strict=True))}
    if len(number) < len(process):
        raise ValueError(f"expected one row of {CALLS} for each call of a process; got more")
    for work in tables.values():
        if CALL in work and "globalPid" in work:
            keys = [
                (owner >> 24, i) for owner, i in zip(work["globalPid"], work[CALL], strict=True)
            ]
            for key in keys:
                number.setdefault(key, FIRST + len(number))  # a call that was not recorded
            work[CALL] = [None if key[1] is None else number[key] for key in keys]
    del calls[CALL]


def _sorted(found: Columns) -> Columns:
    """Put rows with equally long values together, and those in the order of process and time."""
    rows = [*zip(*found.values(), strict=True)]
    owners = found["globalPid" if "globalPid" in found else "globalTid"]
    lengths = [tuple(0 if isinstance(v, str) else _bytes(v) for v in row) for row in rows]
    keys = [
        (sum(length), length, owner >> 24, start)
        for length, owner, start in zip(lengths, owners, found["start"], strict=True)
    ]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    return {name: [values[i] for i in order] for name, values in found.items()}


def _bytes(value: Any) -> int:
    """Return the bytes that SQLite takes for a value."""
    if value is None or value in (0, 1):
        return 0
    if isinstance(value, int):
        bits = (value if value >= 0 else ~value).bit_length() + 1
        return next(size for size in (1, 2, 3, 4, 6, 8) if bits <= 8 * size)
    return len(value.encode()) if isinstance(value, str) else len(bytes(value))


def _write(file: sqlite3.Connection, table: str, found: Columns, types: dict[str, str]) -> None:
    """Write a table; rows of events are filled to a number of whole words."""
    if table in READ:
        first = CALL if table == CALLS else "rowid"
        types = {**types, first: _KEY, FILLER: "INTEGER"}
        head = _HEAD + len(found) + (2 if table == CALLS else 1)
        rows = zip(*found.values(), strict=True)
        fillers = [_FILLERS[-(head + sum(map(_bytes, row))) % WORD] for row in rows]
        found = {first: [*range(FIRST, FIRST + len(fillers))], FILLER: fillers, **found}
    typed = ", ".join(f'"{name}" {types[name]}' for name in found if name != "rowid")
    file.execute(f'CREATE TABLE "{table}" ({typed})')
    listed = ", ".join(f'"{name}"' for name in found)
    places = ", ".join("?" * len(found))
    rows = zip(*found.values(), strict=True)
    file.executemany(f'INSERT INTO "{table}" ({listed}) VALUES ({places})', rows)


# --- pages


def _runs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield pages that follow each other, with the length of their rows; 0 where it varies."""
    pages = [data[at : at + _PAGE] for at in range(0, len(data), _PAGE)]
    steps: list[int] = []
    for page in pages:
        inner = page[0] != _LEAF and bool(steps)
        steps.append(steps[-1] if inner else _row_length(page))
    lengths = [(step, len([*run])) for step, run in groupby(steps)]
    kept = [step if count >= _FEW else 0 for step, count in lengths for _ in range(count)]
    begin = 0
    for step, run in groupby(kept):
        end = begin + len([*run])
        yield step, b"".join(pages[begin:end])
        begin = end


def _row_length(page: bytes) -> int:
    """Return the bytes from most rows of a page to the next; 0 where most differ."""
    count = int.from_bytes(page[3:5], "big")
    at = [int.from_bytes(page[i : i + 2], "big") for i in range(8, 8 + 2 * count, 2)]
    steps = Counter(before - after for before, after in pairwise(at))
    step, often = steps.most_common(1)[0] if steps else (0, 0)
    return step if page[0] == _LEAF and often > count // 2 and 0 < step <= _LARGEST_STEP else 0


def compressed(data: bytes, step: int = 0) -> bytes:
    """Return the smallest .xz of several settings, of differences over `step` bytes if it is not 0.

    All of the data fits in its dictionary.
    """
    size = max(1 << 16, 1 << (len(data) - 1).bit_length())
    preset = 9 | lzma.PRESET_EXTREME
    before = [{"id": lzma.FILTER_DELTA, "dist": step}] if step else []
    return min(
        (
            lzma.compress(data, check=lzma.CHECK_CRC32, filters=[
                *before,
                {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": size,
                 "lc": lc, "lp": lp, "pb": pb},
            ])
            for lc, lp, pb in (_SETTINGS_OF_RUNS if step else _SETTINGS)
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
