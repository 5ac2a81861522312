"""Tiles of trainer/kernels/thin.cu and thin_outer.cu on the trainer's products: which is fastest?

    python -m benchmarks.gemm.thin_sweep    # on a GPU, 30 s; writes results/thin_sweep.json

thin.py's choice ("thin"), cuBLAS and every tile take turns in one run, as in benchmarks.gemm. Of
the outer product (W2^T dz2), "and a reader" times it together with a kernel that reads what it
wrote, as the trainer's next one does: storing past the caches must not pay at the reader's cost.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.gemm.bench import Gpu
from benchmarks.gemm.problems import Problem, network
from trainer.errors import DeviceError
from trainer.kernels import make_gemm
from trainer.kernels.launch import ceil, operand, sizes
from trainer.kernels.source import load

SIZES = ((2048, 6000), (2048, 12000), (512, 1500), (512, 3000))
ROUNDS = 7
MOST_ROUNDS_OF_BLOCKS = 6
Macros = dict[str, str | int]
Call = Callable[[Any, Any, Any], None]


def few_rows(p: Problem, multiprocessors: int) -> Iterator[Macros]:
    """Name tiles of W2 a1 and dz2 a1^T that occupy half of the GPU, in not too many rounds."""
    along_k = p.transposes == "NT"
    lanes, columns = ((1,), (2, 4, 8)) if along_k else ((2, 4, 8, 16), (4,))
    for lane, column, groups, warps in itertools.product(
        lanes, columns, (1, 2, 3, 4, 8), (4, 8, 12, 16)
    ):
        blocks = ceil(p.n, lane * column * groups)
        room = warps * 32 * (column * p.m + 48) <= 65536  # registers: sums and what is loaded
        occupied = multiprocessors / 2 <= blocks <= MOST_ROUNDS_OF_BLOCKS * multiprocessors
        if warps % groups or not room or not occupied:
            continue
        for unroll in (1, 2):
            yield {
                "REAL": "float", "ROWS": p.m, "COLUMNS": column, "LANES": lane, "WARPS": warps,
                "GROUPS": groups, "VK": 4, "VN": 1 if along_k else 4, "ALONG_K": int(along_k),
                "EXACT": 1, "UNROLL": unroll,
            }  # fmt: skip


def outer(p: Problem) -> Iterator[Macros]:
    """Name tiles of W2^T dz2, stored as usual or past the caches."""
    for rows, warps, stream in itertools.product((4, 8, 16), (1, 2, 4, 8), (0, 1)):
        yield {
            "REAL": "float", "K": p.k, "ROWS": rows, "COLUMNS": 4, "WARPS": warps, "VN": 4,
            "VM": 4, "STREAM": stream,
        }  # fmt: skip


def tiles(p: Problem, multiprocessors: int) -> list[tuple[str, Macros]]:
    """Name each kernel file with its macros."""
    if p.k <= 16:
        return [("thin_outer", macros) for macros in outer(p)]
    return [("thin", macros) for macros in few_rows(p, multiprocessors)]


def launcher(p: Problem, name: str, macros: Macros) -> Call:
    """Return a product by one tile."""
    kernel = load(name, **macros).get_function(f"gemm_{name}")
    m = {k: int(v) for k, v in macros.items() if k != "REAL"}
    threads = (32 * m["WARPS"],)
    if name == "thin":
        grid: tuple[int, ...] = (ceil(p.n, m["LANES"] * m["COLUMNS"] * m["GROUPS"]), 1)
    else:
        grid = (ceil(p.n, 32 * m["COLUMNS"]), ceil(p.m, m["ROWS"] * m["WARPS"]))

    def call(a: Any, b: Any, out: Any) -> None:
        to = operand(out)
        last = (to.column,) if name == "thin" else ()
        kernel(grid, threads, (a, b, out, 1.0, 0.0, *sizes(operand(a), operand(b), to), *last))

    return call


def compile_all(problems: list[Problem], multiprocessors: int) -> None:
    """Compile on many threads what will run."""

    def one(tile: tuple[str, tuple[tuple[str, Any], ...]]) -> None:
        try:
            load(tile[0], **dict(tile[1]))
        except DeviceError as error:
            print(f"left out: {error}", flush=True)

    wanted = {
        (name, tuple(sorted(m.items()))) for p in problems for name, m in tiles(p, multiprocessors)
    }
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, wanted))


def sweep(bench: Gpu, p: Problem, multiprocessors: int) -> list[dict[str, Any]]:
    """Time all tiles of a product in turns; fastest first."""
    sets = bench.operands(p, "float32", 1)
    calls: dict[str, tuple[Macros, Call]] = {n: ({}, make_gemm(n)) for n in ("cublas", "thin")}
    for name, macros in tiles(p, multiprocessors):
        label = name + "".join(
            f" {key}={value}" for key, value in macros.items()
            if key in ("COLUMNS", "LANES", "WARPS", "GROUPS", "UNROLL", "STREAM")
            or (key == "ROWS" and name == "thin_outer")
        )  # fmt: skip
        calls[label] = macros, launcher(p, name, macros)
    if p.k <= 16:
        reader = bench.cupy.ElementwiseKernel("T x", "T y", "y = x * (1 - x)", "reader")

        def with_reader(call: Call) -> Call:
            def both(a: Any, b: Any, out: Any) -> None:
                call(a, b, out)
                reader(out, out)

            return both

        pairs = {f"{n}, and a reader": (m, with_reader(c)) for n, (m, c) in calls.items()}
        calls |= pairs
    errors = {n: bench.error(c, sets[0]) for n, (_, c) in calls.items() if "reader" not in n}
    starts = {n: bench.repeated(c, sets) for n, (_, c) in calls.items()}
    waits = [{n: start() for n, start in starts.items()} for _ in range(ROUNDS)]
    rows = [
        {
            "what": p.what, "H": p.hidden, "B_per_rank": p.columns, "kernel": n,
            "macros": calls[n][0], "median_s": statistics.median(w[n]() for w in waits),
            "error": errors.get(n),
        }
        for n in calls
    ]  # fmt: skip
    return sorted(rows, key=lambda r: float(r["median_s"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "thin_sweep.json")
    args = parser.parse_args()
    began = time.perf_counter()
    bench = Gpu()
    multiprocessors = int(bench.cupy.cuda.Device().attributes["MultiProcessorCount"])
    problems = [p for size in SIZES for p in network(*size) if p.thin]
    compile_all(problems, multiprocessors)
    rows: list[dict[str, Any]] = []
    for p in problems:
        found = sweep(bench, p, multiprocessors)
        peer = next(r["median_s"] for r in found if r["kernel"] == "cublas")
        print(f"{p.what}, H = {p.hidden}, B' = {p.columns}", flush=True)
        shown = [r for i, r in enumerate(found) if i < 6 or r["kernel"] in ("thin", "cublas")]
        for r in shown:
            speedup = peer / r["median_s"]
            print(f"  {1e6 * r['median_s']:8.2f} us {speedup:6.2f} x cuBLAS  {r['kernel']}")
        rows += found
    results.write(args.out, {
        "command": results.command("gemm.thin_sweep"), "date": results.now(),
        **bench.describe(), "seconds": time.perf_counter() - began, "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
