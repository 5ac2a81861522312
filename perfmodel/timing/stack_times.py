"""GPU time by the stack that launched it: lines of code and modules of kernels and copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64, distinct_rows
from perfmodel.readers.codes import sums
from perfmodel.readers.trace import (
    COPY_KINDS,
    KERNEL,
    MEMCPY,
    NO_NAME,
    NO_STACKS,
    OP_KINDS,
    Stacks,
    Trace,
)
from perfmodel.timing.launched import Launched
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class StackTimes:
    """Operations inside steps by the stack that launched them, and by what they are.

    Attributes
    ----------
    stacks : Stacks
        What `node` indexes; without its rows.
    names : tuple of str
        Kernels by their names, other operations by what they do.
    node, name, step : int32, shape (n,)
        A node, or -1 where no stack is known; an index into `names`; a step's number.
    ns : int64, shape (n,)
    """

    stacks: Stacks
    names: tuple[str, ...]
    node: Int32
    name: Int32
    step: Int32
    ns: Int64

    def __len__(self) -> int:
        return len(self.ns)

    def line(self, node: int) -> str | None:
        """Return the line of code of a node."""
        code = int(self.stacks.line[node]) if node >= 0 else -1
        return self.stacks.frames[code] if code >= 0 else None

    def module(self, node: int) -> str | None:
        """Return the module of a node."""
        code = int(self.stacks.module[node]) if node >= 0 else -1
        return self.stacks.modules[code] if code >= 0 else None

    def inside(self, window: slice) -> Iterator[tuple[int, str, int]]:
        """Yield the node, the name and the ns of every row in some steps."""
        mine = np.flatnonzero((self.step >= window.start) & (self.step < window.stop))
        columns = (self.node[mine].tolist(), self.name[mine].tolist(), self.ns[mine].tolist())
        for node, name, ns in zip(*columns, strict=True):
            yield node, self.names[name], ns


_ON_HOST: Final = "host"
_CODE_BITS: Final = 32
_NONE: Final = np.empty(0, np.int32)
NO_TIMES: Final = StackTimes(NO_STACKS, (), _NONE, _NONE, _NONE, np.empty(0, np.int64))
"""Of reports without stacks."""


def nodes_at(trace: Trace, thread: Int32, at_ns: Int64) -> Int32:
    """Return the stack of each thread at a moment, -1 where none is known.

    A thread without stacks, such as autograd's, has that of the thread of its process that has
    most: it waits for what that one called.
    """
    stacks = trace.stacks
    if len(stacks) == 0:
        return np.full(len(at_ns), -1, np.int32)
    count = np.bincount(stacks.thread, minlength=len(trace.threads))
    order = np.argsort(count, kind="stable")
    main = np.full(len(trace.processes), -1, np.int32)
    main[trace.thread_process[order]] = order  # of a process the last assignment stays
    main = np.where((main >= 0) & (count[main] > 0), main, -1).astype(np.int32)
    found = stacks.at(thread, at_ns)
    left = np.flatnonzero((found < 0) & (thread >= 0))
    found[left] = stacks.at(main[trace.thread_process[thread[left]]], at_ns[left])
    return found


def stack_times(trace: Trace, steps: Steps, found: Launched, times: StepTimes) -> StackTimes:
    """Sum GPU time inside steps up by the stack at its launch; without a GPU, the host's time.

    Of a kernel that a graph replays it is the stack at its capture, where the report names it.
    """
    if len(trace.stacks) == 0:
        return NO_TIMES
    op = times.ops.op
    if len(op) == 0:
        return _host_times(trace, steps)
    step = steps.number[times.ops.step]
    row = found.row_of(op)
    node = np.full(len(op), -1, np.int32)
    known = row >= 0
    launch = row[known]
    thread, at_ns = found.thread[launch], found.at_ns[launch]
    replayed = trace.ops.node[op[known]]  # what a graph replays was called where it was captured
    captured = np.flatnonzero(replayed >= 0)
    thread[captured] = trace.graph_nodes.thread[replayed[captured]]
    at_ns[captured] = trace.graph_nodes.start_ns[replayed[captured]]
    node[known] = nodes_at(trace, thread, at_ns)
    names: dict[str, int] = {}
    kind, copy = trace.ops.kind[op].astype(np.int64), trace.ops.copy_kind[op]
    what = (kind << _CODE_BITS) + np.where(kind == KERNEL, trace.ops.name[op], copy) + 1
    distinct, place = np.unique(what, return_inverse=True)
    code = [names.setdefault(_name(trace, w), len(names)) for w in distinct.tolist()]
    keys, group = distinct_rows(node + 1, np.array(code, np.int32)[place], step)
    ns = sums(group, (trace.ops.end_ns - trace.ops.start_ns)[op], len(keys))
    held, name, number = keys.astype(np.int32).T
    return StackTimes(_bare(trace.stacks), tuple(names), held - 1, name, number, ns)


def _bare(stacks: Stacks) -> Stacks:
    """Return the nodes without the rows."""
    none = NO_STACKS
    return replace(stacks, start_ns=none.start_ns, thread=none.thread, node=none.node)


def _host_times(trace: Trace, steps: Steps) -> StackTimes:
    """Sum the time up that the threads of steps are in each stack, inside steps."""
    stacks = trace.stacks
    mine = np.flatnonzero(np.isin(stacks.thread, steps.thread) & (stacks.node >= 0))
    mine = mine[mine < len(stacks) - 1]
    mine = mine[stacks.thread[mine] == stacks.thread[mine + 1]]
    start, end = stacks.start_ns[mine], stacks.start_ns[mine + 1]
    step = steps.holding(trace.thread_process[stacks.thread[mine]], start)
    mine, start, end, step = (column[step >= 0] for column in (mine, start, end, step))
    ns = np.minimum(end, steps.end_ns[step]) - start
    name = np.zeros(len(ns), np.int32)
    number = steps.number[step].astype(np.int32)
    return StackTimes(_bare(stacks), (_ON_HOST,), stacks.node[mine], name, number, ns)


def _name(trace: Trace, what: int) -> str:
    """Name an operation by its kind and its code."""
    kind, code = what >> _CODE_BITS, (what & ((1 << _CODE_BITS) - 1)) - 1
    if kind == KERNEL and code != NO_NAME:
        return trace.strings[code]
    if kind == MEMCPY:
        return f"{COPY_KINDS.get(code, COPY_KINDS[0])} copy"
    return OP_KINDS[kind]


def join_stack_times(parts: Sequence[StackTimes]) -> StackTimes:
    """Put the times of parts of one report together; their stacks are the same."""
    some = [part for part in parts if len(part)]
    if not some:
        return NO_TIMES
    names: dict[str, int] = {}
    recode = [np.array([names.setdefault(n, len(names)) for n in p.names], np.int32) for p in some]
    name = np.concatenate([r[p.name] for r, p in zip(recode, some, strict=True)])
    node, step, ns = (
        np.concatenate([getattr(p, column) for p in some]) for column in ("node", "step", "ns")
    )
    return StackTimes(some[0].stacks, tuple(names), node, name, step, ns)


def folded(reports: Iterable[tuple[StackTimes, slice]]) -> dict[str, float]:
    """Return stacks as flame graphs read them, with their GPU time in µs.

    Frames are joined by ``;``, the outermost first; the last is the kernel or the copy. See
    https://github.com/brendangregg/FlameGraph, stackcollapse.
    """
    found: dict[str, float] = {}
    for times, window in reports:
        paths: dict[int, str] = {}
        for node, name, ns in times.inside(window):
            if node not in paths:
                paths[node] = "".join(f"{_plain(f)};" for f in times.stacks.path(node))
            key = paths[node] + _plain(name)
            found[key] = found.get(key, 0.0) + ns * 1e-3
    return found


def _plain(frame: str) -> str:
    """Return a frame without what separates frames and lines."""
    return " ".join(frame.replace(";", ",").split())
