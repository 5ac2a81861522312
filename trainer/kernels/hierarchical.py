"""The hierarchical GEMM: which tile and how many splits a GEMM gets, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainer.kernels.launch import Operand, ceil, check, operand
from trainer.kernels.source import CTYPES, CurrentGpu, Device

MATH: Final = {"ieee": 0, "tf32": 1, "tf32x3": 3}
"""Ways to multiply float32, and their names in hierarchical.cu."""
_FREE_SHARED_BYTES: Final = 47 << 10  # beyond 48 KiB, static part included, a kernel must ask
_MOST_SPLITS: Final = 16
_MOST_TILES_SPLIT: Final = 4096
_WAVES_ENOUGH: Final = 4  # of tiles: the multiprocessors are busy without splits


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's share of a GEMM, and how long a multiprocessor takes for a slab of it.

    Attributes
    ----------
    bm, bn, bk : int
        Rows and columns of C a block owns, and how deep a slab of k is.
    wm, wn : int
        Rows and columns a warp owns.
    stages : int
        Slabs in shared memory at a time.
    alone_us, each_us : float
        A slab takes max(alone_us, blocks each_us) on a multiprocessor with so many blocks: the
        latency of one, or the throughput of all. Fitted to GEMMs measured on an H200
        (docs/ladder.md), for choosing between tiles only.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    alone_us: float = 1.0
    each_us: float = 1.0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.bm // self.wm) * (self.bn // self.wn)

    def shared_bytes(self, itemsize: int, math: str, a_along_k: bool, b_along_k: bool) -> int:
        """Return the shared memory of a block: A_SIZE and B_SIZE of hierarchical.cu, by stages."""
        pad = 4 if math == "ieee" else 8
        sizes = (
            w * self.bk if math != "ieee" and along else self.bk * (w + pad)
            for w, along in ((self.bm, a_along_k), (self.bn, b_along_k))
        )
        return self.stages * sum(sizes) * itemsize


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles for one kind of arithmetic, and what a launch and a split cost besides.

    Attributes
    ----------
    launch_us : float
        A launch, its first slab and its last store.
    split_us, partial_us : float
        Splitting at all, and for each split the writing and reading of 10^4 partial sums.
    """

    launch_us: float
    split_us: float
    partial_us: float
    tiles: tuple[Tile, ...]


TILES: Final = {
    ("ieee", "float32"): Tiles(9.17, 0.97, 0.60, (
        Tile(64, 64, 16, 32, 32, 3, 0.515, 0.446), Tile(128, 64, 16, 64, 32, 3, 1.14, 0.852),
        Tile(64, 32, 16, 32, 32, 4, 0.664, 0.297),
    )),
    ("tf32", "float32"): Tiles(2.87, 2.25, 0.51, (
        Tile(128, 128, 32, 64, 32, 3, 1.35, 1.19), Tile(64, 32, 32, 32, 16, 4, 0.434, 0.375),
        Tile(128, 256, 32, 64, 64, 3, 1.81, 2.09), Tile(64, 96, 32, 32, 48, 4, 0.762, 0.743),
    )),
    ("tf32x3", "float32"): Tiles(4.92, 0.67, 0.42, (
        Tile(64, 64, 32, 32, 32, 4, 0.815, 0.735), Tile(128, 64, 32, 64, 32, 3, 0.314, 1.394),
        Tile(64, 128, 32, 32, 64, 3, 0.52, 1.324), Tile(64, 32, 32, 32, 16, 4, 0.648, 0.465),
    )),
    ("tf32x2", "float32"): Tiles(4.71, 0.79, 0.44, (
        Tile(64, 96, 32, 32, 48, 3, 0.826, 0.774), Tile(64, 128, 32, 32, 64, 3, 0.543, 1.007),
        Tile(64, 64, 32, 32, 32, 4, 0.674, 0.607), Tile(64, 32, 32, 32, 16, 4, 0.603, 0.425),
    )),
    ("ieee", "float64"): Tiles(9.0, 1.0, 1.2, (
        Tile(64, 64, 8, 32, 32, 3, 0.6, 0.5), Tile(64, 32, 8, 32, 32, 4, 0.5, 0.25),
    )),
}  # fmt: skip
"""By math and dtype; tf32x2 is tf32x3 with an exact factor b, which saves a third of the work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A tile and the number of blocks that share it along k."""

    tile: Tile
    splits: int


def choose(m: int, n: int, k: int, kind: tuple[str, str], processors: int) -> Plan:
    """Return the tile and splits that `predicted_us` finds fastest.

    Parameters
    ----------
    kind : (str, str)
        A key of `TILES`.
    processors : int
        Multiprocessors of the GPU.
    """
    tiles = TILES[kind]
    options = (
        Plan(tile, splits) for tile in tiles.tiles for splits in _splits(m, n, k, tile, processors)
    )
    return min(options, key=lambda plan: predicted_us(m, n, k, plan, tiles, processors))


def predicted_us(m: int, n: int, k: int, plan: Plan, tiles: Tiles, processors: int) -> float:
    """Predict the time of a GEMM in microseconds: launch + slabs + partial sums.

    Blocks are dealt to the multiprocessors in waves, and the busiest one decides (wave
    quantization); beyond four waves the dealing evens out to half a wave.
    """
    tile, splits = plan.tile, plan.splits
    blocks = ceil(m, tile.bm) * ceil(n, tile.bn) * splits
    slabs = ceil(ceil(k, tile.bk), splits)
    busiest = float(ceil(blocks, processors))
    if busiest > 4:
        busiest = blocks / processors + 0.5
    partial = tiles.partial_us * splits * tile.bm * tile.bn * 1e-4
    return (
        tiles.launch_us
        + slabs * max(tile.alone_us, busiest * tile.each_us)
        + (tiles.split_us + partial if splits > 1 else 0.0)
    )


def _splits(m: int, n: int, k: int, tile: Tile, processors: int) -> range:
    """Return the numbers of splits worth a thought: at least four slabs in each, few tiles."""
    most = min(_MOST_TILES_SPLIT, _WAVES_ENOUGH * processors)
    if ceil(m, tile.bm) * ceil(n, tile.bn) > most:
        return range(1, 2)
    return range(1, min(_MOST_SPLITS, max(1, ceil(k, tile.bk) // 4)) + 1)


class HierarchicalGemm:
    """out = alpha a b + beta out, or sigmoid(a b + bias), by trainer/kernels/hierarchical.cu.

    Parameters
    ----------
    math : {'ieee', 'tf32', 'tf32x3'}
        How float32 is multiplied: exactly as it is, rounded to TF32 on tensor cores, or split
        into two TF32 numbers there, which keeps float32's accuracy.
    plan : Plan, optional
        Use this for every GEMM instead of `choose`.
    device : Device, optional
        By default the current GPU.
    """

    name = "hierarchical"

    def __init__(
        self, *, math: str = "ieee", plan: Plan | None = None, device: Device | None = None
    ) -> None:
        self._math, self._plan = math, plan
        self._device: Device = device or CurrentGpu()
        self._arrived: Any = None
        self._partial: Any = None
        self._outgrown: list[Any] = []
        self._calls: dict[Any, tuple[Any, ...] | None] = {}

    def __call__(
        self, a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0, bias: Any = None,
        b_exact: bool = False,
    ) -> None:  # fmt: skip
        """Multiply; see `trainer.kernels.Gemm`.

        With `bias` (m,): out = sigmoid(a b + bias); alpha and beta are not used. With `b_exact`
        every element of b is promised to be a TF32 number, such as a whole one up to 2048.
        """
        key = (
            a.shape, a.strides, a.dtype.char, a.data.ptr % 16,
            b.shape, b.strides, b.dtype.char, b.data.ptr % 16,
            out.shape, out.strides, out.dtype.char, out.data.ptr % 16,
            alpha, beta, bias is None, b_exact,
        )  # fmt: skip
        if key in self._calls:
            call = self._calls[key]
        else:
            check(a, b, out)
            call = self._calls[key] = (
                self._prepare(a, b, out, alpha, beta, bias, b_exact) if out.size else None
            )
        if call is None:
            return
        kernel, grid, block, shared, front, a_strides, b_strides, beta_, back = call
        arguments = (
            *front, a, *a_strides, b, *b_strides, beta_, out, *back, out if bias is None else bias,
        )  # fmt: skip
        kernel(grid, block, arguments, shared_mem=shared)

    def _prepare(
        self, a: Any, b: Any, out: Any, alpha: float, beta: float, bias: Any, b_exact: bool
    ) -> tuple[Any, ...]:
        """Choose, compile and make the workspace of a GEMM."""
        dtype, (m, n), k = out.dtype.name, out.shape, a.shape[1]
        math = self._math if dtype == "float32" else "ieee"
        kind = ("tf32x2" if b_exact and math == "tf32x3" else math, dtype)
        plan = self._plan or choose(m, n, k, kind, self._device.multiprocessors)
        tile, splits = plan.tile, plan.splits
        tiles = ceil(m, tile.bm) * ceil(n, tile.bn)
        partial, arrived = self._workspace(out, tiles, splits, tile)
        a_along, a_aligned = _order(operand(a).transposed, a.itemsize)
        b_along, b_aligned = _order(operand(b), b.itemsize)
        c_row = operand(out).row
        group = 4 if math == "ieee" else 2
        module = self._device.load(
            "hierarchical", REAL=CTYPES[out.dtype.char], BM=tile.bm, BN=tile.bn, BK=tile.bk,
            WM=tile.wm, WN=tile.wn, STAGES=tile.stages, MATH=MATH[math],
            B_EXACT=int(kind[0] == "tf32x2"), A_ALONG_K=a_along, B_ALONG_K=b_along,
            A_ALIGNED=a_aligned, B_ALIGNED=b_aligned, SIGMOID=int(bias is not None),
            C_ALIGNED=int(n % group == c_row % group == out.data.ptr % 16 == 0),
        )  # fmt: skip
        kernel = module.get_function("gemm")
        shared = tile.shared_bytes(out.itemsize, math, bool(a_along), bool(b_along))
        if shared > _FREE_SHARED_BYTES:
            kernel.max_dynamic_shared_size_bytes = shared
        real, wide = out.dtype.type, np.int64
        front = (np.int32(m), np.int32(n), np.int32(k), real(alpha))
        strides = [(wide(o.row), wide(o.column)) for o in (operand(a), operand(b))]
        back = (wide(c_row), np.int32(splits), partial, arrived)
        grid, block = (tiles * splits,), (tile.threads,)
        return kernel, grid, block, shared, front, *strides, real(beta), back

    def _workspace(self, out: Any, tiles: int, splits: int, tile: Tile) -> tuple[Any, Any]:
        """Return memory for partial sums and zeroed counters; null pointers without splits."""
        if splits == 1:
            return np.uintp(0), np.uintp(0)
        import cupy

        if self._arrived is None:
            self._arrived = cupy.zeros(_MOST_TILES_SPLIT, np.uint32)
        size = tiles * splits * tile.bm * tile.bn * out.itemsize
        if self._partial is None or self._partial.nbytes < size:
            self._outgrown.append(self._partial)  # a captured graph may know its address
            self._partial = cupy.empty(size, np.uint8)
        return self._partial, self._arrived


def _order(matrix: Operand, itemsize: int) -> tuple[int, int]:
    """Return whether neighbours along k, the rows here, are neighbours in memory, and alignment.

    The second answer is whether the lines of neighbours start on 16 bytes, one element apart.
    """
    along, across = matrix.row, matrix.column
    in_k = along == 1 or (across != 1 and abs(along) <= abs(across))
    one, other = (along, across) if in_k else (across, along)
    return int(in_k), int(one == 1 and other * itemsize % 16 == 0 and matrix.alignment == 0)
