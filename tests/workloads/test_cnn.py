"""Networks layer by layer: golden counts, hand-worked layers, and what must hold of any chain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Conv,
    Cost,
    Layer,
    Linear,
    Net,
    Node,
    Norm,
    Pool,
    Relu,
    Shape,
    costs,
    place,
    total,
    training_bytes,
)

GOLDEN = {
    "resnet18": (11_689_512, 1_813_561_344, 512_000, 0.9997),
    "resnet50": (25_557_032, 4_087_136_256, 2_048_000, 0.9995),
}
"""Parameters, MACs of convolutions and FC layers, share of the convolutions (torchvision)."""

TORCH = {"resnet18": (3_628_146_688, 7_020_265_472), "resnet50": (8_178_368_512, 16_120_709_120)}
"""What torch's FlopCounterMode counts of one image, forward and backward."""


def chain(image: Shape, *layers: Layer) -> Net:
    """A network whose layers read each other in turn."""
    names = [INPUT, *(f"l{i}" for i in range(len(layers)))]
    nodes = [Node(names[i + 1], x, (names[i],)) for i, x in enumerate(layers)]
    return Net("chain", image, tuple(nodes))


# --- golden numbers


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_and_macs_of_torchvision_s_networks(name: str) -> None:
    parameters, conv, fc, share = GOLDEN[name]
    net = resnet(name)
    assert total(net).parameters == parameters
    assert (total(net, only="conv").macs, total(net, only="fc").macs) == (conv, fc)
    assert conv / (conv + fc) == pytest.approx(share, abs=5e-5)


@pytest.mark.parametrize("name", GOLDEN)
def test_flops_are_what_torch_counts(name: str) -> None:
    """Two per MAC; backward is twice forward less the gradient of the images: 118,013,952 MACs."""
    found = total(resnet(name))
    assert (found.forward_flops, found.backward_flops) == TORCH[name]
    assert found.backward_flops == 2 * found.forward_flops - 2 * 118_013_952
    assert found.flops == sum(TORCH[name])


@pytest.mark.parametrize(("name", "saved"), [("resnet18", 22_218_240), ("resnet50", 86_121_984)])
def test_memory_is_what_torch_saves_for_the_backward_pass(name: str, saved: int) -> None:
    """torch also saves the mean and deviation of every normalization: a quarter of a percent."""
    net = resnet(name)
    held = training_bytes(net, 1) - 3 * 4 * total(net).parameters
    assert held == pytest.approx(saved, rel=2.5e-3)
    assert held < saved


def test_shapes_of_the_stages() -> None:
    """He et al. 2016, table 1."""
    shapes = {x.name: x.shape for x in place(resnet("resnet50"))}
    assert shapes["conv1"] == Shape(64, 112, 112)
    assert shapes["maxpool"] == Shape(64, 56, 56)
    last = [f"layer{i}.{n - 1}.relu" for i, n in enumerate((3, 4, 6, 3), 1)]
    assert [shapes[x] for x in last] == [
        Shape(256, 56, 56), Shape(512, 28, 28), Shape(1024, 14, 14), Shape(2048, 7, 7),
    ]  # fmt: skip
    assert shapes["fc"] == Shape(1000)
    # v1.5: the first bottleneck of a stage keeps 56 x 56 until its 3x3 convolution
    assert shapes["layer2.0.conv1"] == Shape(128, 56, 56)
    assert shapes["layer2.0.conv2"] == Shape(128, 28, 28)


def test_the_first_layer_of_vgg16_and_of_alexnet() -> None:
    """64 (3 9 + 1) parameters, 224^2 64 27 MACs; grouped: 256 (48 25 + 1), 27^2 256 48 25."""
    vgg, _ = costs(chain(Shape(3, 224, 224), Conv(64, 3, 1, 1, bias=True), Relu()))[0]
    assert (vgg.parameters, vgg.macs) == (1_792, 86_704_128)
    alexnet, _ = costs(chain(Shape(96, 27, 27), Conv(256, 5, 1, 2, groups=2, bias=True)))[0]
    assert (alexnet.parameters, alexnet.macs) == (307_456, 223_948_800)


# --- hand-worked bytes


def test_bytes_of_a_layer_by_hand() -> None:
    """2 x 4 x 4 images, a 1x1 convolution to 3 channels without and with something before it."""
    net = chain(Shape(2, 4, 4), Conv(3, 1), Conv(5, 1))
    (_, first), (_, second) = costs(net, batch=10, element_bytes=4)
    assert first.forward_bytes == 4 * (10 * (32 + 48) + 6)
    assert first.backward_bytes == 4 * (10 * (48 + 32) + 6)  # dW from dy and x; no dx
    assert second.forward_bytes == 4 * (10 * (48 + 80) + 15)
    assert second.backward_bytes == 4 * (10 * (80 + 48 + 80 + 48) + 2 * 15)
    assert second.update_bytes == 4 * 5 * 15
    assert second.backward_flops == 2 * second.forward_flops == 4 * 10 * 16 * 15


def test_a_fork_sums_its_gradients() -> None:
    """x is read by a convolution and an addition: two gradients are read, their sum is written."""
    plain = chain(Shape(4, 8, 8), Conv(4, 1), Relu(), Conv(4, 1))
    forked = replace(plain, nodes=(*plain.nodes, Node("sum", Add(), ("l2", "l1"))))
    before, after = (dict(zip("abcd", costs(n), strict=False)) for n in (plain, forked))
    change = after["b"][1].backward_bytes - before["b"][1].backward_bytes
    assert change == 4 * 3 * 4 * 8 * 8
    assert after["d"][1] == Cost(forward_bytes=4 * 3 * 256)  # its own gradient is passed on


# --- what must hold of any network

layer = st.one_of(
    st.builds(
        Conv, st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2),
        bias=st.booleans(),
    ),
    st.just(Norm()), st.just(Relu()),
    st.builds(Pool, st.sampled_from(["max", "mean"]), st.integers(1, 3), st.integers(1, 2),
              st.just(1)),
)  # fmt: skip
nets = st.builds(
    lambda size, inputs, body: chain(Shape(inputs, size, size), *body, Pool("mean"), Linear(7)),
    st.integers(4, 32), st.integers(1, 4), st.lists(layer, min_size=1, max_size=6),
)  # fmt: skip


@given(nets, st.integers(1, 64), st.sampled_from([2, 4, 8]))
def test_costs_add_up_and_are_linear_in_the_batch(net: Net, batch: int, size: int) -> None:
    one, two, many = (total(net, b, size) for b in (1, 2, batch))
    each = [cost for _, cost in costs(net, batch, size)]
    assert sum(each, Cost()) == many
    assert many.flops == batch * one.flops
    assert many.macs * 2 == many.forward_flops
    assert many.moved_bytes - one.moved_bytes == (batch - 1) * (two.moved_bytes - one.moved_bytes)
    assert many.parameters == one.parameters


@given(nets)
def test_backward_is_twice_forward_less_the_image_s_gradient(net: Net) -> None:
    trains = [(x, c) for x, c in costs(net) if x.macs]
    for x, c in trains:
        assert c.backward_flops == c.forward_flops * (2 if any(x.trained_inputs) else 1)
    first, cost = trains[0]
    names = [x.name for x in place(net)]
    normed = any(x.parameters for x in place(net)[: names.index(first.name)])
    assert any(first.trained_inputs) == normed
    rest = sum(c.forward_flops for _, c in trains)
    saved = 0 if any(first.trained_inputs) else cost.forward_flops
    assert total(net).backward_flops == 2 * rest - saved


@given(nets)
def test_every_layer_reads_what_the_one_before_wrote(net: Net) -> None:
    placed = place(net)
    before = [net.sample, *(x.shape for x in placed)]
    for x, shape in zip(placed, before, strict=False):
        assert x.input_shapes == (shape,)
        if isinstance(x.layer, Norm | Relu):
            assert x.shape == shape


@given(nets, st.integers(1, 16))
def test_memory_grows_with_the_batch_by_the_same_amount(net: Net, batch: int) -> None:
    grown = training_bytes(net, batch + 1) - training_bytes(net, batch)
    assert grown == training_bytes(net, 2) - training_bytes(net, 1)
    assert training_bytes(net, batch) >= 12 * total(net).parameters


@given(
    size=st.integers(1, 40), kernel=st.integers(1, 7), stride=st.integers(1, 4),
    padding=st.integers(0, 3),
)  # fmt: skip
def test_the_last_window_fits_and_one_more_would_not(
    size: int, kernel: int, stride: int, padding: int
) -> None:
    x = Shape(2, size, size)
    conv = Conv(3, kernel, stride, padding)
    if size + 2 * padding < kernel:
        with pytest.raises(WorkloadError, match="enlarge the input"):
            conv.shape(x)
        return
    y = conv.shape(x)
    ends = (y.height - 1) * stride + kernel
    assert ends <= size + 2 * padding < ends + stride
    assert conv.macs(x) == y.height * y.width * 3 * (2 * kernel * kernel)


# --- refusals


def test_networks_that_cannot_be() -> None:
    image = Shape(3, 8, 8)
    lost = Net("n", image, (Node("a", Relu(), ("nobody",)),))
    with pytest.raises(WorkloadError, match="'a', once, to read layers before it; it reads nobody"):
        place(lost)
    twice = Net("n", image, (Node("a", Relu(), (INPUT,)), Node("a", Relu(), (INPUT,))))
    with pytest.raises(WorkloadError, match="once"):
        place(twice)
    odd = Net("n", image, (Node("a", Conv(4, 1), (INPUT,)), Node("b", Add(), (INPUT, "a"))))
    with pytest.raises(WorkloadError, match="n, b: expected several inputs of one shape"):
        place(odd)
    with pytest.raises(WorkloadError, match="2 groups divide; got 3 in"):
        place(chain(image, Conv(4, 1, groups=2)))
    with pytest.raises(WorkloadError, match="resnet101, resnet152; got 'resnet99'"):
        resnet("resnet99")
    with pytest.raises(WorkloadError, match="at least one sample"):
        costs(chain(image, Relu()), batch=0)
