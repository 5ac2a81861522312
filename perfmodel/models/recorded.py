"""Recorded steps of a program, call by call: what a step of other sizes is predicted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.models.lifetimes import Optimizer, Tensor

Size = tuple[int, ...]
_OPERANDS = {"aten::addcdiv_": 3, "aten::add_": 2}
"""Tensors that an optimizer's calls for one parameter take, where they are not four lists."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Calls of one operator with the same sizes, as recorded or as predicted.

    Attributes
    ----------
    name, phase, dtype : str
        Of fused kernels the name without its number.
    kind : {'gemm', 'attention', 'convolution', 'memory', 'communication', 'unknown'}
        'unknown' where no formula counts it.
    layout : {'nt', 'nn', 'tn', ''}
        Which factor of a GEMM is transposed; '' where nothing says it.
    sizes : tuple of tuple of int
        Of the arguments, then of the result where it is known.
    arguments : int
        How many of the sizes are the arguments'.
    said : mapping
        What the program's formula needs besides.
    flops, bytes : float
        Of one call; of a collective the bytes of the whole vector.
    shape : tuple of int or None
        (m, n, k) of a GEMM, (batch times heads, queries, numbers of a head) of attention.
    launches : int
        GPU operations of one call.
    gpu_s : float
        Mean over lanes and steps; of a collective without waiting for other ranks.
    """

    name: str
    phase: str
    kind: str
    dtype: str
    layout: str
    sizes: tuple[Size, ...]
    arguments: int
    said: Mapping[str, Any]
    flops: float
    bytes: float
    shape: tuple[int, int, int] | None
    launches: int
    gpu_s: float

    @property
    def lists(self) -> int:
        """Lists of tensors that an optimizer's call takes: parameters, gradients, its states.

        0 for other calls.
        """
        updates = self.phase == "optimizer" and len(self.sizes) > 2
        usual = _OPERANDS.get(self.name, 4)
        return max(int(self.said.get("depth") or usual), 1) if updates else 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key that distinguishes it."""
        return self.name, self.phase, self.sizes, self.layout, self.dtype, self.bytes


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a program.

    Attributes
    ----------
    source : str
        Name of the report.
    ranks : int
    gpu : str
    calls : tuple of RecordedCall
        Distinct ones.
    order : tuple of int
        Of every call of the step, as they were launched, its place in `calls`; empty where the
        report names no sizes.
    gap_s : float
        Between two kernels of which the second waits for the first; 0 where there is none.
    bare_s : float or None
        Step without a profiler, as the program timed it before it was recorded.
    step_s : float or None
        Step without the profiler, as `perfmodel analyze` says; None where nobody analyzed it.
    host_s : tuple of float
        Of every call of `order`, the host's time from the launch before it to its own, without the
        profiler and without waiting for the GPU; empty where unknown.
    waits : tuple of bool
        Of every call of `order`, whether the host waits for the GPU before it launches it.
    host_noise : float
        How unsure the host's times are without the profiler, a standard deviation of logarithms.
    tensors : tuple of Tensor
        Of the order; empty where the recording does not say what made operators' arguments.
    optimizer : Optimizer or None
        None where its calls do not say what it keeps.
    """

    source: str
    ranks: int
    gpu: str
    calls: tuple[RecordedCall, ...]
    order: tuple[int, ...]
    gap_s: float
    bare_s: float | None = None
    host_s: tuple[float, ...] = ()
    waits: tuple[bool, ...] = ()
    host_noise: float = 0.0
    tensors: tuple[Tensor, ...] = ()
    optimizer: Optimizer | None = None
    step_s: float | None = None


def parameters_of(calls: Sequence[RecordedCall]) -> frozenset[Size]:
    """Shapes of parameters, as the optimizer has them."""
    found: set[Size] = set()
    for call in calls:
        if call.lists:
            shapes = [s for s in call.sizes if s]
            found.update(shapes[: len(shapes) // call.lists])
    return frozenset(found)
