"""Turns an ONNX file into a list of layers; weights are not looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.workloads.foreign import check_parameters, imported, square, unknown
from perfmodel.workloads.layers import (
    IMAGE,
    Add,
    Concat,
    Conv,
    Dropout,
    Layer,
    Linear,
    LocalNorm,
    Net,
    Node,
    Norm,
    Pool,
    Relu,
    Shape,
)

_PLAIN: Final[Mapping[str, Layer]] = {
    "BatchNormalization": Norm(), "Relu": Relu(), "Add": Add(), "Sum": Add(), "Concat": Concat(),
    "GlobalAveragePool": Pool("mean"),
}  # fmt: skip
_SAME: Final = ("Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze")
"""What neither computes nor moves anything."""

_TRAINED: Final = ("Conv", "Gemm", "MatMul", "BatchNormalization")
_STATISTICS: Final = 3  # inputs of a BatchNormalization before its running mean and variance


def from_onnx(path: Path) -> Net:
    """Return the network of an ONNX file with one input of images, (N, C, S, S).

    Convolutions, fully connected layers (Gemm, or MatMul and the Add of its bias), normalizations,
    pools, sums, concatenations, ReLU and dropout are known; what is computed from constants only
    (shapes) is left out.

    Raises
    ------
    WorkloadError
        If onnx is missing, the file is none, the images' size is not told, or a layer is not known
        or not square.
    """
    onnx = imported("onnx", "install onnx, or name one of perfmodel's own networks")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as problem:  # protobuf's and the system's own
        raise WorkloadError(
            f"wanted an ONNX file; found {printable(str(path))}, which cannot be read: "
            f"{printable(str(problem))[:200]}"
        ) from problem
    sizes = {w.name: tuple(w.dims) for w in model.graph.initializer}
    images = [x for x in model.graph.input if x.name not in sizes]
    if len(images) != 1:
        raise WorkloadError(
            f"wanted one input of images; found {', '.join(printable(x.name) for x in images)}"
        )
    nodes, parameters = _Graph(onnx, sizes, images[0].name).nodes(model.graph.node)
    net = Net(path.name, _shape(images[0]), nodes)
    check_parameters(net, parameters)
    return net


def _shape(images: Any) -> Shape:
    dims = [d.dim_value for d in images.type.tensor_type.shape.dim]
    if len(dims) != 4 or min(dims[1:]) < 1:
        raise WorkloadError(
            f"wanted images of (N, C, H, W) with numbers for C, H and W; found "
            f"{dims or 'no shape'}: export the model with a fixed size of images"
        )
    return Shape(*dims[1:])


class _Graph:
    """Walks the nodes of a graph in their order, which ONNX wants to be that of computation."""

    def __init__(self, onnx: Any, sizes: Mapping[str, tuple[int, ...]], images: str) -> None:
        self._onnx, self._sizes = onnx, sizes
        self._names = {images: IMAGE}
        self._made: list[Node] = []
        self._parameters = 0

    def nodes(self, graph: Any) -> tuple[tuple[Node, ...], int]:
        """Return the layers, and how many parameters they take from the file."""
        for op in graph:
            inputs = [self._names[x] for x in op.input if x in self._names]
            if not inputs:
                continue  # computed from constants
            layer = self._layer(op)
            if layer is None:
                self._names[op.output[0]] = inputs[0]
                continue
            name = op.name or op.output[0]
            self._names[op.output[0]] = name
            self._made.append(Node(name, layer, tuple(inputs)))
        return tuple(self._made), self._parameters

    def _layer(self, op: Any) -> Layer | None:
        """Return what an operation is; None if it does nothing, or is the layer before's bias."""
        values = {a.name: self._onnx.helper.get_attribute_value(a) for a in op.attribute}
        where = op.name or op.output[0]
        weights = [self._sizes[x] for x in op.input if x in self._sizes]
        if op.op_type in _TRAINED:
            for dims in weights[: _STATISTICS - 1]:
                self._parameters += _product(dims)
        if op.op_type in _SAME or (op.op_type == "Add" and self._is_bias(op, weights)):
            return None
        match op.op_type:
            case "Conv" if weights:
                return _convolution(weights, values, where)
            case "Gemm" if weights:
                return Linear(weights[0][0 if values.get("transB") else 1], len(weights) > 1)
            case "MatMul" if weights:
                return Linear(weights[0][1], False)
            case "MaxPool" | "AveragePool":
                return _pool(op.op_type, values, where)
            case "ReduceMean" if _over_pixels(values):
                return Pool("mean")
            case "Dropout":
                return Dropout(float(values.get("ratio", 0.5)))
            case "LRN":
                return LocalNorm(int(values["size"]))
        if op.op_type not in _PLAIN or (weights and op.op_type != "BatchNormalization"):
            raise unknown(op.op_type, where)
        return _PLAIN[op.op_type]

    def _is_bias(self, op: Any, weights: list[tuple[int, ...]]) -> bool:
        """Whether an Add adds constants to what a MatMul made; its Linear then has a bias."""
        if len(weights) != 1 or not self._made:
            return False
        before = self._made[-1]
        if not isinstance(before.layer, Linear) or before.name not in {
            self._names.get(x) for x in op.input
        }:
            return False
        self._parameters += _product(weights[0])
        self._made[-1] = Node(before.name, Linear(before.layer.channels, True), before.inputs)
        return True


def _convolution(weights: list[tuple[int, ...]], values: Mapping[str, Any], where: str) -> Conv:
    if set(values.get("dilations", (1,))) != {1}:
        raise unknown(f"a dilation of {tuple(values['dilations'])}", where)
    kernel, stride, padding = _window(weights[0][2:], values, where)
    return Conv(
        weights[0][0], kernel, stride, padding, int(values.get("group", 1)), len(weights) > 1
    )


def _pool(kind: str, values: Mapping[str, Any], where: str) -> Pool:
    kernel, stride, padding = _window(values["kernel_shape"], values, where)
    what: Literal["max", "mean"] = "max" if kind == "MaxPool" else "mean"
    return Pool(what, kernel, stride, padding, bool(values.get("ceil_mode", 0)))


def _window(kernel: Any, values: Mapping[str, Any], where: str) -> tuple[int, int, int]:
    """Return kernel, stride and padding."""
    if values.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise unknown(f"auto_pad {values['auto_pad'].decode(errors='replace')}", where)
    sizes = kernel, values.get("strides", (1,)), values.get("pads", (0,))
    side, stride, padding = (square(tuple(x), where) for x in sizes)
    return side, stride, padding


def _over_pixels(values: Mapping[str, Any]) -> bool:
    return sorted(a % 4 for a in values.get("axes", ())) == [2, 3]


def _product(dims: tuple[int, ...]) -> int:
    found = 1
    for n in dims:
        found *= n
    return found
