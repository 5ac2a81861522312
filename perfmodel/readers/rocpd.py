"""Reads rocpd, the SQLite files of rocprofv3 (AMD): the tables of Nsight Systems.

Names of tables end in an id of the recording. A kernel, a copy and the call of HIP that launched it
share the `stack_id` of their events (ROCm/rocprofiler-sdk, source/lib/output/generateRocpd.cpp).
Since schema 4 times and places lie in tables of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from perfmodel.readers.pages import as_text
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import COPY_KINDS
from perfmodel.readers.write_sqlite import SqliteWriter, written

PRODUCT: Final = "rocprofv3"
"""The `Trace.product_version` of these files."""
_MAGIC: Final = b"SQLite format 3\x00"
_SIGN: Final = b"rocpd_string"
_HEAD: Final = 1 << 17
"""Bytes in which SQLite keeps the names of so few tables."""
_ID: Final = re.compile(r"rocpd_string(.*)")
_COPY: Final = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)")
_COPY_CODE: Final = {name: code for code, name in COPY_KINDS.items()}
_CALLS: Final = ("HIP", "RCCL", "ROCJPEG", "ROCDECODE")
_RANGES: Final = "MARKER"
_PUSH_POP: Final = 59
_UNKNOWN_MEMORY: Final = 7
_MEMORY: Final = {"HOST": _UNKNOWN_MEMORY, "DEVICE": 2}


def is_rocpd(path: Path) -> bool:
    """Whether a file is one of rocprofv3's."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except (OSError, ValueError):
        return False
    return head.startswith(_MAGIC) and _SIGN in head


def to_sqlite(path: Path, target: Path) -> None:
    """Convert a file to the SQLite file that an export of Nsight Systems would be.

    Raises
    ------
    ReportError
        If it is damaged.
    """
    with Database(path) as db, written(target, path) as out:
        _Recording(db, out).convert()


class _Recording:
    """The tables of one file; an id of a process, a thread or a string stands for its value."""

    def __init__(self, db: Database, out: SqliteWriter) -> None:
        self._db, self._out = db, out
        found = (_ID.fullmatch(table) for table in sorted(db.tables))
        self._suffix = next((match[1] for match in found if match), "")
        self._texts: dict[str, int] = {}
        self._strings = {i: str(as_text(t)) for i, t in self._rows("string", "id", "string")}
        self._events = {
            i: (stack, self._strings.get(category, ""), extra)
            for i, stack, category, extra in self._rows(
                "event", "id", "stack_id", "category_id", "extdata"
            )
        }
        self._pids = dict(self._rows("info_process", "id", "pid"))
        self._tids = dict(self._rows("info_thread", "id", "tid"))
        self._times = dict(self._rows("timestamp", "id", "value"))
        self._tracks = {
            row[0]: row[1:]
            for row in self._rows("track", "id", "pid", "tid", "agent_id", "queue_id", "stream_id")
        }
        agents = self._rows("info_agent", "id", "type", "type_index", "product_name", "name")
        self._gpus = {
            i: (index if isinstance(index, int) else 0, as_text(product) or as_text(name))
            for i, kind, index, product, name in agents if as_text(kind) == "GPU"
        }  # fmt: skip

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        return self._db.rows(f"rocpd_{table}{self._suffix}", columns)

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def convert(self) -> None:
        """Write all tables."""
        out = self._out
        _write(out, "CUPTI_ACTIVITY_KIND_KERNEL", (
            "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
        ), self._kernels())  # fmt: skip
        _write(out, "CUPTI_ACTIVITY_KIND_MEMCPY", (
            "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
            "copyKind", "srcKind", "dstKind",
        ), self._copies())  # fmt: skip
        calls: list[tuple[Any, ...]] = []
        ranges: list[tuple[Any, ...]] = []
        for call, row in self._regions():
            (calls if call else ranges).append(row)
        _write(out, "CUPTI_ACTIVITY_KIND_RUNTIME",
               ("start", "end", "globalTid", "correlationId", "nameId"), calls)  # fmt: skip
        _write(out, "NVTX_EVENTS", ("start", "end", "globalTid", "eventType", "textId"),
               ((*row[:3], _PUSH_POP, row[4]) for row in ranges))  # fmt: skip
        _write(out, "TARGET_INFO_GPU", ("id", "name TEXT"), self._gpus.values())
        _write(out, "META_DATA_EXPORT", ("name TEXT", "value TEXT"), [
            ("EXPORT_PRODUCT_VERSION", PRODUCT), ("EXPORT_SCHEMA_VERSION", "3"),
        ])  # fmt: skip
        _write(out, "StringIds", ("id", "value TEXT"), ((i, t) for t, i in self._texts.items()))

    def _place(self, track: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return process, thread, agent, queue and stream, of the row or of its track."""
        return self._tracks.get(track, row) if row[0] is None else row

    def _span(self, row: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return start and end, of the row or by their ids."""
        start, end, start_id, end_id = row
        if start is None:
            return self._times.get(start_id), self._times.get(end_id)
        return start, end

    def _process(self, pid: Any) -> int:
        known = self._pids.get(pid, pid)
        return (known if isinstance(known, int) else 0) % (1 << 24) << 24

    def _work(self, table: str, *more: str) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Yield what kernels and copies have in common, and more columns."""
        agents = ("agent_id",) if table == "kernel_dispatch" else ("dst_agent_id", "src_agent_id")
        columns = ("start", "end", "start_id", "end_id", "event_id", "track_id", "pid", "tid",
                   agents[0], "queue_id", "stream_id", agents[-1], *more)  # fmt: skip
        for row in self._rows(table, *columns):
            pid, _, agent, queue, stream = self._place(row[5], row[6:11])
            start, end = self._span(row[:4])
            agent = agent if agent in self._gpus else row[11]  # of a copy to the host, its source
            device = self._gpus.get(agent, (0, None))[0]
            line = queue if stream is None else stream
            stack = self._events.get(row[4], (None, "", None))[0]
            yield (start, end, device, line or 0, stack, self._process(pid)), row[12:]

    def _kernels(self) -> Iterator[tuple[Any, ...]]:
        symbols = self._rows("info_kernel_symbol", "id", "display_name", "kernel_name")
        names = {i: str(as_text(shown) or as_text(name) or "") for i, shown, name in symbols}
        sizes = [f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz"]
        for work, (kernel, *shape) in self._work("kernel_dispatch", "kernel_id", *sizes):
            grid, block = shape[:3], shape[3:]
            blocks = [_blocks(g, b) for g, b in zip(grid, block, strict=True)]
            yield (*work, self._text(names.get(kernel, "")), *blocks, *block)

    def _copies(self) -> Iterator[tuple[Any, ...]]:
        for work, (size, name) in self._work("memory_copy", "size", "name_id"):
            found = _COPY.search(self._strings.get(name, ""))
            ends = found.group(1, 2) if found else ("", "")
            kind = _COPY_CODE.get("-to-".join(end.title() for end in ends), 0)
            yield (*work, size, kind, *(_MEMORY.get(end, _UNKNOWN_MEMORY) for end in ends))

    def _regions(self) -> Iterator[tuple[bool, tuple[Any, ...]]]:
        """Yield whether each region is a call of HIP, not a range, and its row."""
        columns = ("start", "end", "start_id", "end_id", "event_id", "track_id", "pid", "tid")
        for *row, name in self._rows("region", *columns, "name_id"):
            stack, category, extra = self._events.get(row[4], (None, "", None))
            is_range = category.startswith(_RANGES)
            if not is_range and not category.startswith(_CALLS):
                continue
            pid, tid, *_ = self._place(row[5], (*row[6:8], None, None, None))
            number = self._tids.get(tid, tid)
            thread = self._process(pid) | (number if isinstance(number, int) else 0) % (1 << 24)
            text = self._strings.get(name, "")
            text = _message(extra) or text if is_range else text
            yield not is_range, (*self._span(tuple(row[:4])), thread, stack, self._text(text))


def _blocks(grid: Any, block: Any) -> int | None:
    """Blocks of a launch: AMD counts a grid in threads, and the last block may be cut."""
    if not (isinstance(grid, int) and isinstance(block, int) and grid > 0 and block > 0):
        return None
    return -(-grid // block)


def _message(extra: Any) -> str:
    """Return what a range of roctx is called."""
    try:
        said = json.loads(as_text(extra) or "")
    except (ValueError, RecursionError):
        return ""
    found = said.get("message") if isinstance(said, dict) else None
    return found if isinstance(found, str) else ""


def _write(out: SqliteWriter, table: str, columns: tuple[str, ...], rows: Any) -> None:
    kinds = (column.partition(" ") for column in columns)
    out.create(table, {name: kind or "INTEGER" for name, _, kind in kinds})
    out.add(table, len(columns), rows)
