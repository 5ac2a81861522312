"""Every GEMM of the trainer against cuBLAS, on squares and on the trainer's own products.

    python benchmarks/gemm.py                # on a GPU; writes benchmarks/results/gemm.json
    python benchmarks/gemm.py --dry-run      # NumPy in place of the kernels, tiny sizes, no file

A product is launched many times in one CUDA graph, as in the trainer's, so that no launch gap of
the host counts, and graphs of all kernels take turns, round after round. Data up to half of L2 stay
there from one product to the next; larger ones rotate through buffers of three times its size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from gemm_problems import (  # noqa: E402
    CEILINGS,
    INPUTS,
    ITEM_BYTES,
    L2_BYTES,
    Problem,
    everything,
    floor_s,
    network,
    squares,
    worth_measuring,
)

from trainer.kernels import GEMMS, MATHS, make_gemm  # noqa: E402

DTYPES = ("float32", "tf32", "tf32x3", "float64")
GRAPH_S = 500e-6  # so long a graph of short products takes
MOST_LAUNCHES = 100
ROUNDS, LONG_ROUNDS, LONG_S = 15, 5, 5e-3
RANDOM = """
unsigned long long z = (i + (seed << 32) + 1) * 0x9E3779B97F4A7C15ull;  // splitmix64
z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
x = T((double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0);
"""
"""Uniform in [-1, 1)."""

Operands = tuple[Any, Any, Any]


class Gpu:
    """CuPy arrays, and times by CUDA events around graphs."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.random = cupy.ElementwiseKernel(
            "uint64 seed",
            "T x",
            RANDOM,
            "benchmark_random",  # CuPy's own needs cuRAND
        )
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

    def repeated(self, gemm: Any, sets: list[Operands]) -> Callable[[], Callable[[], float]]:
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
            start = self.repeated(call, [()])  # type: ignore[list-item]
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


class Rehearsal:
    """The same on a CPU, NumPy for every kernel: it checks this script, not the kernels."""

    def gemm(self, name: str, dtype: str) -> Any:
        return lambda a, b, out: np.matmul(a, b, out=out)

    def operands(self, problem: Problem, dtype: str, seed: int) -> list[Operands]:
        random = np.random.default_rng(seed)
        real = "float64" if dtype == "float64" else "float32"
        m, n, k, (a, b) = problem.m, problem.n, problem.k, problem.transposes
        x = random.standard_normal((k, m) if a == "T" else (m, k)).astype(real)
        y = random.standard_normal((n, k) if b == "T" else (k, n)).astype(real)
        return [(x.T if a == "T" else x, y.T if b == "T" else y, np.full((m, n), np.nan, real))]

    def error(self, gemm: Any, operands: Operands) -> float:
        a, b, out = operands
        gemm(a, b, out)
        exact = a.astype("float64") @ b.astype("float64")
        return float(np.linalg.norm(out - exact) / np.linalg.norm(exact))

    def repeated(self, gemm: Any, sets: list[Operands]) -> Callable[[], Callable[[], float]]:
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


def kernels(problem: Problem, dtype: str, chosen: list[str]) -> list[str]:
    """Return the kernels to measure on a problem; cuBLAS is always one, the peer of the others."""
    able = [n for n in GEMMS if not dtype.startswith("tf32") or dtype in MATHS[n] or n == "cublas"]
    return [n for n in able if n == "cublas" or (n in chosen and worth_measuring(n, problem))]


def measure(
    bench: Gpu | Rehearsal, gemms: dict[Any, Any], problem: Problem, dtype: str, names: list[str],
    ceilings: dict[str, float], seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time all kernels on one problem in turns; one row each."""
    sets = bench.operands(problem, dtype, seed)
    errors = {name: bench.error(gemms[name, dtype], sets[0]) for name in names}
    starts = {name: bench.repeated(gemms[name, dtype], sets) for name in names}
    first = {name: starts[name]()() for name in names}
    rounds = LONG_ROUNDS if max(first.values()) > LONG_S else ROUNDS
    waits = [{name: starts[name]() for name in names} for _ in range(rounds)]
    seconds = {name: sorted(wait[name]() for wait in waits) for name in names}
    floor = floor_s(problem, dtype, ceilings.get("l2_bytes_per_s"))
    rows = []
    for name in names:
        median = statistics.median(seconds[name])
        low, _, high = statistics.quantiles(seconds[name], n=4)
        peer = statistics.median(seconds["cublas"])
        rows.append({
            "kernel": name, "what": problem.what, "m": problem.m, "n": problem.n, "k": problem.k,
            "transposes": problem.transposes, "dtype": dtype,
            "H": problem.hidden, "B_per_rank": problem.columns,
            "median_s": median, "spread": (high - low) / median, "repeats": rounds,
            "peer_median_s": peer, "share_of_cublas": peer / median,
            "flops_per_s": problem.flops / median,
            "floor_s": floor, "share_of_floor": floor / median,
            "error": errors[name], "in_l2": problem.hot(dtype),
        })  # fmt: skip
    return rows


def warm(bench: Gpu | Rehearsal, todo: list[tuple[Problem, str, list[str]]]) -> dict[Any, Any]:
    """Make every GEMM and let it compile for its problems, each on a thread of its own."""
    pairs = dict.fromkeys((name, dtype) for _, dtype, names in todo for name in names)
    gemms = {pair: bench.gemm(*pair) for pair in pairs}
    if isinstance(bench, Rehearsal):
        return gemms

    def compile_all(pair: tuple[str, str]) -> None:
        name, dtype = pair
        bench.stream.use()  # CuPy's current stream is a thread's own
        for problem, other, names in todo:
            if other == dtype and name in names and problem.size_bytes(dtype) < 256 << 20:
                gemms[pair](*bench.operands(problem, dtype, 0)[0])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compile_all, pairs))
    bench.stream.synchronize()
    return gemms


def show(rows: list[dict[str, Any]]) -> None:
    for r in rows:
        size = f"{r['m']}x{r['n']}x{r['k']} {r['transposes']}"
        print(
            f"{r['dtype']:8} {r['what']:15} {size:22} {r['kernel']:12} "
            f"{1e6 * r['median_s']:10.2f} us +-{50 * r['spread']:4.1f} %  "
            f"{r['flops_per_s'] / 1e12:7.2f} TFLOP/s  {r['share_of_cublas']:6.2f} x cuBLAS  "
            f"{100 * r['share_of_floor']:5.1f} % of the floor  error {r['error']:.1e}",
            flush=True,
        )


def _words(given: list[str]) -> list[str]:
    """Return the command line without where the results go."""
    if "--out" not in given:
        return given
    at = given.index("--out")
    return given[:at] + given[at + 2 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--dry-run", action="store_true", help="NumPy, tiny sizes, writes only where --out says")
    add("--kernels", nargs="+", choices=list(GEMMS), default=list(GEMMS))
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    add("--what", choices=("all", "squares", "network"), default="all")
    add("--out", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    bench = Rehearsal() if args.dry_run else Gpu()
    problems = [*squares((16, 32)), *network(24, 40)] if args.dry_run else everything()
    wanted = [
        p
        for p in problems
        if args.what == "all" or (p.what == "square") == (args.what == "squares")
    ]
    todo = [(p, dtype, kernels(p, dtype, args.kernels)) for dtype in args.dtypes for p in wanted]
    gemms = warm(bench, todo)
    compiled = time.perf_counter() - began
    ceilings = bench.ceilings()
    rows = []
    for seed, (problem, dtype, names) in enumerate(todo):
        rows += measure(bench, gemms, problem, dtype, names, ceilings, seed)
        show(rows[-len(names) :])
    small = Problem("host", 10, 64, 32)
    result = {
        "command": " ".join(["python benchmarks/gemm.py", *_words(sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **bench.describe(),
        "ceilings": CEILINGS,
        "measured": ceilings,
        "inputs": INPUTS,
        "item_bytes": ITEM_BYTES,
        "host_s_per_launch": {
            name: bench.host_s(gemm, bench.operands(small, dtype, 0)[0])
            for (name, dtype), gemm in gemms.items() if dtype == "float32"
        },
        "compile_s": compiled,
        "run_s": time.perf_counter() - began,
        "rows": rows,
    }  # fmt: skip
    out = args.out or (None if args.dry_run else ROOT / "benchmarks" / "results" / "gemm.json")
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows)} rows in {result['run_s']:.0f} s ({compiled:.0f} s to compile)")


if __name__ == "__main__":
    main()
