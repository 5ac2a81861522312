"""Any network of perfmodel's as a torch module, layer by layer in the same order and by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from perfmodel.workloads import layers as of
from perfmodel.workloads.layers import Net, Placed, place


class Sum(nn.Module):
    """Adds its inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the sum of tensors of one shape."""
        return sum(inputs[1:], inputs[0])


class Join(nn.Module):
    """Joins its inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return channels behind channels."""
        return torch.cat(inputs, 1)


class Flat(nn.Linear):
    """A fully connected layer that takes images, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, ...) to (N, outputs)."""
        return super().forward(torch.flatten(x, 1))


Between: Final = Callable[[int, nn.Module, tuple[torch.Tensor, ...]], torch.Tensor]
"""Runs one layer, by its place, on its inputs."""


class Network(nn.Module):
    """The layers of a network in their order; tensors are dropped after their last reader."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.placed: tuple[Placed, ...] = place(net)
        self.layers = nn.ModuleList(module(x) for x in self.placed)
        last = {name: i for i, x in enumerate(self.placed) for name in x.inputs}
        self._done = [tuple(n for n in x.inputs if last[n] == i) for i, x in enumerate(self.placed)]

    def forward(
        self, images: torch.Tensor, run: Between = lambda _, layer, inputs: layer(*inputs)
    ) -> torch.Tensor:
        """Map images (N, C, H, W) to logits (N, 1000); `run` may do something around a layer."""
        known = {of.INPUT: images}
        for i, (x, layer) in enumerate(zip(self.placed, self.layers, strict=True)):
            known[x.name] = run(i, layer, tuple(known[n] for n in x.inputs))
            for name in set(self._done[i]):
                del known[name]
        return known[self.placed[-1].name]


def module(x: Placed) -> nn.Module:
    """Return torch's module for one layer."""
    inputs = x.input_shapes[0]
    match x.layer:
        case of.Conv(channels, kernel, stride, padding, groups, bias):
            return nn.Conv2d(
                inputs.channels, channels, kernel, stride, padding, groups=groups, bias=bias
            )
        case of.Linear(channels, bias):
            return Flat(inputs.elements, channels, bias)
        case of.Norm():
            return nn.BatchNorm2d(inputs.channels)
        case of.Relu():
            return nn.ReLU(inplace=True)
        case of.Pool(_, None):
            return nn.AdaptiveAvgPool2d(1)
        case of.Pool(kind, kernel, stride, padding, ceil):
            pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
            return pool(kernel, stride, padding, ceil_mode=ceil)
        case of.Add():
            return Sum()
        case of.Concat():
            return Join()
        case of.LocalNorm(size):
            return nn.LocalResponseNorm(size)
        case of.Dropout(share):
            return nn.Dropout(share)
    raise TypeError(f"no module for {x.layer}")


def counted(net: Net) -> dict[str, int]:
    """Return parameters and FLOPs of one image as torch counts them; nothing is computed."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        made = Network(net)
        images = torch.empty(1, net.sample.channels, net.sample.height, net.sample.width)
    forward = FlopCounterMode(display=False)
    with forward:
        loss = made(images).sum()
    backward = FlopCounterMode(display=False)
    with backward:
        loss.backward()
    return {
        "parameters": sum(p.numel() for p in made.parameters()),
        "forward_flops": forward.get_total_flops(),
        "backward_flops": backward.get_total_flops(),
        "layers": len(made.layers),
    }
