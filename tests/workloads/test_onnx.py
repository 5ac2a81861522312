"""An ONNX file becomes the layers that perfmodel writes down; what is not known is named."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.studies.render.layers import Layers, result
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Concat,
    Conv,
    Dropout,
    Linear,
    LocalNorm,
    Net,
    Node,
    Norm,
    Pool,
    Relu,
    View,
    place,
    total,
)
from perfmodel.workloads.networks import network
from perfmodel.workloads.onnx_file import from_onnx
from support.cli import perfmodel

onnx = pytest.importorskip("onnx", reason="reads ONNX files: pip install onnx")


class Written:
    """An ONNX graph as it grows; weights have sizes, and no data."""

    def __init__(self, image: Sequence[Any], kind: int = 1) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._images = onnx.helper.make_tensor_value_info("images", kind, image)

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


def computing(net: Net) -> list[Node]:
    return [node for node in net.nodes if not isinstance(node.layer, View)]


@pytest.mark.parametrize(
    "name", ["alexnet", "alexnet-caffe", "vgg16", "googlenet", "resnet18", "resnet50"]
)
def test_a_file_costs_what_the_layers_by_hand_cost(name: str, tmp_path: Path) -> None:
    net = network(name)
    found = from_onnx(written(net).save(tmp_path / "net.onnx"))
    assert len(computing(found)) == len(net.nodes)
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
    assert [type(n.layer) for n in computing(found)] == [Linear, Relu]
    assert total(found).parameters == 1930
    assert total(found).macs == 1920


def gpt(to: Written, *, fused: bool, width: int = 24, heads: int = 3) -> Written:
    """Write a GPT of one block; attention as one operator or as exporters of PyTorch write it."""
    helper = onnx.helper

    def constant(name: str, *values: int) -> str:
        to.nodes.append(helper.make_node("Constant", [], [name], value_ints=list(values)))
        return name

    def project(x: str, inner: int, outer: int, out: str) -> str:
        product = to.add("MatMul", [x, to.weight(inner, outer)], f"{out}_product")
        return to.add("Add", [to.weight(outer), product], out)

    ids = to.add("Gather", [to.weight(50, width), "images"], "words")
    size = to.add("Shape", ["images"], "size")
    length = to.add("Gather", [size, constant("one", 1)], "length")
    flat = to.add("Squeeze", [length], "flat")
    for name, value in (("zero", 0), ("step", 1)):
        to.nodes.append(helper.make_node("Constant", [], [name], value_int=value))
    order = to.add("Range", ["zero", flat, "step"], "order")
    places = to.add("Gather", [to.weight(64, width), order], "places")
    x = to.add("Add", [ids, places], "embedding")
    y = to.add("LayerNormalization", [x, to.weight(width), to.weight(width)], "norm1")
    qkv = project(y, width, 3 * width, "qkv")
    names = ["q", "k", "v"]
    to.nodes.append(helper.make_node("Split", [qkv], names, axis=2, num_outputs=3))
    if fused:
        y = to.add("Attention", names, "y", q_num_heads=heads, kv_num_heads=heads, is_causal=1)
    else:
        parts = []
        for name in names:
            batch_and_length = to.add("Shape", [name], f"{name}_size", end=2)
            rest = constant(f"{name}_rest", heads, width // heads)
            shape = to.add("Concat", [batch_and_length, rest], f"{name}_shape", axis=0)
            split = to.add("Reshape", [name, shape], f"{name}_split")
            order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            parts.append(to.add("Transpose", [split], f"{name}_turned", perm=order))
        scores = to.add("MatMul", parts[:2], "scores")
        to.nodes.append(helper.make_node("Constant", [], ["scale"], value_float=0.35))
        scaled = to.add("Mul", [scores, "scale"], "scaled")
        y = to.add("MatMul", [to.add("Softmax", [scaled], "p"), parts[2]], "weighted")
        y = to.add("Transpose", [y], "back", perm=[0, 2, 1, 3])
        y = to.add("Reshape", [y, constant("joined", 0, 0, width)], "heads")
    x = to.add("Add", [project(y, width, width, "proj"), x], "add1")
    y = to.add("LayerNormalization", [x, to.weight(width), to.weight(width)], "norm2")
    y = to.add("Gelu", [project(y, width, 4 * width, "up")], "gelu", approximate="tanh")
    x = to.add("Add", [x, project(y, 4 * width, width, "down")], "add2")
    y = to.add("LayerNormalization", [x, to.weight(width), to.weight(width)], "norm")
    to.add("MatMul", [y, to.weight(width, 50)], "head")
    return to


@pytest.mark.parametrize("fused", [True, False])
def test_a_transformer_costs_what_the_layers_by_hand_cost(fused: bool, tmp_path: Path) -> None:
    path = gpt(Written(("N", "tokens"), 7), fused=fused).save(tmp_path / "g.onnx")
    sizes = {"n_layer": 1, "d_model": 24, "n_head": 3, "vocab": 50, "positions": 64, "tied": 0}
    ours, found = (
        total(network("gpt2", seq=32, **sizes), 4),
        total(from_onnx(path, {"tokens": 32}), 4),
    )
    assert found.parameters == ours.parameters
    assert found.forward_flops == ours.forward_flops
    if fused:
        assert found.backward_flops == ours.backward_flops
    else:  # two products, whose backward is twice, not 5/2 of forward
        attention = 4 * 2 * 2 * 32 * 32 * 24
        assert ours.backward_flops - found.backward_flops == attention // 2
    with pytest.raises(WorkloadError, match="expected a size of tokens of the input images"):
        from_onnx(path)
    with pytest.raises(WorkloadError, match="sizes that the file names, N, tokens; got seq"):
        from_onnx(path, {"tokens": 32, "seq": 3})


def test_a_model_that_torch_exported() -> None:
    """Two blocks of 96, as torch 2.11 writes them; initial values that are equal it stores once."""
    path = Path(__file__).parents[1] / "golden" / "onnx" / "gpt_torch_2.11.onnx"
    sizes = {"n_layer": 2, "d_model": 96, "n_head": 12, "vocab": 500, "positions": 32, "tied": 0}
    ours, found = total(network("gpt2", **sizes)), total(from_onnx(path))
    assert found.forward_flops == ours.forward_flops
    assert found.parameters == ours.parameters - 8 * 96  # scales and shifts of normalizations
    assert (
        "2 /blocks.*/mlp/up/MatMul" in perfmodel("study", "layers", path, "--format", "csv").stdout
    )


def test_a_file_of_several_samples_is_counted_for_one(tmp_path: Path) -> None:
    to = Written((8, 3, 8, 8))
    to.add("Conv", ["images", to.weight(4, 3, 3, 3)], "c")
    net = from_onnx(to.save(tmp_path / "eight.onnx"))
    assert net.sample == (3, 8, 8)
    assert total(net).macs == 4 * 27 * 36
    to.nodes.append(onnx.helper.make_node("Constant", [], ["to"], value_ints=[8, 6, -1]))
    to.add("Reshape", ["c", "to"], "r")  # of one sample this would be another shape
    with pytest.raises(WorkloadError, match="expected 8 samples that all layers keep apart"):
        from_onnx(to.save(tmp_path / "mixed.onnx"))


def test_the_command_reads_it(tmp_path: Path) -> None:
    path = written(network("resnet18")).save(tmp_path / "r.onnx")
    said = json.loads(perfmodel("study", "layers", path, "--json").stdout)
    assert (
        said["totals"]
        == json.loads(perfmodel("study", "layers", "resnet18", "--json").stdout)["totals"]
    )


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    to = Written(("N", 3, 8, 8))
    to.add("NonZero", ["images"], "p")
    with pytest.raises(WorkloadError, match="got NonZero in n_p"):
        from_onnx(to.save(path))
    to = Written(("N", 3, 8, 8))
    to.add("Conv", ["images", to.weight(4, 3, 3, 1)], "c")
    with pytest.raises(WorkloadError, match=r"a size of \(3, 1\) in n_c"):
        from_onnx(to.save(path))
    to = Written(("N", 3, "H", 8))
    to.add("Relu", ["images"], "r")
    with pytest.raises(
        WorkloadError, match="expected a size of H of the input images; got none: give --set NAME=N"
    ):
        from_onnx(to.save(path))
    path.write_bytes(b"\x00no protobuf")
    with pytest.raises(WorkloadError, match="expected an ONNX file"):
        from_onnx(path)
    with pytest.raises(WorkloadError, match="cannot be read"):
        from_onnx(tmp_path / "none.onnx")


def refused(to: Written, path: Path) -> str:
    with pytest.raises(WorkloadError) as problem:
        total(from_onnx(to.save(path)))
    return str(problem.value)


def test_files_that_are_wrong_say_what(tmp_path: Path) -> None:
    """Each was a traceback."""
    path = tmp_path / "wrong.onnx"

    def one(
        kind: str, *weights: tuple[int, ...], image: Any = ("N", 3, 8, 8), **values: Any
    ) -> str:
        to = Written(image)
        to.add(kind, ["images", *(to.weight(*w) for w in weights)], "y", **values)
        return refused(to, path)

    square = (4, 3, 3, 3)
    assert "onnx says" in one("Conv", square, strides=[0, 0])
    assert "whole numbers as size" in one("LRN")
    assert "onnx says" in one("MaxPool")
    assert "expected to have rank 2 but has rank 0" in one("Gemm", (), image=("N", 8))
    assert "onnx says" in one("Gemm", (8,), image=("N", 8))
    assert "got 3 for each of 0 groups" in one("Conv", square, group=0)
    assert "whole numbers as group" in one("Conv", square, group="two")
    assert "onnx says" in one("MaxPool", kernel_shape="ab")
    assert "expected weights of 3 input channels in n_y; got 5" in one("Conv", (4, 5, 3, 3))
    assert "weights of 3 extents" in one("Conv", (4, 3, 3), image=("N", 3, 8))
    assert "a size of (1, 2)" in one("Conv", square, strides=[1, 2])
    assert "auto_pad b'SAME_UPPER'" in one("Conv", square, auto_pad="SAME_UPPER")
    assert "several extents" in one("LayerNormalization", (8, 8), axis=2)
    to = Written(("N", 3, 8, 8))
    to.nodes.append(onnx.helper.make_node("Relu", ["images"], [""], name="lost"))
    to.nodes.append(onnx.helper.make_node("Relu", ["images"], ["y"]))
    assert "every node to have an output; got none of lost" in refused(to, path)
    to = Written(("N", 3, 8, 8))
    to.nodes.append(onnx.helper.make_node("Conv", ["images"], ["y"], domain="com.example"))
    assert "com.example" in refused(to, path)


def test_a_network_that_moves_nothing(tmp_path: Path) -> None:
    """A lone view: no FLOPs, no bytes, no ratio of them."""
    to = Written(("N", 3, 8, 8))
    to.add("Flatten", ["images"], "y", axis=1)
    path = to.save(tmp_path / "view.onnx")
    said = json.loads(perfmodel("study", "layers", path, "--json").stdout)
    assert said["totals"]["training_flops_per_byte"] is None
    assert said["totals"]["conv_share"] is None
    assert "Flatten" not in perfmodel("study", "layers", path).stderr


def test_two_thousand_concatenations_do_not_overflow(tmp_path: Path) -> None:
    """Each doubles the channels, beyond 64 bits."""
    to = Written(("N", 3, 8, 8))
    last = "images"
    for i in range(2000):
        last = to.add("Concat", [last, last], f"c{i}", axis=1)
    assert "Inference error" in refused(to, tmp_path / "wide.onnx")


def test_files_of_gigabytes_are_not_read_whole(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "sparse.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WorkloadError, match="expected at most 512 MiB; got more in"):
        from_onnx(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("content", [b"\x3a", b"\x08", b"\x3a\xff\xff\xff\x7f", b"\x80" * 99])
def test_bytes_that_are_no_model(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bytes.onnx"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match="expected an ONNX file"):
        from_onnx(path)


# --- files changed at random

KINDS = (
    "Add", "Attention", "BatchNormalization", "Concat", "Conv", "Dropout", "Expand", "Gather",
    "Gemm", "If", "LRN", "LayerNormalization", "Loop", "MatMul", "MaxPool", "Pad", "Range",
    "ReduceMean", "Relu", "Reshape", "Shape", "Slice", "Softmax", "Split", "Transpose", "Where",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 2**31, 2**62, -(2**63), 2**63 - 1)
NAMES = (
    "group",
    "axis",
    "strides",
    "pads",
    "kernel_shape",
    "size",
    "perm",
    "q_num_heads",
    "transA",
)
VALUES = (0, -1, 3, "t", 1.5, [1, 2], [0, 0], [2**62] * 4)


def with_other_bytes(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 2, 5, 20])):
        at, how = random.randrange(len(changed)), random.random()
        if how < 0.5:
            changed[at] = random.randrange(256)
        elif how < 0.75:
            del changed[at : min(at + random.randrange(1, 9), len(changed) - 1)]
        else:
            changed[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(changed)


def with_other_nodes(content: bytes, random: Random) -> bytes:
    model = onnx.ModelProto.FromString(content)
    graph, helper = model.graph, onnx.helper
    for _ in range(random.choice([1, 2, 4])):
        op, weight = random.choice(graph.node), random.choice(graph.initializer)
        dims = graph.input[0].type.tensor_type.shape.dim
        values = [x for node in graph.node for x in (*node.input, *node.output)]
        match random.randrange(11):
            case 0:
                op.op_type = random.choice(KINDS)
            case 1 if op.attribute:
                random.choice(op.attribute).i = random.choice(NUMBERS)
            case 2 if op.attribute:
                del op.attribute[random.randrange(len(op.attribute))]
            case 3 if op.input:
                op.input[random.randrange(len(op.input))] = random.choice([*values, ""])
            case 4 if op.input:
                del op.input[random.randrange(len(op.input))]
            case 5 if op.output:
                op.output[0] = random.choice([*values, ""])
            case 6 if weight.dims:
                weight.dims[random.randrange(len(weight.dims))] = random.choice(NUMBERS)
            case 7:
                weight.dims.append(random.choice(NUMBERS))
            case 8:
                dims[random.randrange(len(dims))].dim_value = random.choice(NUMBERS)
            case 9:
                value = random.choice(VALUES)
                op.attribute.append(helper.make_attribute(random.choice(NAMES), value))
            case 10:
                graph.node.insert(random.randrange(len(graph.node)), random.choice(graph.node))
    return model.SerializeToString()


@pytest.mark.parametrize("change", [with_other_bytes, with_other_nodes])
@pytest.mark.parametrize("seed", range(4))
def test_changed_files_are_counted_or_refused(change: Any, seed: int, tmp_path: Path) -> None:
    """25 changes a seed; FUZZ=N in the environment makes more."""
    path = tmp_path / "changed.onnx"
    files = [
        written(network("alexnet-caffe")).save(path).read_bytes(),
        written(network("resnet18")).save(path).read_bytes(),
        gpt(Written(("N", 8), 7), fused=True).save(path).read_bytes(),
        gpt(Written((1, 8), 7), fused=False).save(path).read_bytes(),
    ]
    random = Random(seed)
    for _ in range(int(os.environ.get("FUZZ", "25"))):
        path.write_bytes(change(random.choice(files), random))
        with contextlib.suppress(WorkloadError):
            counted = Layers(from_onnx(path), 2, "float32", 4)
            result(counted).render("json")
            result(counted).render("text", width=100)
