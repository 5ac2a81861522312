"""Counts what the GEMM kernels do with Nsight Compute, and draws their roofline.

    python benchmarks/gemm_ncu.py            # on a GPU with ncu: counts, writes, draws
    python benchmarks/gemm_ncu.py --draw     # draws again what benchmarks/results holds

ncu runs this script with --launch: between two products that launches a kernel called `marker`,
so the rows of ncu's table between two markers are one product, however many kernels it takes.
Counters: benchmarks/results/gemm_counters.json; picture: docs/images/gemm_roofline.png.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from gemm_problems import Problem, network, squares, worth_measuring  # noqa: E402

from trainer.kernels import GEMMS, MATHS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gemm_counters.json"
PICTURE = ROOT / "docs" / "images" / "gemm_roofline.png"
MARKER = "marker"
SCALAR = {
    f"smsp__sass_thread_inst_executed_op_{p}{op}_pred_on.sum": 2 if op == "fma" else 1
    for p in "fd" for op in ("add", "mul", "fma")
}  # fmt: skip
TENSOR = ("sm__ops_path_tensor_src_tf32_dst_fp32.sum", "sm__ops_path_tensor_src_fp64.sum")
TIME = "gpu__time_duration.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
L2, L1 = "lts__t_bytes.sum", "l1tex__t_bytes.sum"
METRICS = (TIME, *DRAM, L2, L1, *SCALAR, *TENSOR)
"""Floating-point instructions (an FMA is two operations), tensor operations, bytes, time."""

UNITS = {
    "": 1.0,
    "inst": 1.0,
    "byte": 1.0,
    "second": 1.0,
    "s": 1.0,
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
}
PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


# --- reading ncu's CSV


def parse(text: str) -> list[dict[str, Any]]:
    """Return one {"kernel": name, metric: value in SI units or None} per kernel launch, in order.

    Understands both forms of `ncu --csv`: one row a launch with a column a metric and a row of
    units (``--page raw``), and one row a metric (``Metric Name``, ``Metric Unit``, ``Metric
    Value``). What ncu and the program print around the table is passed over.
    """
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not heads:
        raise SystemExit(
            f'wanted the CSV table of ncu, whose header begins with "ID"; found\n{text[-2000:]}'
        )
    header, *rows = list(csv.reader(lines[heads[0] :]))
    rows = [row for row in rows if len(row) == len(header)]
    records = [dict(zip(header, row, strict=True)) for row in rows]
    return list((_long if "Metric Name" in header else _wide)(records))


def _wide(records: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    units = dict.fromkeys(records[0], "") if records else {}
    for record in records:
        if not record["ID"].strip():
            units = record
            continue
        values = {m: _number(v, units[m]) for m, v in record.items() if "__" in m}
        yield {"kernel": record["Kernel Name"], **values}


def _long(records: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    launches: dict[str, dict[str, Any]] = {}
    for record in records:
        launch = launches.setdefault(record["ID"], {"kernel": record["Kernel Name"]})
        unit = record.get("Metric Unit", "")
        launch[record["Metric Name"]] = _number(record["Metric Value"], unit)
    yield from launches.values()


def _number(text: str, unit: str) -> float | None:
    """Return "1,208,975" or "5.3" in SI units, ("12.5", "Mbyte") as 12.5e6; None if no number."""
    try:
        value = float(text.replace(",", "").replace(" ", ""))
    except ValueError:
        return None
    if unit in UNITS:
        return value * UNITS[unit]
    if unit[:1] in PREFIXES and unit[1:] in UNITS:
        return value * PREFIXES[unit[0]] * UNITS[unit[1:]]
    return value


def products(launches: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Part the launches at the markers; what comes before the first belongs to nothing."""
    parts: list[list[dict[str, Any]]] = []
    for launch in launches:
        if launch["kernel"].split("(")[0] == MARKER:
            parts.append([])
        elif parts:
            parts[-1].append(launch)
    return parts


def count(launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the counters of a product's kernels; what ncu did not count is None."""

    def total(metrics: Iterable[str], weights: dict[str, int] | None = None) -> float | None:
        values = [(m, launch.get(m)) for launch in launches for m in metrics]
        if not values or any(v is None for _, v in values):
            return None
        return sum(v * (weights or {}).get(m, 1) for m, v in values if v is not None)

    scalar = total(SCALAR, SCALAR)
    tensor = total(TENSOR)
    counted = {
        "kernels": [launch["kernel"] for launch in launches],
        "time_s": total([TIME]), "scalar_flops": scalar, "tensor_flops": tensor,
        "dram_bytes": total(DRAM), "l2_bytes": total([L2]), "l1_bytes": total([L1]),
    }  # fmt: skip
    counted["flops"] = None if scalar is None else scalar + (tensor or 0.0)
    return counted


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
    from gemm_places import Gpu

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
    """Return what ncu prints of a run with --launch; metrics that it does not know are left out."""
    metrics = list(METRICS)
    while True:
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--profile-from-start", "off", "--metrics", ",".join(metrics),
            sys.executable, str(Path(__file__).resolve()), "--launch",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
        if not done.returncode:
            return done.stdout
        said = done.stdout + done.stderr
        unknown = [m for m in metrics if m in said and "ailed to find metric" in said]
        if not unknown or len(unknown) == len(metrics):
            raise SystemExit(f"{' '.join(command)}\n{said[-3000:]}")
        print(f"ncu does not know {', '.join(unknown)}: left out", file=sys.stderr)
        metrics = [m for m in metrics if m not in unknown]


def rows(text: str, planned: list[tuple[str, str, Problem]]) -> list[dict[str, Any]]:
    """Return one row per product: what it was, and what was counted."""
    parts = products(parse(text))
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
            "command": "python benchmarks/gemm_ncu.py",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "metrics": METRICS,
            "clocks": "not locked (--clock-control none); each kernel alone, caches flushed before",
            "rows": rows(text, plan()),
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{RESULTS.relative_to(ROOT)}: {len(result['rows'])} products")
    from gemm_picture import draw

    draw(json.loads(RESULTS.read_text())["rows"], PICTURE)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
