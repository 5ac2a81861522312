"""The known networks: golden counts, their papers' shapes, and torch's own counts."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import ROOT
from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.layers import (
    INPUT,
    Concat,
    Conv,
    Cost,
    Dropout,
    LocalNorm,
    Net,
    Node,
    Pool,
    Relu,
    Shape,
    costs,
    place,
    total,
    training_bytes,
)
from perfmodel.workloads.networks import CNNS, network

BENCHMARKS = ROOT / "benchmarks"

GOLDEN = {
    "alexnet": (61_100_840, 655_566_528, 58_621_952, "91.79"),
    "alexnet-caffe": (60_965_224, 665_784_864, 58_621_952, "91.91"),
    "vgg16": (138_357_544, 15_346_630_656, 123_633_664, "99.20"),
    "vgg19": (143_667_240, 19_508_428_800, 123_633_664, "99.37"),
    "googlenet": (6_998_552, 1_581_647_872, 1_024_000, "99.94"),
    "resnet18": (11_689_512, 1_813_561_344, 512_000, "99.97"),
    "resnet34": (21_797_672, 3_663_249_408, 512_000, "99.99"),
    "resnet50": (25_557_032, 4_087_136_256, 2_048_000, "99.95"),
    "resnet101": (44_549_160, 7_799_357_440, 2_048_000, "99.97"),
    "resnet152": (60_192_808, 11_511_578_624, 2_048_000, "99.98"),
}
"""Parameters, MACs of convolutions and of FC layers of one image, the former's percent.

The design's table; those of ResNet-34, 101 and 152 are torch's counts (below).
"""


@pytest.mark.parametrize("name", CNNS)
def test_the_golden_table(name: str) -> None:
    parameters, conv, fc, share = GOLDEN[name]
    net = network(name)
    assert net.name == name
    assert total(net).parameters == parameters
    assert (total(net, only="conv").macs, total(net, only="fc").macs) == (conv, fc)
    assert f"{100 * conv / (conv + fc):.2f}" == share
    assert total(net).forward_flops == 2 * (conv + fc)


def test_vgg16_by_torch_s_convention() -> None:
    """FlopCounterMode's count: 2 per MAC, no bias, no pool."""
    assert total(network("vgg16")).forward_flops == 30_940_528_640


def test_shapes_of_the_papers() -> None:
    """Szegedy et al. table 1; Krizhevsky et al. figure 2; Simonyan, Zisserman table 1."""
    google = {x.name: x.shape for x in place(network("googlenet"))}
    assert google["pool1/3x3_s2"] == Shape(64, 56, 56)
    assert google["pool2/3x3_s2"] == Shape(192, 28, 28)
    assert google["inception_3a/output"] == Shape(256, 28, 28)
    assert google["inception_3b/output"] == Shape(480, 28, 28)
    assert google["inception_4e/output"] == Shape(832, 14, 14)
    assert google["inception_5b/output"] == Shape(1024, 7, 7)
    alex = {x.name: x.shape for x in place(network("alexnet-caffe"))}
    assert alex["conv1"] == Shape(96, 55, 55)
    assert (alex["pool1"], alex["pool2"]) == (Shape(96, 27, 27), Shape(256, 13, 13))
    assert alex["pool5"] == Shape(256, 6, 6)
    vgg = [x for x in place(network("vgg19")) if isinstance(x.layer, Conv)]
    assert len(vgg) == 16
    assert vgg[-1].shape == Shape(512, 14, 14)


def test_the_forward_pass_of_the_grouped_alexnet_by_layer() -> None:
    """Krizhevsky et al.: 105, 224, 150, 112, 75 MMAC of the convolutions."""
    found = {x.name: c.macs for x, c in costs(network("alexnet-caffe"))}
    assert [found[f"conv{i}"] for i in range(1, 6)] == [
        55 * 55 * 96 * 3 * 121, 27 * 27 * 256 * 48 * 25, 13 * 13 * 384 * 256 * 9,
        13 * 13 * 384 * 192 * 9, 13 * 13 * 256 * 192 * 9,
    ]  # fmt: skip
    assert found["conv1"] == 105_415_200


def test_an_unknown_network_names_the_known() -> None:
    with pytest.raises(WorkloadError, match=r"alexnet, alexnet-caffe.*got 'lenet'"):
        network("lenet")


# --- the layers that only they have


def test_concatenation_joins_channels_and_moves_its_bytes_forward_only() -> None:
    """Two readers of 2 x 4 x 4 joined: 64 read, 64 written; its gradient is split in place."""
    nodes = (
        Node("a", Conv(2, 1), (INPUT,)), Node("b", Relu(), ("a",)), Node("c", Relu(), ("a",)),
        Node("d", Concat(), ("b", "c")),
    )  # fmt: skip
    x, cost = costs(Net("n", Shape(3, 4, 4), nodes))[-1]
    assert x.shape == Shape(4, 4, 4)
    assert cost == Cost(forward_bytes=4 * (64 + 64))
    with pytest.raises(WorkloadError, match="one height and width"):
        Concat().shape(Shape(1, 4, 4), Shape(1, 4, 5))


def test_dropout_and_local_normalization_have_no_weights_and_no_macs() -> None:
    """A tensor of 2 x 3 x 3: dropout passes a gradient; the normalization reads x, y and dy."""
    nodes = (
        Node("a", Conv(2, 1), (INPUT,)), Node("b", LocalNorm(), ("a",)),
        Node("c", Dropout(), ("b",)),
    )  # fmt: skip
    net = Net("n", Shape(1, 3, 3), nodes)
    _, (_, norm), (_, drop) = costs(net)
    assert norm == Cost(forward_bytes=4 * 36, backward_bytes=4 * 72)
    assert drop == Cost(forward_bytes=4 * 36, backward_bytes=4 * 36)
    # image; the normalization's input and output; a byte a number of dropout's mask; 3 x 2 weights
    assert training_bytes(net, 1) == 4 * (9 + 18 + 18 + 3 * 2) + 18


@given(
    size=st.integers(3, 60), kernel=st.integers(1, 7), stride=st.integers(1, 4),
    padding=st.integers(0, 3), ceil=st.booleans(),
)  # fmt: skip
def test_windows_of_a_pool_cover_the_image(
    size: int, kernel: int, stride: int, padding: int, ceil: bool
) -> None:
    if padding > kernel // 2 or size + 2 * padding < kernel:
        return  # torch refuses these
    pool = Pool("max", kernel, stride, padding, ceil)
    count = pool.shape(Shape(1, size, size)).height
    start = (count - 1) * stride - padding
    assert start < size
    fits = start + kernel <= size + padding
    assert fits or ceil
    if ceil and stride <= kernel:
        assert start + kernel >= size  # nothing is left out


# --- torch's own counts

OVER_COUNTED = {"alexnet-caffe": 3_508_495_424}
"""torch counts the weight gradients of grouped convolutions once per group."""


def check(name: str, found: dict[str, int]) -> None:
    ours = total(network(name))
    assert found["parameters"] == ours.parameters
    assert found["forward_flops"] == ours.forward_flops
    assert found["backward_flops"] == OVER_COUNTED.get(name, ours.backward_flops)


@pytest.mark.parametrize("name", CNNS)
def test_torch_counts_the_same(name: str) -> None:
    """FlopCounterMode runs the network on the meta device: its shapes, its formulas."""
    pytest.importorskip("torch")
    from benchmarks.common.torch_nets import counted

    check(name, counted(network(name)))


def test_windows_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    for size, kernel, stride, ceil in product(range(7, 19), (2, 3, 5), (1, 2, 3), (False, True)):
        for padding in range(kernel // 2 + 1):
            made = torch.nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
            ours = Pool("max", kernel, stride, padding, ceil).shape(Shape(1, size, size))
            assert tuple(made(torch.zeros(1, 1, size, size)).shape[2:]) == (ours.height,) * 2


def test_what_torch_counted_is_recorded() -> None:
    recorded = json.loads((BENCHMARKS / "results" / "layers.json").read_text(encoding="utf-8"))
    rows = {row["net"]: row for row in recorded["theory"]["rows"]}
    assert set(rows) == set(CNNS)
    for name, row in rows.items():
        check(name, row)


def test_the_over_count_is_of_grouped_weight_gradients_alone() -> None:
    """Three convolutions of two groups: each weight gradient once too often."""
    name = "alexnet-caffe"
    grouped = [
        c.forward_flops for x, c in costs(network(name))
        if isinstance(x.layer, Conv) and x.layer.groups == 2
    ]  # fmt: skip
    assert len(grouped) == 3
    assert OVER_COUNTED[name] - total(network(name)).backward_flops == sum(grouped)
