"""ResNet-18 and ResNet-50 v1.5 in torch, with the names and shapes of torchvision's parameters.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016), table 1; v1.5 has
the stride of a bottleneck in its 3x3 convolution, as torchvision has it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

PARAMETERS: Final = {"resnet18": 11_689_512, "resnet50": 25_557_032}
"""What torchvision's networks have."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion: Final = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W) to (N, width, H/stride, W/stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    expansion: Final = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W) to (N, 4 width, H/stride, W/stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return a projection where the shapes differ, else None: the identity."""
    if inputs == outputs and stride == 1:
        return None
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Stem, four stages of blocks, average pool, classes."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], blocks: tuple[int, int, int, int]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            made = []
            for place in range(count):
                made.append(block(inputs, width, 2 if stage and not place else 1))
                inputs = width * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (N, 3, 224, 224) to logits (N, 1000)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def make(name: str) -> ResNet:
    """Return 'resnet18' or 'resnet50'; refuse one whose parameters are not torchvision's."""
    net = {
        "resnet18": lambda: ResNet(BasicBlock, (2, 2, 2, 2)),
        "resnet50": lambda: ResNet(Bottleneck, (3, 4, 6, 3)),
    }[name]()
    found = sum(p.numel() for p in net.parameters())
    if found != PARAMETERS[name]:
        raise SystemExit(f"{name}: expected {PARAMETERS[name]} parameters; got {found}")
    return net
