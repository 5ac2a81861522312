"""Reads the allocations in a trace of torch.profiler that was recorded with profile_memory=True.

Every allocation and release is an instant event `[memory]` with its address, its bytes and what
the allocator has in use and reserved. What was allocated by whom follows from the spans that are
open on its thread at that time: operators, modules, lines of the program. Autograd's operators
have the sequence number of the forward operator, whose module and line they take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable
from perfmodel.base.files import opened_unpacked
from perfmodel.readers.allocator_snapshot import (
    BACKWARD,
    CPU,
    FORWARD,
    OPTIMIZER,
    Event,
    Place,
    Snapshot,
)
from perfmodel.readers.frames import FRAMEWORK, MODULE, module_path, python_frame
from perfmodel.readers.json_stream import JsonStream

MEMORY: Final = "[memory]"
_FUNCTION: Final = "python_function"
_ANNOTATION: Final = "user_annotation"
_SPANS: Final = ("cpu_op", "Operator", _ANNOTATION, _FUNCTION)
_AUTOGRAD: Final = "autograd::engine::evaluate_function"
_STEP: Final = "Optimizer.step#"
_ALLOCATORS: Final = re.compile(r"aten::(?:new_)?(?:empty|resize)\w*")
"""Operators that allocate for the one that calls them."""
_SEQUENCE: Final = "Sequence number"


@dataclass(slots=True)
class _Thread:
    """Spans and instants of one thread: (start, end, name, sequence number), and rows by time."""

    spans: list[tuple[float, float, str, int]] = field(default_factory=list)
    rows: list[tuple[float, int]] = field(default_factory=list)


def read_profiler(path: Path) -> tuple[Snapshot, ...]:
    """Read the allocators of a trace's GPUs; of a trace without a GPU that of the host.

    Empty where no allocation was recorded.

    Raises
    ------
    ReportError
        If the file is damaged.
    """
    events: list[Mapping[str, Any]] = []
    threads: dict[tuple[Any, Any], _Thread] = {}
    where = printable(str(path))
    with opened_unpacked(path) as stream:
        for event in JsonStream(stream, path, "traceEvents"):
            if not isinstance(event, dict):
                continue
            key = event.get("pid"), event.get("tid")
            args = event.get("args")
            if event.get("name") == MEMORY and isinstance(args, dict) and "Addr" in args:
                threads.setdefault(key, _Thread()).rows.append((float(event["ts"]), len(events)))
                events.append({"ts": float(event["ts"]), **args})
            elif event.get("ph") == "X" and event.get("cat") in _SPANS:
                _add_span(threads.setdefault(key, _Thread()), event)
    try:
        return _snapshots(events, _places(threads))
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"{where}: expected allocations with bytes and device; got one without "
            f"({printable(str(error))[:100]}); record with PyTorch 1.13 or later"
        ) from error


def _add_span(thread: _Thread, event: Mapping[str, Any]) -> None:
    name = event.get("name")
    if not isinstance(name, str):
        return
    if event["cat"] == _FUNCTION and not name.startswith(MODULE):
        text, origin = python_frame(name)
        if origin == FRAMEWORK:
            return
        name = f"<{text}"
    start = float(event["ts"])
    args = event.get("args") or {}
    sequence = args.get(_SEQUENCE, -1)
    thread.spans.append((start, start + float(event.get("dur") or 0.0), name,
                         sequence if isinstance(sequence, int) else -1))  # fmt: skip


def _places(threads: Mapping[tuple[Any, Any], _Thread]) -> dict[int, Place]:
    """Who allocates, of every row; forward operators first, whose sequence numbers tell others'."""
    found: dict[int, Place] = {}
    forward: dict[int, Place] = {}
    unknown: list[tuple[int, int]] = []
    for thread in threads.values():
        for row, place, sequence in _swept(thread, forward):
            found[row] = place
            if place.phase == BACKWARD and sequence >= 0:
                unknown.append((row, sequence))
    for row, sequence in unknown:
        said = forward.get(sequence)
        if said is not None:
            own = found[row]
            found[row] = replace(own, module=said.module, line=own.line or said.line)
    return found


def _swept(thread: _Thread, forward: dict[int, Place]) -> Iterator[tuple[int, Place, int]]:
    """Yield each row with its place, and the sequence number around it."""
    spans = sorted(thread.spans, key=lambda s: (s[0], -s[1]))
    marks = [(start, 0, k) for k, (start, *_) in enumerate(spans)]
    marks += [(at, 1, row) for at, row in thread.rows]
    open_spans: list[tuple[float, float, str, int]] = []
    for at, kind, k in sorted(marks):
        while open_spans and open_spans[-1][1] < at:
            open_spans.pop()
        if kind == 0:
            open_spans.append(spans[k])
            if spans[k][3] >= 0 and spans[k][3] not in forward:
                place = _place(open_spans)
                if place.phase == FORWARD:
                    forward[spans[k][3]] = place
            continue
        sequence = next((s[3] for s in reversed(open_spans) if s[3] >= 0), -1)
        yield k, _place(open_spans), sequence


def _place(open_spans: Sequence[tuple[float, float, str, int]]) -> Place:
    """The operator, module and line of what is open, outermost first."""
    operator = module = line = ""
    phase = FORWARD
    for _, _, name, _ in open_spans:
        if name.startswith("<"):
            line = name[1:]
        elif name.startswith(MODULE):
            module = module_path(module, name.removeprefix(MODULE))
        elif name.startswith(_STEP):
            phase, operator = OPTIMIZER, name.partition("#")[2]
        elif name.startswith(_AUTOGRAD):
            phase, operator = BACKWARD, name.rpartition(": ")[2]
        elif "::" in name and not _ALLOCATORS.fullmatch(name):
            operator = name
    return Place(line, module, operator, phase)


def _snapshots(
    events: Sequence[Mapping[str, Any]], places: Mapping[int, Place]
) -> tuple[Snapshot, ...]:
    rows: dict[tuple[int, int], list[int]] = {}
    for row, event in enumerate(events):
        rows.setdefault((int(event["Device Type"]), int(event["Device Id"])), []).append(row)
    gpus = [key for key in rows if key[0] > 0]
    found = []
    for key in sorted(gpus or rows):
        mine = sorted(rows[key], key=lambda row: events[row]["ts"])
        found.append(_snapshot(key[1] if key[0] > 0 else CPU, mine, events, places))
    return tuple(found)


def _snapshot(
    device: int, rows: Sequence[int], events: Sequence[Mapping[str, Any]],
    places: Mapping[int, Place],
) -> Snapshot:  # fmt: skip
    found = []
    for row in rows:
        size, place = int(events[row]["Bytes"]), places[row]
        if size < 0:
            place = Place("", "", "", place.phase)
        found.append(
            Event(place.line, place.module, place.operator, place.phase,
                  int(events[row]["Addr"]), size, int(events[row]["ts"]))
        )  # fmt: skip
    first = events[rows[0]]
    in_use = [int(first.get("Total Allocated", 0)) - int(first["Bytes"])]
    in_use += [int(events[row].get("Total Allocated", 0)) for row in rows]
    reserved = [int(first.get("Total Reserved", 0))]
    reserved += [int(events[row].get("Total Reserved", 0)) for row in rows]
    return Snapshot(
        device, tuple(found), np.array(in_use, np.int64), np.array(reserved, np.int64), {}
    )
