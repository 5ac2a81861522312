"""What the operators of a step write and read, and what its optimizer keeps.

PyTorch's NVTX ranges number what operators made. Traces of torch.profiler do not: there it follows
from sizes, data types, the order of the calls, and which operator's function autograd evaluates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.models.lifetimes import HELD, RESULT, Optimizer, Tensor
from perfmodel.models.recorded import RecordedCall, Size, parameters_of
from perfmodel.programs.pytorch.calls import EMPTY, OUTSIDE, Made
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.operator_times import Found
from perfmodel.programs.pytorch.operators import FUSED, numel
from perfmodel.readers.trace import Trace
from perfmodel.timing.step_report import StepReport

_FOREACH: Final = "aten::_foreach_"
_ADDS: Final = "torch::autograd::AccumulateGrad"
"""Autograd's function that adds a gradient to that of a parameter."""
_FRESH: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::bernoulli_", "aten::random_")
"""Calls that write into memory that was just allocated, where they are not a program's own."""
_ZEROS: Final = ("aten::fill_", "aten::zero_")
_OF_RESULT: Final = ("softmax", "tanh", "sigmoid", "exp", "sqrt", "threshold", "relu")
"""Functions of autograd that are given the operator's result, not what it was given."""
_SUMS: Final = ("aten::add", "aten::add_")
"""Of the backward pass: sums of gradients."""
_MORE: Final = 8
"""Results of a call that its formula does not know, as numbers of results."""
_MAKES: Final = ("sqrt", "add", "sub", "mul", "div", "neg", "addcmul", "addcdiv", "sign", "maximum")
"""Of an optimizer: calls that make a tensor for each parameter."""


def tensors_of(
    calls: Sequence[RecordedCall], owners: Sequence[int], found: Found
) -> tuple[Tensor, ...]:
    """Tensors of a step from what wrote and what read each; none where nothing says it.

    What writes into an argument (its name ends in _) makes no tensor. Of several views of one the
    largest has its size.

    Parameters
    ----------
    calls : sequence of RecordedCall
        In order.
    owners : sequence of int
        Of each, its place in `found`; negative for operations of no operator.
    """
    weights = parameters_of(calls)
    made = _made(owners, found)
    if not any(maker >= 0 for each in made for maker, _ in each):
        made = _guessed(calls, owners, found, weights)
    readers, seen = dict[tuple[int, int], list[int]](), dict[tuple[int, int], tuple[int, int]]()
    inputs = dict[tuple[int, ...], Tensor]()
    written = dict[int, tuple[int, int]]()
    item_bytes = next((_item_bytes(call, 0) for call in calls if call.lists), 4)
    flows = False
    for k, (call, arguments) in enumerate(zip(calls, made, strict=True)):
        for i, (maker, output) in enumerate(arguments):
            size = call.sizes[i] if i < call.arguments else ()
            flows |= maker >= 0
            if maker == OUTSIDE and size and call.phase == "forward" and size not in weights:
                inputs.setdefault(size, Tensor(HELD, (k,), k, i, _item_bytes(call, i)))
            if maker < 0 or call.phase == "optimizer":
                continue
            root = written.get(maker, (maker, max(output, 0)))
            writes = i == 0 and call.name.endswith("_")
            expanded = numel(size) > _most(calls[root[0]])
            if writes and expanded:  # PyTorch refuses it: the id is that of an older tensor
                continue
            readers.setdefault(root, []).append(k)
            if writes:
                written[k] = root
            if expanded or calls[root[0]].name in _FRESH:  # arguments may be views of a part
                seen.setdefault(root, (root[0], 0))
            elif size and numel(size) > numel(_size(calls, seen.get(root))):
                seen[root] = k, i
    if not flows or any(call.name.startswith(FUSED) for call in calls):
        return ()  # torch.compile's kernels do not say what they write
    tensors = [*inputs.values()]
    ends = _function_ends(owners, found.calls.function)
    for (k, output), reading in readers.items():
        if (k, output) not in seen:
            continue
        at, i = seen[k, output]
        item = _item_bytes(calls[at], i)
        if calls[k].kind == "gemm" and calls[k].shape:
            at, i = k, RESULT
        tensors.append(Tensor(k, tuple(reading), at, i, item, until=ends[max(reading)]))
    read = {k for k, _ in readers} | {*written}
    last: tuple[int, tuple[int, ...]] = -2, ()
    for k, call in enumerate(calls):
        if call.phase != "backward" or k in read or not call.sizes:
            continue
        product = call.kind == "gemm" and call.shape is not None
        i = RESULT if product else call.arguments if len(call.sizes) > call.arguments else 0
        shape = call.shape[:2] if product and call.shape else call.sizes[i]
        if shape in weights or shape[::-1] in weights:
            if last == (k - 1, shape):  # zeros, into which an embedding's gradients are added
                tensors.pop()
            last = k, shape
            tensors.append(Tensor(k, (), k, i, item_bytes, gradient=True))
    return tuple(tensors)


def gradients_of(trace: Trace, steps: StepReport, number: int) -> tuple[Size, ...]:
    """Shapes of the gradients that a step adds to parameters, the last of the backward pass first.

    Parameters
    ----------
    trace : Trace
    steps : StepReport
        Of the same trace.
    number : int
        Of the step.
    """
    names = parse((*trace.range_labels, ""), cut=trace.numbers is not None)
    shapes = {
        i: sizes[0] for i, (name, sizes) in enumerate(zip(names.name, names.sizes, strict=True))
        if name == _ADDS and sizes
    }  # fmt: skip
    mine = np.flatnonzero(steps.steps.number == number)[:1]
    if not shapes or not len(mine):
        return ()
    spans, ranges = steps.steps, trace.ranges
    process = trace.thread_process[ranges.thread]
    inside = np.isin(ranges.name, [*shapes]) & (process == spans.process[mine[0]])
    inside &= (ranges.start_ns >= spans.start_ns[mine[0]]) & (
        ranges.start_ns < spans.end_ns[mine[0]]
    )
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    return tuple(shapes[i] for i in ranges.name[rows].tolist())[::-1]


def listed(calls: Sequence[RecordedCall], shapes: Sequence[Size]) -> list[RecordedCall]:
    """Calls of an optimizer whose lists the recording does not show, with them; and the others.

    A fused one takes parameters, gradients and two moments of Adam, or parameters and gradients.
    Calls for one list after the other take as many as they are named after.
    """
    mine = [c for c in calls if c.phase == "optimizer" and not c.sizes]
    fused = any("_fused_" in c.name for c in mine)
    adam = any("addcdiv_" in c.name for c in mine)
    depth = {"addcdiv_": 3, "addcmul_": 3, "lerp_": 2, "add_": 1 if adam else 2}

    def of(call: RecordedCall) -> RecordedCall:
        if call not in mine or not shapes:
            return call
        if "_fused_" in call.name:
            lists = 4 if "adam" in call.name else 2
        elif call.name.startswith(_FOREACH) and not fused:
            lists = depth.get(call.name.removeprefix(_FOREACH), 1)
        else:
            return call
        sizes = (*shapes,) * lists
        said = {
            "items": [4] * len(sizes), "item": 4, "needed": [], "transposed": False,
            "depth": lists, "kernels": call.launches,
        }  # fmt: skip
        return replace(call, sizes=sizes, arguments=len(sizes), said=said)

    return [of(call) for call in calls]


def _made(owners: Sequence[int], found: Found) -> list[Made]:
    """Of every call and argument the place of the call that wrote it, or `OUTSIDE` or `EMPTY`."""
    place = {who: k for k, who in enumerate(owners) if who >= 0}
    every = found.calls.made
    return [
        tuple((place.get(m, EMPTY) if m >= 0 else m, out) for m, out in every[who])
        if who >= 0 else ()
        for who in owners
    ]  # fmt: skip


_Key = tuple[int, int]
"""Numbers of a tensor, and bytes of each."""
_Result = tuple[int, int]
"""A call and which of its results."""


def _guessed(
    calls: Sequence[RecordedCall],
    owners: Sequence[int],
    found: Found,
    weights: frozenset[Size],
) -> list[Made]:
    """Of every call and argument the call that probably wrote it, where the recording has none.

    In the forward pass it is the last one whose result has the argument's numbers and type and is
    not read yet. In the backward pass a function is given a gradient, the last that is not read
    yet, and what its operator was given or made in the forward pass.
    """
    flow = _Flow(calls)
    function, operator = found.calls.function, found.calls.operator
    result: list[Made] = []
    for k, (call, who) in enumerate(zip(calls, owners, strict=True)):
        if who < 0 or call.phase not in ("forward", "backward"):
            result.append(())
            continue
        left = flow.saved_for(call, operator[who], function[who])
        mine: list[_Result] = []
        for i, size in enumerate(call.sizes[: call.arguments]):
            key = numel(size), _item_bytes(call, i)
            parameter = (size in weights or size[::-1] in weights) and key[1] == 4
            fresh = i == 0 and call.name in _FRESH  # memory that was just allocated
            if len(size) == 0 or key[0] < 2 or fresh or "gather" in call.name:
                mine.append((EMPTY, -1))
            elif call.phase == "forward":
                mine.append((OUTSIDE, -1) if parameter else flow.forward(key, mine))
            else:
                one = flow.backward(call, key, mine, left, function[who], operator[who])
                mine.append((OUTSIDE, -1) if one is None or parameter else one)
        flow.called(k, mine, operator[who])
        result.append(tuple(mine))
    return result


class _Flow:
    """What is known of a step's tensors up to some call."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self.calls = calls
        self.written: dict[_Key, list[_Result]] = {}
        self.fresh: dict[_Key, dict[_Result, None]] = {}  # of those, what no call has read
        self.key: dict[_Result, _Key] = {}
        self.saved: dict[int, list[tuple[_Key, _Result]]] = {}  # by operator
        self.gradient: dict[int, tuple[_Key, _Result]] = {}  # by function
        self.used: dict[int, set[_Result]] = {}  # of those, by function
        self.more: dict[int, tuple[int, list[_Key]]] = {}  # call of an operator, what else it made
        self.unsaid: list[int] = []  # calls that do not say the size of their results

    def saved_for(
        self, call: RecordedCall, operator: int, function: int
    ) -> list[tuple[_Key, _Result]]:
        """What a call of the backward pass may read of its operator's, the likeliest first.

        What no call of the function has read comes before what one has.
        """
        if call.phase != "backward" or call.name in _SUMS:
            return []
        of_result = any(word in call.name for word in _OF_RESULT)
        used = self.used.get(function, set())
        return sorted(
            self.saved.get(operator, [])[:: -1 if of_result else 1], key=lambda one: one[1] in used
        )

    def forward(self, key: _Key, chosen: Sequence[_Result]) -> _Result:
        """Return what wrote an argument in the forward pass."""
        found = self._unread(key, chosen, "forward")
        if found is None:
            found = next((m for m in self.written.get(key, [])[::-1] if m not in chosen), None)
        if found is None and self.unsaid:
            found = self.unsaid.pop(), 0
            self._wrote(key, found)
        return (OUTSIDE, -1) if found is None else found

    def backward(
        self, call: RecordedCall, key: _Key, chosen: Sequence[_Result],
        left: list[tuple[_Key, _Result]], function: int, operator: int,
    ) -> _Result | None:  # fmt: skip
        """Return what wrote an argument in the backward pass; what it saved is taken off `left`."""
        known = self.gradient.get(function)
        if known is not None and known[0] == key and known[1] not in chosen:
            return known[1]
        if known is None:
            found = self._unread(key, chosen, "backward")
            if found is not None:
                self.gradient[function] = key, found
                return found
        at = next((n for n, (each, _) in enumerate(left) if each == key), None)
        if at is not None:
            self.used.setdefault(function, set()).add(left[at][1])
            return left.pop(at)[1]
        found = self._unread(key, chosen, "backward")
        if found is not None or operator not in self.more:
            return found
        if call.name in _SUMS:
            return next((m for m in self.written.get(key, [])[::-1] if m not in chosen), None)
        made, others = self.more[operator]
        others += [key] if key not in others else []
        return made, _MORE + others.index(key)

    def called(self, k: int, mine: Sequence[_Result], operator: int) -> None:
        """Note what a call read, and what it wrote."""
        call = self.calls[k]
        for one in mine:
            if one in self.key:
                self.fresh[self.key[one]].pop(one, None)
        writes = call.name.endswith("_") and call.name not in _FRESH
        keys = _results(call)
        if call.phase == "backward" and call.name in _ZEROS:
            keys = []  # what comes next writes into these
        if writes and not (mine and mine[0][0] >= 0):
            keys = []
        made = [(key, (k, n)) for n, key in enumerate(keys)]
        for key, one in made:
            self._wrote(key, one)
        if call.phase == "forward":
            if "pool" in call.name:
                self.unsaid.append(k)
            if operator >= 0:
                self.more[operator] = k, []
                read = [
                    ((numel(call.sizes[i]), _item_bytes(call, i)), one)
                    for i, one in enumerate(mine) if one[0] >= 0
                ]  # fmt: skip
                self.saved.setdefault(operator, []).extend([*read, *made])

    def _wrote(self, key: _Key, one: _Result) -> None:
        self.written.setdefault(key, []).append(one)
        self.fresh.setdefault(key, {})[one] = None
        self.key[one] = key

    def _unread(self, key: _Key, chosen: Sequence[_Result], phase: str) -> _Result | None:
        """The last result of a pass that no call has read; or of which an argument is a part."""
        for parts in (1, 2, 3):
            for one in reversed(self.fresh.get((key[0] * parts, key[1]), {})):
                other = parts > 1 or one not in chosen
                if other and self.calls[one[0]].phase == phase:
                    return one
        return None


def _results(call: RecordedCall) -> list[tuple[int, int]]:
    """Numbers and bytes of each of what a call writes, as its kind has it."""
    item = int(call.said.get("item") or _item_bytes(call, 0))
    sizes = [numel(s) for s in call.sizes[: call.arguments] if s]
    if call.kind == "gemm" and call.shape:
        return [(math.prod(call.shape[:2]), item)]
    if call.name in _FRESH or call.name.endswith("_"):
        return [(numel(call.sizes[0]), _item_bytes(call, 0))] if call.sizes else []
    if call.kind == "attention":
        return [(n, item) for n in (sizes[1:4] if "backward" in call.name else sizes[:1])]
    if "sum" in call.name or "pool" in call.name or not sizes:
        return []
    if "gather" in call.name:
        return [(numel(call.sizes[call.arguments - 1]), item)]
    if "cat" in call.name:
        return [(sum(sizes), item)]
    if call.kind == "convolution" and len(call.sizes) > call.arguments:
        return [(numel(call.sizes[-1]), item)]
    if call.kind == "convolution" and "backward" in call.name:
        return [(n, item) for n in sizes[1:3]]
    return [(max(sizes), item)]


def optimizer_of(calls: Sequence[RecordedCall]) -> Optimizer | None:
    """What the optimizer of a step keeps and makes, by its calls; None where they do not say it.

    A fused call lists the parameters, their gradients and all states. Calls for lists of all
    parameters (foreach) write what they are named after, if it ends in _, and make a list else; so
    do those for one parameter (torch/optim/adam.py, sgd.py, rmsprop.py of PyTorch 2.11).
    """
    mine = [(k, call) for k, call in enumerate(calls) if call.phase == "optimizer"]
    zeroes = any("zero_" in call.name for _, call in mine)
    fused = [(k, call) for k, call in mine if call.lists and "_fused_" in call.name]
    if fused:
        states = max(call.lists for _, call in fused) - 2
        return Optimizer(tuple(k for k, _ in fused), max(states, 0), zeroes=zeroes)
    foreach = [(k, call) for k, call in mine if call.name.startswith(_FOREACH)]
    together = [(k, call) for k, call in foreach if call.lists > 1]
    own, prefix = (together, _FOREACH) if together else (mine, "aten::")
    names = [call.name.removeprefix(prefix) for _, call in (foreach if together else mine)]
    last = "addcdiv_" if "addcdiv_" in names else "add_"
    updates = [k for k, call in own if call.name == prefix + last]
    states = len({"lerp_", "addcmul_", "maximum_"} & {*names})
    if last == "add_":  # of stochastic gradient descent: into the momentum, then the parameters
        scaled = sum(call.name == prefix + "mul_" for _, call in (foreach if together else mine))
        states = int(0 < 2 * scaled == len(updates))
        updates = updates[states :: 1 + states]
    if not updates:
        return None
    made = [name for name in dict.fromkeys(names) if name in _MAKES]
    if together:
        return Optimizer(tuple(updates), states, lists=len(made), zeroes=zeroes)
    return Optimizer(tuple(updates), states, singles=len(made), zeroes=zeroes)


def _function_ends(owners: Sequence[int], function: Sequence[int]) -> list[int]:
    """Of every call the last one of the function of autograd that it is in; else itself.

    What a function is given and what it makes on the way is held until it returns.
    """
    of = [function[who] if who >= 0 else -1 for who in owners]
    last = {each: k for k, each in enumerate(of)}
    return [last[each] if each >= 0 else k for k, each in enumerate(of)]


def _most(call: RecordedCall) -> float:
    """Elements that a call's result has at most, as far as its name says it."""
    return numel(call.sizes[0]) if call.name == "aten::fill_" and call.sizes else math.inf


def _size(calls: Sequence[RecordedCall], at: tuple[int, int] | None) -> tuple[int, ...]:
    return calls[at[0]].sizes[at[1]] if at else (0,)


def _item_bytes(call: RecordedCall, argument: int) -> int:
    """Bytes of an element of an argument."""
    items = call.said.get("items", ())
    return int(items[argument]) if argument < len(items) else ITEM_BYTES.get(call.dtype, 4)
