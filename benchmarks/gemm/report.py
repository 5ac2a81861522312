"""Writes docs/counters.md's section on the handout's kernels: python -m benchmarks.gemm.report."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.arguments import report
from benchmarks.common.pages import percent, put, short, table
from benchmarks.gemm.hopper import RESULTS as HOPPER
from benchmarks.gemm.steps import PROBLEMS, RESULTS, STALLS, STEPS

PAGE: Final = folders.DOCS / "counters.md"
SCRIPT: Final = "benchmarks.gemm.report"
COUNTED: Final = ("square", 4096, "NN")
"""Whose counters the page shows."""
REMOVES: Final = {
    "naive": "Algorithm 1: a thread an element, from global memory",
    "tiled": "Algorithm 2: tiles of 32 x 32 in shared memory",
    "register": "section 4.2: 64 x 16, a thread a row of 16",
    "wide loads": "register, 16 bytes a load",
    "steps of 16": "the same, 16 instead of 4 along k between two barriers",
    "a staged": "the same, a through shared memory",
    "two rows": "the same, two rows a thread",
    "four rows": "four rows a thread, 8 along k",
    "hierarchical": "tiles of blocks, warps and threads, slabs copied ahead",
    "cublas": "cuBLAS",
}
"""What every kernel is."""
WARP: Final = 32
MULTIPROCESSORS: Final = 132

Row = dict[str, Any]


def of(rows: list[Row], kernel: str, what: str, m: int, transposes: str) -> Row:
    """Return the row of a kernel on a problem."""
    return next(
        r for r in rows
        if (r["kernel"], r["what"], r["m"], r["transposes"]) == (kernel, what, m, transposes)
    )  # fmt: skip


def times(rows: list[Row]) -> str:
    """Return the table of shares of cuBLAS."""
    head = [
        "kernel",
        "what it is",
        *(f"{p.what}, {p.m} x {p.n} x {p.k}, {p.transposes}" for p in PROBLEMS),
    ]
    lines = []
    for kernel in STEPS:
        found = [of(rows, kernel, p.what, p.m, p.transposes) for p in PROBLEMS]
        cells = (f"{short(1e6 * r['median_s'])} µs, {r['share_of_cublas']:.3f}" for r in found)
        lines.append([kernel, REMOVES[kernel], *cells])
    return table(head, lines)


def counters(rows: list[Row], transposes: str = COUNTED[2]) -> str:
    """Return the table of what was counted of every kernel."""
    head = [
        "kernel", "L1", "L2", "DRAM", "sectors a load", "shared loads per multiply-add",
        "bank conflicts per shared load", "registers", "occupancy", "issues", "FMA units",
        "L1 busy", "waits for",
    ]  # fmt: skip
    lines = []
    for kernel in STEPS:
        r = of(rows, kernel, *COUNTED[:2], transposes)
        lines.append([
            kernel, *(gigabytes(r.get(f"{level}_bytes")) for level in ("l1", "l2")),
            gigabytes(r["dram_read_bytes"] + r["dram_write_bytes"]),
            ratio(r.get("global_sectors"), r.get("global_loads")),
            ratio(r.get("shared_loads"), r["ffma"] / WARP, 2),
            ratio(r.get("shared_load_conflicts"), r.get("shared_loads"), 2),
            f"{r['registers']:.0f}",
            *(percent(r[f"{n}_percent"] / 100, 0) for n in ("occupancy", "issue", "fma", "l1")),
            waits(r),
        ])  # fmt: skip
    return table(head, lines)


def gigabytes(size: float | None) -> str:
    """Write bytes as gigabytes."""
    return "–" if size is None else f"{short(size / 1e9)} GB"


def ratio(a: float | None, b: float | None, digits: int = 1) -> str:
    """Write a over b; a dash where either is missing or b is 0."""
    return f"{a / b:.{digits}f}" if a is not None and b else "–"


def waits(r: Row) -> str:
    """Name the two states in which most warps wait, with how many do per instruction issued."""
    found = {name: r.get(f"stall_{name}") or 0.0 for name in STALLS if name != "selected"}
    longest = sorted(found, key=lambda name: -found[name])[:2]
    return ", ".join(f"{name.replace('_', ' ')} {found[name]:.1f}" for name in longest)


def hopper(rows: list[Row]) -> str:
    """Return the table of the kernels of TMA and wgmma."""
    return table(
        ["math", "size", "kernel", "time", "rate", "of cuBLAS", "error"],
        [
            [
                r["dtype"], f"{r['m']} x {r['n']} x {r['k']}", r["kernel"],
                f"{short(1e6 * r['median_s'])} µs", f"{short(r['flops_per_s'] / 1e12)} TFLOP/s",
                f"{r['share_of_cublas']:.2f}", f"{r['error']:.1e}",
            ]
            for r in rows
        ],
    )  # fmt: skip


def main() -> None:
    """Write the page's parts."""
    report(__doc__)
    found, tried = results.read(RESULTS), results.read(HOPPER)
    timed, counted = found["time"], found["counters"]
    command = "python -m benchmarks.gemm.steps --time --count"
    how = f"{timed['device']}, {timed['date'][:10]}: `{command}`."
    put(PAGE, SCRIPT, f"{how}\n\n{times(timed['rows'])}", "times")
    put(PAGE, SCRIPT, counters(counted["rows"]), "counters")
    put(PAGE, SCRIPT, counters(counted["rows"], "TN"), "counters TN")
    how = f"{tried['device']}, {tried['date'][:10]}: `python -m benchmarks.gemm.hopper`."
    put(PAGE, SCRIPT, f"{how}\n\n{hopper(tried['rows'])}", "hopper")
    print(f"docs/{PAGE.name}: times, counters, hopper")


if __name__ == "__main__":
    main()
