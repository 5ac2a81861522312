"""GPU memory of a step: which tensors are alive when, from who wrote and who read each.

A tensor is allocated by the call that writes it, and freed after the last call that reads it: what
the backward pass reads was saved by the forward pass until then. Gradients of parameters stay
until the optimizer has read them; parameters and its states are always there. A step with more
layers has as many tensors more as its layers' calls are repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

RESULT: Final = -1
"""As `Tensor.argument`: the result of a product of matrices."""
HELD: Final = -1
"""As `Tensor.made`: before the step."""
INPUT: Final = "(input of the step)"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a recorded step, by places in the order of its calls.

    Attributes
    ----------
    made : int
        Call that writes it; `HELD` for an input of the step.
    readers : tuple of int
        Calls that read it, in order.
    seen, argument : int
        Call and argument that have its size; `RESULT` for that of a product.
    item_bytes : int
    gradient : bool
        Whether it is of a parameter, and stays until the optimizer has read it.
    until : int
        Call until which it is held, where that is later than its last reader.
    """

    made: int
    readers: tuple[int, ...]
    seen: int
    argument: int
    item_bytes: int
    gradient: bool = False
    until: int = HELD

    @property
    def last(self) -> int:
        """Last call at which it is alive."""
        return max(*self.readers, self.made, self.until)


@dataclass(frozen=True, slots=True)
class Alive:
    """Tensors alive at the peak that calls of one operator wrote.

    Attributes
    ----------
    name, phase : str
        Of the operator; `INPUT` of what was there before the step.
    count, bytes : int
    """

    name: str
    phase: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """Most bytes that are allocated at once in a step.

    Attributes
    ----------
    bytes : int
        All together.
    by_kind : mapping of str to int
        parameters, optimizer, gradients, activations (and what operators hold for a moment),
        workspace and, with DistributedDataParallel, buckets: what each has when the sum is largest.
    alive : tuple of Alive
        Activations and gradients of which the call is known, the largest first.
    curve : tuple of int
        Bytes of all kinds at every recorded call.
    """

    bytes: int
    by_kind: Mapping[str, int]
    alive: tuple[Alive, ...] = ()
    curve: tuple[int, ...] = ()


def peak_of(
    tensors: Sequence[Tensor],
    each_bytes: Sequence[int],
    places: Sequence[int],
    backward: tuple[int, int],
    parameter_bytes: int,
    states: int,
    more: Mapping[str, int],
    names: Sequence[tuple[str, str]] = (),
    *,
    accumulates: bool = False,
) -> Peak:
    """Follow a step's allocations.

    Parameters
    ----------
    tensors : sequence of Tensor
    each_bytes : sequence of int
        Of one of each.
    places : sequence of int
        Of every call of the predicted step, its place in the recorded one.
    backward : tuple of int
        Last place of the backward pass, by which all gradients are there; and of the step.
    parameter_bytes : int
    states : int
        Tensors that the optimizer keeps of every parameter.
    more : mapping
        Bytes that are always there besides, by kind.
    names : sequence of (str, str)
        Of every recorded call its operator and phase, where `alive` is asked for.
    accumulates : bool
        Whether gradients of another micro-batch are there from the beginning.
    """
    often = Counter(places)
    done, end = backward
    change = {False: np.zeros(end + 2, np.int64), True: np.zeros(end + 2, np.int64)}
    held = counted = 0
    for tensor, size in zip(tensors, each_bytes, strict=True):
        if tensor.made == HELD:
            held += size
            continue
        total = size * often[tensor.made]
        if tensor.gradient and accumulates:
            change[False][tensor.made] += total  # until it is added to those of the parameter
            change[False][tensor.made + 1] -= total
            continue
        counted += total if tensor.gradient else 0
        change[tensor.gradient][tensor.made] += total
        change[tensor.gradient][(end if tensor.gradient else tensor.last) + 1] -= total
    change[True][0 if accumulates else done] += max(parameter_bytes - counted, 0)
    activations, gradients = (np.cumsum(change[k])[: end + 1] + (0 if k else held)
                              for k in (False, True))  # fmt: skip
    at = int(np.argmax(activations + gradients))
    by_kind = {
        "parameters": parameter_bytes,
        "optimizer": states * parameter_bytes,
        "gradients": int(gradients[at]),
        "activations": int(activations[at]),
        **more,
    }
    fixed = sum(by_kind.values()) - int(activations[at] + gradients[at])
    alive: dict[tuple[str, str], list[int]] = {}
    for tensor, size in zip(tensors, each_bytes, strict=True) if names else ():
        begin = max(tensor.made, 0)
        count = 1 if tensor.made == HELD else often[tensor.made]
        last = end if tensor.gradient or tensor.made == HELD else tensor.last
        if begin <= at <= last and count:
            key = (INPUT, "") if tensor.made == HELD else names[tensor.made]
            alive[key] = [n + m for n, m in zip(alive.get(key, [0, 0]), (count, count * size),
                                                strict=True)]  # fmt: skip
    rows = [Alive(*key, *counted) for key, counted in alive.items()]
    return Peak(
        sum(by_kind.values()), by_kind, tuple(sorted(rows, key=lambda row: -row.bytes)),
        tuple((activations + gradients + fixed).tolist()),
    )  # fmt: skip


def saved_by_fusion(
    tensors: Sequence[Tensor], each_bytes: Sequence[int], group: Sequence[int]
) -> dict[int, int]:
    """Bytes that groups of calls need not move if each group is one kernel.

    A group reads what others wrote once, keeps what it writes for itself in registers, and writes
    what others read.

    Parameters
    ----------
    tensors : sequence of Tensor
    each_bytes : sequence of int
        Of one of each.
    group : sequence of int
        Of every call of the order; negative for calls that stay alone.
    """
    saved: dict[int, int] = {}
    for tensor, size in zip(tensors, each_bytes, strict=True):
        own = group[tensor.made] if tensor.made != HELD else -1
        readers = Counter(group[k] for k in tensor.readers)
        for one, count in readers.items():
            if one >= 0:
                again = count if one == own else count - 1
                saved[one] = saved.get(one, 0) + again * size
        if own >= 0 and not tensor.gradient and {*readers} == {own}:
            saved[own] = saved.get(own, 0) + size
    return saved
