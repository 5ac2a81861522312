"""ResNet-18, 34, 50, 101 and 152 as lists of layers, named as torchvision names them."""

from __future__ import annotations

from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.chain import Chain
from perfmodel.workloads.layers import (
    IMAGE,
    Add,
    Conv,
    Linear,
    Net,
    Norm,
    Pool,
    Relu,
    Shape,
)

_BLOCKS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_BASIC: Final = ("resnet18", "resnet34")
NAMES: Final = tuple(_BLOCKS)


def resnet(name: str, size: int = 224) -> Net:
    """Return a residual network for images of (3, size, size) and 1000 classes.

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016), table 1.
    From ResNet-50 on they are v1.5: the stride of a bottleneck is in its 3x3 convolution.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _BLOCKS:
        raise WorkloadError(f"wanted one of {', '.join(_BLOCKS)}; found {name!r}")
    chain = _Blocks()
    x = chain.normalize("conv1", "bn1", Conv(64, 7, 2, 3), IMAGE)
    x = chain.add("maxpool", Pool("max", 3, 2, 1), chain.add("relu", Relu(), x))
    block = chain.basic if name in _BASIC else chain.bottleneck
    for stage, count in enumerate(_BLOCKS[name]):
        for place in range(count):
            x = block(f"layer{stage + 1}.{place}.", x, 64 << stage, place == 0, stage > 0)
    x = chain.add("fc", Linear(1000), chain.add("avgpool", Pool("mean"), x))
    return Net(name, Shape(3, size, size), tuple(chain.nodes))


class _Blocks(Chain):
    """The blocks of residual networks; every method returns the name of its output."""

    def normalize(self, name: str, norm: str, layer: Conv, x: str) -> str:
        return self.add(norm, Norm(), self.add(name, layer, x))

    def basic(self, at: str, x: str, width: int, first: bool, halve: bool) -> str:
        """Two 3x3 convolutions beside a shortcut."""
        stride = 2 if first and halve else 1
        y = self.normalize(at + "conv1", at + "bn1", Conv(width, 3, stride, 1), x)
        y = self.add(at + "relu1", Relu(), y)
        y = self.normalize(at + "conv2", at + "bn2", Conv(width, 3, 1, 1), y)
        return self._join(at, x, y, Conv(width, 1, stride) if first and halve else None)

    def bottleneck(self, at: str, x: str, width: int, first: bool, halve: bool) -> str:
        """1x1, 3x3 and 1x1 convolutions beside a shortcut; the output has 4 width channels."""
        stride = 2 if first and halve else 1
        y = self.normalize(at + "conv1", at + "bn1", Conv(width, 1), x)
        y = self.add(at + "relu1", Relu(), y)
        y = self.normalize(at + "conv2", at + "bn2", Conv(width, 3, stride, 1), y)
        y = self.add(at + "relu2", Relu(), y)
        y = self.normalize(at + "conv3", at + "bn3", Conv(4 * width, 1), y)
        return self._join(at, x, y, Conv(4 * width, 1, stride) if first else None)

    def _join(self, at: str, x: str, y: str, projection: Conv | None) -> str:
        if projection is not None:
            x = self.normalize(at + "downsample.0", at + "downsample.1", projection, x)
        return self.add(at + "relu", Relu(), self.add(at + "add", Add(), y, x))
