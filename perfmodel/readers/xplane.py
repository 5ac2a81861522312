"""Reads XPlane, what the profilers of JAX and TensorFlow write: the tables of Nsight Systems.

A file is a protobuf of planes: one of every GPU, whose lines `Stream #N` hold kernels and copies,
and one of the host, whose lines are threads (tsl/profiler/protobuf/xplane.proto). Calls of CUDA and
HIP have a correlation id; all other events of the host become ranges. Lines that XLA derives from
the kernels (`XLA Modules`, `Steps`, ...) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.readers.trace import COPY_KINDS, MEMORY_KINDS
from perfmodel.readers.write_sqlite import SqliteWriter, written

SUFFIX: Final = ".pb"
PRODUCT: Final = "XPlane"
"""The `Trace.product_version` of these files."""

_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_MOST_BITS: Final = 63
"""A number has 64 bits, in ten bytes of seven."""
_NO_PROTOBUF: Final = (IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors by fields of other types than the messages have."""
_GPU: Final = re.compile(r"/device:GPU:(\d{1,4})")
_STREAM: Final = re.compile(r"Stream #(-?\d{1,9})")
_COPY: Final = re.compile(r"Mem[Cc]py(\w)2(\w)")
_SIZE: Final = re.compile(r"\bsize:(\d{1,18})")
_MEMORY: Final = re.compile(r"\bkind_(src|dst):(\w+)")
_PLACES: Final = {"H": "Host", "D": "Device", "P": "Device"}
_COPY_CODE: Final = {name: code for code, name in COPY_KINDS.items()}
_MEMORY_CODE: Final = {name: code for code, name in MEMORY_KINDS.items()}
_UNKNOWN: Final = _MEMORY_CODE["unknown"]
_FACTS: Final = (
    ("smCount", "core_count"), ("clockRate", "clock_rate"), ("memoryBandwidth", "memory_bandwidth"),
    ("totalMemory", "memory_size"), ("computeMajor", "compute_cap_major"),
    ("computeMinor", "compute_cap_minor"),
)  # fmt: skip
_PROCESS: Final = 1 << 24
_PUSH_POP: Final = 59
_SINCE_EPOCH_NS: Final = 10**18
_MOST_NAMED: Final = 5
_Event = tuple[str, int, int, dict[str, Any]]
"""Name, start and end in ns, and what is said of it."""


def to_sqlite(data: bytes, source: Path, target: Path) -> None:
    """Convert a file to the SQLite file that an export of Nsight Systems would be.

    Raises
    ------
    ReportError
        If it is no protobuf, or ends too early.
    SchemaError
        If no plane is of a GPU.
    """
    try:
        planes = [_Plane(body) for number, body in _fields(data) if number == 1]
    except _NO_PROTOBUF as error:
        raise _damaged(source) from error
    if not any(_GPU.fullmatch(plane.name) for plane in planes):
        names = ", ".join(plane.name for plane in planes[:_MOST_NAMED]) or "none"
        raise SchemaError(
            f"{source}: expected a plane /device:GPU:N; got {names}; record with "
            f"jax.profiler.trace(FOLDER) while a GPU works"
        )
    try:
        with written(target, source) as out:
            _Tables(out).write(planes)
    except _NO_PROTOBUF as error:
        raise _damaged(source) from error


def _damaged(source: Path) -> ReportError:
    return ReportError(
        f"{source}: expected an XPlane file of JAX or TensorFlow; got bytes that are none, or "
        f"that end too early; copy it again"
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MOST_BITS:
            raise ValueError(shift)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of every field of a message.

    https://protobuf.dev/programming-guides/encoding
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_LONG, _SHORT):
            size = 8 if kind == _LONG else 4
        else:
            raise ValueError(kind)
        if at + size > len(data):
            raise ValueError(size)
        yield key >> 3, data[at : at + size]
        at += size


class _Plane:
    """One plane: its name, its lines, and what the ids in these stand for."""

    def __init__(self, data: bytes) -> None:
        self.name = ""
        self._lines: list[bytes] = []
        self._events: dict[int, str] = {}
        self._stats: dict[int, str] = {}
        own: list[bytes] = []
        for number, value in _fields(data):
            if number == 2:
                self.name = value.decode("utf-8", "replace")
            elif number == 3:
                self._lines.append(value)
            elif number in (4, 5):
                entry = dict(_fields(value))
                text = dict(_fields(entry.get(2, b""))).get(2, b"").decode("utf-8", "replace")
                (self._events if number == 4 else self._stats)[entry.get(1, 0)] = text
            elif number == 6:
                own.append(value)
        self.facts = self._said(own)

    def _said(self, stats: list[bytes]) -> dict[str, Any]:
        """Return statistics by name: whole numbers and texts."""
        found: dict[str, Any] = {}
        for data in stats:
            fields = dict(_fields(data))
            name = self._stats.get(fields.pop(1, 0), "")
            for number, value in fields.items():
                if number in (3, 4):
                    found[name] = value
                elif number == 5:
                    found[name] = value.decode("utf-8", "replace")
                elif number == 7:
                    found[name] = self._stats.get(value, "")
        return found

    def lines(self) -> Iterator[tuple[str, int, list[_Event]]]:
        """Yield the name and the id of every line, and its events."""
        for data in self._lines:
            name, number, zero_ns, events = "", 0, 0, []
            for field, value in _fields(data):
                if field == 1:
                    number = value
                elif field == 2:
                    name = value.decode("utf-8", "replace")
                elif field == 3:
                    zero_ns = value
                elif field == 4:
                    events.append(value)
            yield name, number, [self._event(event, zero_ns) for event in events]

    def _event(self, data: bytes, zero_ns: int) -> _Event:
        fields: dict[int, int] = {}
        stats: list[bytes] = []
        for number, value in _fields(data):
            if number == 4:
                stats.append(value)
            else:
                fields[number] = value
        start = zero_ns + fields.get(2, 0) // 1000
        end = zero_ns + (fields.get(2, 0) + fields.get(3, 0)) // 1000
        return self._events.get(fields.get(1, 0), ""), start, end, self._said(stats)


class _Tables:
    """The tables of a file, written in one go."""

    def __init__(self, out: SqliteWriter) -> None:
        self._out = out
        self._strings: dict[str, int] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def write(self, planes: list[_Plane]) -> None:
        """Write all planes."""
        threads = 0
        for plane in planes:
            gpu = _GPU.fullmatch(plane.name)
            if gpu and any(fact in plane.facts for _, fact in _FACTS):
                self._add("TARGET_INFO_GPU", id=int(gpu[1]), name=plane.facts.get("device_name"),
                          **{column: plane.facts.get(fact) for column, fact in _FACTS})  # fmt: skip
            for name, number, events in plane.lines():
                stream = _STREAM.match(name)
                if gpu and stream:
                    for event in events:
                        self._add_work(event, int(gpu[1]), int(stream[1]))
                elif plane.name.startswith("/host:"):
                    threads += 1
                    for event in events:
                        self._add_host(event, _PROCESS | (number & 0xFFFF) << 8 | threads & 0xFF)
        self._finish()

    def _add(self, table: str, **columns: Any) -> None:
        self._rows.setdefault(table, []).append(columns)

    def _text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _add_work(self, event: _Event, device: int, stream: int) -> None:
        """Add a kernel, a copy or a set."""
        name, start, end, said = event
        row = {"start": start, "end": end, "deviceId": device, "streamId": stream,
               "correlationId": said.get("correlation_id"), "globalPid": _PROCESS}  # fmt: skip
        details = str(said.get("memcpy_details", said.get("memset_details", "")))
        size = _SIZE.search(details)
        row_bytes = int(size[1]) if size else None
        copy = _COPY.match(name)
        if copy:
            ends = "-to-".join(_PLACES.get(end, "") for end in copy.group(1, 2))
            kinds = dict(_MEMORY.findall(details))
            memory = [_MEMORY_CODE.get(kinds.get(at, "unknown"), _UNKNOWN) for at in ("src", "dst")]
            self._add("CUPTI_ACTIVITY_KIND_MEMCPY", **row, bytes=row_bytes, srcKind=memory[0],
                      copyKind=_COPY_CODE.get(ends, 0), dstKind=memory[1])  # fmt: skip
        elif name.lower().startswith("memset"):
            self._add("CUPTI_ACTIVITY_KIND_MEMSET", **row, bytes=row_bytes)
        else:
            name = name.removesuffix(".kd")  # of a kernel's descriptor, on AMD's GPUs
            self._add("CUPTI_ACTIVITY_KIND_KERNEL", **row, demangledName=self._text(name))

    def _add_host(self, event: _Event, thread: int) -> None:
        """Add a call of CUDA or HIP, or a range."""
        name, start, end, said = event
        correlation = said.get("correlation_id")
        if correlation is not None:
            self._add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=thread,
                      correlationId=correlation, nameId=self._text(name))  # fmt: skip
        elif name:
            self._add("NVTX_EVENTS", start=start, end=end, globalTid=thread, eventType=_PUSH_POP,
                      textId=self._text(name))  # fmt: skip

    def _finish(self) -> None:
        """Write the rows, on a clock that begins with the first event."""
        events = [row for rows in self._rows.values() for row in rows if "start" in row]
        zero = min((row["start"] for row in events), default=0)
        for row in events:
            row["start"], row["end"] = row["start"] - zero, row["end"] - zero
        if zero > _SINCE_EPOCH_NS:
            self._add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=zero)
        for name, value in (("EXPORT_PRODUCT_VERSION", PRODUCT), ("EXPORT_SCHEMA_VERSION", "1")):
            self._add("META_DATA_EXPORT", name=name, value=value)
        for text, number in self._strings.items():
            self._add("StringIds", id=number, value=text)
        self._rows.setdefault("StringIds", [{"id": 0, "value": ""}])
        for table, rows in self._rows.items():
            texts = {c for c, value in rows[0].items() if isinstance(value, str) or c == "name"}
            self._out.create(table, {c: "TEXT" if c in texts else "INTEGER" for c in rows[0]})
            self._out.add(table, len(rows[0]), (tuple(row.values()) for row in rows))
