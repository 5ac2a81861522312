"""Measures the CPU with NumPy: products, copies of large arrays and inside a cache."""

from __future__ import annotations

import contextlib
import importlib
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.parallel import cores
from perfmodel.machines.measure.measurement import (
    Effort,
    Found,
    Products,
    Shape,
    Spread,
    best_product,
    products_of_the_trainer,
)
from perfmodel.machines.measure.ranks import Ranks

_CACHE_BYTES: Final = 1 << 18
_BLOCK: Final = 1 << 14
"""Numbers of a triad's block: what the product leaves for the sum stays in the first cache."""
_LEAST_S: Final = 2e-3


def name() -> str:
    """Return the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Let NumPy's products use so many threads, whatever the environment said.

    Raises
    ------
    PerfmodelError
        If the package threadpoolctl is missing and several are asked for.
    """
    try:
        limits: Any = importlib.import_module("threadpoolctl").threadpool_limits
    except ImportError:
        if count > 1:
            raise PerfmodelError(
                f"expected the package threadpoolctl, so that products use all {count} cores; got "
                "none; run pip install threadpoolctl"
            ) from None
        limits = contextlib.nullcontext
    with limits(count):
        yield


def squares(dtype: str, effort: Effort) -> Found:
    """Measure square products on all cores; the best is the ceiling of the data type."""
    shapes = [(n, n, n) for n in effort.host_squares]
    found = _products(dtype, effort.repeats, "square", "nn", shapes)
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    library = f"NumPy with {blas['name']} {blas.get('version', '')}".strip()
    best = best_product(found, library, tensor=False)
    figures = {**best.figures, ("peak_flops_per_s", dtype): best.figures["gemm_flops_per_s", dtype]}
    return Found(figures, products=(found,))


def trainer_products(dtype: str, effort: Effort) -> Found:
    """Measure the trainer's products."""
    measure = partial(_products, dtype, effort.repeats)
    wanted = products_of_the_trainer(effort.host_hidden, effort.host_batches)
    return Found(products=tuple(starmap(measure, wanted)))


def memory(effort: Effort) -> Found:
    """Measure copy and triad of large arrays on all cores, and a copy inside one core's cache.

    Bytes are counted as STREAM does: what the program reads and writes, without the reading that
    a cache does before a write.
    """
    threads = cores()
    random = np.random.default_rng(1)
    count = effort.host_bytes // 8
    a, b = random.random(count), random.random(count)
    out = np.ones(count)
    bounds = np.linspace(0, count, threads + 1, dtype=int)
    parts = [slice(i, j) for i, j in pairwise(bounds.tolist())]
    with ThreadPoolExecutor(threads) as pool:

        def on_all(work: Callable[[slice], None]) -> None:
            list(pool.map(work, parts))

        copied = _spread(lambda: on_all(lambda s: np.copyto(out[s], a[s])), effort.repeats)
        added = _spread(lambda: on_all(partial(_triad, a, b, out)), effort.repeats)
    small, target = random.random(_CACHE_BYTES // 8), np.ones(_CACHE_BYTES // 8)
    inside = _spread(partial(np.copyto, target, small), effort.repeats)
    how = f"of {8 * count} B arrays on {threads} cores"
    figures = {
        "dram_copy": copied.rate(16.0 * count, f"copy {how}"),
        "dram_triad": added.rate(24.0 * count, f"triad {how}"),
        "l2": inside.rate(2.0 * _CACHE_BYTES, f"copy of {_CACHE_BYTES} B on one core"),
    }
    figures["dram"] = max(
        (figures["dram_copy"], figures["dram_triad"]), key=lambda figure: figure.value
    )
    return Found({("bandwidth_bytes_per_s", key): figure for key, figure in figures.items()})


def _triad(a: Any, b: Any, out: Any, part: slice) -> None:
    """Compute out = a + 0.5 b block by block."""
    for start in range(part.start, part.stop, _BLOCK):
        block = slice(start, min(start + _BLOCK, part.stop))
        np.multiply(b[block], 0.5, out=out[block])
        np.add(out[block], a[block], out=out[block])


def _products(dtype: str, repeats: int, name: str, layout: str, shapes: list[Shape]) -> Products:
    with blas_threads(cores()):
        found = {shape: _product(shape, layout, dtype, repeats) for shape in shapes}
    return Products.of(name, dtype, layout, found)


def _product(shape: Shape, layout: str, dtype: str, repeats: int) -> Spread:
    m, n, k = shape
    random = np.random.default_rng(1)
    a = random.random((k, m) if layout[0] == "t" else (m, k)).astype(dtype)
    b = random.random((n, k) if layout[1] == "t" else (k, n)).astype(dtype)
    out = np.ones((m, n), dtype)
    a, b = a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b
    return _spread(lambda: np.matmul(a, b, out=out), repeats)


def _spread(call: Callable[[], Any], repeats: int) -> Spread:
    """Return seconds per call; calls that are short are timed several at a time."""
    call()
    began = time.perf_counter()
    call()
    calls = max(1, min(1000, int(_LEAST_S / (time.perf_counter() - began))))
    return Ranks().slowest(call, repeats, calls=calls)
