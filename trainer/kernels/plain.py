"""The handout's kernels: naive.cu (Algorithm 1), tiled.cu (Algorithm 2), register.cu (section 4.2).

Each file NAME.cu has one kernel, gemm_NAME, with a fixed block; a block computes one piece of the
output and, of outputs with very many rows, further pieces below it.
"""

from __future__ import annotations

from typing import ClassVar

from trainer.kernels.launch import MOST_GRID_ROWS, Operand, Plan, PlannedGemm, ceil, sizes


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
    """A block of 16 x 4 threads computes 64 x 16 elements, a thread one row of 16 in registers."""

    name = "register"
    block = (16, 4)
    piece = (64, 16)
