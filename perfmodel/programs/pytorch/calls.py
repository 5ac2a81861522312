"""Calls of operators: which kernels each launched, its sizes and types, and what it must do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import add
from typing import Any, Final, NamedTuple

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64
from perfmodel.base.kernels import kernel, kernel_types
from perfmodel.base.kernels.types import (
    FLOATS,
    ITEM_BYTES,
    KernelTypes,
    dtype_named,
    plain_unit,
)
from perfmodel.programs.pytorch.names import OperatorNames, Size, Sizes
from perfmodel.programs.pytorch.operators import (
    COPY,
    FUSED,
    NONZERO,
    Call,
    Formula,
    Origin,
    formula_of,
    is_convolved,
    numel,
    work_of,
)
from perfmodel.programs.pytorch.tree import (
    EVALUATE,
    Modules,
    Tree,
    differentiated,
    find_modules,
    nearest,
    with_function,
)
from perfmodel.programs.pytorch.triton import Types, buffers
from perfmodel.readers.frames import MODULE
from perfmodel.readers.trace import KERNEL, MEMCPY
from perfmodel.timing.operator_times import PHASES, Phase

_FUNCTION: Final = re.compile(r"(\w{1,99})Backward\d{1,9}")
"""A function of autograd's graph, whose first argument is the gradient of a result."""

_MOST_STEPS: Final = 64
"""Producers that are followed to find the type of a tensor."""

_DTYPES: Final = (*ITEM_BYTES,)
_OUTPUTS: Final = 3
"""Outputs from this one on have the type that an operator computes with."""
_MOST_READ: Final = 2**48
_BLOCK: Final = 1 << 17  # of ranges whose inputs are looked at together

_Kind = tuple[Any, ...]
"""What calls are counted by: name, longest kernel, phase, module, bytes copied, types of arguments
by code, and what `_Graph._looked_up` returns."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """GPU operations by the range that launched them.

    Attributes
    ----------
    node : int64, shape (k,)
        Innermost range of the launching call, -1 outside all.
    name : int32, shape (k,)
        Position in `strings` of a kernel's name; -1 for what is no kernel.
    kind : int8, shape (k,)
        As `readers.trace.GpuOps.kind`.
    duration_ns, bytes : int64, shape (k,)
    strings : sequence of str
    """

    node: Int64
    name: Int32
    kind: Int8
    duration_ns: Int64
    bytes: Int64
    strings: Sequence[str]


Made = tuple[tuple[int, int], ...]
OUTSIDE: Final = -1
EMPTY: Final = -2


class _Inputs(NamedTuple):
    """Arguments of some ranges: whose and at which place, and what made each.

    `of` is ascending; `output` is -1 where nothing recorded made it.
    """

    of: Int64
    place: Int64
    op: Int64
    output: Int64


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls, and of every GPU operation which of them launched it.

    Attributes
    ----------
    calls : tuple of Call
        Those that are alike are one object.
    owner : int64, shape (k,)
        Index into `calls`, -1 for operations outside of operators.
    phase, module : tuple of str, one for every GPU operation
    made : tuple
        Of every call and argument the call that wrote it and which output it is; as call `EMPTY`
        where no kernel wrote it, `OUTSIDE` where nothing recorded made it. Empty if not asked for.
    function : tuple of int
        Of every call the range in which autograd's engine evaluates a function, -1 outside of all.
        Empty if not asked for.
    operator : tuple of int
        Of every call the range of the operator that it is part of, or in the backward pass of the
        one whose function is evaluated; -1 for those that autograd does not know, empty if not
        asked for.
    """

    calls: tuple[Call, ...]
    owner: Int64
    phase: tuple[Phase, ...]
    module: tuple[str, ...]
    made: tuple[Made, ...] = ()
    function: tuple[int, ...] = ()
    operator: tuple[int, ...] = ()


def find_calls(
    names: OperatorNames,
    tree: Tree,
    kernels: Kernels,
    dtype: str | None = None,
    *,
    causal: bool = False,
    flow: bool = False,
) -> Calls:
    """Give every GPU operation to the innermost operator with a formula that encloses its launch.

    Where none has a formula, to the innermost operator. An operator counts once; one inside which
    another was counted has no FLOPs of its own, so that nothing counts twice.

    Parameters
    ----------
    names : OperatorNames
    tree : Tree
    kernels : Kernels
    dtype : str, optional
        Of tensors whose type neither kernels nor casts tell.
    causal : bool
        Whether attention is counted as under a causal mask.
    flow : bool
        Whether to say which call wrote every argument.
    """
    known = [formula_of(name) for name in names.name]
    modelled = np.array([
        sizes is not None and formula.count is not None
        for sizes, formula in zip(names.sizes, known, strict=True)
    ], np.bool_)  # fmt: skip
    near_formula = nearest(tree.parent, modelled[tree.label] & ~_parts(known, tree))
    near_operator = nearest(tree.parent, _operators(names)[tree.label])
    phases = _phases(names, known, tree)
    inside = kernels.node >= 0
    owner_node = np.full(len(kernels.node), -1, np.int64)
    owner_node[inside] = near_formula[kernels.node[inside]]
    lacking = inside & (owner_node < 0)
    owner_node[lacking] = near_operator[kernels.node[lacking]]
    nodes, owner = np.unique(owner_node, return_inverse=True)
    outside = int(len(nodes) > 0 and nodes[0] < 0)
    owner = owner.astype(np.int64) - outside
    nodes = nodes[outside:]
    graph = _Graph(names, known, tree, kernels, nodes, owner, dtype, causal=causal)
    modules = find_modules(names, tree)
    calls = graph.calls(phases[nodes], modules)
    phase = np.where(inside, phases[kernels.node] if len(phases) else _FORWARD, _FORWARD)
    module = np.where(inside, modules.of_node[kernels.node] if len(phases) else -1, -1)
    return Calls(
        calls,
        owner,
        tuple(PHASES[code] for code in phase.tolist()),
        tuple(modules.paths[code] for code in module.tolist()),
        graph.made() if flow else (),
        tuple(nearest(tree.parent, names.starting(EVALUATE)[tree.label])[nodes].tolist())
        if flow
        else (),
        tuple(differentiated(names, tree)[nodes].tolist()) if flow else (),
    )


def _parts(known: Sequence[Formula], tree: Tree) -> Bool:
    """Return whether each range is a product inside an operator that counts as a whole."""
    whole, product = _which(known, "whole"), _which(known, "product")
    inside = nearest(tree.parent, whole[tree.label]) >= 0
    found: Bool = inside & (product & ~whole)[tree.label]
    return found


def _which(known: Sequence[Formula], fact: str) -> Bool:
    """Of which names a fact is known."""
    return np.array([bool(getattr(formula, fact)) for formula in known], np.bool_)


def _pairs(names: OperatorNames) -> Iterable[tuple[str, Sizes | None]]:
    return zip(names.name, names.sizes, strict=True)


def _operators(names: OperatorNames) -> Bool:
    """Return whether each name is of an operator."""
    return np.array([s is not None or n.startswith("aten::") for n, s in _pairs(names)], np.bool_)


_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(len(PHASES))


def _phases(names: OperatorNames, known: Sequence[Formula], tree: Tree) -> Int64:
    """Phase of every range, as a position in `PHASES`: the one that it is inside of.

    Autograd evaluates the backward in ranges of its own, and optimizers name their steps; a
    program's own ranges called so count too. What is in none of them is of the backward on a thread
    of autograd's, such as DistributedDataParallel's last copies; of the optimizer if it comes
    between a backward and the optimizer's step, such as clipping gradients; of what `Formula.phase`
    says (a gradient scaler's); of none ('other') if it comes after these and before a forward, such
    as averaging parameters; else of the forward.
    """
    code = np.full(len(names.name), -1, np.int64)
    for i, name in enumerate(names.name):
        low = name.lower()
        if name.startswith(EVALUATE) or low == "backward":
            code[i] = _BACKWARD
        elif name.startswith("Optimizer.") or low in ("optimizer", "optimizer_step"):
            code[i] = _OPTIMIZER
        elif low == "forward":
            code[i] = _FORWARD
    mine = code[tree.label]
    said = nearest(tree.parent, mine >= 0)
    own = np.array([PHASES.index(f.phase) if f.phase else -1 for f in known], np.int64)[tree.label]
    near = nearest(tree.parent, own >= 0)
    own = np.where(near >= 0, own[near], -1)
    unsaid = np.select(
        [own >= 0, _before_optimizer(mine, tree), _between_steps(mine, names, known, tree)],
        [own, _OPTIMIZER, _OTHER], _FORWARD,
    )  # fmt: skip
    if tree.thread is not None:
        evaluates = names.starting(EVALUATE)[tree.label]
        others = np.unique(tree.thread[(mine >= 0) & ~evaluates])
        engines = np.setdiff1d(tree.thread[evaluates], others)
        unsaid[np.isin(tree.thread, engines)] = _BACKWARD
    return np.where(said >= 0, mine[said], unsaid)


def _before_optimizer(mine: Int64, tree: Tree) -> Bool:
    """Whether of the ranges with a phase the last before each is backward, the next optimizer."""
    marked = np.flatnonzero(mine >= 0)
    marked = marked[np.argsort(tree.start_ns[marked], kind="stable")]
    phase = np.concatenate([[-1], mine[marked], [-1]])
    between: Bool = (phase[:-1] == _BACKWARD) & (phase[1:] == _OPTIMIZER)
    at = np.searchsorted(tree.start_ns[marked], tree.start_ns, side="right")
    found: Bool = between[at]
    return found


def _between_steps(mine: Int64, names: OperatorNames, known: Sequence[Formula], tree: Tree) -> Bool:
    """Whether each range comes after a backward or an optimizer's step, before the next forward.

    A forward begins with a range called so, a module, an operator of a layer (which may be frozen),
    or one that autograd evaluates a function of: until then no operator is known to be of one.
    Without any such function in the recording none is said to come after.

    Parameters
    ----------
    mine : int64, shape (n,)
        Phase that each range names, -1 for none.
    names, known, tree
        As `find_calls`; and what is known of every name.
    """
    clears = names.starting("Optimizer.zero_grad")[tree.label]
    operator = _operators(names)[tree.label]
    differentiated = with_function(names, tree)
    if len(differentiated) == 0:
        return np.zeros(len(tree.parent), np.bool_)
    begun = names.starting(MODULE) | _which(known, "product") | _which(known, "layer")
    begun = begun[tree.label]
    begun[differentiated] = True
    begun &= nearest(tree.parent, mine > _FORWARD) < 0
    around = (tree.parent >= 0) & operator[tree.parent]
    outermost = nearest(tree.parent, ~(operator & around))  # operators call others
    forward = np.unique(np.append(outermost[begun], np.flatnonzero(mine == _FORWARD)))
    other = np.flatnonzero((mine > _FORWARD) & ~clears)
    at_ns = tree.start_ns[np.append(other, forward)]
    is_other = np.arange(len(at_ns)) < len(other)
    order = np.lexsort((~is_other, at_ns))
    last = np.searchsorted(at_ns[order], tree.start_ns, side="right")
    after: Bool = np.append(False, is_other[order])[last]
    return after


def _around_others(counted: Int64, tree: Tree) -> Int64:
    """Those of some ranges inside which another one of them is."""
    chosen = np.zeros(len(tree.parent), np.bool_)
    chosen[counted] = True
    above = tree.parent[counted]
    outer = nearest(tree.parent, chosen)[above[above >= 0]]
    return np.unique(outer[outer >= 0])


class _Graph:
    """Producers and consumers of tensors, and the types that they have."""

    def __init__(
        self,
        names: OperatorNames,
        known: Sequence[Formula],
        tree: Tree,
        kernels: Kernels,
        nodes: Int64,
        owner: Int64,
        dtype: str | None,
        *,
        causal: bool,
    ) -> None:
        self.causal = causal
        self.names, self.known, self.tree = names, known, tree
        self.kernels, self.nodes = kernels, nodes
        self.given = dtype
        used, which = np.unique(kernels.name, return_inverse=True)
        product = np.array(
            [c >= 0 and kernel(kernels.strings[c]).multiplies for c in used], np.bool_
        )
        by_length = kernels.duration_ns, product[which], kernels.kind == KERNEL, owner
        order = np.lexsort(by_length)
        self._mine = order[np.searchsorted(owner[order], 0) :]
        self._bounds = np.searchsorted(owner[self._mine], np.arange(len(nodes) + 1)).tolist()
        copied = np.where((kernels.kind == MEMCPY) & (owner >= 0), np.maximum(kernels.bytes, 0), 0)
        copied = np.bincount(np.maximum(owner, 0), copied, len(nodes))
        self._copied = np.minimum(copied, 2.0**62).astype(np.int64)
        used, self._main = np.unique(self._main_names(), return_inverse=True)
        types = [kernel_types(kernels.strings[c]) if c >= 0 else KernelTypes() for c in used]
        self._types = [types[c] for c in self._main.tolist()]
        self._made = np.array(  # type of what the call at a range wrote; -1 where nothing says it
            [_code(t.result or t.dtype) for t in types], np.int8
        )[self._main]
        self._at = np.full(len(tree.parent), -1, np.int32)
        self._at[nodes] = np.arange(len(nodes), dtype=np.int32)
        self._op = tree.numbered(names.op_id[tree.label])

    @cached_property
    def _seq(self) -> Int64:
        return self.tree.numbered(self.names.seq[self.tree.label])

    @cached_property
    def _place(self) -> Int64:
        """Place of every range in the order in which they start, on whatever thread."""
        place = np.empty(len(self.tree.start_ns), np.int64)
        place[np.argsort(self.tree.start_ns, kind="stable")] = np.arange(len(place))
        return place

    def _main_names(self) -> Int64:
        """Of every call the name of its longest kernel, -1 if it launched none.

        Of those that multiply, if any does: a short product may come with longer copies.
        """
        last = self._mine[np.array(self._bounds[1:], np.int64) - 1]
        kernel = self.kernels.kind[last] == KERNEL
        return np.where(kernel, self.kernels.name[last], -1).astype(np.int64)

    @cached_property
    def _by_op(self) -> tuple[Int64, Int64]:
        """Distinct op_ids, ascending, and the last range that has each."""
        at = np.flatnonzero(self._op >= 0)
        op = self._op[at]
        if (np.diff(op) <= 0).any():
            order = np.lexsort((self._place[at], op))
            order = order[np.flatnonzero(np.diff(op[order], append=-1))]
            at, op = at[order], op[order]
        return op, at

    def _node_of(self, op: Int64) -> Int64:
        """Return the ranges of some op_ids, -1 where none has it."""
        ids, nodes = self._by_op
        if len(ids) == 0:
            return np.full(len(op), -1)
        at = np.minimum(np.searchsorted(ids, op), len(ids) - 1)
        return np.where(ids[at] == op, nodes[at], -1)

    def _inputs(self, node: Int64) -> _Inputs:
        """Return what made the arguments of some ranges."""
        label = self.tree.label[node]
        first, count = self.names.first[label], np.diff(self.names.first)[label]
        of = np.repeat(np.arange(len(node)), count)
        place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        at = first[of] + place
        op = self.tree.numbered(self.names.input_op[at], node[of])
        return _Inputs(of, place, op, self.names.input_output[at])

    def _first_made(self, node: Int64) -> tuple[Int64, Int64]:
        """First argument of every range that something recorded made: op_id, -1 if none; output."""
        made = self._first_recorded[self.tree.label[node]]
        op, output = np.full(len(node), -1), np.full(len(node), -1)
        known = np.flatnonzero(made >= 0)
        op[known] = self.tree.numbered(self.names.input_op[made[known]], node[known])
        output[known] = self.names.input_output[made[known]]
        return op, output

    @cached_property
    def _first_recorded(self) -> Int64:
        """Of every name the first of its inputs that something recorded made, -1 without any."""
        found = np.full(len(self.names.first) - 1, -1)
        at = np.flatnonzero(self.names.input_output >= 0)[::-1]
        found[np.searchsorted(self.names.first, at, side="right") - 1] = at
        return found

    @cached_property
    def _last_child(self) -> Int64:
        """Of every range the last range inside it that is an operator's, -1 without any."""
        found = np.full(len(self.tree.parent), -1, np.int64)
        at = np.flatnonzero((self.tree.parent >= 0) & (self._op >= 0))
        found[self.tree.parent[at]] = at
        return found

    @cached_property
    def _consumed(self) -> dict[tuple[int, int], list[Size]]:
        """Sizes in which consumers see an output, by op_id and output.

        Of the outputs of operators whose own sizes do not say it.
        """
        asks = np.array([f.output_from == "consumers" for f in self.known], np.bool_)
        asked = self.nodes[asks[self.tree.label[self.nodes]]].tolist()
        wanted: set[int] = set()
        for node in asked:
            for n in (node, *self._wrappers(node)):
                if self._op[n] >= 0:
                    wanted.add(int(self._op[n]))
        found: dict[tuple[int, int], list[Size]] = {}
        if not wanted:
            return found
        ops = np.array(sorted(wanted), np.int64)
        using = np.flatnonzero(self._first_recorded[self.tree.label] >= 0)
        seen: list[tuple[int, tuple[int, int], Size]] = []
        for begin in range(0, len(using), _BLOCK):
            node = using[begin : begin + _BLOCK]
            made = self._inputs(node)
            hit = np.flatnonzero((made.output >= 0) & np.isin(made.op, ops))
            users = node[made.of[hit]]
            label, when = self.tree.label[users], self._place[users]
            columns = (when, made.op[hit], made.output[hit], label, made.place[hit])
            for at, op, output, user, place in zip(*(c.tolist() for c in columns), strict=True):
                sizes = self.names.sizes[user] or ()
                if place < len(sizes) and sizes[place]:
                    seen.append((at, (op, output), sizes[place]))
        for _, key, size in sorted(seen, key=lambda one: one[0]):
            found.setdefault(key, []).append(size)
        return found

    @cached_property
    def _backward_of(self) -> dict[int, Size]:
        """Sizes of results' gradients of convolutions, by the forward's seq."""
        found: dict[int, Size] = {}
        for node in self.nodes.tolist():
            label = int(self.tree.label[node])
            sizes = self.names.sizes[label]
            if self.known[label].product != "gradients" or not sizes:
                continue
            seq = self._forward_seq(node)
            if seq >= 0:
                found[seq] = sizes[0]
        return found

    @cached_property
    def _gradients(self) -> dict[tuple[int, str], Size]:
        """Sizes of results' gradients, by the forward's seq and name: autograd's."""
        functions = [_FUNCTION.fullmatch(n) if s else None for n, s in _pairs(self.names)]
        chosen = np.array([f is not None for f in functions], np.bool_)
        found: dict[tuple[int, str], Size] = {}
        for node in np.flatnonzero(chosen[self.tree.label]).tolist():
            label = int(self.tree.label[node])
            function, sizes = functions[label], self.names.sizes[label]
            if function and sizes:
                found[int(self._seq[node]), function[1].lower()] = sizes[0]
        return found

    def _forward_seq(self, node: int) -> int:
        """`seq` of the forward operator of a backward one; -1 where no range around it has any."""
        above, steps = int(self.tree.parent[node]), 0
        while above >= 0 and self._seq[above] < 0 and steps < _MOST_STEPS:
            above, steps = int(self.tree.parent[above]), steps + 1
        return int(self._seq[above]) if above >= 0 else -1

    @cached_property
    def _transposed(self) -> dict[int, bool]:
        """Whether convolutions are transposed, by seq."""
        found: dict[int, bool] = {}
        for node in self.nodes.tolist():
            product = self.known[self.tree.label[node]].product
            if product not in ("convolution", "transposed"):
                continue
            for n in (node, *self._wrappers(node)):
                seq = int(self._seq[n])
                if seq >= 0:
                    found[seq] = product == "transposed"
        return found

    def _wrappers(self, node: int) -> list[int]:
        """Ranges around an operator that return its result: they are operators, too."""
        found: list[int] = []
        above = int(self.tree.parent[node])
        while above >= 0 and len(found) < _MOST_STEPS:
            label = self.tree.label[above]
            if self.names.sizes[label] is None:
                break
            found.append(above)
            above = int(self.tree.parent[above])
        return found

    def _outputs(self, node: int, output: int) -> list[Size]:
        """Sizes in which consumers see an output of an operator, or of what returns it."""
        found: list[Size] = []
        for n in (node, *self._wrappers(node)):
            found += self._consumed.get((int(self._op[n]), output), [])
        return found

    # --- types

    @cached_property
    def half(self) -> str:
        """The type of 16 bits that most kernels name."""
        seen = Counter(t.dtype for t in self._types if t.dtype in ("bfloat16", "float16"))
        return seen.most_common(1)[0][0] or "bfloat16" if seen else "bfloat16"

    @cached_property
    def parameter(self) -> str:
        """The type of parameters and of what nothing made: given, the optimizer's, or cast from."""
        if self.given:
            return "float32" if self.given == "tf32" else self.given
        optimizer = [
            t.dtype
            for t, n in zip(self._types, self.nodes.tolist(), strict=True)
            if self.known[self.tree.label[n]].parameters
        ]
        cast = [t.source for t in self._types]
        computed = [t.dtype for t in self._types]
        for seen in (optimizer, cast, computed):
            known = Counter(t for t in seen if t in FLOATS)
            if known:
                return known.most_common(1)[0][0] or "float32"
        return "float32"

    def dtypes_of(self, node: Int64, output: Int64) -> Int8:
        """Types of outputs: of the kernel that wrote each, of the last operator inside, or inputs'.

        -1 where nothing recorded says it.
        """
        node, output = node.copy(), output.copy()
        found = np.full(len(node), -1, np.int8)
        left = np.arange(len(node))
        for _ in range(_MOST_STEPS):
            if len(left) == 0:
                break
            here = node[left]
            said = self._other_outputs[self.tree.label[here], np.minimum(output[left], _OUTPUTS)]
            call = self._at[here]
            said = np.where((said < 0) & (call >= 0), self._made[call], said)
            found[left] = said
            left, here = left[said < 0], here[said < 0]
            child = self._last_child[here]
            op, made = self._first_made(here)
            at = self._node_of(op)
            at = np.where((op >= 0) & (self._place[at] < self._place[here]), at, -1)
            inside = child >= 0
            node[left] = np.where(inside, child, at)
            output[left] = np.where(inside, output[left], made)
            left = left[inside | (at >= 0)]
        return found

    @cached_property
    def _other_outputs(self) -> Int8:
        """Of every name the types of its outputs that it says itself; -1 for others."""
        found = np.full((len(self.names.name), _OUTPUTS + 1), -1, np.int8)
        for label, formula in enumerate(self.known):
            for output, dtype in formula.output_types.items():
                found[label, output] = _code(dtype)
        return found

    def _argument_types(self) -> list[bytes]:
        """Of every call codes of its arguments' types, as far as what made them says any."""
        made = self._inputs(self.nodes)
        at = self._node_of(made.op)
        earlier = self._place[at] < self._place[self.nodes[made.of]]
        known = np.flatnonzero((made.output >= 0) & (at >= 0) & earlier)
        code = np.full(len(at), -1, np.int8)
        code[known] = self.dtypes_of(at[known], made.output[known])
        ends = np.searchsorted(made.of, np.arange(len(self.nodes) + 1)).tolist()
        text = code.tobytes()
        return [text[a:b] for a, b in pairwise(ends)]

    # --- calls

    def calls(self, phases: Int64, modules: Modules) -> tuple[Call, ...]:
        """Count all calls; those that are alike once."""
        if len(self.nodes) == 0:
            return ()
        kinds: dict[_Kind, int] = {}
        rows = zip(
            self.tree.label[self.nodes].tolist(), self._main.tolist(), phases.tolist(),
            modules.of_node[self.nodes].tolist(), self._copied.tolist(), self._argument_types(),
            strict=True,
        )  # fmt: skip
        code = np.array([
            kinds.setdefault((*row, *self._looked_up(i, row[0])), len(kinds))
            for i, row in enumerate(rows)
        ], np.int64)  # fmt: skip
        _, first = np.unique(code, return_index=True)
        found = [
            self._call(kind, self._types[i], modules.paths[kind[3]])
            for kind, i in zip(kinds, first.tolist(), strict=True)
        ]
        flops = np.array([bool(c.work and c.work.flops) for c in found])[code]
        outer = np.zeros(len(code), np.bool_)
        outer[self._at[_around_others(self.nodes[flops], self.tree)]] = True
        known: dict[tuple[int, int, bool], Call] = {}
        calls = []
        for key in zip(code.tolist(), self._after_others(found, code), outer.tolist(), strict=True):
            if key not in known:
                known[key] = _with(found[key[0]], *key[1:])
            calls.append(known[key])
        return tuple(calls)

    def _looked_up(self, i: int, label: int) -> tuple[Any, ...]:
        """Return what else a call depends on: its result, gradients, direction, kernels."""
        if not self._looks[label]:
            return ()
        formula, sizes = self.known[label], self.names.sizes[label]
        assert sizes is not None
        node = int(self.nodes[i])
        wanted, transposed = (True, True), None
        if formula.product == "gradients":
            wanted = self._wanted(node, sizes, self._kernels(i))
            transposed = self._transposed.get(self._forward_seq(node))
        kernels = self._kernels(i) if formula.by_kernels else ()
        words = (word for name in kernels for word in formula.by_kernels if word in name)
        result = self._result(node, formula, sizes)
        return result, wanted, transposed, "|".join(words), *self._masks(node, label)

    def _masks(self, node: int, label: int) -> tuple[Sizes, int | None]:
        """`Call.masks` and `Call.true` of a call that indexes."""
        inside = self._nonzero.get(node, [])
        if self.names.name[label] == NONZERO:
            above = int(self.tree.parent[node])
            inside = [node] if node in self._nonzero.get(above, []) else []
        sizes = [self.names.sizes[self.tree.label[n]] or () for n in inside]
        found = next(iter(self._outputs(inside[0], 0)), None) if len(inside) == 1 else None
        return tuple(size[0] for size in sizes if size), found[0] if found else None

    @cached_property
    def _nonzero(self) -> dict[int, list[int]]:
        """Of every range that indexes those of `aten::nonzero` inside it, one for every mask."""
        looks, indexes = self.names.starting(NONZERO), _which(self.known, "masks")
        found: dict[int, list[int]] = {}
        for node in np.flatnonzero(looks[self.tree.label]).tolist():
            above = int(self.tree.parent[node])
            if above >= 0 and indexes[self.tree.label[above]]:
                found.setdefault(above, []).append(node)
        return found

    @cached_property
    def _looks(self) -> list[bool]:
        """Of every name whether a call of it depends on more than its own sizes and types."""
        return [
            sizes is not None
            and (f.output_from == "consumers" or f.masks or bool(f.by_kernels))
            for sizes, f in zip(self.names.sizes, self.known, strict=True)
        ]  # fmt: skip

    def _call(self, kind: _Kind, types: KernelTypes, module: str) -> Call:
        """Count a call of some kind."""
        label, _, code, _, copied, made, *looked_up = kind
        phase = PHASES[code]
        name, sizes = self.names.name[label], self.names.sizes[label]
        said = self.names.types[label]
        arguments: list[str | None] = []
        if sizes is not None and said is not None:
            arguments = [dtype_named(word) for word in said]
        elif sizes is not None:
            arguments = [_DTYPES[c] if c < len(_DTYPES) else None for c in made]
        dtype = types.dtype
        origin: Origin = "kernel"
        if dtype is None:
            size = types.item_bytes  # inputs of another size are not those of the kernel
            floats = [t for t in arguments if t in FLOATS and size in (None, ITEM_BYTES[t])]
            dtype, origin = (floats[0] if floats else None), "inputs"
        if dtype is None:
            dtype = self.half if types.item_bytes == 2 else self.parameter
            origin = "given" if self.given else "default"
        unit = types.unit or plain_unit(dtype)
        if not types.unit and self.known[label].product:
            if dtype != "float32":
                unit = f"{dtype}_tensor"
            elif self.given == "tf32" and origin == "given":
                unit = "tf32_tensor"
        make = partial(
            Call, name, sizes or (), phase=phase, module=module, dtype=dtype, origin=origin,
            unit=unit,
        )  # fmt: skip
        if sizes is None or self.known[label].count is None:
            return make()
        given = self._given(label, copied, types, arguments, dtype, phase, *looked_up)
        return make(**given, work=work_of(make(**given)))

    def _after_others(self, found: Sequence[Call], code: Int64) -> list[int]:
        """Bytes of the arguments that a call without products made in the same phase, by call.

        Of calls without products; `found` has every kind of call.
        """
        plain = [c.phase if c.work and not c.work.flops and c.phase != "optimizer" else ""
                 for c in found]  # fmt: skip
        phase = np.array([PHASES.index(p) if p else -1 for p in plain], np.int8)[code]
        reads = [
            [c.read(i) for i in range(len(c.sizes))]
            if p and not c.name.startswith(FUSED)  # buffers' makers are unknown
            else []
            for c, p in zip(found, plain, strict=True)
        ]
        first = np.cumsum([0, *map(len, reads)])
        each = np.array([min(r, _MOST_READ) for some in reads for r in some], np.int64)
        asking = np.flatnonzero((phase >= 0) & (np.diff(first)[code] > 0))
        made = self._inputs(self.nodes[asking])
        call = asking[made.of]
        read = np.flatnonzero((made.output >= 0) & (made.place < np.diff(first)[code[call]]))
        call, at = call[read], first[code[call[read]]] + made.place[read]
        maker, _ = self._makers(self.nodes[call], made.op[read], made.output[read])
        same = (maker >= 0) & (phase[maker] == phase[call]) & (each[at] > 0)
        total = np.zeros(len(code), np.int64)
        np.add.at(total, call[same], each[at[same]])
        return total.tolist()

    def made(self) -> tuple[Made, ...]:
        """Of every call and argument the call that wrote it, and which output it is."""
        made = self._inputs(self.nodes)
        maker, output = self._makers(self.nodes[made.of], made.op, made.output)
        maker = np.where(maker >= 0, maker, np.where(made.output >= 0, EMPTY, OUTSIDE))
        pairs = list(zip(maker.tolist(), output.tolist(), strict=True))
        ends = np.searchsorted(made.of, np.arange(len(self.nodes) + 1)).tolist()
        return tuple(tuple(pairs[a:b]) for a, b in pairwise(ends))

    def _makers(self, node: Int64, op: Int64, output: Int64) -> tuple[Int64, Int64]:
        """The calls whose kernels wrote what operators returned, through views of it; -1 if none.

        And which of its outputs it is.

        Parameters
        ----------
        node, op, output : int64 arrays, shape (n,)
            Who asks, the op_id of the operator, and which of its outputs.
        """
        before, at = node.copy(), np.where(output >= 0, self._node_of(op), -1)
        output = output.copy()
        found = np.full(len(at), -1)
        left = np.arange(len(at))
        for _ in range(_MOST_STEPS):
            earlier = self._place[at[left]] < self._place[before[left]]
            left = left[(at[left] >= 0) & earlier]
            if len(left) == 0:
                break
            here = at[left]
            found[left] = self._at[here]
            left, here = left[found[left] < 0], here[found[left] < 0]
            child = self._last_child[here]
            made, other_output = self._first_made(here)
            other = np.where(made >= 0, self._node_of(made), -1)
            before[left] = np.where(child >= 0, before[left], here)
            output[left] = np.where(child >= 0, output[left], other_output)
            at[left] = np.where(child >= 0, child, other)
        return found, output

    def _given(
        self,
        label: int,
        copied: int,
        types: KernelTypes,
        arguments: list[str | None],
        dtype: str,
        phase: Phase,
        out: Size | None = None,
        wanted: tuple[bool, bool] = (True, True),
        transposed: bool | None = None,
        kernels: str = "",
        masks: Sizes = (),
        true: int | None = None,
    ) -> dict[str, Any]:
        """Return what a formula takes besides the sizes, as `Call` names it."""
        name, sizes = self.names.name[label], self.names.sizes[label] or ()
        item = types.item_bytes or ITEM_BYTES[types.result or dtype]
        if copied and types.dtype is None and sizes and numel(sizes[0]):
            item = max(copied // numel(sizes[0]), 1)
            arguments = []
        own = types.item_bytes or ITEM_BYTES[dtype]
        items = [own] * len(sizes)
        if name.startswith(FUSED):
            moved = buffers(name, sizes, phase, self._types_of_sizes) if any(sizes) else None
            both = (sum(moved.read), sum(moved.written)) if moved else None
            each = tuple(map(add, moved.read, moved.written)) if moved else ()
            return {"items": tuple(items), "item": item, "moved": both, "buffers": each}
        if name == COPY and len(sizes) > 1:
            items[0] = item
            source = types.source or (arguments[1] if len(arguments) > 1 else None)
            if types.source is None and not types.casts:
                items[1] = item
            else:
                other = self.half if dtype == "float32" else "float32"
                items[1] = ITEM_BYTES[source if source and source != dtype else other]
        elif types.source:
            items = [item] * len(sizes)
            half = sum(1 for s in sizes if s) // 2
            items[half:] = [ITEM_BYTES[types.source]] * (len(items) - half)
        elif types.casts or (types.dtype is None and types.item_bytes is None):
            items = [ITEM_BYTES.get(t or "", own) for t in [*arguments, *[None] * len(sizes)]]
            items = items[: len(sizes)]
        for place, said in self.known[label].argument_types.items():
            if place < len(items):
                items[place] = ITEM_BYTES[said]
        recorded = self.names.types[label] or ()
        for place, word in enumerate(recorded):
            items[place] = ITEM_BYTES.get(dtype_named(word) or "", items[place])
        return {
            "items": tuple(items), "item": item, "out": out, "needed": wanted,
            "transposed": transposed, "depth": types.depth, "kernels": kernels,
            "causal": self.causal, "masks": masks, "true": true,
        }  # fmt: skip

    def _kernels(self, i: int) -> list[str]:
        """Names of the kernels of a call."""
        mine = self._mine[self._bounds[i] : self._bounds[i + 1]]
        return [self.kernels.strings[c] for c in self.kernels.name[mine].tolist() if c >= 0]

    @cached_property
    def _types_of_sizes(self) -> Types:
        """Types of the arguments and results of products, by size, and by number of elements."""
        of_product: dict[Size, str] = {}
        of_numel: dict[int, str] = {}
        for types, node in zip(self._types, self.nodes.tolist(), strict=True):
            label = int(self.tree.label[node])
            dtype = types.dtype or (self.half if types.item_bytes == 2 else None)
            if not dtype or not self.known[label].product:
                continue
            for size in self.names.sizes[label] or ():
                if len(size) > 1:
                    of_product[size] = of_numel[numel(size)] = dtype
        return Types(of_product, of_numel, self.parameter)

    def _result(self, node: int, formula: Formula, sizes: Sizes) -> Size | None:
        """Size of a result that the arguments do not tell: a backward's first, or a consumer's."""
        if formula.output_from != "consumers" or formula.product == "gradients":
            return None
        if formula.product and len(sizes) > 1:
            x, w = sizes[:2]
            turned = formula.product == "transposed"
            for n in (node, *self._wrappers(node)):
                seq = int(self._seq[n])
                size = self._backward_of.get(seq) if seq >= 0 else None
                if size and (is_convolved(size, x, w) or turned):
                    return size
            seen = self._outputs(node, 0)
            return next((s for s in seen if turned or is_convolved(s, x, w)), None)
        return next(iter(self._outputs(node, 0)), self._gradient(node))

    def _gradient(self, node: int) -> Size | None:
        """Size of the gradient of an operator's result, where its backward was recorded."""
        for n in (node, *self._wrappers(node)):
            label = int(self.tree.label[n])
            name = self.names.name[label].removeprefix("aten::").replace("_", "")
            size = self._gradients.get((int(self._seq[n]), name.lower()))
            if size:
                return size
        return None

    def _wanted(self, node: int, sizes: Sizes, kernels: list[str]) -> tuple[bool, bool]:
        """Return the gradients of a convolution that are asked for: those that something consumes.

        If all its products are of one gradient by their names, that one: torch.func asks for
        each in a call of its own.
        """
        said = self.names.needed[int(self.tree.label[node])]
        if said is not None and len(said) > 1:
            return said[0], said[1]
        products = [name for name in kernels if kernel(name).multiplies]
        if products and all("dgrad" in name for name in products):
            return True, False
        seen = [
            k < len(sizes) and sizes[k] in self._outputs(node, place)
            for place, k in ((0, 1), (1, 2))
        ]
        return (seen[0], True) if seen[1] else (True, True)


def _code(dtype: str | None) -> int:
    return -1 if dtype is None else _DTYPES.index(dtype)


def _with(call: Call, after_others: int, around_another: bool) -> Call:
    """Return a call that reads so many bytes of others' results, and counts once."""
    if call.work is None or not (after_others or around_another):
        return call
    work = call.work._replace(flops=0) if around_another else call.work
    return replace(call, work=work, fusible_bytes=min(after_others, work.read_bytes))
