"""Reads the stacks of a report: frames of Python, and call chains that Nsight Systems recorded.

Four sources, of which a report rarely has more than one:

- functions of Python with their times, and stacks of operators (torch.profiler's ``with_stack``),
  which the reader of its traces puts into `FUNCTIONS` and `FUNCTION_NAMES`;
- stacks of Python that Nsight Systems sampled or took at calls of CUDA (``--python-sampling=true``,
  ``--python-backtrace=cuda``): NVTX marks of a domain of their own, with a binary payload. Exports
  hold it with ``--include-blobs true``;
- call chains of calls of CUDA (``--cudabacktrace``): `CUDA_CALLCHAINS`;
- call chains of sampled threads (``--sample``): `SAMPLING_CALLCHAINS` of `COMPOSITE_EVENTS`.

Without any, NVTX ranges of PyTorch's modules are the frames.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import unescape
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.frames import (
    FRAMEWORK,
    LIBRARY,
    MODULE,
    frame_text,
    module_path,
    native_frame,
    owner_of,
    python_frame,
)
from perfmodel.readers.pages import as_text
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NO_STACKS, NULL, Ranges, Stacks

FUNCTIONS: Final = "PYTHON_FUNCTIONS"
FUNCTION_NAMES: Final = "PYTHON_FUNCTION_NAMES"
FUNCTION_COLUMNS: Final = ("start", "end", "globalTid", "nameId", "isStack")
"""Columns of `FUNCTIONS`; `isStack` is 1 where the name is a whole stack, its innermost frame
first, and 0 of one function, which is called from the one around it."""

PYTHON_DOMAIN: Final = "Python Backtrace"
"""The NVTX domain of Python's stacks in reports of Nsight Systems."""

_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_CALL_CHAINS: Final = "CUDA_CALLCHAINS"
_SAMPLES: Final = "COMPOSITE_EVENTS"
_SAMPLE_CHAINS: Final = "SAMPLING_CALLCHAINS"
_STACK_HEAD: Final = struct.Struct("<8xI4x")
_STACK_FRAME: Final = struct.Struct("<QQI4x")
"""A stack of Python as Nsight Systems 2024.2 and later write it: the number of frames, then of each
the ids of its function's and its file's names, and its line; the rest is padding."""
_PAYLOAD: Final = struct.Struct("<QQQ")
"""Schema, size and place of a payload in a blob, behind their number (`NVTX_EVENTS.binaryData`)."""
_MOST_FRAMES: Final = 1 << 12
_UNTIL_NEXT: Final = int(np.iinfo(np.int64).max) - 1
_Row = tuple[int, int, int, int]
"""Thread id, start, end and node."""


class _Tree:
    """Distinct stacks, so far."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._owner: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._chains: dict[tuple[tuple[str, int], ...], int] = {}

    def code(self, frame: tuple[str, int]) -> int:
        """Return the number of a frame, given its text and whose code it is."""
        code = self._codes.setdefault(frame[0], len(self._codes))
        if code == len(self._owner):
            self._owner.append(frame[1])
        return code

    def node(self, parent: int, code: int) -> int:
        """Return the stack of a frame that is called from another stack."""
        return self._nodes.setdefault((parent, code), len(self._nodes))

    def chain(self, frames: Sequence[tuple[str, int]]) -> int:
        """Return the stack of some frames, the innermost first; -1 if there is none.

        The framework's are left out, but for the innermost one where there are no others.
        """
        kept = tuple(f for f in frames if f[1] < FRAMEWORK) or tuple(frames[:1])
        found = self._chains.get(kept)
        if found is None:
            found = -1
            for frame in reversed(kept):
                found = self.node(found, self.code(frame))
            self._chains[kept] = found
        return found

    def stacks(self, start: Int64, thread: Int32, node: Int32) -> Stacks:
        """Return the table of some rows."""
        frames = tuple(self._codes)
        modules: dict[str, int] = {}
        paths: list[str] = []
        line: list[int] = []
        module: list[int] = []
        for up, code in self._nodes:
            mine, inside = (line[up], module[up]) if up >= 0 else (-1, -1)
            if frames[code].startswith(MODULE):
                around = paths[inside] if inside >= 0 else ""
                path = module_path(around, frames[code].removeprefix(MODULE))
                inside = modules.setdefault(path, len(modules))
                if inside == len(paths):
                    paths.append(path)
            elif self._owner[code] < FRAMEWORK and (
                mine < 0 or self._owner[code] <= self._owner[mine]
            ):
                mine = code
            line.append(mine)
            module.append(inside)
        parent, code_of = (list(column) for column in zip(*self._nodes, strict=True))
        columns = [np.array(column, np.int32) for column in (code_of, parent, line, module)]
        return Stacks(
            start, thread, node, columns[0], columns[1], columns[2], columns[3], frames,
            tuple(paths),
        )  # fmt: skip


def read_stacks(
    db: Database,
    threads: Callable[[Int64], Int32],
    ranges: Ranges,
    labels: Sequence[str],
    *,
    python_marks: bool,
) -> Stacks:
    """Read the stacks of the threads that other events are of.

    Parameters
    ----------
    db : Database
    threads : callable
        Returns the numbers of threads, given their serialized ids; -1 for another thread.
    ranges : Ranges
        Of NVTX, with numbers of threads.
    labels : sequence of str
        What their names stand for.
    python_marks : bool
        Whether there is a domain `PYTHON_DOMAIN`.

    Raises
    ------
    ReportError, SchemaError
        As `Database.read` does.
    """
    marked = python_marks and "binaryData" in db.columns("NVTX_EVENTS")
    for there, read in (
        (FUNCTIONS in db.tables, _functions),
        (marked, _python_marks),
        (_CALL_CHAINS in db.tables, _call_chains),
        (_SAMPLE_CHAINS in db.tables, _samples),
    ):
        tree, flat = _Tree(), array("q")
        for row in read(db, tree) if there else ():
            flat.extend(row)
        ids, start, end, node = np.frombuffer(flat, np.int64).reshape(-1, 4).T
        thread = threads(ids)
        if (node[thread >= 0] >= 0).any():
            return tree.stacks(*_changes(thread, start, end, node))
    return _of_modules(ranges, labels)


def _of_modules(ranges: Ranges, labels: Sequence[str]) -> Stacks:
    """Return the modules that threads were in, by the ranges around their calls."""
    codes = [i for i, label in enumerate(labels) if label.startswith(MODULE)]
    at = np.flatnonzero(np.isin(ranges.name, codes) & (ranges.end_ns != NULL)) if codes else ()
    if len(at) == 0:
        return NO_STACKS
    tree, flat = _Tree(), array("q")
    code = {i: tree.code((labels[i], LIBRARY)) for i in codes}
    columns = ranges.thread[at], ranges.start_ns[at], ranges.end_ns[at], ranges.name[at]
    for row in _nested(columns, lambda around, name: tree.node(around, code[name])):
        flat.extend(row)
    thread, start, end, node = np.frombuffer(flat, np.int64).reshape(-1, 4).T
    return tree.stacks(*_changes(thread.astype(np.int32), start, end, node))


def _changes(thread: Int32, start: Int64, end: Int64, node: Int64) -> tuple[Int64, Int32, Int32]:
    """Return when, and on which threads, which stack begins, given when each one holds.

    Where several hold at once, the one that began last does.
    """
    order = np.lexsort((start, thread))
    order = order[thread[order] >= 0]
    thread, (start, end, node) = thread[order], (column[order] for column in (start, end, node))
    follows = np.append(thread[1:] == thread[:-1], False)
    until = np.where(follows, np.append(start[1:], 0), np.iinfo(np.int64).max)
    gap = np.flatnonzero(end < until)
    at = np.concatenate([start, end[gap]])
    whose = np.concatenate([thread, thread[gap]])
    which = np.concatenate([node, np.full(len(gap), -1)]).astype(np.int32)
    order = np.lexsort((at, whose))  # stable: an end comes behind a start at its time
    at, whose, which = at[order], whose[order], which[order]
    new = np.ones(len(at), np.bool_)
    new[1:] = (which[1:] != which[:-1]) | (whose[1:] != whose[:-1])
    return at[new], whose[new], which[new]


def _functions(db: Database, tree: _Tree) -> Iterator[_Row]:
    """Yield the stacks of functions of Python, which are called from those around them."""
    texts = {int(i): str(text) for i, text in db.rows(FUNCTION_NAMES, ["id", "value"])}
    codes: dict[int, int] = {}
    chains: dict[int, int] = {}

    def node(around: int, name: int) -> int:
        text = texts[name >> 1]
        if name & 1:
            if name not in chains:
                chains[name] = tree.chain([python_frame(frame) for frame in text.split(";")])
            return chains[name]
        if name not in codes:
            codes[name] = tree.code(python_frame(text))
        return tree.node(around, codes[name])

    found = db.read_events(FUNCTIONS, FUNCTION_COLUMNS[2:], open_ends=False)
    name = found["nameId"] * 2 + found["isStack"]
    yield from _nested((found["globalTid"], found["start"], found["end"], name), node)


def _nested(
    columns: tuple[Any, Int64, Int64, Any], node: Callable[[int, int], int]
) -> Iterator[_Row]:
    """Yield the stacks of intervals that nest, from thread, start, end and name of each.

    `node` returns the stack of a name that is called from another stack.
    """
    thread, start, end, _ = columns
    order = np.lexsort((-end, start, thread))
    opened: list[tuple[int, int]] = []
    last = -1
    for whose, begin, until, name in zip(*(c[order].tolist() for c in columns), strict=True):
        yield from _closing(last, opened, begin if whose == last else None)
        last = whose
        opened.append((until, node(opened[-1][1] if opened else -1, name)))
        yield whose, begin, *opened[-1]
    yield from _closing(last, opened, None)


def _closing(thread: int, opened: list[tuple[int, int]], at_ns: int | None) -> Iterator[_Row]:
    """Close what ends until a moment, or all; yield what the thread is back in."""
    while opened and (at_ns is None or opened[-1][0] <= at_ns):
        end, _ = opened.pop()
        if opened and end < opened[-1][0]:
            yield thread, end, *opened[-1]


def _strings(db: Database) -> Mapping[int, str]:
    """Return the report's strings by their ids."""
    found = db.rows("StringIds", ["id", "value"], where="value")
    return {i: unescape(str(as_text(text))) for i, text in found if type(i) is int}


def _python_marks(db: Database, tree: _Tree) -> Iterator[_Row]:
    """Yield the stacks of Python that Nsight Systems took, each until the next of its thread."""
    strings = _strings(db)
    nodes: dict[bytes, int] = {}
    columns = ["start", "globalTid", "binaryData"]
    for start, tid, blob in db.rows("NVTX_EVENTS", columns, where="binaryData"):
        if type(start) is not int or type(tid) is not int or not isinstance(blob, bytes):
            continue
        if blob not in nodes:
            nodes[blob] = tree.chain([*_python_stack(blob, strings)])
        if nodes[blob] >= 0:
            yield tid, start, _UNTIL_NEXT, nodes[blob]


def _python_stack(blob: bytes, strings: Mapping[int, str]) -> Iterator[tuple[str, int]]:
    """Yield the frames of a payload, the innermost first; none where it is another one."""
    if len(blob) < 8 + _PAYLOAD.size or int.from_bytes(blob[:8], "little") != 1:
        return
    _, size, place = _PAYLOAD.unpack_from(blob, 8)
    data = blob[place : place + size] if place < 1 << 20 else b""
    if len(data) < _STACK_HEAD.size:
        return
    (count,) = _STACK_HEAD.unpack_from(data)
    if count > _MOST_FRAMES or len(data) != _STACK_HEAD.size + count * _STACK_FRAME.size:
        return
    for function, file, line in _STACK_FRAME.iter_unpack(data[_STACK_HEAD.size :]):
        if function not in strings or file not in strings:
            return
        name, path = strings[function], strings[file]
        yield frame_text(path, line, name), owner_of(path, name)


def _call_chains(db: Database, tree: _Tree) -> Iterator[_Row]:
    """Yield the chains of calls of CUDA."""
    chains = _chains(db, _CALL_CHAINS, tree)
    found = db.read_events(_CALLS, ["globalTid", "callchainId"], open_ends=False)
    columns = (found[name].tolist() for name in ("globalTid", "start", "end", "callchainId"))
    for tid, start, end, chain in zip(*columns, strict=True):
        if chain in chains:
            yield tid, start, end, chains[chain]


def _samples(db: Database, tree: _Tree) -> Iterator[_Row]:
    """Yield the call chains of sampled threads, each until the next of its thread.

    A sample without a frame of the user has the stack -1.
    """
    chains = _chains(db, _SAMPLE_CHAINS, tree)
    for sample, start, tid in db.rows(_SAMPLES, ["id", "start", "globalTid"]):
        if type(start) is int and type(tid) is int:
            yield tid, start, _UNTIL_NEXT, chains.get(sample, -1)


def _chains(db: Database, table: str, tree: _Tree) -> Mapping[int, int]:
    """Return the stack of every call chain that has a frame of the user, by its id."""
    strings = _strings(db)
    found = db.read(table, ["id", "symbol", "module", "stackDepth"])
    order = np.lexsort((found["stackDepth"], found["id"]))
    columns = [found[name][order].tolist() for name in ("id", "symbol", "module")]
    frames: dict[tuple[int, int], tuple[str, int]] = {}
    nodes: dict[int, int] = {}
    chain: list[tuple[str, int]] = []
    last = NULL
    for number, symbol, module in _with_end(zip(*columns, strict=True)):
        if number != last:
            if any(owner < FRAMEWORK for _, owner in chain):
                nodes[last] = tree.chain(chain)
            chain = []
        last = number
        key = symbol, module
        if key not in frames:
            frames[key] = native_frame(strings.get(symbol, ""), strings.get(module, ""))
        chain.append(frames[key])
    return nodes


def _with_end(rows: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    yield from rows
    yield NULL, NULL, NULL
