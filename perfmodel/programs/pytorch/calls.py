"""Calls of operators: which kernels each launched, its sizes and types, and what it must do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add
from typing import Final, Literal

import numpy as np

from perfmodel.base.arrays import Bool, Int8, Int32, Int64
from perfmodel.programs.pytorch.dtypes import (
    FLOATS,
    ITEM_BYTES,
    KernelTypes,
    dtype_named,
    kernel_types,
    multiplies,
    plain_unit,
)
from perfmodel.programs.pytorch.names import OperatorNames, Size, Sizes
from perfmodel.programs.pytorch.operators import (
    Call,
    OperatorWork,
    formula_of,
    is_convolved,
    numel,
    work_of,
)
from perfmodel.programs.pytorch.tree import EVALUATE, Tree, find_modules, nearest
from perfmodel.programs.pytorch.triton import Types, buffers
from perfmodel.readers.trace import KERNEL, MEMCPY

Phase = Literal["forward", "backward", "optimizer"]
Origin = Literal["kernel", "inputs", "default", "given", ""]

_FUNCTION: Final = re.compile(r"(\w{1,99})Backward\d{1,9}")
"""A function of autograd's graph, whose first argument is the gradient of a result."""

_MOST_STEPS: Final = 64
"""Producers that are followed to find the type of a tensor."""

_OTHER_OUTPUTS: Final = {
    ("aten::native_dropout", 1): "bool",
    ("aten::native_layer_norm", 1): "float32",
    ("aten::native_layer_norm", 2): "float32",
    ("aten::_fused_rms_norm", 1): "float32",
    ("aten::native_batch_norm", 1): "float32",
    ("aten::native_batch_norm", 2): "float32",
    ("aten::max_pool2d_with_indices", 1): "int64",
    ("aten::arange", 0): "int64",
    ("aten::tril", 0): "bool",
    ("aten::bitwise_not", 0): "bool",
}
"""Types of outputs that differ from what an operator's kernel computes with."""

_INTEGER_ARGUMENTS: Final = {
    "aten::embedding": (1,), "aten::index_select": (2,), "aten::gather": (2,),
    "aten::embedding_dense_backward": (1,), "aten::nll_loss_forward": (1,),
    "aten::nll_loss_backward": (2,), "aten::index_add_": (2,), "aten::index_add": (2,),
    "aten::index_copy_": (2,),
}  # fmt: skip
_BOOLEAN_ARGUMENTS: Final = {
    "aten::masked_fill_": (1,), "aten::masked_fill": (1,), "aten::where": (0,),
    "aten::native_dropout_backward": (1,),
}  # fmt: skip
_TENSORS_IN: Final = "aten::embedding_dense_backward"


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


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator that launched GPU operations itself.

    `work` is None if no formula is for it. `dtype` is that of its longest kernel or its inputs,
    `origin` says which; `unit` the machine's peak for it; `module` the one that called it, ''
    outside of all. `fusible_bytes` are those that it reads of what an operator without products
    wrote in the same phase: a kernel that did both would not read them. `counted` is what the
    formula counted.
    """

    node: int
    name: str
    phase: Phase
    sizes: Sizes | None
    dtype: str
    origin: Origin
    unit: str
    work: OperatorWork | None
    module: str = ""
    fusible_bytes: int = 0
    counted: Call | None = None

    @property
    def shown(self) -> str:
        """Sizes in print; of many tensors the first ones."""
        sizes = [s for s in self.sizes or () if s]
        shown = ", ".join("×".join(map(str, s)) for s in sizes[:4])
        return f"{shown}, … ({len(sizes)})" if len(sizes) > 4 else shown

    @property
    def described(self) -> tuple[tuple[str, str | int], ...]:
        """Operator, sizes, FLOPs and bytes by formula, of all that the call launched."""
        said: tuple[tuple[str, str | int], ...] = (("operator", self.name), ("sizes", self.shown))
        if self.work is None:
            return said
        work = {
            "flops": self.work.flops,
            "operator_bytes": self.work.read_bytes + self.work.write_bytes,
        }
        return (*said, *((key, count) for key, count in work.items() if count))


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls, and of every GPU operation which of them launched it.

    Attributes
    ----------
    calls : tuple of OperatorCall
    owner : int64, shape (k,)
        Index into `calls`, -1 for operations outside of operators.
    phase, module : tuple of str, one for every GPU operation
    """

    calls: tuple[OperatorCall, ...]
    owner: Int64
    phase: tuple[Phase, ...]
    module: tuple[str, ...]


def find_calls(
    names: OperatorNames,
    tree: Tree,
    kernels: Kernels,
    dtype: str | None = None,
    *,
    causal: bool = False,
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
    """
    modelled = np.array(
        [s is not None and formula_of(n) is not None for n, s in _pairs(names)], np.bool_
    )
    operator = np.array([s is not None or n.startswith("aten::") for n, s in _pairs(names)])
    near_formula = nearest(tree.parent, modelled[tree.label])
    near_operator = nearest(tree.parent, operator[tree.label])
    phases = _phases(names, tree)
    inside = kernels.node >= 0
    owner_node = np.full(len(kernels.node), -1, np.int64)
    owner_node[inside] = near_formula[kernels.node[inside]]
    lacking = inside & (owner_node < 0)
    owner_node[lacking] = near_operator[kernels.node[lacking]]
    nodes, owner = np.unique(owner_node, return_inverse=True)
    outside = int(len(nodes) > 0 and nodes[0] < 0)
    owner = owner.astype(np.int64) - outside
    nodes = nodes[outside:]
    graph = _Graph(names, tree, kernels, nodes, owner, dtype, causal=causal)
    modules = find_modules(names, tree)
    calls = [
        graph.call(i, node, _PHASES[phases[node]], modules.path(node))
        for i, node in enumerate(nodes.tolist())
    ]
    phase = tuple(_PHASES[phases[n] if n >= 0 else 0] for n in kernels.node.tolist())
    module = tuple(modules.path(n) for n in kernels.node.tolist())
    return Calls(tuple(_once(calls, tree)), owner, phase, module)


def _pairs(names: OperatorNames) -> Iterable[tuple[str, Sizes | None]]:
    return zip(names.name, names.sizes, strict=True)


_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "optimizer")


def _phases(names: OperatorNames, tree: Tree) -> Int64:
    """Phase of every range, as a position in `_PHASES`: the one that it is inside of.

    Autograd evaluates the backward in ranges of its own, and optimizers name their steps; a
    program's own ranges called so count too. What is in none of them is of the backward on a thread
    of autograd's, such as DistributedDataParallel's last copies; of the optimizer if it comes
    between a backward and the optimizer's step, such as clipping gradients; else of the forward.
    """
    code = np.full(len(names.name), -1, np.int64)
    for i, name in enumerate(names.name):
        low = name.lower()
        if name.startswith(EVALUATE):
            code[i] = 1
        elif name.startswith("Optimizer.") or low in ("optimizer", "optimizer_step"):
            code[i] = 2
        elif low == "backward":
            code[i] = 1
        elif low == "forward":
            code[i] = 0
    mine = code[tree.label]
    said = nearest(tree.parent, mine >= 0)
    unsaid = np.where(_before_optimizer(mine, tree), 2, 0)
    if tree.thread is not None:
        evaluates = np.array([name.startswith(EVALUATE) for name in names.name], np.bool_)[
            tree.label
        ]
        others = np.unique(tree.thread[(mine >= 0) & ~evaluates])
        engines = np.setdiff1d(tree.thread[evaluates], others)
        unsaid[np.isin(tree.thread, engines)] = 1
    return np.where(said >= 0, mine[said], unsaid)


def _before_optimizer(mine: Int64, tree: Tree) -> Bool:
    """Whether of the ranges with a phase the last before each is backward, the next optimizer."""
    found = np.zeros(len(mine), np.bool_)
    for process in np.unique(tree.process):
        here = np.flatnonzero(tree.process == process)
        marked = here[mine[here] >= 0]
        marked = marked[np.argsort(tree.start_ns[marked], kind="stable")]
        phase = np.concatenate([[-1], mine[marked], [-1]])
        at = np.searchsorted(tree.start_ns[marked], tree.start_ns[here], side="right")
        found[here] = (phase[at] == 1) & (phase[at + 1] == 2)
    return found


def _once(calls: Sequence[OperatorCall], tree: Tree) -> list[OperatorCall]:
    """Take the FLOPs from operators inside which another one was counted."""
    counted = {c.node: i for i, c in enumerate(calls) if c.work and c.work.flops}
    chosen = np.zeros(len(tree.parent), np.bool_)
    chosen[list(counted)] = True
    near = nearest(tree.parent, chosen)
    found = list(calls)
    for node in counted:
        above = int(tree.parent[node])
        outer = int(near[above]) if above >= 0 else -1
        if outer >= 0:
            call = calls[counted[outer]]
            assert call.work is not None
            found[counted[outer]] = replace(call, work=replace(call.work, flops=0))
    return found


class _Graph:
    """Producers and consumers of tensors, and the types that they have."""

    def __init__(
        self,
        names: OperatorNames,
        tree: Tree,
        kernels: Kernels,
        nodes: Int64,
        owner: Int64,
        dtype: str | None,
        *,
        causal: bool,
    ) -> None:
        self.causal = causal
        self.names, self.tree, self.kernels, self.nodes = names, tree, kernels, nodes
        self.given = dtype
        kernel = kernels.kind == KERNEL
        product = np.array([multiplies(name) for name in kernels.strings] + [False], np.bool_)
        order = np.lexsort((kernels.duration_ns, product[kernels.name], kernel, owner))
        self._mine = order[np.searchsorted(owner[order], 0) :]
        self._bounds = np.searchsorted(owner[self._mine], np.arange(len(nodes) + 1)).tolist()
        copied = np.where((kernels.kind == MEMCPY) & (owner >= 0), np.maximum(kernels.bytes, 0), 0)
        copied = np.bincount(np.maximum(owner, 0), copied, len(nodes))
        self._copied = np.minimum(copied, 2.0**62).astype(np.int64)
        self._types = [
            kernel_types(kernels.strings[int(c)]) if c >= 0 else KernelTypes()
            for c in self._main_names()
        ]
        self._at = {n: i for i, n in enumerate(nodes.tolist())}
        self._known: dict[tuple[int, int, int], str | None] = {}
        self._fusible: dict[int, Phase] = {}  # calls without products that have a formula

    def _main_names(self) -> list[int]:
        """Of every call the name of its longest kernel, -1 if it launched none.

        Of those that multiply, if any does: a short product may come with longer copies.
        """
        last = self._mine[np.array(self._bounds[1:], np.int64) - 1]
        kernel = self.kernels.kind[last] == KERNEL
        names: list[int] = np.where(kernel, self.kernels.name[last], -1).tolist()
        return names

    @cached_property
    def _node_of(self) -> dict[tuple[int, int], int]:
        """Range by process and op_id."""
        op = self.names.op_id[self.tree.label]
        at = np.flatnonzero(op >= 0)
        keys = zip(self.tree.process[at].tolist(), op[at].tolist(), strict=True)
        return dict(zip(keys, at.tolist(), strict=True))

    @cached_property
    def _last_child(self) -> Int64:
        """Of every range the last range inside it that is an operator's, -1 without any."""
        found = np.full(len(self.tree.parent), -1, np.int64)
        at = np.flatnonzero((self.tree.parent >= 0) & (self.names.op_id[self.tree.label] >= 0))
        found[self.tree.parent[at]] = at
        return found

    @cached_property
    def _consumed(self) -> dict[tuple[int, int, int], list[Size]]:
        """Sizes in which consumers see an output, by process, op_id and output.

        Of the outputs of operators whose own sizes do not say it.
        """
        asked = [
            n for n in self.nodes.tolist() if self.names.name[self.tree.label[n]].startswith(_ASKED)
        ]
        wanted: set[tuple[int, int]] = set()
        for node in asked:
            for n in (node, *self._wrappers(node)):
                op = int(self.names.op_id[self.tree.label[n]])
                if op >= 0:
                    wanted.add((int(self.tree.process[n]), op))
        found: dict[tuple[int, int, int], list[Size]] = {}
        if not wanted:
            return found
        ops = np.array(sorted({op for _, op in wanted}), np.int64)
        hit = np.flatnonzero((self.names.input_output >= 0) & np.isin(self.names.input_op, ops))
        row = np.searchsorted(self.names.first, hit, side="right") - 1
        by_row: dict[int, list[int]] = {}
        for r, h in zip(row.tolist(), hit.tolist(), strict=True):
            by_row.setdefault(r, []).append(h)
        using = np.flatnonzero(np.isin(self.tree.label, np.array(sorted(by_row), np.int64)))
        for node in using.tolist():
            r, process = int(self.tree.label[node]), int(self.tree.process[node])
            sizes = self.names.sizes[r] or ()
            for h in by_row[r]:
                key = (process, int(self.names.input_op[h]))
                place = h - int(self.names.first[r])
                if key in wanted and place < len(sizes) and sizes[place]:
                    found.setdefault((*key, int(self.names.input_output[h])), []).append(
                        sizes[place]
                    )
        return found

    @cached_property
    def _backward_of(self) -> dict[tuple[int, int], Size]:
        """Sizes of results' gradients of convolutions, by process and the forward's seq."""
        found: dict[tuple[int, int], Size] = {}
        for node in self.nodes.tolist():
            label = int(self.tree.label[node])
            sizes = self.names.sizes[label]
            if self.names.name[label] != "aten::convolution_backward" or not sizes:
                continue
            seq = self._forward_seq(node)
            if seq >= 0:
                found[int(self.tree.process[node]), seq] = sizes[0]
        return found

    @cached_property
    def _gradients(self) -> dict[tuple[int, int, str], Size]:
        """Sizes of results' gradients, by process, the forward's seq and name: autograd's."""
        functions = [_FUNCTION.fullmatch(n) if s else None for n, s in _pairs(self.names)]
        chosen = np.array([f is not None for f in functions], np.bool_)
        found: dict[tuple[int, int, str], Size] = {}
        for node in np.flatnonzero(chosen[self.tree.label]).tolist():
            label = int(self.tree.label[node])
            function, sizes = functions[label], self.names.sizes[label]
            if function and sizes:
                seq = int(self.names.seq[label])
                found[int(self.tree.process[node]), seq, function[1].lower()] = sizes[0]
        return found

    def _forward_seq(self, node: int) -> int:
        """`seq` of the forward operator of a backward one; -1 where no range around it has any."""
        above, steps = int(self.tree.parent[node]), 0
        while above >= 0 and self.names.seq[self.tree.label[above]] < 0 and steps < _MOST_STEPS:
            above, steps = int(self.tree.parent[above]), steps + 1
        return int(self.names.seq[self.tree.label[above]]) if above >= 0 else -1

    @cached_property
    def _transposed(self) -> dict[tuple[int, int], bool]:
        """Whether convolutions are transposed, by process and seq."""
        found: dict[tuple[int, int], bool] = {}
        for node in self.nodes.tolist():
            name = self.names.name[self.tree.label[node]]
            if "conv" not in name or "backward" in name:
                continue
            for n in (node, *self._wrappers(node)):
                seq = int(self.names.seq[self.tree.label[n]])
                if seq >= 0:
                    found[int(self.tree.process[node]), seq] = "transpose" in name
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
        process = int(self.tree.process[node])
        found: list[Size] = []
        for n in (node, *self._wrappers(node)):
            op = int(self.names.op_id[self.tree.label[n]])
            found += self._consumed.get((process, op, output), [])
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
            if "_fused_" in self.names.name[self.tree.label[n]]
            or "_foreach_" in self.names.name[self.tree.label[n]]
        ]
        cast = [t.source for t in self._types]
        computed = [t.dtype for t in self._types]
        for seen in (optimizer, cast, computed):
            known = Counter(t for t in seen if t in FLOATS)
            if known:
                return known.most_common(1)[0][0] or "float32"
        return "float32"

    def dtype_of(self, node: int, output: int = 0) -> str | None:
        """Type of an output: of the kernel that wrote it, of the last operator inside, or inputs'.

        None if nothing recorded says it.
        """
        key = (int(self.tree.process[node]), node, output)
        if key in self._known:
            return self._known[key]
        found: str | None = None
        steps = 0
        while steps < _MOST_STEPS:
            steps += 1
            label = int(self.tree.label[node])
            found = _OTHER_OUTPUTS.get((self.names.name[label], output))
            if found is None and node in self._at:
                types = self._types[self._at[node]]
                found = types.result or types.dtype
            if found is not None:
                break
            child = int(self._last_child[node])
            if child >= 0:
                node = child
                continue
            made = next(((op, o) for op, o in self.names.inputs(label) if o >= 0), None)
            if made is None:
                break
            at = self._node_of.get((int(self.tree.process[node]), made[0]))
            if at is None or at >= node:
                break
            node, output = at, made[1]
        self._known[key] = found
        return found

    def _argument_types(self, node: int) -> list[str | None]:
        label = int(self.tree.label[node])
        said = self.names.types[label]
        if said is not None:
            return [dtype_named(word) for word in said]
        process = int(self.tree.process[node])
        found: list[str | None] = []
        for op, output in self.names.inputs(label):
            at = self._node_of.get((process, op)) if output >= 0 else None
            found.append(self.dtype_of(at, output) if at is not None and at < node else None)
        return found

    # --- calls

    def call(self, i: int, node: int, phase: Phase, module: str) -> OperatorCall:
        """Count one call."""
        label = int(self.tree.label[node])
        name, sizes = self.names.name[label], self.names.sizes[label]
        types = self._types[i]
        arguments = self._argument_types(node) if sizes is not None else []
        dtype = types.dtype
        origin: Origin = "kernel"
        if dtype is None:
            floats = [t for t in arguments if t in FLOATS]
            dtype, origin = (floats[0] if floats else None), "inputs"
        if dtype is None:
            dtype = self.half if types.item_bytes == 2 else self.parameter
            origin = "given" if self.given else "default"
        unit = types.unit or plain_unit(dtype)
        if not types.unit and name.startswith(_PRODUCTS):
            if dtype != "float32":
                unit = f"{dtype}_tensor"
            elif self.given == "tf32" and origin == "given":
                unit = "tf32_tensor"
        work, fusible, counted = None, 0, None
        if sizes is not None and formula_of(name) is not None:
            counted = self._as_call(i, node, name, sizes, types, arguments, dtype, phase)
            work = work_of(counted)
            if work is not None and not work.flops and phase != "optimizer":
                self._fusible[i] = phase
                fusible = min(self._after_another(node, counted, phase), work.read_bytes)
        return OperatorCall(
            node, name, phase, sizes, dtype, origin, unit, work, module, fusible, counted
        )

    def _after_another(self, node: int, call: Call, phase: Phase) -> int:
        """Bytes of the arguments that a call without products made in the same phase."""
        if call.name.startswith("triton_"):  # its buffers' makers are those of their memory
            return 0
        found = 0
        for i, (op, output) in enumerate(self.names.inputs(int(self.tree.label[node]))):
            if output >= 0 and i < len(call.sizes) and call.sizes[i]:
                maker = self._maker(node, op)
                if maker is not None and self._fusible.get(maker) == phase:
                    found += call.read(i)
        return found

    def _maker(self, node: int, op: int) -> int | None:
        """The call whose kernels wrote what an operator returned, through views of it."""
        process = int(self.tree.process[node])
        at = self._node_of.get((process, op))
        for _ in range(_MOST_STEPS):
            if at is None or at >= node:
                return None
            if at in self._at:
                return self._at[at]
            child = int(self._last_child[at])
            if child >= 0:
                at = child
                continue
            made = next((o for o, k in self.names.inputs(int(self.tree.label[at])) if k >= 0), None)
            node, at = at, None if made is None else self._node_of.get((process, made))
        return None

    def _as_call(
        self,
        i: int,
        node: int,
        name: str,
        sizes: Sizes,
        types: KernelTypes,
        arguments: list[str | None],
        dtype: str,
        phase: Phase,
    ) -> Call:
        item = types.item_bytes or ITEM_BYTES[types.result or dtype]
        if self._copied[i] and types.dtype is None and sizes and numel(sizes[0]):
            item = max(int(self._copied[i]) // numel(sizes[0]), 1)
            arguments = []
        own = types.item_bytes or ITEM_BYTES[dtype]
        items = [own] * len(sizes)
        if name.startswith("triton_"):
            moved = buffers(name, sizes, phase, self._types_of_sizes) if any(sizes) else None
            both = (sum(moved.read), sum(moved.written)) if moved else None
            each = tuple(map(add, moved.read, moved.written)) if moved else ()
            return Call(name, sizes, tuple(items), item, moved=both, buffers=each)
        if name == "aten::copy_" and len(sizes) > 1:
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
        for places, size in ((_INTEGER_ARGUMENTS, 8), (_BOOLEAN_ARGUMENTS, 1)):
            for place in places.get(name, ()):
                if place < len(items):
                    items[place] = size
        recorded = self.names.types[int(self.tree.label[node])] or ()
        for place, word in enumerate(recorded):
            items[place] = ITEM_BYTES.get(dtype_named(word) or "", items[place])
        out = self._result(node, name, sizes)
        wanted, transposed = (True, True), None
        if name == "aten::convolution_backward":
            wanted = self._wanted(node, sizes)
            process = int(self.tree.process[node])
            transposed = self._transposed.get((process, self._forward_seq(node)))
        kernels = self._joined(i) if name in _BY_KERNELS else ""
        return Call(
            name, sizes, tuple(items), item, out, wanted, transposed, types.depth, kernels,
            self.causal,
        )  # fmt: skip

    def _joined(self, i: int) -> str:
        """Names of the kernels of a call."""
        mine = self._mine[self._bounds[i] : self._bounds[i + 1]]
        return "|".join(self.kernels.strings[c] for c in self.kernels.name[mine].tolist() if c >= 0)

    @cached_property
    def _types_of_sizes(self) -> Types:
        """Types of the arguments and results of products, by size, and by number of elements."""
        of_product: dict[Size, str] = {}
        of_numel: dict[int, str] = {}
        for types, node in zip(self._types, self.nodes.tolist(), strict=True):
            label = int(self.tree.label[node])
            dtype = types.dtype or (self.half if types.item_bytes == 2 else None)
            if not dtype or not self.names.name[label].startswith(_PRODUCTS):
                continue
            for size in self.names.sizes[label] or ():
                if len(size) > 1:
                    of_product[size] = of_numel[numel(size)] = dtype
        return Types(of_product, of_numel, self.parameter)

    def _result(self, node: int, name: str, sizes: Sizes) -> Size | None:
        """Size of a result that the arguments do not tell: a backward's first, or a consumer's."""
        if name == "aten::convolution_backward" or not name.startswith(_ASKED):
            return None
        if "conv" in name and len(sizes) > 1:
            x, w = sizes[:2]
            process = int(self.tree.process[node])
            for n in (node, *self._wrappers(node)):
                seq = int(self.names.seq[self.tree.label[n]])
                size = self._backward_of.get((process, seq)) if seq >= 0 else None
                if size and (is_convolved(size, x, w) or "transpose" in name):
                    return size
            seen = self._outputs(node, 0)
            turned = "transpose" in name
            return next((s for s in seen if turned or is_convolved(s, x, w)), None)
        return next(iter(self._outputs(node, 0)), self._gradient(node))

    def _gradient(self, node: int) -> Size | None:
        """Size of the gradient of an operator's result, where its backward was recorded."""
        process = int(self.tree.process[node])
        for n in (node, *self._wrappers(node)):
            label = int(self.tree.label[n])
            name = self.names.name[label].removeprefix("aten::").replace("_", "")
            size = self._gradients.get((process, int(self.names.seq[label]), name.lower()))
            if size:
                return size
        return None

    def _wanted(self, node: int, sizes: Sizes) -> tuple[bool, bool]:
        """Which gradients of a convolution are asked for: those that something consumes."""
        said = self.names.needed[int(self.tree.label[node])]
        if said is not None and len(said) > 1:
            return said[0], said[1]
        seen = [
            any(_same(size, sizes[k]) for size in self._outputs(node, place) if k < len(sizes))
            for place, k in ((0, 1), (1, 2))
        ]
        return (seen[0], True) if seen[1] else (True, True)


def _same(one: Size, other: Size) -> bool:
    return one == other


_PRODUCTS: Final = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm",
    "aten::_grouped_mm", "aten::_scaled_dot_product", "aten::cudnn_conv", "aten::convolution",
    "aten::mv", "aten::addmv", "aten::_cudnn_rnn",
)  # fmt: skip
_ASKED: Final = (
    "aten::cudnn_conv", "aten::convolution", "aten::_conv_depthwise", "aten::conv_depthwise",
    "aten::slow_conv", "aten::_slow_conv", "aten::miopen_", "aten::max_pool2d", "aten::max_pool3d",
    "aten::avg_pool", "aten::_adaptive_avg_pool", "aten::upsample", "aten::sum", "aten::mean",
    "aten::embedding_dense_backward", "aten::index", "aten::topk", "aten::_embedding_bag",
    "aten::nonzero",
)  # fmt: skip
_BY_KERNELS: Final = (
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::gather", "aten::index_select",
    "aten::embedding", "aten::embedding_dense_backward", "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
)  # fmt: skip
