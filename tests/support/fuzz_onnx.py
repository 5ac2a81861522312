"""A fuzz target for ONNX files: graphs whose nodes, attributes and sizes were drawn."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any, Final

from perfmodel.workloads.layers import total
from perfmodel.workloads.networks import network
from support.fuzz_draws import Draws, drawn

OPERATORS: Final = (
    "Conv", "Conv", "Gemm", "Gemm", "MatMul", "MatMul", "MaxPool", "AveragePool", "LRN", "Concat",
    "GlobalAveragePool", "ReduceMean", "BatchNormalization", "LayerNormalization", "Gather",
    "Attention", "Relu", "Dropout", "Add", "Sum", "Mul", "Flatten", "Reshape", "Transpose",
    "Softmax", "Split", "Slice", "Unsqueeze", "Shape", "Identity", "ConvTranspose", "Loop", "",
)  # fmt: skip
ATTRIBUTES: Final = (
    "kernel_shape", "strides", "pads", "dilations", "group", "auto_pad", "size", "axis", "axes",
    "transA", "transB", "alpha", "perm", "num_heads", "q_num_heads", "kv_num_heads", "ceil_mode",
    "epsilon", "keepdims", "is_causal", "qk_matmul_output_mode",
)  # fmt: skip
VALUES: Final = (
    0, 1, 2, 3, 8, -1, 2**31, 2**62, -(2**63), 0.5, float("nan"), "", "SAME_UPPER", "\x1b[2J",
    [1], [2, 2], [0, 0], [1, 1], [3, 3], [-1, 2], [1, 1, 1, 1], [2**40, 2**40], [], [0, 1, 2, 3],
)  # fmt: skip
SIZES: Final = (1, 2, 3, 4, 8, 16, 27, 64, 144, 0, -1, 2**31, 2**62, "N", "", None)
SHAPES: Final = ((4, 3, 3, 3), (8, 4, 3, 3), (8, 64), (64, 8), (8,), (), (1, 8), (0, 3), (3, 4, 5))


def onnx_graph(data: bytes) -> None:
    """Count a network whose file was drawn."""
    import onnx

    draw = Draws(data)
    model = _model(onnx, draw)
    content = model.SerializeToString()
    if draw.random() < 0.1:
        content = content[: draw.randrange(len(content) + 1)]
    path = _folder() / "drawn.onnx"
    path.write_bytes(content)
    settings = {} if draw.random() < 0.7 else {draw.choice(("N", "batch", "", "x")): 4}
    net = network(str(path), **settings)
    if min(dataclasses.astuple(total(net, draw.choice((1, 32)), 4))) < 0:
        raise AssertionError("less than nothing")


def _model(onnx: Any, draw: Draws) -> Any:
    helper, of = onnx.helper, onnx.TensorProto
    weights = []
    for i in range(draw.randrange(4)):
        shape = draw.choice(SHAPES)
        count = 1
        for n in shape:
            count *= n
        weights.append(helper.make_tensor(f"w{i}", of.FLOAT, shape, [0.0] * count))
    known, nodes = ["x", *(weight.name for weight in weights)], []
    for i in range(draw.choice((1, 2, 3, 6))):
        inputs = [draw.choice((*known, known[-1], "")) for _ in range(draw.choice((1, 2, 2, 3, 0)))]
        given = {draw.choice(ATTRIBUTES): draw.choice(VALUES) for _ in range(draw.randrange(4))}
        outputs = [f"v{i}"] if draw.random() < 0.95 else []
        node = helper.make_node(draw.choice(OPERATORS), inputs, outputs)
        for name, value in given.items():
            node.attribute.append(_attribute(onnx, name, value))
        nodes.append(node)
        known += outputs
    sizes = [draw.choice(SIZES) for _ in range(draw.choice((4, 4, 2, 3, 0)))]
    if draw.random() < 0.5:
        sizes = ["N", 3, 8, 8] if draw.random() < 0.5 else ["N", 8]
    x = helper.make_tensor_value_info("x", draw.choice((of.FLOAT, of.INT64)), sizes)
    y = helper.make_tensor_value_info(draw.choice(known), of.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x] if draw.random() < 0.95 else [], [y], weights)
    opset = helper.make_opsetid("", draw.choice((13, 17, 23, 1)))
    return helper.make_model(graph, opset_imports=[opset])


def _attribute(onnx: Any, name: str, value: Any) -> Any:
    kind = onnx.AttributeProto
    if value == []:
        return onnx.helper.make_attribute(name, value, attr_type=kind.INTS)
    return onnx.helper.make_attribute(name, value)


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="perfmodel-fuzz-"))


ONNX_SEEDS: Final[dict[str, list[bytes]]] = {"onnx_graph": drawn(20)}
