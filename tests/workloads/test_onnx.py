"""An ONNX file becomes the layers that perfmodel writes down; what is not known is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.foreign import from_onnx
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Concat,
    Conv,
    Dropout,
    Linear,
    LocalNorm,
    Net,
    Norm,
    Pool,
    Relu,
    place,
    total,
)
from perfmodel.workloads.networks import network
from support.cli import perfmodel

onnx = pytest.importorskip("onnx", reason="reads ONNX files: pip install onnx")


class Written:
    """An ONNX graph as it grows; weights have sizes, and no data."""

    def __init__(self, image: Sequence[Any]) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._images = onnx.helper.make_tensor_value_info("images", 1, image)

    def weight(self, *dims: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.TensorProto(name=name, dims=dims, data_type=1))
        return name

    def add(self, kind: str, inputs: Sequence[str], out: str, **values: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [out], name=f"n_{out}", **values))
        return out

    def save(self, path: Path) -> Path:
        last = onnx.helper.make_tensor_value_info(self.nodes[-1].output[0], 1, None)
        graph = onnx.helper.make_graph(self.nodes, "g", [self._images], [last], self.weights)
        path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
        return path


def written(net: Net) -> Written:
    """Write a network as PyTorch's exporter does."""
    to = Written(("N", net.sample.channels, net.sample.height, net.sample.width))
    for x in place(net):
        inputs = ["images" if name == INPUT else name for name in x.inputs]
        layer, before = x.layer, x.input_shapes[0]
        match layer:
            case Conv():
                side, around = [layer.kernel] * 2, [layer.padding] * 4
                weights = [to.weight(layer.channels, before.channels // layer.groups, *side)]
                weights += [to.weight(layer.channels)] if layer.bias else []
                to.add("Conv", [*inputs, *weights], x.name, group=layer.groups, pads=around,
                       kernel_shape=side, strides=[layer.stride] * 2)  # fmt: skip
            case Linear():
                flat = to.add("Flatten", inputs, f"{x.name}_flat", axis=1)
                weights = [to.weight(layer.channels, before.elements), to.weight(layer.channels)]
                to.add("Gemm", [flat, *weights], x.name, transB=1)
            case Norm():
                four = [to.weight(before.channels) for _ in range(4)]
                to.add("BatchNormalization", [*inputs, *four], x.name)
            case Pool() if layer.kernel is None:
                to.add("GlobalAveragePool", inputs, x.name)
            case Pool():
                kind = "MaxPool" if layer.kind == "max" else "AveragePool"
                to.add(kind, inputs, x.name, kernel_shape=[layer.kernel] * 2,
                       strides=[layer.stride] * 2, pads=[layer.padding] * 4,
                       ceil_mode=int(layer.ceil))  # fmt: skip
            case LocalNorm():
                to.add("LRN", inputs, x.name, size=layer.size)
            case Relu() | Add() | Concat() | Dropout():
                kind = type(layer).__name__
                to.add(kind, inputs, x.name, **({"axis": 1} if kind == "Concat" else {}))
    return to


@pytest.mark.parametrize(
    "name", ["alexnet", "alexnet-caffe", "vgg16", "googlenet", "resnet18", "resnet50"]
)
def test_a_file_costs_what_the_layers_by_hand_cost(name: str, tmp_path: Path) -> None:
    net = network(name)
    found = from_onnx(written(net).save(tmp_path / "net.onnx"))
    assert len(found.nodes) == len(net.nodes)
    assert total(found, 8) == total(net, 8)
    assert total(found, only="conv") == total(net, only="conv")


def test_a_product_and_the_sum_of_its_bias_are_one_layer(tmp_path: Path) -> None:
    """3 x 8 x 8 pixels to 10 outputs: 1920 weights and 10 biases; shapes are constants."""
    to = Written(("N", 3, 8, 8))
    shape = onnx.helper.make_node("Constant", [], ["shape"], value_ints=[-1, 192])
    to.nodes.append(shape)
    flat = to.add("Reshape", ["images", "shape"], "flat")
    product = to.add("MatMul", [flat, to.weight(192, 10)], "product")
    to.add("Relu", [to.add("Add", [product, to.weight(10)], "sum")], "out")
    found = from_onnx(to.save(tmp_path / "mlp.onnx"))
    assert [type(n.layer) for n in found.nodes] == [Linear, Relu]
    assert total(found).parameters == 1930
    assert total(found).macs == 1920


def test_the_command_reads_it(tmp_path: Path) -> None:
    path = written(network("resnet18")).save(tmp_path / "r.onnx")
    said = json.loads(perfmodel("layers", path, "--json").stdout)
    assert said["totals"] == json.loads(perfmodel("layers", "resnet18", "--json").stdout)["totals"]


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    to = Written(("N", 3, 8, 8))
    to.add("Softmax", ["images"], "p")
    with pytest.raises(WorkloadError, match="got Softmax in n_p"):
        from_onnx(to.save(path))
    to = Written(("N", 3, 8, 8))
    to.add("Conv", ["images", to.weight(4, 3, 3, 1)], "c")
    with pytest.raises(WorkloadError, match=r"a size of \(3, 1\) in n_c"):
        from_onnx(to.save(path))
    to = Written(("N", 3, "H", 8))
    to.add("Relu", ["images"], "r")
    with pytest.raises(WorkloadError, match="export the model with a fixed size"):
        from_onnx(to.save(path))
    path.write_bytes(b"\x00no protobuf")
    with pytest.raises(WorkloadError, match="expected an ONNX file"):
        from_onnx(path)
    with pytest.raises(WorkloadError, match="cannot be read"):
        from_onnx(tmp_path / "none.onnx")
