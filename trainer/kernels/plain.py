"""The handout's kernels: naive.cu (Algorithm 1), tiled.cu (Algorithm 2), register.cu (section 4.2).

Each file NAME.cu has one kernel, gemm_NAME, with a fixed block; a block computes one piece of the
output and, of outputs with very many rows, further pieces below it.
"""

from __future__ import annotations

from typing import ClassVar

from trainer.kernels.launch import MOST_GRID_ROWS, Operand, Plan, PlannedGemm, ceil, sizes
from trainer.kernels.source import Device
from trainer.kernels.thin import ITEM_BYTES, VECTOR_BYTES, vector


class _OnePiecePerBlock(PlannedGemm):
    block: ClassVar[tuple[int, int]]
    piece: ClassVar[tuple[int, int]]
    """Rows and columns of the output that a block computes."""

    def plan(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        """Cover the output with pieces."""
        kernel = self.device.load(self.name, REAL=real).get_function(f"gemm_{self.name}")
        rows, columns = self.piece
        grid = (ceil(out.columns, columns), min(ceil(out.rows, rows), MOST_GRID_ROWS))
        return Plan(kernel, grid, self.block, sizes(a, b, out))


class NaiveGemm(_OnePiecePerBlock):
    """A thread computes one element of the output, straight from global memory."""

    name = "naive"
    block = (32, 8)
    piece = (8, 32)


class TiledGemm(_OnePiecePerBlock):
    """A block of 32 x 32 threads passes 32 x 32 tiles of a and b through shared memory."""

    name = "tiled"
    block = (32, 32)
    piece = (32, 32)


class RegisterGemm(_OnePiecePerBlock):
    """A block of 16 x 4 threads computes rows of 16 elements of the output, in registers.

    Parameters
    ----------
    each : int
        Rows of a thread: a block computes 64 `each` x 16 elements.
    step : int
        Elements along k between two barriers; a multiple of 4.
    wide : bool
        Load 16 bytes at a time where memory lies so.
    staged : bool
        Pass a through shared memory where its rows are contiguous.

    Notes
    -----
    The defaults are the handout's kernel; see register.cu. ``--gemm register`` is the one with wide
    loads, without which rows of contiguous elements make it no faster than `TiledGemm`.
    """

    name = "register"
    block = (16, 4)

    def __init__(
        self, device: Device | None = None, *, each: int = 1, step: int = 4, wide: bool = False,
        staged: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(device)
        self.each, self.step, self.wide, self.staged = each, step, wide, staged

    def plan(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        """Cover the output with pieces, and choose the loads that a's layout allows."""
        wide = VECTOR_BYTES // ITEM_BYTES[real] if self.wide else 1
        kernel = self.device.load(
            "register", REAL=real, EACH=self.each, STEP=self.step, WIDE=wide,
            A_WIDE=int(1 < wide <= vector(a, real)), STAGED=int(self.staged and a.column == 1),
        ).get_function("gemm_register")  # fmt: skip
        pieces = ceil(out.rows, 64 * self.each)
        grid = (ceil(out.columns, 16), min(pieces, MOST_GRID_ROWS))
        return Plan(kernel, grid, self.block, sizes(a, b, out))
