"""GEMMs with one short dimension: thin.cu for few rows or columns, thin_outer.cu for a short k.

Of C = 10 classes these are W2 a1 and dz2 a1^T (few rows), W2^T dz2 (short k), and sums of rows (one
column of ones). Other shapes come out right, a few rows at a time, and slowly: use them for nothing
else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainer.kernels.launch import MOST_GRID_ROWS, Operand, Plan, PlannedGemm, ceil, sizes

SHORT: Final = 16
"""Rows a thread takes at most; a k up to this goes to thin_outer.cu."""

DEPTH: Final = 4  # thin.cu: elements of k a thread takes in a step
VECTOR_BYTES: Final = 16
REGISTERS: Final = 200  # of a thread's 255, for matrix elements in thin_outer.cu,
SUMS: Final = 80  # and for sums in thin.cu, which holds elements besides
ITEM_BYTES: Final = {"float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Shape:
    """Layout of a block of thin.cu over the columns of b.

    Attributes
    ----------
    lanes, columns, groups : int
        Lanes of a warp along n, columns of a thread, warps of a block along n.
    """

    lanes: int
    columns: int
    groups: int

    @property
    def tile(self) -> int:
        """Columns of b that a block takes."""
        return self.lanes * self.columns * self.groups


class ThinGemm(PlannedGemm):
    """A GEMM that streams its one large matrix once, in one launch, deterministically."""

    name = "thin"

    def plan(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        """Choose by the shortest of k, m and n."""
        if a.columns <= SHORT:
            return self._outer(a, b, out, real)
        if out.columns < out.rows:
            a, b, out = b.transposed, a.transposed, out.transposed
            return self._few_rows(a, b, out, real)._replace(swap=True)
        return self._few_rows(a, b, out, real)

    def _few_rows(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        m, n, k = a.rows, b.columns, a.columns
        chunks = ceil(m, SHORT)
        rows = ceil(m, chunks)
        along_k = b.row == 1 or (b.column != 1 and abs(b.row) <= abs(b.column))
        shape = self._shape(rows, chunks, n, along_k, real)
        vk, vn = vector(a, real), vector(b, real, shape.columns)
        if along_k:
            vk, vn = min(vk, vector(b.transposed, real)), 1
        warps = _warps(shape, rows, k, real)
        kernel = self.device.load(
            "thin", REAL=real, ROWS=rows, COLUMNS=shape.columns, LANES=shape.lanes, WARPS=warps,
            GROUPS=shape.groups, VK=vk, VN=vn, ALONG_K=int(along_k), EXACT=int(m % rows == 0),
            UNROLL=2 if warps <= 12 and vk == 4 and rows * shape.columns <= SUMS else 1,
        ).get_function("gemm_thin")  # fmt: skip
        grid = (ceil(n, shape.tile), chunks)
        return Plan(kernel, grid, (32 * warps,), (*sizes(a, b, out), out.column))

    def _shape(self, rows: int, chunks: int, n: int, along_k: bool, real: str) -> Shape:
        """Choose the tile that makes the busiest multiprocessor read least.

        A block reads its tile of b and all of a: tile + rows elements for each of k.
        """

        def busiest(shape: Shape) -> tuple[int, int]:
            blocks = chunks * ceil(n, shape.tile)
            rounds = ceil(blocks, self.device.multiprocessors)
            return rounds * (shape.tile + rows), -shape.tile

        return min(_shapes(rows, along_k, real), key=busiest)

    def _outer(self, a: Operand, b: Operand, out: Operand, real: str) -> Plan:
        m, n = out.rows, out.columns
        columns = VECTOR_BYTES // ITEM_BYTES[real]
        warps, across = 4, ceil(n, 32 * columns)
        words = max(1, a.columns) * ITEM_BYTES[real] // 4
        rows = 8  # fewer until all multiprocessors have a block, and registers hold a and b
        while rows > 2 and (
            across * ceil(m, rows * warps) < self.device.multiprocessors
            or words * (rows + columns) > REGISTERS
        ):
            rows //= 2
        vn = min(vector(b, real), vector(out, real))
        kernel = self.device.load(
            "thin_outer", REAL=real, K=max(1, a.columns), ROWS=rows, COLUMNS=columns, WARPS=warps,
            VN=vn, VM=vector(a.transposed, real, rows), STREAM=0,
        ).get_function("gemm_thin_outer")  # fmt: skip
        grid = (across, min(ceil(m, rows * warps), MOST_GRID_ROWS))
        return Plan(kernel, grid, (32 * warps,), sizes(a, b, out))


def vector(x: Operand, real: str, most: int = SHORT) -> int:
    """Return how many elements of a row of x, at most `most`, every load may take: 4, 2 or 1.

    Rows must be contiguous, of a multiple of so many elements, and all start aligned.
    """
    if x.column != 1:
        return 1
    for width in (4, 2):
        size = width * ITEM_BYTES[real]
        fits = size <= VECTOR_BYTES and width <= most and x.alignment % size == 0
        if fits and x.row % width == 0 and x.columns % width == 0:
            return width
    return 1


def _shapes(rows: int, along_k: bool, real: str) -> Iterator[Shape]:
    """Name the tiles to choose from; benchmarks/results/thin_sweep.json.xz has their times."""
    if not along_k:
        columns = VECTOR_BYTES // ITEM_BYTES[real]
        yield from (Shape(lanes, columns, 1) for lanes in (2, 4, 8, 16))
        yield from (Shape(lanes, columns, 3) for lanes in (4, 8, 16))
        return
    most = next(c for c in (8, 4, 2, 1) if rows * c * ITEM_BYTES[real] <= 4 * SUMS)
    yield from (Shape(1, columns, 1) for columns in (1, 2, 4, 8) if columns <= most)
    yield from (Shape(1, most, groups) for groups in (2, 4, 8))


def _warps(shape: Shape, rows: int, k: int, real: str) -> int:
    """Return the warps of a block: as many as k occupies, within the registers they leave."""
    values = rows * shape.columns * ITEM_BYTES[real] // 4
    most = 32 if values <= 2 else 12 if values <= 40 and real == "float" else 8
    useful = ceil(k, DEPTH * 32 // shape.lanes)  # warps along k that find something in a step
    return max(1, min(useful, most // shape.groups)) * shape.groups
