"""Counts what the GEMM kernels do with Nsight Compute.

    python -m benchmarks.gemm.counters            # on a GPU with ncu

ncu runs this script with --launch: between two products that launches a kernel called `marker`,
so the rows of ncu's table between two markers are one product, however many kernels it takes.
Counters: benchmarks/results/gemm_counters.json. `perfmodel counters` draws such GEMMs under the
roofs of an H200 (docs/counters.md).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import folders, gpus, results
from benchmarks.common.ncu import Failed, collect
from benchmarks.common.processes import module
from benchmarks.gemm.problems import Problem, network, squares, worth_measuring
from perfmodel.analysis.counters import METRICS, SCALAR, TENSOR, Counted
from perfmodel.readers.ncu import Launch, parse
from trainer.kernels import GEMMS, MATHS

RESULTS = folders.RESULTS / "gemm_counters.json"
MARKER = "marker"


def count(launches: list[Launch]) -> dict[str, Any]:
    """Sum the counters of a product's kernels; what ncu did not count is None."""
    found = Counted.of("product", "kernel", launches)
    known = {unit: n for unit, n in found.flops_by_unit.items() if n is not None}
    scalar, tensor = ([n for unit, n in known.items() if unit in k] for k in (SCALAR, TENSOR))
    return {
        "kernels": [launch.kernel for launch in launches],
        "time_s": found.time_s, "flops": found.flops,
        "scalar_flops": sum(scalar) if scalar else None,
        "tensor_flops": sum(tensor) if tensor else None,
        **{f"{level}_bytes": found.bytes_of(level) for level in ("dram", "l2", "l1")},
    }  # fmt: skip


# --- running


def plan() -> list[tuple[str, str, Problem]]:
    """Return what to count, in order: (kernel, dtype, problem)."""
    found = []
    for problem in (*squares((1024, 4096)), *network(512, 1500), *network(2048, 6000)):
        for dtype in ("float32", "tf32", "tf32x3"):
            names = [n for n in GEMMS if dtype == "float32" or dtype in MATHS[n]]
            found += [(name, dtype, problem) for name in names if worth_measuring(name, problem)]
    return found


def products(bench: Any) -> list[tuple[Any, Any]]:
    """Return every product of `plan`: a kernel and its operands."""
    gemms: dict[Any, Any] = {}
    found = []
    for name, dtype, problem in plan():
        if (name, dtype) not in gemms:
            gemms[name, dtype] = bench.gemm(name, dtype)
        found.append((gemms[name, dtype], bench.operands(problem, dtype, 0)[0]))
    return found


def launch(bench: Any, work: list[tuple[Any, Any]]) -> None:
    """Run every product once, after a marker, between cudaProfilerStart and Stop."""
    import cupy

    marker = cupy.RawKernel(f'extern "C" __global__ void {MARKER}() {{}}', MARKER)
    for gemm, operands in work:
        gemm(*operands)  # compiles, plans, allocates
    marker((1,), (1,), ())
    bench.stream.synchronize()
    cupy.cuda.profiler.start()
    for gemm, operands in work:
        marker((1,), (1,), ())
        gemm(*operands)
    bench.stream.synchronize()
    cupy.cuda.profiler.stop()


def profile(ncu: str, metrics: Sequence[str] = METRICS, benchmark: str = "gemm.counters") -> str:
    """Return what ncu prints of a run of a benchmark with --launch.

    Raises
    ------
    SystemExit
        If there is no GPU or no ncu, or if it fails.
    """
    gpus.require()
    gpus.require_tool(ncu, "Nsight Compute")
    words = [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off",
    ]  # fmt: skip
    try:
        return collect(words, module(benchmark, "--launch"), metrics, None)[0]
    except Failed as error:
        raise SystemExit(str(error)) from error


def rows(text: str, planned: list[tuple[str, str, Problem]]) -> list[dict[str, Any]]:
    """Return one row per product: what it was, and what was counted."""
    from writeup.counters import between  # of the notebooks: not needed where products run

    parts = between(parse(text).launches, MARKER)
    if len(parts) != len(planned):
        raise SystemExit(f"expected {len(planned)} GEMMs in ncu's table; got {len(parts)}")
    return [
        {
            "kernel": name, "what": p.what, "m": p.m, "n": p.n, "k": p.k,
            "transposes": p.transposes, "dtype": dtype, "H": p.hidden, "B_per_rank": p.columns,
            "model_flops": p.flops, "model_bytes": p.size_bytes(dtype), **count(part),
        }
        for (name, dtype, p), part in zip(planned, parts, strict=True)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ncu", default=shutil.which("ncu") or "ncu")
    add("--csv", type=Path, help="ncu's output of an earlier run, instead of running it")
    add("--launch", action="store_true", help="what ncu runs")
    args = parser.parse_args()
    if args.launch:
        from benchmarks.gemm.bench import Gpu

        bench = Gpu()
        launch(bench, products(bench))
        return
    text = args.csv.read_text() if args.csv else profile(args.ncu)
    result = {
        "command": results.command("gemm.counters"),
        "date": results.now(),
        "metrics": METRICS,
        "clocks": "not locked (--clock-control none); each kernel alone, caches flushed before",
        "rows": rows(text, plan()),
    }
    results.write(RESULTS, result)
    print(f"{RESULTS.relative_to(folders.ROOT)}: {len(result['rows'])} products")


if __name__ == "__main__":
    main()
