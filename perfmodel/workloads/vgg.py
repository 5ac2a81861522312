"""VGG16 and VGG19 as lists of layers, named as their paper's Caffe models name them."""

from __future__ import annotations

from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.chain import Chain
from perfmodel.workloads.layers import Dropout, Linear, Net, Pool, Shape

_CONVOLUTIONS: Final = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_CHANNELS: Final = (64, 128, 256, 512, 512)
NAMES: Final = tuple(_CONVOLUTIONS)


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
        raise WorkloadError(f"wanted one of {', '.join(NAMES)}; found {name!r}")
    chain = Chain()
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
