"""Pairs the GPU operations of two recordings by operator and place, whatever kernels are called.

A step is a tree: its calls of operators and modules by host time, and below each those that it
makes. Two trees are compared from the root. The calls of two equal calls are aligned by name, as
lines of two texts (the longest runs in common first), and so on below. What two aligned calls
launched themselves is a pair. Calls that are aligned with none are paired with the calls between
the same neighbours on the other side, as where one attention calls another function for its
kernels. What then has nothing beside it is left to the call around it, if that is no whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Final, Literal

import numpy as np

from perfmodel.models.launches import BeforeAfter
from perfmodel.programs import program_of
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.names import parse
from perfmodel.readers.trace import COPY_KINDS, KERNEL, MEMCPY, Trace
from perfmodel.timing.launched import launched

By = Literal["operator", "place"]
SETS: Final = "memory sets"


@dataclass(slots=True)
class _Call:
    """One call of an operator or module, and what it launched itself."""

    name: str
    end_ns: int
    calls: list[_Call] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)

    def all_ops(self) -> Iterator[int]:
        """Yield what it and the calls below it launched."""
        yield from self.ops
        for call in self.calls:
            yield from call.all_ops()


@dataclass(frozen=True, slots=True)
class KernelPair(BeforeAfter):
    """Work of one operator on both sides, all calls of a step with the same kernels together.

    Attributes
    ----------
    operator : str
        The innermost call that both sides have.
    by : 'operator' or 'place'
        'place' where the kernels are of different calls inside of it.
    before, after : tuple of str
        Names of the kernels and copies, by time.
    calls : int
        Per step.
    before_s, after_s : float
        GPU time.
    """

    operator: str
    by: By
    before: tuple[str, ...]
    after: tuple[str, ...]
    calls: int


@dataclass(frozen=True, slots=True)
class Pairs(BeforeAfter):
    """All pairs of a step, the longest first, and the GPU time that has no partner.

    Attributes
    ----------
    rows : tuple of KernelPair
    before_s, after_s : float
        GPU time of a step: of all its operations, added up.
    alone_before_s, alone_after_s : float
        Of those without a partner.
    """

    rows: tuple[KernelPair, ...]
    alone_before_s: float
    alone_after_s: float

    @property
    def shares(self) -> tuple[float, float]:
        """Share of the GPU's time before and after that is paired."""
        return (
            1 - self.alone_before_s / self.before_s if self.before_s else 0.0,
            1 - self.alone_after_s / self.after_s if self.after_s else 0.0,
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """The calls of one step, and what its operations are called and take."""

    root: _Call
    names: dict[int, str]
    seconds: dict[int, float]

    def text(self, ops: Sequence[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.names[op] for op in ops))

    def sum(self, ops: Sequence[int]) -> float:
        return sum(self.seconds[op] for op in ops)


def pairs_of(before: Trace, after: Trace, options: Options | None = None) -> Pairs | None:
    """Pair the operations of the middle step of two whole recordings.

    Returns
    -------
    Pairs or None
        None where one of them has no step, no launches, or no ranges inside its steps.
    """
    old, new = (_side(trace, options or Options()) for trace in (before, after))
    if old is None or new is None:
        return None
    found: list[tuple[str, By, list[int], list[int]]] = []
    alone = _align(old.root, new.root, found.append)
    rows: dict[tuple[str, By, tuple[str, ...], tuple[str, ...]], list[tuple[float, float]]] = {}
    for operator, by, first, second in found:
        key = operator, by, old.text(first), new.text(second)
        rows.setdefault(key, []).append((old.sum(first), new.sum(second)))
    made = [
        KernelPair(
            *key, len(times), before_s=sum(t[0] for t in times), after_s=sum(t[1] for t in times)
        )
        for key, times in rows.items()
    ]
    made.sort(key=lambda row: -max(row.before_s, row.after_s))
    return Pairs(
        tuple(made), old.sum(alone[0]), new.sum(alone[1]),
        before_s=sum(old.seconds.values()), after_s=sum(new.seconds.values()),
    )  # fmt: skip


def _align(
    old: _Call, new: _Call, pair: Callable[[tuple[str, By, list[int], list[int]]], object],
    root: bool = True,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Pair what two calls launched; return what is left of both."""
    left: tuple[list[int], list[int]] = ([], [])
    if old.ops and new.ops and not root:
        pair((old.name, "operator", old.ops, new.ops))
    else:
        left[0].extend(old.ops)
        left[1].extend(new.ops)
    names = [[call.name for call in side.calls] for side in (old, new)]
    matcher = SequenceMatcher(None, names[0], names[1], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for first, second in zip(old.calls[a:b], new.calls[c:d], strict=True):
                rest = _align(first, second, pair, root=False)
                _place(first.name, rest, left, pair)
        else:
            rest = (
                [op for call in old.calls[a:b] for op in call.all_ops()],
                [op for call in new.calls[c:d] for op in call.all_ops()],
            )
            _place("" if root else old.name, rest, left, pair)
    return left


def _place(
    name: str, rest: tuple[list[int], list[int]], left: tuple[list[int], list[int]],
    pair: Callable[[tuple[str, By, list[int], list[int]]], object],
) -> None:  # fmt: skip
    """Pair what both sides have at one place inside a call; leave the rest to the call around."""
    if all(rest) and name:
        pair((name, "place", *rest))
    else:
        left[0].extend(rest[0])
        left[1].extend(rest[1])


def _side(trace: Trace, options: Options) -> _Side | None:
    """Build the tree of the middle step."""
    _, steps = program_of([trace], options).steps(trace, options)
    if len(steps.start_ns) == 0 or len(trace.ops) == 0:
        return None
    of_one = np.flatnonzero(steps.process == steps.process[0])
    step = int(of_one[len(of_one) // 2])
    process, start = int(steps.process[step]), int(steps.start_ns[step])
    end = int(steps.end_ns[step])
    done = launched(trace)
    inside = (done.process == process) & (done.at_ns >= start) & (done.at_ns < end)
    rows, threads, at = done.op[inside], done.thread[inside], done.at_ns[inside]
    if len(rows) == 0:
        return None
    ranges = trace.ranges
    within = (
        (trace.thread_process[ranges.thread] == process)
        & (ranges.start_ns >= start) & (ranges.end_ns <= end) & (ranges.end_ns > ranges.start_ns)
        & ((ranges.start_ns > start) | (ranges.end_ns < end))
    )  # fmt: skip
    chosen = np.flatnonzero(within)
    labels = [trace.range_labels[i] for i in ranges.name[chosen].tolist()]
    called = parse(labels).name
    events = [
        (int(ranges.start_ns[row]), -int(ranges.end_ns[row]), int(ranges.thread[row]), name, -1)
        for row, name in zip(chosen.tolist(), called, strict=True)
    ]
    events += [
        (ns, 0, thread, "", row)
        for ns, thread, row in zip(at.tolist(), threads.tolist(), rows.tolist(), strict=True)
    ]
    root = _tree(sorted(events), end)
    if not root.calls:
        return None
    ops = trace.ops
    seconds = ((ops.end_ns[rows] - ops.start_ns[rows]) * 1e-9).tolist()
    names = [_name(trace, row) for row in rows.tolist()]
    keys = rows.tolist()
    return _Side(root, dict(zip(keys, names, strict=True)), dict(zip(keys, seconds, strict=True)))


def _tree(events: Sequence[tuple[int, int, int, str, int]], end_ns: int) -> _Call:
    """Nest calls by time, thread by thread, and keep those that launch anything."""
    root = _Call("", end_ns)
    open_: dict[int, list[_Call]] = {}
    for start, minus_end, thread, name, op in events:
        stack = open_.setdefault(thread, [root])
        while len(stack) > 1 and stack[-1].end_ns <= start:
            stack.pop()
        if op >= 0:
            stack[-1].ops.append(op)
        else:
            call = _Call(name, -minus_end)
            stack[-1].calls.append(call)
            stack.append(call)
    _prune(root)
    return root


def _prune(call: _Call) -> bool:
    """Leave out calls that launch nothing; return whether anything is left."""
    call.calls = [one for one in call.calls if _prune(one)]
    return bool(call.calls or call.ops)


def _name(trace: Trace, op: int) -> str:
    """Return the name of an operation: its kernel, or the direction of a copy."""
    kind, name = int(trace.ops.kind[op]), int(trace.ops.name[op])
    if kind == MEMCPY:
        return f"{COPY_KINDS.get(int(trace.ops.copy_kind[op]), 'Unknown')} copies"
    if kind == KERNEL and name >= 0:
        return trace.strings[name]
    return SETS
