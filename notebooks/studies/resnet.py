"""A published roofline study of ResNet training on V100 and A100: its numbers, recomputed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from perfmodel.base.errors import ModelError
from perfmodel.machines.devices import known
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point, Roofline
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import (
    Add,
    Conv,
    Cost,
    Linear,
    Norm,
    Pool,
    Relu,
    costs,
    place,
    total,
)

WINOGRAD = 324 / 64
"""Multiplications that F(6x6, 3x3) saves: 36 outputs x 9 taps in 64 (A. Lavin, S. Gray, "Fast
Algorithms for Convolutional Neural Networks", CVPR 2016); what cuDNN has saves less."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the study: measured (time, bytes, FLOPs), and printed from these."""

    net: str
    machine: str
    time_s: float
    bytes: int
    flops: int
    theoretical_flops: int
    throughput_bytes_per_s: float
    flops_per_byte: float
    gflops_per_s: float
    actual_over_theoretical: float

    @property
    def label(self) -> str:
        """The network and the machine."""
        return f"{self.net} on {self.machine}"

    def recomputed(self) -> dict[str, float]:
        """Return the derived columns by name, from the measured ones."""
        return {
            "throughput_bytes_per_s": self.bytes / self.time_s,
            "flops_per_byte": self.flops / self.bytes,
            "gflops_per_s": self.flops / self.time_s / 1e9,
            "actual_over_theoretical": self.flops / self.theoretical_flops,
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory run: the study's parameters, their size, and the memory in use."""

    net: str
    gpus: int
    parameters: int
    parameter_megabytes: float
    used_megabytes: float
    used_over_parameters: float


@dataclass(frozen=True, slots=True)
class Study:
    """All that the study printed; `images` were trained in every trial."""

    images: int
    trials: tuple[Trial, ...]
    memory: tuple[Memory, ...]


@cache
def study() -> Study:
    """Return the study's numbers as printed."""
    file = resources.files("studies").joinpath("resnet.toml")
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    return Study(
        read["images"],
        tuple(Trial(**entry) for entry in read["trial"]),
        tuple(Memory(**entry) for entry in read["memory"]),
    )


def machine_of(trial: Trial) -> Machine:
    """Return the ceilings of the machine that a trial ran on."""
    return next(m for m in known() if m.name == trial.machine)


def roof(machine: Machine, dtype: str = "float32") -> Roofline:
    """Return the roof of a machine's peak and memory bandwidth.

    Raises
    ------
    ModelError
        If the machine's peak of `dtype` or its memory bandwidth is not known.
    """
    peak = machine.peak_flops_per_s.get(dtype)
    bandwidth = machine.bandwidth_bytes_per_s.get("hbm")
    if peak is None or bandwidth is None:
        raise ModelError(
            f"expected the {dtype} peak and the memory bandwidth of {machine.name}; got "
            f"{', '.join(machine.peak_flops_per_s)}: add it to its file in perfmodel/machines"
        )
    return Roofline(machine.name, peak, {"hbm": bandwidth}, {"hbm": 1.0})


def point(trial: Trial) -> Point:
    """Return a trial's point under its machine's roof, from time, bytes and FLOPs."""
    return Point(
        trial.net, trial.net, trial.machine, trial.flops / trial.bytes, trial.flops / trial.time_s
    )


def roof_share(trial: Trial) -> float:
    """Return the share of the time that its FLOPs and bytes need under the hard fp32 roof."""
    machine = machine_of(trial)
    return float(trial.flops / roof(machine).hard(trial.flops / trial.bytes) / trial.time_s)


def training(trial: Trial, images: int | None = None) -> Cost:
    """Return what training on the study's images (or on `images`) costs, 2 FLOPs per MAC."""
    return total(resnet(trial.net), images or study().images)


def flops_in_1x1(net: str, images: int = 1) -> int:
    """Return the forward FLOPs of 1x1 convolutions, which no algorithm does with fewer."""
    found = costs(resnet(net), images)
    return sum(
        c.forward_flops for x, c in found if isinstance(x.layer, Conv) and x.layer.kernel == 1
    )


def least_flops(net: str, images: int) -> float:
    """Return the FLOPs of training if every 3x3 convolution ran with Winograd's F(6x6, 3x3)."""
    found = costs(resnet(net), images)
    fast = [isinstance(x.layer, Conv) and x.layer.kernel == 3 for x, _ in found]
    return sum(c.flops / (WINOGRAD if f else 1.0) for f, (_, c) in zip(fast, found, strict=True))


def pthflops(net: str, batch: int) -> int:
    """Return what pytorch-estimate-flops, the study's tool, calls the FLOPs of a batch.

    As its `ops_fx.py` counts one forward pass: a multiply-accumulate is one; 2 per element of an
    activation, of a batch normalization and of a sum; k^2 - 1 per output of a maximum pool, the
    window's size per output of a mean; the bias of a fully connected layer once a batch.
    """
    counted = 0
    for x in place(resnet(net)):
        each = x.shape.elements
        match x.layer:
            case Conv() | Linear():
                counted += batch * x.macs + (each if isinstance(x.layer, Linear) else 0)
            case Norm() | Relu() | Add():
                counted += batch * 2 * each
            case Pool(kind="max", kernel=int(kernel)):
                counted += batch * each * (kernel**2 - 1)
            case Pool():
                counted += batch * x.input_shapes[0].elements
    return counted
