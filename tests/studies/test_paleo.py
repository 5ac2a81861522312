"""Paleo by hand: a layer's time, the percent of peak, the exchange; and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.machines.devices import named
from perfmodel.machines.machine import Link
from perfmodel.studies.models.paleo import (
    SCHEMES,
    Platform,
    Times,
    exchange,
    exchanges,
    fit_ppp,
    layer_times,
    platform,
    step,
)
from perfmodel.workloads.layers import INPUT, Conv, Net, Node, Relu, Shape, total
from perfmodel.workloads.networks import NETWORKS, network

SLOW = Platform("made", "float32", peak_flops_per_s=1000.0, bandwidth_bytes_per_s=100.0)
SMALL = Net(
    "small", Shape(2, 4, 4), (Node("conv", Conv(3, 1), (INPUT,)), Node("relu", Relu(), ("conv",)))
)
"""A 1x1 convolution from 2 to 3 channels of 4 x 4 pixels: 96 MACs, 6 weights."""


def test_a_layer_reads_computes_and_writes_one_after_the_other() -> None:
    """192 FLOP at 1000 per s; (32 + 48 + 6) numbers of 4 bytes at 100 per s."""
    conv, relu = layer_times(SMALL, SLOW)
    assert conv.times.forward_s == pytest.approx(0.192 + 3.44)
    assert conv.overlapped.forward_s == pytest.approx(3.44)
    assert conv.times.backward_s == pytest.approx(0.192 + 3.44)  # dW only: no image's gradient
    assert conv.times.update_s == pytest.approx(4 * 5 * 6 / 100)
    assert (conv.bound, relu.bound) == ("memory", "memory")
    assert relu.times.forward_s == relu.overlapped.forward_s == pytest.approx(4 * 96 / 100)
    fast_memory = Platform("made", "float32", 1000.0, 1e9)
    assert layer_times(SMALL, fast_memory)[0].bound == "compute"


def test_the_percent_of_peak_is_fitted_by_one_measurement() -> None:
    at_peak = step(SMALL, SLOW, batch=8).training_s
    ppp = fit_ppp(at_peak, measured_s=4 * at_peak)
    assert ppp == 0.25
    fitted = Platform("made", "float32", 1000.0, 100.0, ppp)
    assert step(SMALL, fitted, batch=8).training_s == pytest.approx(4 * at_peak)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ModelError, match="two times above 0"):
            fit_ppp(1.0, bad)
        with pytest.raises(ModelError, match="percent of peak above 0"):
            Platform("made", "float32", 1.0, 1.0, bad)


@pytest.mark.parametrize(
    ("scheme", "sent"), [("OneToAll", 14), ("tree", 6), ("butterfly", 3), ("ring", 2 * 7 / 8)]
)
def test_exchange_over_eight_ranks(scheme: str, sent: float) -> None:
    """Qi et al.: 2 (p-1) n, 2 L n and L n bytes; a ring 2 (p-1)/p n. n = 1 kB at 1 kB/s, L = 3."""
    assert exchange(scheme, 1000, 8).sent_bytes == pytest.approx(1000 * sent)
    found = {x.scheme: x for x in exchanges(1000, 8, Link(0.0, 1e-3), step_s=2.0)}[scheme]
    assert found.seconds == pytest.approx(sent)
    assert found.efficiency == pytest.approx(2 / (2 + sent))


def test_refusals_of_the_exchange() -> None:
    with pytest.raises(ModelError, match="OneToAll, tree, butterfly, ring; got 'star'"):
        exchange("star", 1000, 4)
    for scheme in SCHEMES:
        assert exchange(scheme, 1000, 1).sent_bytes == 0
        with pytest.raises(ModelError, match="at least one rank"):
            exchange(scheme, 1000, 0)


@given(ranks=st.integers(2, 300), size=st.floats(1, 1e9))
def test_a_ring_sends_least_and_one_to_all_most(ranks: int, size: float) -> None:
    sent = {s: exchange(s, size, ranks).sent_bytes for s in SCHEMES}
    assert sent["ring"] <= sent["butterfly"] * (1 + 1e-12)
    assert 2 * sent["butterfly"] == pytest.approx(sent["tree"])
    assert sent["tree"] <= sent["OneToAll"] * (1 + 1e-12)


@given(
    name=st.sampled_from(["alexnet", "googlenet", "resnet18"]), batch=st.integers(1, 64),
    ppp=st.floats(0.01, 1), size=st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_times_add_up_and_overlap_saves_at_most_half(
    name: str, batch: int, ppp: float, size: int
) -> None:
    net, where = network(name), platform(named("v100"), "float32", ppp)
    found = layer_times(net, where, batch, size)
    whole = step(net, where, batch, size)
    assert sum((x.times for x in found), Times()) == whole
    for x in found:
        assert x.overlapped.training_s <= x.times.training_s * (1 + 1e-12)
        assert x.times.training_s <= 2 * x.overlapped.training_s * (1 + 1e-12)
    cost = total(net, batch, size)
    expected = where.compute_s(cost.flops) + where.memory_s(cost.moved_bytes)
    assert whole.training_s == pytest.approx(expected)
    full = step(net, platform(named("v100")), batch, size)
    assert full.training_s == pytest.approx(ppp * whole.training_s)


@pytest.mark.parametrize("name", NETWORKS)
def test_time_is_linear_in_the_batch(name: str) -> None:
    net, where = network(name), platform(named("a100-40"), "tf32", 0.4)
    one, two, ten = (step(net, where, b).training_s for b in (1, 2, 10))
    assert ten - one == pytest.approx(9 * (two - one))


@pytest.mark.parametrize(
    ("name", "single_s", "double_s"),
    [
        ("vgg16", 30_940_528_640 / 8.73e12, 30_940_528_640 / 2.91e12),
        ("googlenet", 3_165_343_744 / 8.73e12, 3_165_343_744 / 2.91e12),
        ("resnet50", 8_178_368_512 / 8.73e12, 8_178_368_512 / 2.91e12),
    ],
)
def test_inference_on_a_k80_at_its_published_peaks(
    name: str, single_s: float, double_s: float
) -> None:
    flops = total(network(name)).forward_flops
    assert platform(named("k80"), "float32").compute_s(flops) == pytest.approx(single_s)
    assert platform(named("k80"), "float64").compute_s(flops) == pytest.approx(double_s)
    assert double_s == pytest.approx(3 * single_s)


def test_a_machine_without_the_peak_says_what_it_has() -> None:
    with pytest.raises(ModelError, match=r"K80.*peak of tf32.*float64, float32"):
        platform(named("k80"), "tf32")
    with pytest.raises(ModelError, match="got 'int8'"):
        platform(named("h200"), "int8")
    assert platform(named("h200"), "float16").peak == "float16_tensor"
