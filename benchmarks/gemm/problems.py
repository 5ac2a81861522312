"""The matrix products that benchmarks.gemm and gemm_ncu.py measure, and their floors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

INPUTS, CLASSES = 784, 10
SQUARES = (256, 512, 1024, 2048, 4096, 8192)
NETWORKS = ((512, 1500), (2048, 6000), (64, 1600), (512, 3000), (512, 750))
"""H and B' = B / p: hidden units and images of a rank."""

ITEM_BYTES = {"float32": 4, "tf32": 4, "tf32x3": 4, "float64": 8}
L2_BYTES = 50 << 20
HOT_BYTES = L2_BYTES // 2
"""Products up to this size keep their data in L2, as in the trainer, whose last kernel wrote it."""

PEAK_FLOPS_PER_S = {"float32": 67e12, "tf32": 494.7e12, "tf32x3": 494.7e12 / 3, "float64": 67e12}
HBM_BYTES_PER_S = 4.8e12
CEILINGS = (
    "NVIDIA H200 SXM datasheet, dense: fp32 67, TF32 tensor 494.7, fp64 tensor 67 TFLOP/s, HBM "
    "4.8 TB/s; L2 as the run measured it, copying"
)

SLOW_FLOPS_PER_S = {"naive": 2e12, "tiled": 4e12, "register": 4e12}
"""Cautious guesses, only to leave out what would take too long."""

LONGEST_S = 0.08
"""One product that would take longer is left out."""


@dataclass(frozen=True)
class Problem:
    """out (m, n) = a (m, k) b (k, n); a or b may be transposed views of row-major arrays."""

    what: str
    m: int
    n: int
    k: int
    transposes: str = "NN"
    hidden: int | None = None
    columns: int | None = None

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def size_bytes(self, dtype: str) -> int:
        """Each matrix moved once."""
        m, n, k = self.m, self.n, self.k
        return ITEM_BYTES[dtype] * (m * k + k * n + m * n)

    def hot(self, dtype: str) -> bool:
        return self.size_bytes(dtype) <= HOT_BYTES

    @property
    def thin(self) -> bool:
        return min(self.m, self.n, self.k) <= 16


def squares(sizes: tuple[int, ...] = SQUARES) -> Iterator[Problem]:
    for n in sizes:
        yield Problem("square", n, n, n)


def network(hidden: int, columns: int) -> Iterator[Problem]:
    """The five products of a batch, as docs/model.md names them; x is held as (B', D)."""
    h, b, d, c = hidden, columns, INPUTS, CLASSES
    yield Problem("forward GEMM 1", h, b, d, "NT", h, b)
    yield Problem("forward GEMM 2", c, b, h, "NN", h, b)
    yield Problem("backward GEMM 1", h, b, c, "TN", h, b)
    yield Problem("backward GEMM 2", c, h, b, "NT", h, b)
    yield Problem("backward GEMM 3", h, d, b, "NN", h, b)


def everything() -> list[Problem]:
    return [*squares(), *(p for sizes in NETWORKS for p in network(*sizes))]


def worth_measuring(kernel: str, problem: Problem) -> bool:
    """Thin kernels on thin products only; slow kernels while they take less than LONGEST_S."""
    if kernel == "thin":
        return problem.thin
    return problem.flops / SLOW_FLOPS_PER_S.get(kernel, 30e12) <= LONGEST_S


def floor_s(problem: Problem, dtype: str, l2_bytes_per_s: float | None) -> float:
    """max(2 m n k / peak, bytes / bandwidth): no product of this size can be faster.

    The bandwidth is L2's where the data stay there, else HBM's.
    """
    hot = problem.hot(dtype) and l2_bytes_per_s is not None
    bandwidth = max(l2_bytes_per_s or 0.0, HBM_BYTES_PER_S) if hot else HBM_BYTES_PER_S
    return max(problem.flops / PEAK_FLOPS_PER_S[dtype], problem.size_bytes(dtype) / bandwidth)
