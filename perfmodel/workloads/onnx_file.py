"""ONNX files, read layer by layer: sizes by the inference of the package onnx, weights unread."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole
from perfmodel.workloads.foreign import imported, square, unknown
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Attention,
    Concat,
    Conv,
    Dropout,
    Embedding,
    FeatureNorm,
    Layer,
    Learned,
    Linear,
    LocalNorm,
    Net,
    Node,
    Norm,
    Pointwise,
    Pool,
    Product,
    Relu,
    Shape,
    View,
)

_LARGEST_BYTES: Final = 512 << 20
_LARGEST_TENSOR_BYTES: Final = 1 << 12
"""Larger constants are weights, of which the sizes count; shape inference needs small ones."""
_MOST_ELEMENTS: Final = 2**63 - 1
_FLOATS: Final = (1, 10, 11, 16, 17, 18, 19, 20)  # data types

_VIEWS: Final = (
    "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
"""Operators that neither compute nor move anything."""
_POINTWISE: Final = (
    "Abs", "And", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "CumSum", "Elu", "Equal",
    "Erf", "Exp", "Floor", "Gather", "Gelu", "Greater", "GreaterOrEqual", "GroupNormalization",
    "HardSigmoid", "HardSwish", "InstanceNormalization", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "LogSoftmax", "Max", "Mean", "Min", "Mish", "Neg", "Not", "Or", "PRelu",
    "Pad", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceSum", "RotaryEmbedding",
    "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish",
    "Tanh", "Tile", "Trilu", "Where",
)  # fmt: skip
_ARITHMETIC: Final = ("Add", "Div", "Mul", "PRelu", "Sub", "Sum")
"""With constants of one extent or more these are learned: biases, positions, scales."""
_LEARNING: Final = (
    *_ARITHMETIC, "BatchNormalization", "Concat", "Conv", "Gather", "Gemm", "LayerNormalization",
    "MatMul", "RMSNormalization",
)  # fmt: skip
"""Operations whose constants are weights."""


def from_onnx(path: Path, settings: Mapping[str, int] = MappingProxyType({})) -> Net:
    """Return the network of an ONNX file, for one sample.

    Convolutions, GEMMs (Gemm, MatMul and the Add of its bias), attention, normalizations,
    embeddings, pools, sums, concatenations and element-wise operations are known; what is computed
    from constants only (shapes) is left out. Weights are not read.

    Parameters
    ----------
    settings : mapping of str to int
        Sizes of the inputs that have a name in the file; a first one, the batch, is 1.

    Raises
    ------
    WorkloadError
        If onnx is missing, the file is none, a size of the inputs is not given, or a layer is not
        known or not square.
    """
    onnx = imported(
        "onnx", "pip install 'perfmodel[onnx]', or name one of perfmodel's own networks"
    )
    try:
        model = _read(onnx, path)
    except WorkloadError:
        raise
    except Exception as problem:  # protobuf's and the system's own
        raise WorkloadError(
            f"expected an ONNX file; got {printable(str(path))}, which cannot be read: "
            f"{printable(str(problem))[:200]}: export it anew"
        ) from problem
    _check_names(model.graph)
    batch = _set_sizes(model.graph, settings)
    shapes = _of_one_sample(onnx, model, batch)
    return _Graph(onnx, model.graph, shapes).net(path.name)


def _check_names(graph: Any) -> None:
    """Refuse names that are no text, which protobuf leaves as bytes."""
    values = [*graph.input, *graph.output, *graph.initializer]
    dims = [d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim]
    nodes = [
        x for op in graph.node for x in (op.name, op.op_type, op.domain, *op.input, *op.output)
    ]
    wrong = [x for x in (*dims, *nodes, *(v.name for v in values)) if not isinstance(x, str)]
    if wrong:
        raise WorkloadError(f"expected names in UTF-8; got {wrong[0]!r}: export the model anew")


def _read(onnx: Any, path: Path) -> Any:
    """Read a model, without the values of its large constants and without the sizes it claims."""
    try:
        content = read_whole(path, _LARGEST_BYTES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise WorkloadError(
            f"expected at most {_LARGEST_BYTES >> 20} MiB; got more in {printable(str(path))}: "
            f"keep the weights beside it, onnx.save(model, path, save_as_external_data=True)"
        ) from None
    model = onnx.ModelProto()
    model.ParseFromString(content)
    for weight in model.graph.initializer:
        if weight.ByteSize() > _LARGEST_TENSOR_BYTES:
            kept = onnx.TensorProto(name=weight.name, dims=weight.dims, data_type=weight.data_type)
            weight.CopyFrom(kept)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.ClearField("type")
    return model


Sizes = tuple[int, ...]
Values = dict[str, tuple[Sizes | None, int]]
"""Sizes, None if they are unknown, and data type of the values of a graph."""


def _inputs(graph: Any) -> list[Any]:
    """Return the inputs that are no weights."""
    weights = {x.name for x in graph.initializer}
    found = [x for x in graph.input if x.name not in weights]
    if not found:
        raise WorkloadError("expected an input of the network; got none: export the whole model")
    return found


def _set_sizes(graph: Any, settings: Mapping[str, int]) -> int:
    """Give every extent of the inputs a size; return the batch, the first one's first."""
    known: set[str] = set()
    for value in _inputs(graph):
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            known |= {dim.dim_param} - {""}
            size = settings.get(dim.dim_param, dim.dim_value or int(place == 0))
            if size < 1:
                raise WorkloadError(
                    f"expected a size of {printable(dim.dim_param or 'every extent')} of the input "
                    f"{printable(value.name)}; got none: give --set NAME=N, or export the model "
                    f"with a fixed size"
                )
            dim.dim_value = size
    for name in settings:
        if name not in known:
            named = ", ".join(map(printable, sorted(known))) or "none"
            raise WorkloadError(
                f"expected sizes that the file names, {named}; got {printable(name)}: leave it out"
            )
    first = _inputs(graph)[0].type.tensor_type.shape.dim
    return int(first[0].dim_value) if first else 1


def _inferred(onnx: Any, model: Any) -> Values:
    """Infer sizes and data type of all values."""
    try:
        found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except Exception as problem:  # onnx's own of several kinds
        raise WorkloadError(
            f"expected layers whose sizes fit; onnx says: {printable(str(problem))[:300]}: give "
            f"other sizes of the inputs, or export the model anew"
        ) from problem
    values: Values = {}
    for value in (*found.input, *found.value_info, *found.output):
        tensor = value.type.tensor_type
        known = tensor.HasField("shape")
        values[value.name] = (
            tuple(d.dim_value for d in tensor.shape.dim) if known else None, tensor.elem_type,
        )  # fmt: skip
    values |= {w.name: (tuple(w.dims), w.data_type) for w in found.initializer}
    for name, (sizes, _) in values.items():
        if sizes and (min(sizes) < 0 or prod(sizes) > _MOST_ELEMENTS):
            raise WorkloadError(
                f"expected sizes that a memory holds; got {len(sizes)} extents from {sizes[0]} on "
                f"of {printable(name)}: export the model anew"
            )
    return values


def _of_one_sample(onnx: Any, model: Any, batch: int) -> Values:
    """Infer the sizes of one sample, if a batch of several is nowhere but in front."""
    together = _inferred(onnx, model)
    if batch == 1:
        return together
    for value in _inputs(model.graph):
        for dim in value.type.tensor_type.shape.dim[:1]:
            dim.dim_value = 1 if dim.dim_value == batch else dim.dim_value
    alone = _inferred(onnx, model)
    for name, (sizes, _) in together.items():
        one = alone[name][0] if name in alone else None
        if sizes != one and (not sizes or not one or sizes != (batch * one[0], *one[1:])):
            raise WorkloadError(
                f"expected {batch} samples that all layers keep apart; got {sizes} for "
                f"{printable(name)} where one sample has {one}: export the model with a batch of 1"
            )
    return alone


class _Graph:
    """Walks the nodes of a graph in their order, which ONNX wants to be that of computation."""

    def __init__(self, onnx: Any, graph: Any, shapes: Values) -> None:
        self._onnx, self._graph, self._shapes = onnx, graph, shapes
        self._weights = {x.name: tuple(x.dims) for x in graph.initializer}
        self._learned = {
            x.name: frozenset([x.name] if x.dims and x.data_type in _FLOATS else ())
            for x in graph.initializer
        }
        """Of every constant the weights that it is made of."""
        self._names: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._counted: set[str] = set()

    def net(self, name: str) -> Net:
        """Return the network."""
        first, *others = (x.name for x in _inputs(self._graph))
        self._names[first] = INPUT
        for other in others:
            self._add(other, View(), (INPUT,), other, 0)
        for op in self._graph.node:
            self._read(op)
        return Net(name, self._shape(first), tuple(self._nodes.values()))

    def _shape(self, value: str) -> Shape:
        """Return the shape of a value in one sample."""
        sizes, _ = self._shapes.get(value, (None, 0))
        if sizes is None or 0 in sizes:
            raise WorkloadError(
                f"expected the sizes of {printable(value)}; onnx infers none: simplify the file "
                f"(onnxsim), or export the model with fixed sizes"
            )
        return Shape(*(sizes[1:] if sizes[:1] == (1,) and len(sizes) > 1 else sizes or (1,)))

    def _add(
        self, value: str, layer: Layer, inputs: Sequence[str], name: str, parameters: int
    ) -> None:
        if name in self._nodes or name == INPUT:
            name = f"{name} {len(self._nodes)}"
        self._names[value] = name
        self._nodes[name] = Node(name, layer, tuple(inputs), self._shape(value), parameters)

    def _read(self, op: Any) -> None:
        """Add an operation, unless it computes with constants alone."""
        outputs = [x for x in op.output if x]
        where = op.name or (outputs[0] if outputs else op.op_type)
        if not outputs:
            raise WorkloadError(
                f"expected every node to have an output; got none of {printable(where)}: export "
                f"the model anew"
            )
        lost = [x for x in op.input if x and x not in self._names and x not in self._learned]
        if lost:
            raise WorkloadError(
                f"expected {printable(where)} to read what nodes before it made; got "
                f"{printable(lost[0])}: export the model anew"
            )
        inputs = [self._names[x] for x in op.input if x in self._names]
        if not inputs or op.op_type in ("Shape", "Size"):
            made = frozenset[str]().union(*(self._learned.get(x, ()) for x in op.input))
            for value in outputs:
                floats = self._shapes.get(value, (None, 0))[1] in _FLOATS
                self._learned[value] = made if floats else frozenset()
            return
        try:
            values = {a.name: self._onnx.helper.get_attribute_value(a) for a in op.attribute}
        except ValueError as problem:
            raise unknown(f"an attribute without a value ({problem})", where) from problem
        used = self._used(op)
        count = sum(prod(self._weights[x]) for x in used)
        layer = None
        if op.domain in ("", "ai.onnx"):
            layer = self._layer(op, values, where, count)
        if layer is None:
            raise unknown(f"{op.domain}.{op.op_type}".lstrip("."), where)
        own = sum(prod(self._weights[x]) for x in used - self._counted)
        self._counted |= used
        if self._is_bias(op, layer, own):
            return
        self._add(outputs[0], layer, inputs, where, own)
        for value in outputs[1:]:
            if value in self._shapes:
                self._add(value, View(), (self._names[outputs[0]],), value, 0)

    def _used(self, op: Any) -> frozenset[str]:
        """Return the weights that an operation uses."""
        values = [x for x in op.input if x in self._learned]
        match op.op_type:
            case "BatchNormalization":
                values = values[:2]  # the others are statistics
            case "Gather":
                values = [x for x in op.input[:1] if x in self._learned]
            case kind if kind not in _LEARNING:
                values = []
        return frozenset[str]().union(*(self._learned[x] for x in values))

    def _layer(self, op: Any, values: Mapping[str, Any], where: str, count: int) -> Layer | None:
        """Return what an operation with `count` weights is; None if it is not known."""
        weights = [x for x in op.input if x in self._learned]
        sizes = [self._sizes(x) for x in weights]
        data = [x for x in op.input if x in self._names]
        kind = op.op_type
        if kind in _VIEWS:
            return View()
        match kind:
            case "Conv" if weights and data == [op.input[0]]:
                return self._fitting(
                    op, _convolution(sizes, self._shape(data[0]).channels, values, where)
                )
            case "MaxPool" | "AveragePool":
                return self._fitting(op, _pool(kind, values, where))
            case "GlobalAveragePool":
                return Pool("mean")
            case "ReduceMean" if self._over_pixels(op):
                return Pool("mean")
            case "Gemm" | "MatMul":
                return self._product(op, values, where, count)
            case "BatchNormalization":
                return Norm()
            case "LayerNormalization" | "RMSNormalization":
                if not sizes or sizes[0] != self._shape(data[0])[-1:]:
                    raise unknown("a normalization over several extents", where)
                return FeatureNorm(len(weights) > 1)
            case "Attention":
                return self._attention(op, values, where)
            case "Gather" if weights and op.input[0] in weights:
                if count and len(sizes[0]) == 2 and not values.get("axis", 0):
                    return Embedding(*sizes[0])
                return Learned(count) if count else Pointwise("gather")
            case "Relu":
                return Relu()
            case "Dropout":
                return Dropout()
            case "LRN":
                return LocalNorm(_integer(values, "size", None, where))
            case "Concat":
                joined = self._fitting(op, Concat())
                return Learned(count) if count else joined
        if kind in _ARITHMETIC:
            if count:
                return Learned(count)
            shapes = {self._shape(x) for x in data}
            same = kind in ("Add", "Sum") and len(data) > 1 and len(shapes) == 1
            return Add() if same else Pointwise(kind.lower())
        return Pointwise(kind.lower()) if kind in _POINTWISE else None

    def _sizes(self, value: str) -> Sizes:
        """Return the sizes of a value in the file, () if they are unknown."""
        return self._shapes.get(value, (None, 0))[0] or ()

    def _fitting(self, op: Any, layer: Layer) -> Layer:
        """Return a layer if its own rule gives as many elements as onnx infers."""
        if isinstance(layer, Concat):
            own = sum(prod(self._sizes(x)) for x in op.input)
        else:
            try:
                own = layer.shape(self._shape(op.input[0])).elements
            except WorkloadError as problem:
                raise WorkloadError(f"{printable(op.name or op.output[0])}: {problem}") from problem
        given = prod(self._sizes(op.output[0]))
        if own != given:
            raise WorkloadError(
                f"expected {own:.6g} elements of {printable(op.name or op.output[0])}; onnx infers "
                f"{given:.6g}: correct the sizes in the file"
            )
        return layer

    def _over_pixels(self, op: Any) -> bool:
        before, after = self._shape(op.input[0]), self._shape(op.output[0])
        return len(before) == 3 and before[1:] != (1, 1) and after.elements == before.channels

    def _product(self, op: Any, values: Mapping[str, Any], where: str, count: int) -> Layer:
        """Return a fully connected layer, or a product of what is no plain matrix of weights."""
        if len(op.input) < 2:
            raise unknown("a product without factors", where)
        plain = [x for x in op.input if x in self._names] == [op.input[0]]
        inner = (self._sizes(op.input[0]) or (0,))[-1]
        if values.get("transA", 0) or inner < 1:
            raise unknown("a product of a transposed or unknown matrix", where)
        sizes = self._sizes(op.input[1])
        bias = [x for x in op.input[2:] if x in self._learned]
        if not plain or (len(sizes) != 2 and op.op_type == "MatMul"):
            return Product(inner, self._shape(op.output[0]), count)
        if len(sizes) != 2:
            raise WorkloadError(
                f"expected weights of 2 extents in {printable(where)}; got {len(sizes)}: export "
                f"the model anew"
            )
        channels = sizes[0] if values.get("transB", 0) else sizes[1]
        return Linear(channels, bool(bias), each=True)

    def _is_bias(self, op: Any, layer: Layer, own: int) -> bool:
        """Whether an Add of learned numbers is the bias of a product before; that then has one."""
        if op.op_type != "Add" or not isinstance(layer, Learned):
            return False
        name = next(self._names[x] for x in op.input if x in self._names)
        before = self._nodes.get(name)
        if before is None or not isinstance(before.layer, Linear) or before.layer.bias:
            return False
        if layer.count != before.layer.channels:
            return False
        self._nodes[name] = replace(
            before, layer=replace(before.layer, bias=True),
            parameters=(before.parameters or 0) + own,
        )  # fmt: skip
        self._names[op.output[0]] = name
        return True

    def _attention(self, op: Any, values: Mapping[str, Any], where: str) -> Attention:
        """Return attention over (batch, heads, tokens, features) or heads joined with features."""
        sizes = [self._sizes(x) for x in op.input[:3]]
        if len(sizes) < 3 or {len(s) for s in sizes} not in ({3}, {4}):
            raise unknown("attention without queries, keys and values", where)
        heads, kv_heads = (
            _integer(values, key, s[1] if len(s) == 4 else None, where)
            for key, s in (("q_num_heads", sizes[0]), ("kv_num_heads", sizes[1]))
        )
        size = sizes[0][-1] if len(sizes[0]) == 4 else sizes[0][-1] // heads
        of_values = sizes[2][-1] if len(sizes[2]) == 4 else sizes[2][-1] // kv_heads
        if size != of_values:
            raise unknown(f"heads of {size} features and {of_values} values", where)
        layer = Attention(heads, kv_heads, size)
        layer.shape(*(self._shape(x) for x in op.input[:3]))
        return layer


def _convolution(sizes: list[Sizes], channels: int, values: Mapping[str, Any], where: str) -> Conv:
    if set(_integers(values, "dilations", (1,), where)) != {1}:
        raise unknown(f"a dilation of {values['dilations']}", where)
    if len(sizes[0]) != 4:
        raise unknown(f"weights of {len(sizes[0])} extents", where)
    kernel, stride, padding = _window(sizes[0][2:], values, where)
    group = _integer(values, "group", 1, where)
    if sizes[0][1] * group != channels:
        raise WorkloadError(
            f"expected weights of {channels} input channels in {printable(where)}; got "
            f"{sizes[0][1]} for each of {group} groups: export the model anew"
        )
    return Conv(sizes[0][0], kernel, stride, padding, group, len(sizes) > 1)


def _pool(kind: str, values: Mapping[str, Any], where: str) -> Pool:
    kernel = _integers(values, "kernel_shape", None, where)
    side, stride, padding = _window(kernel, values, where)
    what: Literal["max", "mean"] = "max" if kind == "MaxPool" else "mean"
    return Pool(what, side, stride, padding, bool(_integer(values, "ceil_mode", 0, where)))


def _window(kernel: Sizes, values: Mapping[str, Any], where: str) -> tuple[int, int, int]:
    """Return kernel, stride and padding."""
    if values.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise unknown(f"auto_pad {values['auto_pad']!r}", where)
    strides = _integers(values, "strides", (1,), where)
    pads = _integers(values, "pads", (0,), where)
    side, stride, padding = (square(x, where) for x in (kernel, strides, pads))
    return side, stride, padding


def _integers(values: Mapping[str, Any], key: str, default: Sizes | None, where: str) -> Sizes:
    """Return an attribute that is a list of whole numbers."""
    found = values.get(key, default)
    if not isinstance(found, (list, tuple)) or not all(isinstance(x, int) for x in found):
        raise WorkloadError(
            f"expected whole numbers as {key} of {printable(where)}; got "
            f"{printable(repr(found)[:40])}: export the model anew"
        )
    return tuple(found)


def _integer(values: Mapping[str, Any], key: str, default: int | None, where: str) -> int:
    """Return an attribute that is a whole number."""
    return _integers({key: [values.get(key, default)]}, key, None, where)[0]
