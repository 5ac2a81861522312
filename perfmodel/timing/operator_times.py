"""The operators of a framework in every step: their work by formula and their GPU time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from perfmodel.base.arrays import Int64
from perfmodel.timing.engine_steps import EngineWork

Phase = Literal["forward", "backward", "optimizer", "other"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
"""Parts of a training step; `other` comes after the optimizer and before the next forward pass."""


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """Common facts of operators' calls that are counted together.

    Attributes
    ----------
    name : str
        Operator; for operations that no operator launched, what their kernels do, in parentheses.
    phase : str
        One of `PHASES`; '' where that is unknown, and the name itself where that is a phase.
    dtype, origin : str
        Type that it computes with, and what says so: 'kernel', 'inputs', 'given' or 'default'.
    unit : str
        The machine's peak for its arithmetic, such as 'bfloat16_tensor'.
    sizes : str
        Of the arguments; '' where calls of several sizes are together.
    modelled : bool
        Whether a formula counts it.
    communicates : bool
        Whether its kernels exchange data between GPUs.
    module : str
        Qualified name of the module that called it; '' outside of all.
    """

    name: str
    phase: str
    dtype: str
    origin: str
    unit: str
    sizes: str
    modelled: bool
    communicates: bool
    module: str = ""


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Work and GPU time of operators, one row for every key, lane and step that has any.

    Attributes
    ----------
    keys : tuple of OperatorKey
    key, lane, step : int64, shape (n,)
        Positions in `keys` and in `StepTimes.process`, and the step's number.
    count, kernels : int64, shape (n,)
        Calls, and kernels that they launched.
    flops, read_bytes, write_bytes : int64, shape (n,)
        By formula; 0 where there is none.
    fusible_bytes : int64, shape (n,)
        Of `read_bytes` those of what an operator without products has just written.
    gpu_ns : int64, shape (n,)
        Sum over calls of the union of their own GPU operations.
    lanes : int
    causal : bool
        Whether attention was counted as under a causal mask.
    warnings : tuple of str
    source : str
        Where the work is from: 'shapes' of operators, 'layers' of a network, or 'none'.
    counted : mapping of (str, str, str) to (float or None, float or None)
        By name, phase and sizes: bytes of DRAM, and of L2, that Nsight Compute counted of one call
        with empty caches; None where it did not. Empty without its table.
    engine : mapping of (int, int) to EngineWork
        By lane and step, where a step is one of an engine that serves a language model.
    hidden : int
        Operations that CUDA graphs replay and whose operators no recording of the capture names.
    places : mapping of str to (str or None, str or None)
        Line and module that captured each replayed kernel, for most of its time, by its name.
    largest : mapping of (str, str) to str
        The kernel with most of the time of an operator, by the operator's name and phase.
    """

    keys: tuple[OperatorKey, ...]
    key: Int64
    lane: Int64
    step: Int64
    count: Int64
    kernels: Int64
    flops: Int64
    read_bytes: Int64
    write_bytes: Int64
    fusible_bytes: Int64
    gpu_ns: Int64
    lanes: int
    causal: bool = False
    warnings: tuple[str, ...] = ()
    counted: Mapping[tuple[str, str, str], tuple[float | None, float | None]] = field(
        default_factory=dict
    )
    source: str = "shapes"
    engine: Mapping[tuple[int, int], EngineWork] = field(default_factory=dict)
    hidden: int = 0
    places: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    largest: Mapping[tuple[str, str], str] = field(default_factory=dict)
