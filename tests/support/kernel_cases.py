"""Matrix products to check GEMM kernels with: shapes, layouts, poison, and the error allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

LAYOUTS = ("plain", "transposed", "sliced", "sliced transposed", "stepped", "reversed")
"""How a matrix lies in memory; what surrounds it there is NaN."""

UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11, "float64": 2.0**-53}
"""Unit roundoff; TF32 rounds the factors to 10 bits (or cuts them: one bit more)."""

ROUNDED = {"tf32": 2 * 2 * UNIT["tf32"], "tf32x3": 3 * UNIT["tf32"] ** 2}
"""What rounding two factors adds to the relative error of their product. A float32 split into two
TF32 numbers keeps all but u^2 of itself, twice, and the product of the small parts is left out."""

Make = Callable[[np.ndarray], Any]
"""Copies an array to the device."""


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    a: str = "plain"
    b: str = "plain"
    gap: int = 0
    """Elements between rows of the output."""
    alpha: float = 1.0
    beta: float = 0.0
    shift: int = 0
    """Elements that move a and b off their alignment."""


def matrix(rng: np.random.Generator, rows: int, columns: int, layout: str, dtype: str,
           make: Make, shift: int = 0) -> tuple[np.ndarray, Any]:  # fmt: skip
    """Return values (rows, columns) and the same as a view of device memory in this layout."""
    values = rng.standard_normal((rows, columns)).astype(dtype)
    transposed = "transposed" in layout
    height, width = (columns, rows) if transposed else (rows, columns)
    top, left, step = 0, shift, 1
    if "sliced" in layout:
        top, left = 1, 4 + shift
    if layout == "stepped":
        step = 3
    base = np.full((height + top, width * step + left + (-width % 4)), np.nan, dtype)

    def view(x: Any) -> Any:
        x = x[top : top + height, left : left + width * step : step]
        x = x.T if transposed else x
        return x[::-1, ::-1] if layout == "reversed" else x

    view(base)[...] = values
    return values, view(make(base))


def check(gemm: Any, case: Case, dtype: str, make: Make, *, math: str = "ieee",
          seed: int = 0) -> np.ndarray:  # fmt: skip
    """Multiply; compare with float64; look at what lies around the output; return the output.

    The bound is that of any order of summation, |error| <= (k + 2) u (|alpha| |A| |B|) + 3 u |beta
    C| with u the unit roundoff (Higham, Accuracy and Stability, section 3.5), elementwise.
    """
    rng = np.random.default_rng(seed)
    m, n, k = case.m, case.n, case.k
    a, device_a = matrix(rng, m, k, case.a, dtype, make, case.shift)
    b, device_b = matrix(rng, k, n, case.b, dtype, make, case.shift)
    c = rng.standard_normal((m, n)).astype(dtype)
    canary = -7.0
    base = np.full((m, n + case.gap), canary, dtype)
    base[:, :n] = np.nan if case.beta == 0 else c
    device_base = make(base)
    gemm(device_a, device_b, device_base[:, :n], case.alpha, case.beta)
    got = _host(device_base)
    assert (got[:, n:] == canary).all(), f"{case} wrote beside the output"
    wide_a, wide_b, wide_c = (x.astype(np.float64) for x in (a, b, c))
    want = case.alpha * (wide_a @ wide_b) + case.beta * wide_c
    u, size = UNIT[dtype], abs(case.alpha) * (np.abs(wide_a) @ np.abs(wide_b))
    bound = (k + 2) * u * size + 3 * u * abs(case.beta * wide_c) + 2 * UNIT["float64"] * size
    bound += ROUNDED.get(math, 0.0) * size
    error = np.abs(got[:, :n] - want)
    assert (error <= bound).all(), f"{case} {dtype}: {np.nanmax(error / (bound + 1e-300))} bounds"
    return got[:, :n]


def _host(array: Any) -> np.ndarray:
    get = getattr(array, "get", None)
    return np.array(get() if get else array)


def thin_cases() -> Iterator[Case]:
    """Yield products with a short dimension: the network's, at edges, of every vector width."""
    yield Case(10, 64, 36)  # W2 a1, vectors of 4
    yield Case(10, 70, 36, gap=3, alpha=-0.5, beta=2.0)  # vectors of 2
    yield Case(10, 151, 33)  # of 1
    yield Case(10, 41, 64, "plain", "transposed")  # dz2 a1^T
    yield Case(10, 9, 66, "plain", "sliced transposed", gap=1, beta=1.0)
    yield Case(10, 7, 201, "plain", "transposed", shift=1)
    yield Case(44, 60, 10, "transposed")  # W2^T dz2
    yield Case(33, 150, 10, "transposed", gap=2, alpha=3.0, beta=-1.0)
    yield Case(7, 131, 3, "stepped", "reversed")
    yield Case(10, 1, 300)  # sums of rows
    yield Case(44, 1, 301, "sliced")
    yield Case(1, 1, 97)
    yield Case(1, 29, 53, "reversed", "stepped")
    yield Case(37, 41, 43, "transposed", "sliced")  # not thin at all
    yield Case(40, 3, 20, "transposed", "transposed", beta=0.5)
    yield Case(2, 5, 0, beta=3.0)
    yield Case(4, 6, 0)


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield shapes from 1, primes, powers of two and their neighbours, in every layout."""
    rng = np.random.default_rng(seed)
    sizes = [1, 2, 3, 7, 10, 13, 16, 17, 31, 32, 33, 53, 63, 64, 65, 96, 97, 127, 128, 129, 131]
    for _ in range(count):
        m, n, k = (int(x) for x in rng.choice(sizes, 3))
        a, b = (str(x) for x in rng.choice(LAYOUTS, 2))
        alpha, beta = float(rng.choice([1.0, -0.5])), float(rng.choice([0.0, 1.0, 2.5]))
        yield Case(m, n, k, a, b, int(rng.integers(0, 4)), alpha, beta, int(rng.integers(0, 4)))
