"""Counts what the GEMM kernels do with Nsight Compute, and draws their roofline.

    python -m benchmarks.gemm.counters            # on a GPU with ncu: counts, writes, draws
    python -m benchmarks.gemm.counters --draw     # draws again what benchmarks/results holds

ncu runs this script with --launch: between two products that launches a kernel called `marker`,
so the rows of ncu's table between two markers are one product, however many kernels it takes.
Counters: benchmarks/results/gemm_counters.json; picture: docs/images/gemm_roofline.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.common.ncu import Failed, collect
from benchmarks.gemm.problems import Problem, network, squares, worth_measuring
from perfmodel.analysis.counters import METRICS, SCALAR, TENSOR, Counted
from perfmodel.readers.ncu import Launch, parse
from trainer.kernels import GEMMS, MATHS

RESULTS = folders.RESULTS / "gemm_counters.json"
PICTURE = folders.IMAGES / "gemm_roofline.png"
MARKER = "marker"
SCALAR_UNITS, TENSOR_UNITS = tuple(SCALAR), tuple(TENSOR)


def products(launches: Iterable[Launch]) -> list[list[Launch]]:
    """Part the launches at the markers; what comes before the first belongs to nothing."""
    parts: list[list[Launch]] = []
    for launch in launches:
        if launch.kernel.split("(")[0] == MARKER:
            parts.append([])
        elif parts:
            parts[-1].append(launch)
    return parts


def count(launches: list[Launch]) -> dict[str, Any]:
    """Sum the counters of a product's kernels; what ncu did not count is None."""
    found = Counted.of("product", "kernel", launches)

    def total(units: Iterable[str]) -> float | None:
        known = [n for unit in units if (n := found.flops_of(unit)) is not None]
        return sum(known) if known else None

    return {
        "kernels": [launch.kernel for launch in launches],
        "time_s": found.time_s, "flops": found.flops,
        "scalar_flops": total(SCALAR_UNITS), "tensor_flops": total(TENSOR_UNITS),
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


def launch() -> None:
    """Run every product once, after a marker, between cudaProfilerStart and Stop."""
    import cupy

    from benchmarks.gemm.bench import Gpu

    bench = Gpu()
    marker = cupy.RawKernel(f'extern "C" __global__ void {MARKER}() {{}}', MARKER)
    gemms: dict[Any, Any] = {}
    work = []
    for name, dtype, problem in plan():
        if (name, dtype) not in gemms:
            gemms[name, dtype] = bench.gemm(name, dtype)
        operands = bench.operands(problem, dtype, 0)[0]
        gemms[name, dtype](*operands)  # compiles, plans, allocates
        work.append((gemms[name, dtype], operands))
    marker((1,), (1,), ())
    bench.stream.synchronize()
    cupy.cuda.profiler.start()
    for gemm, operands in work:
        marker((1,), (1,), ())
        gemm(*operands)
    bench.stream.synchronize()
    cupy.cuda.profiler.stop()


def profile(ncu: str) -> str:
    """Return what ncu prints of a run with --launch."""
    words = [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off",
    ]  # fmt: skip
    program = [sys.executable, "-m", "benchmarks.gemm.counters", "--launch"]
    try:
        return collect(words, program, METRICS, None)[0]
    except Failed as error:
        raise SystemExit(str(error)) from error


def rows(text: str, planned: list[tuple[str, str, Problem]]) -> list[dict[str, Any]]:
    """Return one row per product: what it was, and what was counted."""
    parts = products(parse(text).launches)
    if len(parts) != len(planned):
        raise SystemExit(f"wanted {len(planned)} products in ncu's table, found {len(parts)}")
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
    add("--draw", action="store_true", help="draw the counters that are there")
    add("--launch", action="store_true", help="what ncu runs")
    args = parser.parse_args()
    if args.launch:
        launch()
        return
    if not args.draw:
        text = args.csv.read_text() if args.csv else profile(args.ncu)
        result = {
            "command": "python -m benchmarks.gemm.counters",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "metrics": METRICS,
            "clocks": "not locked (--clock-control none); each kernel alone, caches flushed before",
            "rows": rows(text, plan()),
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{RESULTS.relative_to(folders.ROOT)}: {len(result['rows'])} products")
    from benchmarks.gemm.picture import draw

    draw(json.loads(RESULTS.read_text())["rows"], PICTURE)
    print(PICTURE.relative_to(folders.ROOT))


if __name__ == "__main__":
    main()
