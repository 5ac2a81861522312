"""Where benchmarks.gemm multiplies: a GPU timed by graphs, or a rehearsal with NumPy."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import gpus
from benchmarks.common.arguments import require_module
from benchmarks.gemm.problems import L2_BYTES, Problem
from trainer.kernels import MATHS, make_gemm

GRAPH_S = 500e-6  # so long a graph of short products takes
MOST_LAUNCHES = 100
ROUNDS = 15
LONG_S = 5e-3
RANDOM = """
unsigned long long z = (i + (seed << 32) + 1) * 0x9E3779B97F4A7C15ull;  // splitmix64
z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
x = T((double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0);
"""
"""Uniform in [-1, 1)."""


Operands = tuple[Any, Any, Any]
Sets = Sequence[tuple[Any, ...]]
"""Arguments of a call, one set after the other."""


class Gpu:
    """CuPy arrays, and times by CUDA events around graphs."""

    def __init__(self) -> None:
        gpus.require()
        require_module("cupy", "cupy-cuda12x")
        import cupy

        self.cupy = cupy
        # CuPy's own needs cuRAND
        self.random = cupy.ElementwiseKernel("uint64 seed", "T x", RANDOM, "benchmark_random")
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()

    def gemm(self, name: str, dtype: str) -> Any:
        # split products are compared with cuBLAS's plain float32
        return make_gemm(name, math=dtype if dtype in MATHS[name] else "ieee")

    def operands(self, problem: Problem, dtype: str, seed: int) -> list[Operands]:
        """Fresh random matrices; more sets of them than L2 holds, if one would not stay there."""
        cupy, real = self.cupy, "float64" if dtype == "float64" else "float32"
        seeds = itertools.count(1000 * seed)

        def uniform(rows: int, columns: int, transposed: bool) -> Any:
            values = cupy.empty((columns, rows) if transposed else (rows, columns), real)
            self.random(next(seeds), values)
            return values.T if transposed else values

        size = problem.size_bytes(dtype)
        count = 1 if problem.hot(dtype) else max(1, -(-3 * L2_BYTES // size))
        m, n, k, (a, b) = problem.m, problem.n, problem.k, problem.transposes
        return [
            (uniform(m, k, a == "T"), uniform(k, n, b == "T"), cupy.full((m, n), np.nan, real))
            for _ in range(count)
        ]

    def error(self, gemm: Any, operands: Operands) -> float:
        """|| out - a b || / || a b || in the Frobenius norm, a b in float64."""
        a, b, out = operands
        out.fill(np.nan)
        gemm(a, b, out)
        exact = a.astype("float64") @ b.astype("float64")
        norm = self.cupy.linalg.norm
        return float(norm(out.astype("float64") - exact) / norm(exact))

    def repeated(self, gemm: Any, sets: Sets) -> Callable[[], Callable[[], float]]:
        """Return a function that starts a round; what it returns waits and gives seconds."""
        for operands in sets:
            gemm(*operands)
        once = self._timed(lambda: gemm(*sets[0]), 1)()
        launches = int(min(MOST_LAUNCHES, max(1, GRAPH_S / max(1e-6, once))))
        launches = -(-launches // len(sets)) * len(sets)
        self.stream.begin_capture()
        for i in range(launches):
            gemm(*sets[i % len(sets)])
        graph = self.stream.end_capture()
        graph.launch(self.stream)
        return lambda: self._timed(lambda: graph.launch(self.stream), launches)

    def _timed(self, call: Callable[[], None], launches: int) -> Callable[[], float]:
        events = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        events[0].record(self.stream)
        call()
        events[1].record(self.stream)

        def wait() -> float:
            events[1].synchronize()
            return float(self.cupy.cuda.get_elapsed_time(*events)) / 1e3 / launches

        return wait

    def ceilings(self) -> dict[str, float]:
        """Measure L2's bandwidth (reads and writes of a copy) and an empty kernel in a graph."""
        cupy = self.cupy
        half = cupy.zeros(8 << 20, "uint8"), cupy.zeros(8 << 20, "uint8")
        empty = cupy.RawKernel('extern "C" __global__ void empty() {}', "empty")
        copy = cupy.ElementwiseKernel("T x", "T y", "y = x", "benchmark_copy")
        words = [x.view("complex128") for x in half]

        def median(call: Callable[..., None]) -> float:
            start = self.repeated(call, [()])
            return statistics.median(start()() for _ in range(ROUNDS))

        launch = median(lambda: empty((1,), (1,), ()))
        moved = 2 * half[0].nbytes / (median(lambda: copy(*words)) - launch)
        return {"l2_bytes_per_s": moved, "launch_s": launch}

    def host_s(self, gemm: Any, operands: Operands) -> float:
        """Host seconds of one launch outside of graphs."""
        best = float("inf")
        for _ in range(10):
            self.stream.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                gemm(*operands)
            best = min(best, (time.perf_counter() - start) / 100)
        return best

    def describe(self) -> dict[str, Any]:
        from cupy_backends.cuda.libs import cublas

        runtime, handle = self.cupy.cuda.runtime, cublas.create()
        return {
            "device": runtime.getDeviceProperties(0)["name"].decode(),
            "versions": {
                "cupy": self.cupy.__version__,
                "cuda_runtime": runtime.runtimeGetVersion(),
                "cuda_driver": runtime.driverGetVersion(),
                "cublas": cublas.getVersion(handle),
            },
        }  # fmt: skip


def in_turns(
    bench: Gpu | Rehearsal, gemms: Mapping[str, Any], problem: Problem, dtype: str, seed: int,
    long_rounds: int = ROUNDS,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time all kernels on one problem in turns, `long_rounds` if one is slow; one row each.

    One of the kernels is "cublas", which the others are set against.
    """
    sets = bench.operands(problem, dtype, seed)
    errors = {name: bench.error(gemm, sets[0]) for name, gemm in gemms.items()}
    starts = {name: bench.repeated(gemm, sets) for name, gemm in gemms.items()}
    slowest = max(start()() for start in starts.values())
    rounds = long_rounds if slowest > LONG_S else ROUNDS
    waits = [{name: start() for name, start in starts.items()} for _ in range(rounds)]
    seconds = {name: [wait[name]() for wait in waits] for name in gemms}
    peer = statistics.median(seconds["cublas"])
    rows = []
    for name, took in seconds.items():
        median = statistics.median(took)
        rows.append({
            "kernel": name, "what": problem.what, "m": problem.m, "n": problem.n, "k": problem.k,
            "transposes": problem.transposes, "dtype": dtype, "median_s": median, "round_s": took,
            "peer_median_s": peer, "share_of_cublas": peer / median,
            "flops_per_s": problem.flops / median, "error": errors[name],
        })  # fmt: skip
    show(rows)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each kernel."""
    for r in rows:
        size = f"{r['m']}x{r['n']}x{r['k']} {r['transposes']}"
        print(
            f"{r['dtype']:8} {r['what']:15} {size:22} {r['kernel']:14} {1e6 * r['median_s']:10.2f} "
            f"us {r['flops_per_s'] / 1e12:7.2f} TFLOP/s {r['share_of_cublas']:6.3f} of cuBLAS, "
            f"error {r['error']:.1e}", flush=True,
        )  # fmt: skip


class Rehearsal:
    """The same on a CPU, NumPy for every kernel: it checks this script, not the kernels."""

    def gemm(self, name: str, dtype: str) -> Any:
        return lambda a, b, out: np.matmul(a, b, out=out)

    def operands(self, problem: Problem, dtype: str, seed: int) -> list[Operands]:
        random, real = np.random.default_rng(seed), "float64" if dtype == "float64" else "float32"
        m, n, k = problem.m, problem.n, problem.k
        x, y = (random.standard_normal(shape).astype(real) for shape in ((m, k), (k, n)))
        x, y = (np.asarray(z, order="F" if t == "T" else "C")
                for z, t in zip((x, y), problem.transposes, strict=True))  # fmt: skip
        return [(x, y, np.full((m, n), np.nan, real))]

    def error(self, gemm: Any, operands: Operands) -> float:
        a, b, out = operands
        gemm(a, b, out)
        exact = a.astype("float64") @ b.astype("float64")
        return float(np.linalg.norm(out - exact) / np.linalg.norm(exact))

    def repeated(self, gemm: Any, sets: Sets) -> Callable[[], Callable[[], float]]:
        def start() -> Callable[[], float]:
            began = time.perf_counter()
            gemm(*sets[0])
            took = time.perf_counter() - began
            return lambda: took

        return start

    def ceilings(self) -> dict[str, float]:
        return {}

    def host_s(self, gemm: Any, operands: Operands) -> float:
        return self.repeated(gemm, [operands])()()

    def describe(self) -> dict[str, Any]:
        return {"device": "none: a rehearsal with NumPy", "versions": {"numpy": np.__version__}}
