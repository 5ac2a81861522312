"""Convolutional networks layer by layer: AlexNet, VGG, GoogLeNet and the residual networks."""

from __future__ import annotations

from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Chain,
    Concat,
    Conv,
    Dropout,
    Layer,
    Linear,
    LocalNorm,
    Net,
    Norm,
    Pool,
    Relu,
    Shape,
)


class _Images(Chain):
    """Layers over images."""

    def activate(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add a layer and the activation after it, called `NAME.relu`."""
        return self.add(f"{name}.relu", Relu(), self.add(name, layer, *inputs))

    def convolve(self, name: str, channels: int, kernel: int, *inputs: str) -> str:
        """Add a convolution that keeps height and width, with bias and activation."""
        layer = Conv(channels, kernel, padding=kernel // 2, bias=True)
        return self.activate(name, layer, *inputs)


def alexnet() -> Net:
    """Return torchvision's AlexNet for images of 3 x 224 x 224 and 1000 classes.

    One tower, no local normalization: Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks" (arXiv:1404.5997, 2014). torchvision's adaptive pool is none at this size.
    """
    chain = _Images()
    chain.activate("conv1", Conv(64, 11, 4, 2, bias=True))
    chain.add("pool1", Pool("max", 3, 2))
    chain.convolve("conv2", 192, 5)
    chain.add("pool2", Pool("max", 3, 2))
    for place, channels in enumerate((384, 256, 256), 3):
        chain.convolve(f"conv{place}", channels, 3)
    chain.add("pool5", Pool("max", 3, 2))
    for name in ("fc6", "fc7"):
        chain.add(f"{name}.dropout", Dropout())
        chain.activate(name, Linear(4096))
    chain.add("fc8", Linear(1000))
    return Net("alexnet", Shape(3, 224, 224), tuple(chain.nodes))


def alexnet_caffe() -> Net:
    """Return Caffe's bvlc_alexnet for images of 3 x 227 x 227 and 1000 classes.

    Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks"
    (NIPS 2012): conv2, conv4 and conv5 read half of the channels each, as two GPUs did.
    """
    chain = _Images()
    chain.activate("conv1", Conv(96, 11, 4, bias=True))
    chain.add("norm1", LocalNorm())
    chain.add("pool1", Pool("max", 3, 2, ceil=True))
    chain.activate("conv2", Conv(256, 5, padding=2, groups=2, bias=True))
    chain.add("norm2", LocalNorm())
    chain.add("pool2", Pool("max", 3, 2, ceil=True))
    for place, (channels, groups) in enumerate(((384, 1), (384, 2), (256, 2)), 3):
        chain.activate(f"conv{place}", Conv(channels, 3, padding=1, groups=groups, bias=True))
    chain.add("pool5", Pool("max", 3, 2, ceil=True))
    for name in ("fc6", "fc7"):
        chain.activate(name, Linear(4096))
        chain.add(f"{name}.dropout", Dropout())
    chain.add("fc8", Linear(1000))
    return Net("alexnet-caffe", Shape(3, 227, 227), tuple(chain.nodes))


_CONVOLUTIONS: Final = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_CHANNELS: Final = (64, 128, 256, 512, 512)
VGG_NAMES: Final = tuple(_CONVOLUTIONS)


def vgg(name: str) -> Net:
    """Return a VGG network for images of 3 x 224 x 224 and 1000 classes, without batch norm.

    Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (ICLR
    2015), table 1, columns D and E.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _CONVOLUTIONS:
        raise WorkloadError(f"expected one of {', '.join(VGG_NAMES)}; got {name!r}")
    chain = _Images()
    stages = zip(_CONVOLUTIONS[name], _CHANNELS, strict=True)
    for stage, (count, channels) in enumerate(stages, 1):
        for place in range(1, count + 1):
            chain.convolve(f"conv{stage}_{place}", channels, 3)
        chain.add(f"pool{stage}", Pool("max", 2, 2))
    for fc in ("fc6", "fc7"):
        chain.activate(fc, Linear(4096))
        chain.add(f"{fc}.dropout", Dropout())
    chain.add("fc8", Linear(1000))
    return Net(name, Shape(3, 224, 224), tuple(chain.nodes))


_MODULES: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of 1x1, 3x3's reduction, 3x3, 5x5's reduction, 5x5 and the pool's projection."""


def googlenet() -> Net:
    """Return the original GoogLeNet for images of 3 x 224 x 224 and 1000 classes.

    Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015), table 1: biases, local
    normalization, real 5x5 convolutions, without the two auxiliary classifiers. torchvision's
    differs: batch normalization, and 3x3 where the paper has 5x5.
    """
    chain = _Images()
    chain.activate("conv1/7x7_s2", Conv(64, 7, 2, 3, bias=True))
    chain.add("pool1/3x3_s2", Pool("max", 3, 2, ceil=True))
    chain.add("pool1/norm1", LocalNorm())
    chain.convolve("conv2/3x3_reduce", 64, 1)
    chain.convolve("conv2/3x3", 192, 3)
    chain.add("conv2/norm2", LocalNorm())
    chain.add("pool2/3x3_s2", Pool("max", 3, 2, ceil=True))
    for module, channels in _MODULES.items():
        if module in ("4a", "5a"):
            stage = int(module[0]) - 1
            chain.add(f"pool{stage}/3x3_s2", Pool("max", 3, 2, ceil=True))
        _inception(chain, f"inception_{module}", *channels)
    chain.add("pool5/7x7_s1", Pool("mean"))
    chain.add("pool5/drop_7x7_s1", Dropout(0.4))
    chain.add("loss3/classifier", Linear(1000))
    return Net("googlenet", Shape(3, 224, 224), tuple(chain.nodes))


def _inception(
    chain: _Images, at: str, one: int, reduce3: int, three: int, reduce5: int, five: int,
    project: int,
) -> None:  # fmt: skip
    """Four branches over one input, joined."""
    x = chain.last
    branches = [
        chain.convolve(f"{at}/1x1", one, 1, x),
        chain.convolve(f"{at}/3x3", three, 3, chain.convolve(f"{at}/3x3_reduce", reduce3, 1, x)),
        chain.convolve(f"{at}/5x5", five, 5, chain.convolve(f"{at}/5x5_reduce", reduce5, 1, x)),
        chain.convolve(
            f"{at}/pool_proj", project, 1, chain.add(f"{at}/pool", Pool("max", 3, 1, 1), x)
        ),
    ]
    chain.add(f"{at}/output", Concat(), *branches)


_BLOCKS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_BASIC: Final = ("resnet18", "resnet34")
RESNET_NAMES: Final = tuple(_BLOCKS)


def resnet(
    name: str, image: int = 224, classes: int = 1000, *, small: bool = False, first: bool = False
) -> Net:
    """Return a residual network for images of (3, image, image).

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016), table 1.
    From ResNet-50 on they are v1.5: the stride of a bottleneck is in its 3x3 convolution.

    Parameters
    ----------
    small : bool
        Begin with a 3x3 convolution of stride 1 and no pool, as usual for the 32 x 32 pixels of
        CIFAR-10 (section 4.2 of the paper), which the first layers for ImageNet would leave 8 x 8.
    first : bool
        Stride of a bottleneck in its first convolution, 1x1, as in the paper and in Caffe.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _BLOCKS:
        raise WorkloadError(f"expected one of {', '.join(_BLOCKS)}; got {name!r}")
    chain = _Blocks(first)
    stem = Conv(64, 3, 1, 1) if small else Conv(64, 7, 2, 3)
    x = chain.add("relu", Relu(), chain.normalize("conv1", "bn1", stem, INPUT))
    x = x if small else chain.add("maxpool", Pool("max", 3, 2, 1), x)
    block = chain.basic if name in _BASIC else chain.bottleneck
    for stage, count in enumerate(_BLOCKS[name]):
        for place in range(count):
            x = block(f"layer{stage + 1}.{place}.", x, 64 << stage, place == 0, stage > 0)
    x = chain.add("fc", Linear(classes), chain.add("avgpool", Pool("mean"), x))
    return Net(name, Shape(3, image, image), tuple(chain.nodes))


class _Blocks(Chain):
    """The blocks of residual networks; every method returns the name of its output."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self._first = first

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
        early, late = (stride, 1) if self._first else (1, stride)
        y = self.normalize(at + "conv1", at + "bn1", Conv(width, 1, early), x)
        y = self.add(at + "relu1", Relu(), y)
        y = self.normalize(at + "conv2", at + "bn2", Conv(width, 3, late, 1), y)
        y = self.add(at + "relu2", Relu(), y)
        y = self.normalize(at + "conv3", at + "bn3", Conv(4 * width, 1), y)
        return self._join(at, x, y, Conv(4 * width, 1, stride) if first else None)

    def _join(self, at: str, x: str, y: str, projection: Conv | None) -> str:
        if projection is not None:
            x = self.normalize(at + "downsample.0", at + "downsample.1", projection, x)
        return self.add(at + "relu", Relu(), self.add(at + "add", Add(), y, x))
