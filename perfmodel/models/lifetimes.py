"""GPU memory of a step: which tensors are alive when, from who wrote and who read each.

A tensor is allocated by the call that writes it, and freed after the last call that reads it: what
the backward pass reads was saved by the forward pass until then. Gradients of parameters stay
until the optimizer has read them; parameters and its states are always there. A step with more
layers has as many tensors more as its layers' calls are repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

RESULT: Final = -1
"""As `Tensor.argument`: the result of a product of matrices."""
HELD: Final = -1
"""As `Tensor.made`: before the step."""
INPUT: Final = "(input of the step)"
_INDEX: Final = 8
"""Bytes of a number that says a place; within a window a kernel of torch.compile keeps 1."""


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
class Optimizer:
    """What an optimizer keeps of every parameter, and what its step makes for a moment.

    Attributes
    ----------
    updates : tuple of int
        Places of the calls that write parameters, one for every group or parameter.
    states : int
        Tensors that are kept of every parameter.
    lists : int
        Tensors of every parameter that its step makes for all of them at once.
    singles : int
        Tensors that it makes for one parameter after the other.
    zeroes : bool
        Whether gradients are set to zero, and so stay from step to step.
    """

    updates: tuple[int, ...]
    states: int
    lists: int = 0
    singles: int = 0
    zeroes: bool = False


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
        workspace (and what the optimizer makes for a moment), buckets of DistributedDataParallel,
        gathered by FullyShardedDataParallel: what each has when the sum is largest.
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
    more: Mapping[str, int | Sequence[int]],
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
        Bytes that are there besides, by kind: always, or at every recorded place.
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
    others = {kind: np.broadcast_to(np.asarray(n, np.int64), end + 1) for kind, n in more.items()}
    curve = activations + gradients + (1 + states) * parameter_bytes + sum(others.values())
    at = int(np.argmax(curve))
    by_kind = {
        "parameters": parameter_bytes,
        "optimizer": states * parameter_bytes,
        "gradients": int(gradients[at]),
        "activations": int(activations[at]),
        **{kind: int(each[at]) for kind, each in others.items()},
    }
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
        tuple(curve.tolist()),
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


def in_halves(
    tensors: Sequence[Tensor], kinds: Sequence[str], parameters: Sequence[Tensor], backward: int
) -> list[Tensor]:
    """The tensors of a step of 4 bytes a number under autocast, whose products take 2.

    A product reads casts of what has 4 bytes, each product its own, which its backward pass reads
    again, and makes 2 bytes. Norms, softmax and losses read 4 bytes, of a cast where they were 2.
    Everything else makes what the widest of its operands has. Gradients of parameters are cast to
    4 bytes (PyTorch, torch/csrc/autograd and aten/src/ATen/autocast_mode.h).

    Parameters
    ----------
    tensors : sequence of Tensor
    kinds : sequence of str
        Of every call: 'product', 'wide', or '' for what follows its operands.
    parameters : sequence of Tensor
        Reads of parameters by products: their readers are a product and those of its backward pass.
    backward : int
        First call of the backward pass.
    """
    reading = [list[int]() for _ in kinds]
    for n, tensor in enumerate(tensors):
        for k in tensor.readers:
            reading[k].append(n)
    items = [tensor.item_bytes for tensor in tensors]
    for n in sorted(range(len(tensors)), key=lambda n: tensors[n].made):
        tensor = tensors[n]
        if tensor.item_bytes != 4 or tensor.made == HELD or tensor.gradient:
            continue
        kind = kinds[tensor.made]
        read = [items[m] for m in reading[tensor.made] if tensors[m].item_bytes == 4]
        items[n] = 2 if kind == "product" else 4 if kind else max(read, default=4)
    found: list[Tensor] = []
    for tensor, item in zip(tensors, items, strict=True):
        if tensor.item_bytes != 4:
            found.append(tensor)
            continue
        if tensor.gradient and kinds[tensor.made] == "product":
            found.append(replace(tensor, item_bytes=2, gradient=False, readers=(tensor.made,)))
        cast = [k for k in tensor.readers if kinds[k] == ("product" if item == 4 else "wide")]
        own = [k for k in tensor.readers if k not in cast]
        for group in _casts(cast, backward) if item == 4 else ([cast] if cast else []):
            own.append(group[0])
            until = tensor.until if group[-1] == max(tensor.readers) else HELD
            found.append(replace(tensor, made=group[0], readers=tuple(group),
                                 item_bytes=6 - item, until=until))  # fmt: skip
        until = tensor.until if not tensor.readers or max(tensor.readers) in own else HELD
        found.append(replace(tensor, readers=tuple(sorted(own)), item_bytes=item, until=until))
    found += (replace(one, made=one.readers[0], item_bytes=2) for one in parameters)
    return found


def _casts(readers: Sequence[int], backward: int) -> list[list[int]]:
    """Readers of each cast: a product of the forward pass, and its share of the backward pass's."""
    first = [k for k in dict.fromkeys(readers) if k < backward]
    again = [k for k in dict.fromkeys(readers) if k >= backward]
    if not first:
        return [again] if again else []
    share = len(again) / len(first)
    ends = [round(share * n) for n in range(len(first) + 1)]
    return [[k, *again[a:b]]
            for k, a, b in zip(reversed(first), ends[:-1], ends[1:], strict=True)]  # fmt: skip


def of_one_type(
    tensors: Sequence[Tensor], casts: Container[int], item_bytes: int, loss: Container[int] = ()
) -> list[Tensor]:
    """The tensors of a step under autocast, without it: casts go, numbers have one size.

    Parameters
    ----------
    tensors : sequence of Tensor
    casts : container of int
        Calls that copy 2 bytes a number to 4, or 4 to 2.
    item_bytes : int
    loss : container of int
        Calls that cast on purpose, and keep their types.
    """
    casts = {t.made for t in tensors if t.made in casts and t.made not in loss} | {
        k for t in tensors for k in t.readers if k in casts and k not in loss
    }
    source: dict[int, int] = {}
    for n, tensor in enumerate(tensors):
        for k in tensor.readers:
            if k in casts:
                source[k] = n
    readers = {n: set(t.readers) for n, t in enumerate(tensors)}
    until = {n: t.until for n, t in enumerate(tensors)}
    gone: set[int] = set()
    for n in sorted(range(len(tensors)), key=lambda n: -tensors[n].made):
        tensor = tensors[n]
        if tensor.made == HELD or tensor.made not in casts or tensor.gradient:
            continue
        gone.add(n)
        if tensor.made in source:
            of = source[tensor.made]
            readers[of] |= readers[n]
            until[of] = max(until[of], until[n])
    found = []
    for n, tensor in enumerate(tensors):
        left = tuple(sorted(k for k in readers[n] if k not in casts))
        cast_only = bool(tensor.readers) and not left
        if n in gone or (cast_only and tensor.made != HELD):
            continue
        stays = tensor.item_bytes not in (2, 4) or tensor.made == HELD or tensor.made in loss
        least = tensor.item_bytes if stays or tensor.gradient else 0
        item = least if stays else max(item_bytes, least)
        found.append(replace(tensor, readers=left, item_bytes=item, until=until[n]))
    return found


def fused(
    tensors: Sequence[Tensor],
    each_bytes: Sequence[int],
    products: Sequence[bool],
    casts: Container[int],
    backward: int,
    apart: Container[int] = (),
) -> tuple[list[Tensor], list[int]]:
    """The tensors of a step whose calls between two products are one kernel (torch.compile).

    A kernel keeps its own in registers, and casts one tensor once. What the backward pass reads
    again is kept, where a product reads it; else it is made again from the result of a product, if
    that is kept, too, or smaller. This is what the partitioner of PyTorch keeps of GPTs and Llamas
    (min_cut_rematerialization_partition of torch/_functorch/partitioners.py, 2.14). Each tensor is
    freed after its last reader.

    Parameters
    ----------
    tensors : sequence of Tensor
    each_bytes : sequence of int
        Of one of each.
    products : sequence of bool
        Of every call, whether it stays alone.
    casts : container of int
        Calls that copy numbers of one size to another.
    backward : int
        First call of the backward pass.
    apart : container of int
        Calls that read all of what they are given before they write, and so begin a kernel.

    Returns
    -------
    tuple
        The tensors that are left, and the bytes of one of each.
    """
    made = {n: t.made for n, t in enumerate(tensors)}
    readers = {n: set(t.readers) for n, t in enumerate(tensors)}
    once: dict[tuple[int, int], int] = {}
    for n, tensor in enumerate(tensors):
        of = next((m for m in readers if tensor.made in tensors[m].readers), None)
        if tensor.made not in casts or tensor.gradient or of is None:
            continue
        first = once.setdefault((of, tensor.item_bytes), n)
        if first != n:
            readers[first] |= readers.pop(n)
            readers[of].discard(tensor.made)
    operands: dict[int, list[int]] = {}
    for n in readers:
        for k in readers[n]:
            operands.setdefault(k, []).append(n)
    for n in sorted(readers, key=lambda n: -made[n]):
        again = {k for k in readers[n] if k >= backward}
        if not 0 <= made[n] < backward or products[made[n]] or not again:
            continue
        if tensors[n].item_bytes == _INDEX:
            continue
        if any(products[k] for k in again):
            continue
        root = n
        while made[root] != HELD and not products[made[root]]:
            own = [m for m in operands.get(made[root], ()) if tensors[m].item_bytes in (2, 4)]
            if len(own) != 1:
                break
            root = own[0]
        if root == n or made[root] == HELD or not products[made[root]]:
            continue
        if each_bytes[root] < each_bytes[n] or any(k >= backward for k in readers[root]):
            readers[n] -= again
            readers[root] |= again
    kernel = np.cumsum(np.append(False, products[:-1]) | np.asarray(products))
    kernel += np.cumsum([k == backward or k in apart for k in range(len(products))])
    found = []
    for n, reading in readers.items():
        inside = {int(kernel[k]) for k in reading} <= {int(kernel[made[n]])}
        stays = tensors[n].gradient or made[n] == HELD or (products[made[n]] and not reading)
        if inside and not stays:
            continue
        found.append(n)
    return (
        [replace(tensors[n], readers=tuple(sorted(readers[n])), until=HELD) for n in found],
        [each_bytes[n] // (1 if tensors[n].item_bytes != _INDEX or made[n] == HELD else _INDEX)
         for n in found],
    )  # fmt: skip
