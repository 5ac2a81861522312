"""Writes what docs/vecadd.md shows of the lab's programs, and the lab's two charts.

python -m benchmarks.vecadd.lab_report
"""

from __future__ import annotations

import csv
import statistics
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import markdown, percent, put, short
from benchmarks.common.results import read as read_json
from benchmarks.vecadd.lab import RESULTS
from benchmarks.vecadd.report import NAMES as WAYS
from benchmarks.vecadd.report import PAGE, TITLES, chart
from perfmodel.render.plot.lines import Series

SCRIPT: Final = "benchmarks.vecadd.lab_report"
NAMES: Final = {
    "host": "C++ on the CPU",
    **{f"{memory} {way}": f"{memory}, {WAYS[way]}"
       for memory in TITLES for way in ("thread", "block", "grid")},
}  # fmt: skip
PARTS: Final = {
    "explicit": ("allocate_s", "copy_in_s", "kernel_s", "copy_out_s", "free_s"),
    "unified": ("allocate_s", "first_touch_s", "kernel_s", "read_back_s", "free_s"),
}

Cells = dict[tuple[str, float], list[dict[str, Any]]]


def cells(read: dict[str, Any]) -> Cells:
    """Return the runs of every way and size."""
    found: Cells = {}
    for row in read["rows"]:
        found.setdefault((row["way"], row["millions"]), []).append(row)
    return found


def spent(run: dict[str, Any]) -> float:
    """Return the time of a program; the CPU's without `free`, as the GPU's."""
    return float(run["add_s"] if run["way"] == "host" else run["total_s"])


def median(runs: list[dict[str, Any]], key: str = "") -> float:
    """Return the median of a part over runs; of the program without a key."""
    return statistics.median(run[key] if key else spent(run) for run in runs)


def page(read: dict[str, Any]) -> str:
    """Return what stands between the marks."""
    found = cells(read)
    built = "; ".join(f"`{one['command']}`" for one in read["build"].values())
    runs = [len(one) for one in found.values()]
    wrong = sum(row["wrong"] for row in read["rows"])
    return "\n\n".join([
        f"{read['gpu']}, {read['date']}: `{read['command']}`; built by {built}. Medians of "
        f"{min(runs)} runs a cell, least to most in parentheses; {wrong} wrong sums in "
        f"{len(read['rows'])} runs.",
        times(found),
        "![Time of the lab's programs against K, without unified memory]"
        "(images/vecadd_lab_explicit.png)",
        "![Time of the lab's programs against K, with unified memory]"
        "(images/vecadd_lab_unified.png)",
        *(parts(found, memory) for memory in PARTS),
        processes(found),
        profiles(read),
    ])  # fmt: skip


def times(found: Cells) -> str:
    """Return the table of medians with their ranges."""
    sizes = sorted({k for _, k in found})
    rows = []
    for way, title in NAMES.items():
        if all((way, k) not in found for k in sizes):
            continue
        rows.append((title, *(_ranged(found.get((way, k), [])) for k in sizes)))
    return markdown("program; " + "; ".join(f"K = {k:g}=text" for k in sizes), rows)


def _ranged(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "–"
    taken = [spent(run) for run in runs]
    unit, scale = ("s", 1.0) if median(runs) >= 1 else ("ms", 1e3)
    low, middle, high = (short(scale * v) for v in (min(taken), median(runs), max(taken)))
    return f"{middle} {unit} ({low} to {high})"


def parts(found: Cells, memory: str) -> str:
    """Return the parts of the programs at the largest K."""
    k = max(k for _, k in found)
    names = PARTS[memory]
    columns = (
        f"{memory} memory, K = {k:g}=text",
        *(f"{n.removesuffix('_s').replace('_', ' ')}=s" for n in names),
        "kernel, of all=text", "against the CPU=float.2",
    )  # fmt: skip
    host, rows = found.get(("host", k)), []
    for way in ("thread", "block", "grid"):
        runs = found.get((f"{memory} {way}", k))
        if runs:
            share = median(runs, "kernel_s") / median(runs)
            gain = median(host) / median(runs) if host else None
            rows.append((NAMES[f"{memory} {way}"], *(median(runs, n) for n in names),
                         percent(share), gain))  # fmt: skip
    return markdown(columns, rows)


def processes(found: Cells) -> str:
    """Return the whole processes of the full grid: the same work with both kinds of memory."""
    columns = "K=text; explicit=s; unified=s; unified over explicit=float.2"
    rows = []
    for k in sorted({k for way, k in found if way.endswith("grid")}):
        explicit, unified = (median(found[f"{memory} grid", k], "process_s") for memory in PARTS)
        rows.append((f"{k:g}", explicit, unified, unified / explicit))
    return (
        "Whole processes of the full grid, from start to end, medians: CUDA is started, numbers "
        f"are made, added and checked with both kinds of memory.\n\n{markdown(columns, rows)}"
    )


def profiles(read: dict[str, Any]) -> str:
    """Return what nsys saw of each program: the longest kernel, and copies or migrations."""
    rows = []
    for way, found in read["profiles"].items():
        kernels, copies = (_csv(found.get(f"cuda_gpu_{kind}_sum", ()))
                           for kind in ("kern", "mem_time"))  # fmt: skip
        kernel = max((float(r["Total Time (ns)"]) for r in kernels), default=None)
        copied = sum(float(r["Total Time (ns)"]) for r in copies)
        count = sum(int(r.get("Count") or r.get("Instances") or 0) for r in copies)
        rows.append((NAMES[way], kernel and kernel / 1e9, copied / 1e9, count))
    return "By Nsight Systems, one run of each at K = 10:\n\n" + markdown(
        "program; kernels=s; copies or migrations=s; how many=int", rows
    )


def _csv(lines_: Any) -> list[dict[str, str]]:
    kept = list(lines_)
    starts = [i for i, line in enumerate(kept) if line.startswith("Time (%)")]
    return list(csv.DictReader(kept[starts[0] :])) if starts else []


def draw(found: Cells) -> None:
    """Draw time against K for the programs of one kind of memory, and the CPU's."""
    sizes = sorted({k for _, k in found})
    for memory in PARTS:
        series = {
            NAMES[way].removeprefix(f"{memory}, "): Series(
                [k for k in sizes if (way, k) in found],
                [median(found[way, k]) for k in sizes if (way, k) in found],
            )
            for way in (f"{memory} thread", f"{memory} block", f"{memory} grid", "host")
        }  # fmt: skip
        chart(series, TITLES[memory], folders.IMAGES, f"vecadd_lab_{memory}")


def main() -> None:
    report(__doc__)
    read = read_json(RESULTS)
    draw(cells(read))
    put(PAGE, SCRIPT, page(read))


if __name__ == "__main__":
    main()
