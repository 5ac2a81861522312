"""Counts what the GEMM kernels do with Nsight Compute, and draws their roofline.

    python -m benchmarks.gemm.counters            # on a GPU with ncu: counts, writes, draws
    python -m benchmarks.gemm.counters --draw     # draws again what benchmarks/results holds

ncu runs this script with --launch: between two products that launches a kernel called `marker`,
so the rows of ncu's table between two markers are one product, however many kernels it takes.
Counters: benchmarks/results/gemm_counters.json; picture: docs/images/gemm_roofline.png.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from writeup.counters import between

from benchmarks.common import folders, results
from benchmarks.common.ncu import Failed, collect
from benchmarks.common.processes import module
from benchmarks.gemm import problems
from benchmarks.gemm.problems import Problem, network, squares, worth_measuring
from perfmodel.analysis.counters import METRICS, SCALAR, TENSOR, Counted
from perfmodel.readers.ncu import Launch, parse
from perfmodel.render.plot import panels, save, style
from perfmodel.render.plot.style import apply
from trainer.kernels import GEMMS, MATHS

RESULTS = folders.RESULTS / "gemm_counters.json"
PICTURE = folders.IMAGES / "gemm_roofline.png"
MARKER = "marker"
L1_BYTES_PER_S = 132 * 128 * 1.98e9
"""132 multiprocessors, 128 bytes a clock each (Hopper tuning guide), at the boost clock."""

LEVELS = {"dram_bytes": "full", "l2_bytes": "left", "l1_bytes": "none"}
"""How much of a marker is filled."""

NAMES = {"dram_bytes": "HBM", "l2_bytes": "L2", "l1_bytes": "L1"}
ORDER = ("naive", "tiled", "register", "hierarchical", "thin", "cublas")
PANELS = (
    ("4096³, fp32", lambda r: r["what"] == "square" and r["m"] == 4096),
    ("GEMMs of H = 512, B' = 1500, fp32", lambda r: r["H"] == 512),
)


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
    program = module("gemm.counters", "--launch")
    try:
        return collect(words, program, METRICS, None)[0]
    except Failed as error:
        raise SystemExit(str(error)) from error


def rows(text: str, planned: list[tuple[str, str, Problem]]) -> list[dict[str, Any]]:
    """Return one row per product: what it was, and what was counted."""
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


# --- drawing


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw FLOP/s over FLOP/byte of each memory level: a panel of squares, one of the network."""
    axes = panels("double", 3.6, columns=2, letters=False)
    for ax, (title, belongs) in zip(axes, PANELS, strict=True):
        shown = [r for r in rows if r["dtype"] == "float32" and belongs(r)]
        apply(ax, (0.1, 3e3, 5e10, 1.6e14))
        style.finish(ax, "Arithmetic intensity of a level (FLOP/byte)", "Performance (FLOP/s)")
        for row in shown:
            _points(ax, row)
        style.put_title(ax, title, style.size_pt(ax)[0])
    handles = _legend(rows)
    axes[0].figure.legend(handles=handles, loc="outside lower center", ncols=9,
                          **style.legend_look(handles=handles))  # fmt: skip
    for ax in axes:
        _roofs(ax)
    save(axes[0], path.parent, path.stem, ("png",))


def _roofs(ax: Axes) -> None:
    peak, x = problems.PEAK_FLOPS_PER_S["float32"], np.geomspace(0.1, 3e3, 200)
    for name, bandwidth in (
        ("HBM 4.8 TB/s", problems.HBM_BYTES_PER_S),
        ("L1 33 TB/s", L1_BYTES_PER_S),
    ):
        ax.plot(x, np.minimum(peak, bandwidth * x), color=style.GREY, lw=1.1)
        style.size_pt(ax)  # lays out: the angle of the line depends on the size of the axes
        low, high = ax.transData.transform([(1.0, bandwidth), (10.0, 10 * bandwidth)])
        angle = np.degrees(np.arctan2(*(high - low)[::-1]))
        ax.annotate(name, (0.12, 0.12 * bandwidth), (-2, 2), textcoords="offset points",
                    rotation=angle, rotation_mode="anchor", fontsize=style.TEXT_PT, color=style.INK,
                    in_layout=False)  # fmt: skip
    ax.annotate("fp32 67 TFLOP/s", (x[-1], peak), (-2, 2), textcoords="offset points", ha="right",
                fontsize=style.TEXT_PT, color=style.INK)  # fmt: skip


def _points(ax: Axes, row: dict[str, Any]) -> None:
    """Three points at one height, joined: the kernel's intensity at each level."""
    if not row["time_s"] or not row["flops"]:
        return
    place = ORDER.index(row["kernel"])
    look = {"color": style.PALETTE[place], "marker": style.MARKERS[place], "markersize": 6}
    rate = row["flops"] / row["time_s"]
    found = [(level, row["flops"] / row[level]) for level in LEVELS if row[level]]
    ax.plot([x for _, x in found], [rate] * len(found), color=look["color"], linewidth=0.8)
    for level, x in found:
        ax.plot([x], [rate], linestyle="", fillstyle=LEVELS[level], **look)


def _legend(rows: list[dict[str, Any]]) -> list[Line2D]:
    there = {r["kernel"] for r in rows if r["dtype"] == "float32"}
    kernels = [
        Line2D([], [], linestyle="", marker=style.MARKERS[i], color=style.PALETTE[i], label=name)
        for i, name in enumerate(ORDER) if name in there
    ]  # fmt: skip
    levels = [
        Line2D(
            [], [], linestyle="", marker="o", color=style.INK, fillstyle=fill, label=NAMES[level]
        )
        for level, fill in LEVELS.items()
    ]
    return kernels + levels


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
            "command": results.command("gemm.counters"),
            "date": results.now(),
            "metrics": METRICS,
            "clocks": "not locked (--clock-control none); each kernel alone, caches flushed before",
            "rows": rows(text, plan()),
        }
        results.write(RESULTS, result)
        print(f"{RESULTS.relative_to(folders.ROOT)}: {len(result['rows'])} products")
    draw(results.read(RESULTS)["rows"], PICTURE)
    print(PICTURE.relative_to(folders.ROOT))


if __name__ == "__main__":
    main()
