"""GoogLeNet as a list of layers, named as Caffe's bvlc_googlenet names them."""

from __future__ import annotations

from typing import Final

from perfmodel.workloads.chain import Chain
from perfmodel.workloads.layers import (
    Concat,
    Conv,
    Dropout,
    Linear,
    LocalNorm,
    Net,
    Pool,
    Shape,
)

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
    chain = Chain()
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
    chain: Chain, at: str, one: int, reduce3: int, three: int, reduce5: int, five: int, project: int
) -> None:
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
