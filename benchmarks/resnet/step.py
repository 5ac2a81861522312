"""One training step of a network, with named phases, and the clock that times them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from benchmarks.common.torch_device import Device, set_tf32

PHASES: Final = ("forward", "backward", "step")
HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Cell:
    """One configuration: `batch` images per GPU; `mode` is 'alone' or 'ddp'."""

    net: str
    batch: int
    math: str
    mode: str = "alone"


class Training:
    """A network, its optimizer and images on a device.

    Parameters
    ----------
    math : {'fp32', 'tf32', 'bf16', 'fp16'}
        Of a cell: IEEE fp32 on CUDA cores, TF32 products, or autocast (weights stay fp32); fp16
        with a gradient scaler, as usual.
    """

    def __init__(self, net: nn.Module, most: int, image: int, device: Device) -> None:
        self.net, self.on, self.device = net, device, device.device
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
        generator = torch.Generator(self.device).manual_seed(0)
        shape = (most, 3, image, image)
        self.images = torch.randn(shape, device=self.device, generator=generator)
        self.labels = torch.randint(1000, (most,), device=self.device, generator=generator)
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=256.0)

    def step(self, batch: int, math: str, mark: Callable[[], None]) -> None:
        """Train on the first `batch` images; `mark` is called before, between and after phases."""
        set_tf32(math == "tf32")
        x, y = self.images[:batch], self.labels[:batch]
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        scaler = self.scaler if math == "fp16" else None
        mark()
        with named("forward", self.device):
            self.optimizer.zero_grad(set_to_none=True)
            half = HALF.get(math)
            with torch.autocast(self.device.type, dtype=half, enabled=half is not None):
                loss = nn.functional.cross_entropy(self.net(x), y)
        mark()
        with named("backward", self.device):
            (scaler.scale(loss) if scaler else loss).backward()
        mark()
        with named("step", self.device):
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
        mark()

    @property
    def channels_last(self) -> bool:
        """Whether the network's weights are NHWC; then images are, too."""
        first = next(self.net.parameters())
        return not first.is_contiguous()


@contextlib.contextmanager
def named(name: str, device: torch.device) -> Iterator[None]:
    """NVTX range, where there is a GPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.nvtx.range(name):
        yield


def nothing() -> None:
    """Mark of a step that is not measured."""


class Clock:
    """Marks of steps, one before, between and after their phases."""

    def __init__(self, device: Device) -> None:
        self._device, self._marks = device, list[Any]()

    def __call__(self) -> None:
        """Note now."""
        self._marks.append(self._device.mark())

    def steps(self) -> list[list[float]]:
        """Return the seconds of every phase of every step; the device must be idle."""
        every = len(PHASES) + 1
        steps = [self._marks[at : at + every] for at in range(0, len(self._marks), every)]
        return [[self._device.between(a, b) for a, b in pairwise(marks)] for marks in steps]

    def whole(self) -> float:
        """Return the seconds from the first mark to the last."""
        return self._device.between(self._marks[0], self._marks[-1])
