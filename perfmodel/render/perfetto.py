"""Chrome's trace-event JSON, which Perfetto and chrome://tracing open, of lanes of bars."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from perfmodel.base.escape import escape_json, printable
from perfmodel.timing.timeline import COPIES, GPU, NAMES, Bar, Lane

_NO_RANK: Final = 2**31 - 1
_Row = tuple[int, int]


def to_json(lanes: Sequence[Lane], title: str) -> str:
    """Return the JSON document: one event on a line.

    Format: "Trace Event Format" (Google, 2016): complete events (X) with times in µs, metadata
    events (M) that name rows, flow events (s, t, f) from a CUDA call to what it launched, and from
    rank to rank of a collective.
    """
    events = ",\n".join(
        escape_json(json.dumps(event, allow_nan=False, separators=(",", ":")))
        for event in events_of(lanes)
    )
    about = escape_json(json.dumps({"title": title}))
    return f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[\n{events}\n]}}\n'


def events_of(lanes: Sequence[Lane]) -> Iterator[dict[str, Any]]:
    """Yield names of rows, then bars, then flows.

    Time is in µs from the first bar's start, to the nanosecond. A rank is a process, a lane a
    thread; ranges that nest are one thread, on which Perfetto stacks them.
    """
    rows = _rows(lanes)
    zero = min((bar.start_ns for lane in lanes for bar in lane.bars), default=0)
    yield from _names(lanes, rows)
    for lane, row in zip(lanes, rows, strict=True):
        for bar in lane.bars:
            yield _complete(bar, row, zero)
    yield from _flows(lanes, rows, zero)


def _rows(lanes: Sequence[Lane]) -> list[_Row]:
    """Process and thread id of every lane; levels of nested ranges share theirs."""
    found: list[_Row] = []
    known: dict[tuple[object, ...], int] = {}
    for lane in lanes:
        key: tuple[object, ...] = (lane.rank, lane.kind, lane.unit)
        if lane.kind != "range" or not lane.nested:
            key = (*key, lane.level, lane.part)
        pid = _NO_RANK if lane.rank is None else lane.rank
        found.append((pid, known.setdefault(key, len(known) + 1)))
    return found


def _names(lanes: Sequence[Lane], rows: Sequence[_Row]) -> Iterator[dict[str, Any]]:
    named: set[object] = set()
    for lane, (pid, tid) in zip(lanes, rows, strict=True):
        if pid not in named:
            named.add(pid)
            said = "no rank" if lane.rank is None else f"rank {lane.rank}"
            yield _metadata("process_name", pid, 0, {"name": said})
            yield _metadata("process_sort_index", pid, 0, {"sort_index": len(named)})
        if (pid, tid) not in named:
            named.add((pid, tid))
            name = lane.name
            if lane.kind == "range" and lane.nested:
                name = NAMES["range"] + (f", thread {lane.unit + 1}" if lane.unit else "")
            yield _metadata("thread_name", pid, tid, {"name": name})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(what: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _complete(bar: Bar, row: _Row, zero: int) -> dict[str, Any]:
    args = {
        "correlation": bar.correlation, "bytes": bar.size_bytes, "stream": bar.stream,
        "device": bar.device,
    }  # fmt: skip
    return {
        "ph": "X", "cat": bar.kind,
        "name": printable(bar.name if bar.kind in COPIES else bar.label),
        "pid": row[0], "tid": row[1], "ts": (bar.start_ns - zero) / 1000,
        "dur": (bar.end_ns - bar.start_ns) / 1000,
        "args": {k: v for k, v in args.items() if v is not None}
        | {k: printable(v) if isinstance(v, str) else v for k, v in bar.details}
        | ({"name": printable(bar.name)} if bar.kind in GPU else {}),
    }  # fmt: skip


def _flows(lanes: Sequence[Lane], rows: Sequence[_Row], zero: int) -> Iterator[dict[str, Any]]:
    """Join every CUDA call to what it launched, and the ranks of every collective."""
    calls: dict[tuple[int, int], list[tuple[Bar, _Row]]] = defaultdict(list)
    for lane, row in zip(lanes, rows, strict=True):
        for bar in lane.bars if lane.kind == "api" else ():
            if bar.correlation is not None:
                calls[bar.process, bar.correlation].append((bar, row))
    count = 0
    for lane, row in zip(lanes, rows, strict=True):
        for bar in lane.bars if lane.kind in GPU else ():
            if bar.correlation is None or bar.process < 0:
                continue
            for call, its_row in calls.get((bar.process, bar.correlation), ()):
                count += 1
                yield from _flow("launch", count, [(call, its_row), (bar, row)], zero)
    for found in _collectives(lanes, rows):
        count += 1
        yield from _flow("collective", count, found, zero)


def _collectives(lanes: Sequence[Lane], rows: Sequence[_Row]) -> Iterator[list[tuple[Bar, _Row]]]:
    """Yield the bars of every collective of several ranks, in the order in which they begin."""
    found: dict[tuple[str, int], list[tuple[Bar, _Row]]] = defaultdict(list)
    for lane, row in zip(lanes, rows, strict=True):
        for bar in lane.bars:
            if bar.collective is not None:
                found[bar.kind, bar.collective].append((bar, row))
    for bars in found.values():
        if len(bars) > 1:
            yield sorted(bars, key=lambda pair: pair[0].start_ns)


def _flow(
    what: str, number: int, bars: Sequence[tuple[Bar, _Row]], zero: int
) -> Iterator[dict[str, Any]]:
    """Yield one flow event for each of the bars that are joined, which lies at its start."""
    for i, (bar, row) in enumerate(bars):
        phase = "s" if i == 0 else "f" if i == len(bars) - 1 else "t"
        yield {
            "ph": phase, "cat": what, "name": what, "id": number, "pid": row[0], "tid": row[1],
            "ts": (bar.start_ns - zero) / 1000, **({} if phase == "s" else {"bp": "e"}),
        }  # fmt: skip
