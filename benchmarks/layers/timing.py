"""Times one network in several ways: whole, by layer with and without waiting, as a graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from benchmarks.common.torch_device import Device, set_tf32
from benchmarks.common.torch_nets import Network
from perfmodel.workloads.layers import Net

BURST_S: Final = 2e-3
"""A layer is repeated until about this long is timed."""


class Bench(Device):
    """A network with images on the GPU, or on the CPU where there is none."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        with self.device:
            self.module = Network(net)
        self.optimizer = torch.optim.SGD(self.module.parameters(), 1e-4, momentum=0.9)
        torch.backends.cudnn.benchmark = False

    def time(self, mode: str, batch: int, math: str, repeats: int) -> dict[str, Any]:
        """Return medians over repeats: `total_s`, and `layers_s` where layers are timed.

        `layers_s` has one number per layer, in the network's order; `total_s` is then what the
        whole pass took while they were taken, but for 'alone' the sum.
        """
        set_tf32(math == "tf32")
        shape = (batch, self.net.sample.channels, self.net.sample.height, self.net.sample.width)
        images = torch.randn(shape, device=self.device)
        if mode == "training":
            return self._training(images, repeats)
        self.module.eval()
        with torch.inference_mode():
            for _ in range(2):
                self.module(images)
            self.synchronize()
            ways: dict[str, Callable[[torch.Tensor, int], dict[str, Any]]] = {
                "whole": self._whole, "events": self._events, "graph": self._graph,
                "synchronized": self._synchronized, "alone": self._alone,
            }  # fmt: skip
            return ways[mode](images, repeats)

    def repeated(self, run: Callable[[], Any], repeats: int) -> dict[str, Any]:
        """Return the median device time of `run`, and of the host until it has launched it."""
        device, host = [], []
        for _ in range(repeats):
            self.synchronize()
            began, first = time.perf_counter(), self.mark()
            run()
            last = self.mark()
            host.append(time.perf_counter() - began)
            self.synchronize()
            device.append(self.between(first, last))
        return {"total_s": statistics.median(device), "host_s": statistics.median(host)}

    def _whole(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        return self.repeated(lambda: self.module(images), repeats)

    def _graph(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        if not self.cuda:
            return self._whole(images, repeats)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.module(images)
        graph.replay()
        return self.repeated(graph.replay, repeats)

    def _events(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        rounds = []
        for _ in range(repeats):
            self.synchronize()
            marks = [self.mark()]

            def run(_: int, layer: nn.Module, inputs: Any, marks: list[Any] = marks) -> Any:
                output = layer(*inputs)
                marks.append(self.mark())
                return output

            self.module(images, run)
            self.synchronize()
            rounds.append([self.between(a, b) for a, b in pairwise(marks)])
        return summary(rounds)

    def _synchronized(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        rounds = []
        for _ in range(repeats):
            taken: list[float] = []

            def run(_: int, layer: nn.Module, inputs: Any, taken: list[float] = taken) -> Any:
                self.synchronize()
                began = time.perf_counter()
                output = layer(*inputs)
                self.synchronize()
                taken.append(time.perf_counter() - began)
                return output

            self.module(images, run)
            rounds.append(taken)
        return summary(rounds)

    def _alone(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        taken: list[float] = []

        def run(_: int, layer: nn.Module, inputs: Any) -> Any:
            output = layer(*inputs)  # an activation in place may be repeated, too
            self.synchronize()
            once = self.repeated(lambda: layer(*inputs), 2)["total_s"]
            count = max(1, min(30, int(BURST_S / max(once, 1e-6))))

            def burst() -> None:
                for _ in range(count):
                    layer(*inputs)

            taken.append(self.repeated(burst, 3)["total_s"] / count)
            return output

        self.module(images, run)
        return summary([taken])

    def _training(self, images: torch.Tensor, repeats: int) -> dict[str, Any]:
        self.module.train()
        labels = torch.randint(1000, (len(images),), device=self.device)
        rounds = []
        for i in range(repeats + 2):
            self.synchronize()
            began, marks = time.perf_counter(), [self.mark()]
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.module(images), labels)
            marks.append(self.mark())
            loss.backward()
            marks.append(self.mark())
            self.optimizer.step()
            marks.append(self.mark())
            host = time.perf_counter() - began
            self.synchronize()
            if i >= 2:  # the first choose algorithms and make the momenta
                parts = [self.between(a, b) for a, b in pairwise(marks)]
                rounds.append([self.between(marks[0], marks[-1]), *parts, host])
        names = ("total_s", "forward_s", "backward_s", "update_s", "host_s")
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        return dict(zip(names, medians, strict=True))


def summary(rounds: list[list[float]]) -> dict[str, Any]:
    """Return every layer's median over rounds, and the median of the rounds' sums."""
    layers = [statistics.median(column) for column in zip(*rounds, strict=True)]
    return {
        "total_s": statistics.median(map(sum, rounds)),
        "layers_s": [float(f"{seconds:.5g}") for seconds in layers],
    }
