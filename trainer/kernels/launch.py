"""Shared by all GEMMs written as CUDA kernels: checks, and launches planned once per shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from trainer.errors import OperandError
from trainer.kernels.source import CTYPES, CurrentGpu, Device

Array = Any
MOST_GRID_ROWS = 65535
"""Blocks that CUDA takes in y; kernels walk further rows in steps of the grid."""


class Operand(NamedTuple):
    """A matrix as a kernel sees it; strides count elements, and are 0 along a dimension of one."""

    rows: int
    columns: int
    row: int
    column: int
    alignment: int
    """The pointer's remainder modulo 16 bytes."""

    @property
    def transposed(self) -> Operand:
        """The same memory with rows and columns exchanged."""
        return Operand(self.columns, self.rows, self.column, self.row, self.alignment)


class Plan(NamedTuple):
    """A launch of a kernel on arrays of known shapes and strides."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    sizes: tuple[Any, ...]
    """The arguments after a, b, out, alpha and beta."""
    swap: bool = False
    """Whether the kernel's a is our b (out^T = b^T a^T)."""
    shared_mem: int = 0


def check(a: Array, b: Array, out: Array) -> None:
    """Raise ConfigError unless a (m, k) times b (k, n) can be written into out (m, n)."""
    found = f"{a.shape} {a.dtype} x {b.shape} {b.dtype} -> {out.shape} {out.dtype}"
    if not (a.dtype == b.dtype == out.dtype and out.dtype.char in CTYPES):
        raise OperandError(f"expected matrices all of float32 or all of float64; got {found}")
    if not (a.ndim == b.ndim == out.ndim == 2) or out.shape != (a.shape[0], b.shape[1]):
        raise OperandError(f"expected (m, k) x (k, n) -> (m, n); got {found}")
    if a.shape[1] != b.shape[0]:
        raise OperandError(f"expected (m, k) x (k, n), k the same; got {found}")
    to = operand(out)
    if (to.columns > 1 and to.column != 1) or (to.rows > 1 and to.row < to.columns):
        raise OperandError(
            f"expected a row-major output, rows of neighbouring elements that do not overlap; got "
            f"strides of {out.strides} bytes for {out.shape} {out.dtype}; give it transposed"
        )


def operand(array: Array) -> Operand:
    """Describe a 2-D array."""
    size = array.dtype.itemsize
    rows, columns = array.shape
    row, column = (
        stride // size if extent > 1 else 0
        for stride, extent in zip(array.strides, array.shape, strict=True)
    )
    return Operand(rows, columns, row, column, array.data.ptr % 16)


def ceil(count: int, size: int) -> int:
    """Return the number of pieces of `size` that hold `count`."""
    return -(-count // size)


class PlannedGemm(ABC):
    """A GEMM that looks its launch up by shapes, strides and alignments (about 2 µs in Python).

    Parameters
    ----------
    device : Device, optional
        By default the current GPU.
    """

    name = ""

    def __init__(self, device: Device | None = None) -> None:
        self.device: Device = device or CurrentGpu()
        self._plans: dict[tuple[Any, ...], Plan | None] = {}

    def __call__(
        self, a: Array, b: Array, out: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Set out to alpha a b + beta out; see `trainer.kernels.Gemm`."""
        key = (
            a.shape, a.strides, a.dtype.char, a.data.ptr % 16,
            b.shape, b.strides, b.dtype.char, b.data.ptr % 16,
            out.shape, out.strides, out.dtype.char, out.data.ptr % 16,
        )  # fmt: skip
        if key in self._plans:
            plan = self._plans[key]
        else:
            check(a, b, out)
            plan = self._plan(a, b, out) if out.size else None
            self._plans[key] = plan
        if plan is None:
            return
        if plan.swap:
            a, b = b, a
        arguments = (a, b, out, float(alpha), float(beta), *plan.sizes)
        plan.kernel(plan.grid, plan.block, arguments, shared_mem=plan.shared_mem)

    def _plan(self, a: Array, b: Array, out: Array) -> Plan:
        """Choose kernel, grid and block for arrays that passed `check`; out is not empty."""
        real = CTYPES[out.dtype.char]
        return self.plan(operand(a), operand(b), operand(out), real)

    @abstractmethod
    def plan(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        """Choose kernel, grid and block; `real` is the C type."""


def sizes(a: Operand, b: Operand, out: Operand) -> tuple[Any, ...]:
    """Return m, n, k as C ints and the strides as 64-bit ones: the last arguments of a kernel."""
    counts = (np.int32(n) for n in (a.rows, b.columns, a.columns))
    return (*counts, a.row, a.column, b.row, b.column, out.row)
