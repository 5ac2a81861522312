"""The GEMMs of a convolutional network, timed by themselves: the method of Lu et al., section 5.

Z. Lu, S. Rallapalli, K. Chan, T. La Porta, Modeling the Resource Requirements of Convolutional
Neural Networks on Mobile Devices (ACM Multimedia 2017, arXiv:1709.09503) model a network by its
GEMMs: a convolution is one of (channels out) x (positions) x (channels in k^2), as im2col
makes it. Timed together, nothing waits between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.workloads.layers import Conv, Linear, Net, place

if TYPE_CHECKING:
    from benchmarks.common.torch_device import Device


class Gemm(NamedTuple):
    """A product of (m, k) and (k, n), as often as a convolution has groups."""

    layer: str
    m: int
    n: int
    k: int
    count: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.count * self.m * self.n * self.k


def gemms(net: Net, batch: int) -> tuple[Gemm, ...]:
    """Return the GEMMs of all convolutions and fully connected layers, in order.

    Examples
    --------
    >>> from perfmodel.workloads.cnns import vgg
    >>> gemms(vgg("vgg16"), 1)[0]
    Gemm(layer='conv1_1', m=64, n=50176, k=27, count=1)
    """
    found = []
    for x in place(net):
        match x.layer:
            case Conv(channels, kernel, groups=groups):
                (inputs,), made = x.input_shapes, x.layer.shape(*x.input_shapes)
                positions = batch * made.height * made.width
                inner = inputs.channels // groups * kernel**2
                found.append(Gemm(x.name, channels // groups, positions, inner, groups))
            case Linear(channels):
                found.append(Gemm(x.name, channels, batch, x.input_shapes[0].elements))
    return tuple(found)


def timed(net: Net, batch: int, device: Device, repeats: int) -> dict[str, Any]:
    """Time a network's GEMMs: waiting for each, each many times, and all together.

    Returns
    -------
    dict
        `synchronized_s`: the sum by the host's clock, which waits for each; `alone_s`: the sum of
        each one's mean over many; `together_s`: all in a row between two events; `graph_s`: those
        without launches by the host.
    """
    import torch

    listed = gemms(net, batch)
    a, b, c = (
        torch.zeros(max(size(g) for g in listed), device=device.device).normal_()
        for size in (lambda g: g.m * g.k, lambda g: g.k * g.n, lambda g: g.m * g.n)
    )

    def run(g: Gemm) -> None:
        left, right = a[: g.m * g.k].view(g.m, g.k), b[: g.k * g.n].view(g.k, g.n)
        for _ in range(g.count):
            torch.mm(left, right, out=c[: g.m * g.n].view(g.m, g.n))

    def together() -> None:
        for g in listed:
            run(g)

    together()
    found = {
        "synchronized_s": sum(_waited(lambda g=g: run(g), device, repeats) for g in listed),
        "alone_s": sum(_repeated(lambda g=g: run(g), device, 20, 3) for g in listed),
        "together_s": _repeated(together, device, 1, repeats),
    }
    replay: Callable[[], None] = together
    if device.cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            together()
        replay = graph.replay
    return {**found, "graph_s": _repeated(replay, device, 1, repeats), "gemms": total(listed)}


def total(listed: Sequence[Gemm]) -> dict[str, int]:
    """Return how many GEMMs there are, and their multiply-accumulates."""
    return {"count": sum(g.count for g in listed), "macs": sum(g.macs for g in listed)}


def _waited(run: Callable[[], None], device: Device, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        device.synchronize()
        began = time.perf_counter()
        run()
        device.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _repeated(run: Callable[[], None], device: Device, count: int, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        device.synchronize()
        first = device.mark()
        for _ in range(count):
            run()
        last = device.mark()
        device.synchronize()
        taken.append(device.between(first, last) / count)
    return statistics.median(taken)
