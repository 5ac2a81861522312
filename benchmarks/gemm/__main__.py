"""Every GEMM of the trainer against cuBLAS, on squares and on the trainer's own products.

    python -m benchmarks.gemm                # on a GPU; writes benchmarks/results/gemm.json
    python -m benchmarks.gemm --dry-run      # NumPy in place of the kernels, tiny sizes, no file

A product is launched many times in one CUDA graph, as in the trainer's, so that no launch gap of
the host counts, and graphs of all kernels take turns, round after round. Data up to half of L2 stay
there from one product to the next; larger ones rotate through buffers of three times its size.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.gemm import problems as of
from benchmarks.gemm.bench import Gpu, Rehearsal, in_turns
from benchmarks.gemm.problems import Problem, floor_s, network, squares, worth_measuring
from trainer.kernels import GEMMS, MATHS

DTYPES = ("float32", "tf32", "tf32x3", "float64")
LONG_ROUNDS = 5


def kernels(problem: Problem, dtype: str, chosen: list[str]) -> list[str]:
    """Return the kernels to measure on a problem; cuBLAS is always one, the peer of the others."""
    able = [n for n in GEMMS if not dtype.startswith("tf32") or dtype in MATHS[n] or n == "cublas"]
    return [n for n in able if n == "cublas" or (n in chosen and worth_measuring(n, problem))]


def measure(
    bench: Gpu | Rehearsal, gemms: dict[Any, Any], problem: Problem, dtype: str, names: list[str],
    ceilings: dict[str, float], seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time all kernels on one problem in turns, beside its floor; one row each."""
    mine = {name: gemms[name, dtype] for name in names}
    floor = floor_s(problem, dtype, ceilings.get("l2_bytes_per_s"))
    return [
        {
            **row,
            "H": problem.hidden,
            "B_per_rank": problem.columns,
            "floor_s": floor,
            "share_of_floor": floor / row["median_s"],
            "in_l2": problem.hot(dtype),
        }
        for row in in_turns(bench, mine, problem, dtype, seed, LONG_ROUNDS)
    ]


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
    problems = [*squares((16, 32)), *network(24, 40)] if args.dry_run else of.everything()
    kinds = {"all": (True, False), "squares": (True,), "network": (False,)}[args.what]
    wanted = [p for p in problems if (p.what == "square") in kinds]
    todo = [(p, dtype, kernels(p, dtype, args.kernels)) for dtype in args.dtypes for p in wanted]
    gemms = warm(bench, todo)
    compiled = time.perf_counter() - began
    ceilings = bench.ceilings()
    rows = []
    for seed, (problem, dtype, names) in enumerate(todo):
        rows += measure(bench, gemms, problem, dtype, names, ceilings, seed)
    small = Problem("host", 10, 64, 32)
    result = {
        "command": results.command("gemm", sys.argv[1:]), "date": results.now(),
        **bench.describe(), "ceilings": of.CEILINGS, "measured": ceilings,
        "inputs": of.INPUTS, "item_bytes": of.ITEM_BYTES,
        "host_s_per_launch": {
            name: bench.host_s(gemm, bench.operands(small, dtype, 0)[0])
            for (name, dtype), gemm in gemms.items() if dtype == "float32"
        },
        "compile_s": compiled, "run_s": time.perf_counter() - began, "rows": rows,
    }  # fmt: skip
    out = args.out or (None if args.dry_run else folders.RESULTS / "gemm.json")
    if out:
        results.write(out, result)
    print(f"{len(rows)} rows in {result['run_s']:.0f} s ({compiled:.0f} s to compile)")


if __name__ == "__main__":
    main()
