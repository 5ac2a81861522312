"""Strings layers together into the nodes of a network."""

from __future__ import annotations

from perfmodel.workloads.layers import IMAGE, Conv, Layer, Node, Relu


class Chain:
    """Layers in the order they were added; every method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    @property
    def last(self) -> str:
        """Name of what was added last; of the image before that."""
        return self.nodes[-1].name if self.nodes else IMAGE

    def add(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add a layer that reads `inputs`, or what was added last."""
        self.nodes.append(Node(name, layer, inputs or (self.last,)))
        return name

    def activate(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add a layer and the activation behind it, called `NAME.relu`."""
        return self.add(f"{name}.relu", Relu(), self.add(name, layer, *inputs))

    def convolve(self, name: str, channels: int, kernel: int, *inputs: str) -> str:
        """Add a convolution that keeps height and width, with bias and activation."""
        layer = Conv(channels, kernel, padding=kernel // 2, bias=True)
        return self.activate(name, layer, *inputs)
