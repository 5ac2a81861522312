"""AlexNet as lists of layers: as torchvision has it, and Caffe's with two groups."""

from __future__ import annotations

from perfmodel.workloads.chain import Chain
from perfmodel.workloads.layers import Conv, Dropout, Linear, LocalNorm, Net, Pool, Shape


def alexnet() -> Net:
    """Return torchvision's AlexNet for images of 3 x 224 x 224 and 1000 classes.

    One tower, no local normalization: Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks" (arXiv:1404.5997, 2014). torchvision's adaptive pool is none at this size.
    """
    chain = Chain()
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
    chain = Chain()
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
