"""Sizes from one recording, times from another of the same program, matched kernel by kernel.

Recording sizes costs the host several µs an operator, so that a step which the host limits takes
longer. The same program recorded without sizes launches the same kernels in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import SchemaError
from perfmodel.programs.pytorch.calls import Calls
from perfmodel.programs.pytorch.operator_times import Placed, find, tabulate
from perfmodel.programs.pytorch.operators import Call
from perfmodel.readers.trace import KERNEL, OP_KINDS, Trace
from perfmodel.timing.kernels import communicating
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.step_report import StepReport

_MOST_DIFFERENT: Final = 0.01
"""Share of kernels that may differ between two recordings of one program."""
_MOST_EDITS: Final = 1000
"""Kernels that one of two steps lacks, of both together; time and memory grow with the square."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of one lane: its operations in the order of their launch, by position and name."""

    at: Int64
    names: tuple[str, ...]


def operator_times_from(
    trace: Trace,
    steps: StepReport,
    shapes: Trace,
    shape_steps: StepReport,
    dtype: str | None = None,
    *,
    causal: bool = False,
) -> OperatorTimes:
    """Time the operators of one recording by the sizes of another.

    Every step is matched with the shape recording's middle step of the same lane (of its first
    lane, if it has fewer). Communication is not matched: its launches are not in one order.

    Parameters
    ----------
    trace, steps : Trace, StepReport
        What is timed.
    shapes, shape_steps : Trace, StepReport
        What names sizes.
    dtype : str, optional
        Of tensors whose type nothing says.
    causal : bool
        Whether attention is counted as under a causal mask.

    Raises
    ------
    SchemaError
        If the other recording names no sizes, or more than 1 % of the kernels differ.
    """
    found = find(shapes, shape_steps, dtype, causal=causal)
    if found is None:
        raise SchemaError(
            f"{shapes.source.name}: expected ranges that name operators' sizes; got none; record "
            f"it with nsys profile --pytorch=autograd-shapes-nvtx"
        )
    references = _steps(shapes, shape_steps)
    if not references:
        raise SchemaError(
            f"{shapes.source.name}: expected GPU operations in its steps; got none; record it with "
            f"nsys profile --trace=cuda,nvtx --pytorch=autograd-shapes-nvtx"
        )
    calls: list[Call] = []
    mine = _steps(trace, steps)
    op = steps.times.ops.op
    owner = np.full(len(op), -1, np.int64)
    same = np.full(len(op), -1, np.int64)
    matched = total = 0
    known: dict[tuple[int, tuple[str, ...]], list[tuple[int, int]]] = {}
    for (lane, _), step in sorted(mine.items()):
        number, reference = _reference(references, lane)
        key = (number, step.names)
        if key not in known:
            known[key] = _pairs(reference.names, step.names)
        pairs = known[key]
        total += max(len(step.names), len(reference.names))
        matched += len(pairs)
        theirs = reference.at[[a for a, _ in pairs]] if pairs else np.empty(0, np.int64)
        ours = step.at[[b for _, b in pairs]] if pairs else np.empty(0, np.int64)
        owned = found.calls.owner[theirs]
        distinct, code = np.unique(owned[owned >= 0], return_inverse=True)
        owner[ours[owned >= 0]] = code + len(calls)
        calls.extend(found.calls.calls[i] for i in distinct.tolist())
        same[ours] = theirs
    if total == 0 or matched < (1 - _MOST_DIFFERENT) * total:
        share = 1 - matched / total if total else 1.0
        raise SchemaError(
            f"expected {shapes.source.name} and {trace.source.name} to be recordings of one "
            f"program; got steps of which {100 * share:.1f} % of the kernels differ (at most 1 % "
            f"may); record the same program and sizes twice, with and without shapes"
        )
    phase = tuple(found.calls.phase[i] if i >= 0 else "forward" for i in same.tolist())
    module = tuple(found.calls.module[i] if i >= 0 else "" for i in same.tolist())
    placed = Placed.of(steps, causal=causal, warnings=found.warnings)
    return tabulate(trace, Calls(tuple(calls), owner, phase, module), placed)


def _steps(trace: Trace, steps: StepReport) -> dict[tuple[int, int], _Step]:
    """Operations of every lane and step that do not communicate, in the order of their start."""
    placed = Placed.of(steps)
    quiet = np.flatnonzero(~communicating(trace)[placed.op])
    order = np.lexsort(
        (trace.ops.start_ns[placed.op[quiet]], placed.step[quiet], placed.lane[quiet])
    )
    at = quiet[order]
    lane, step = placed.lane[at], placed.step[at]
    new = np.flatnonzero(
        np.concatenate([[True], (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])])
    )
    if len(at) == 0:
        return {}
    names = _names(trace, placed.op[at])
    found = {}
    for lo, hi in zip(new.tolist(), [*new[1:].tolist(), len(at)], strict=True):
        found[int(lane[lo]), int(step[lo])] = _Step(at[lo:hi], tuple(names[lo:hi]))
    return found


def _names(trace: Trace, op: Int64) -> list[str]:
    """Names of kernels, kinds of other operations."""
    kinds = trace.ops.kind[op].tolist()
    codes = trace.ops.name[op].tolist()
    return [
        trace.strings[c] if k == KERNEL and c >= 0 else OP_KINDS[k]
        for k, c in zip(kinds, codes, strict=True)
    ]


def _reference(steps: dict[tuple[int, int], _Step], lane: int) -> tuple[int, _Step]:
    """The middle step of a lane, or of the first one; and its lane."""
    mine = sorted(key for key in steps if key[0] == lane) or sorted(
        key for key in steps if key[0] == min(steps)[0]
    )
    chosen = mine[len(mine) // 2]
    return chosen[0], steps[chosen]


def _pairs(theirs: Sequence[str], ours: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of equal names in two sequences, in order."""
    least = min(len(theirs), len(ours))
    head = next((i for i in range(least) if theirs[i] != ours[i]), least)
    left = least - head
    tail = next((i for i in range(left) if theirs[-1 - i] != ours[-1 - i]), left)
    ends = len(theirs) - tail, len(ours) - tail
    pairs = [(i, i) for i in range(head)]
    pairs += [
        (head + a, head + b) for a, b in _common(theirs[head : ends[0]], ours[head : ends[1]])
    ]
    return pairs + [(ends[0] + i, ends[1] + i) for i in range(tail)]


def _common(theirs: Sequence[str], ours: Sequence[str]) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence; none if sequences differ in too much.

    Myers, "An O(ND) Difference Algorithm and Its Variations" (Algorithmica 1, 1986), the greedy
    one: the furthest positions on every diagonal after each further difference.
    """
    furthest, seen = {1: 0}, []
    for differences in range(min(len(theirs) + len(ours), _MOST_EDITS) + 1):
        seen.append(dict(furthest))
        for diagonal in range(-differences, differences + 1, 2):
            a = _next(furthest, diagonal, differences)
            b = a - diagonal
            while a < len(theirs) and b < len(ours) and theirs[a] == ours[b]:
                a, b = a + 1, b + 1
            furthest[diagonal] = a
            if a >= len(theirs) and b >= len(ours):
                return _traced(seen, len(theirs), len(ours))
    return []


def _next(furthest: dict[int, int], diagonal: int, differences: int) -> int:
    """Return the begin of the next difference: one of ours left out, or one of theirs."""
    down = diagonal == -differences or (
        diagonal != differences and furthest[diagonal - 1] < furthest[diagonal + 1]
    )
    return furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1


def _traced(seen: list[dict[int, int]], a: int, b: int) -> list[tuple[int, int]]:
    """Go back through the differences, and collect what is equal between them."""
    pairs = []
    for differences in range(len(seen) - 1, -1, -1):
        begin = _next(seen[differences], a - b, differences)
        while a > begin:
            a, b = a - 1, b - 1
            pairs.append((a, b))
        if differences:
            down = begin == seen[differences].get(a - b + 1)
            a, b = (a, b - 1) if down else (a - 1, b)
    return pairs[::-1]
