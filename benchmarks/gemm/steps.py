"""From each GEMM kernel of the handout to the next: times, and what Nsight Compute counts of them.

    python -m benchmarks.gemm.steps --time --count     # on a GPU with ncu
    python -m benchmarks.gemm.steps --csv FILE.csv     # ncu's table of an earlier run

The kernel of section 4.2 of the handout (trainer/kernels/register.cu) is changed by one limit at a
time, on matrices whose rows are contiguous (NN) and with a's columns contiguous (TN), as the
handout has them. Results: benchmarks/results/gemm_steps.json.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.gemm.bench import Gpu, in_turns
from benchmarks.gemm.counters import MARKER, launch, profile
from benchmarks.gemm.problems import Problem, floor_s
from perfmodel.readers.ncu import parse
from trainer.kernels import make_gemm
from trainer.kernels.plain import RegisterGemm

RESULTS: Final = folders.RESULTS / "gemm_steps.json"
TABLE: Final = "gemm_steps.csv.xz"

STEPS: Final[dict[str, Callable[[], Any]]] = {
    "naive": lambda: make_gemm("naive"),
    "tiled": lambda: make_gemm("tiled"),
    "register": RegisterGemm,
    "wide loads": lambda: RegisterGemm(wide=True),
    "steps of 16": lambda: RegisterGemm(wide=True, step=16),
    "a staged": lambda: RegisterGemm(wide=True, step=16, staged=True),
    "two rows": lambda: RegisterGemm(wide=True, step=16, staged=True, each=2),
    "four rows": lambda: RegisterGemm(wide=True, step=8, staged=True, each=4),
    "hierarchical": lambda: make_gemm("hierarchical"),
    "cublas": lambda: make_gemm("cublas"),
}
"""The kernels in order; each between register and hierarchical is register with one more change."""

PROBLEMS: Final = (
    Problem("square", 1024, 1024, 1024),
    Problem("square", 4096, 4096, 4096),
    Problem("square", 4096, 4096, 4096, "TN"),
    Problem("forward GEMM 1", 2048, 6000, 784, "NT", 2048, 6000),
    Problem("backward GEMM 3", 2048, 784, 6000, "NN", 2048, 6000),
)

STALLS: Final = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction",
    "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS: Final = {
    "time_s": "gpu__time_duration.sum",
    "l1_bytes": "l1tex__t_bytes.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "cycles": "sm__cycles_elapsed.max",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "instructions": "smsp__inst_executed.sum",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fma_percent": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "lsu_instructions": "sm__inst_executed_pipe_lsu.sum",
    "global_loads": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_sectors_hit": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l1_tag_lookups": "l1tex__t_set_accesses_pipe_lsu_mem_global_op_ld.sum",
    "l1_percent": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_data_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "l1_lsuin_percent": "l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "shared_loads": "smsp__inst_executed_op_shared_ld.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    **{f"stall_{reason}": _STALL.format(reason) for reason in STALLS},
}
"""What is counted: our name and ncu's."""


def products() -> list[tuple[str, Problem]]:
    """Return what is timed and counted, in order."""
    return [(name, problem) for problem in PROBLEMS for name in STEPS]


def clock(bench: Gpu) -> list[dict[str, Any]]:
    """Time all kernels of a problem in turns; one row each."""
    gemms = {name: make() for name, make in STEPS.items()}
    return [
        {**row, "floor_s": floor_s(problem, "float32", None)}
        for seed, problem in enumerate(PROBLEMS)
        for row in in_turns(bench, gemms, problem, "float32", seed)
    ]


def about(name: str, p: Problem) -> dict[str, Any]:
    """Return what says which product a row is of."""
    return {
        "kernel": name, "what": p.what, "m": p.m, "n": p.n, "k": p.k, "transposes": p.transposes
    }  # fmt: skip


def counted(text: str) -> list[dict[str, Any]]:
    """Return one row a product: what ncu counted of its kernels together."""
    parts: list[dict[str, list[float]]] = []
    for launched in parse(text).launches:
        if MARKER in launched.kernel:
            parts.append({})
        elif parts:
            for name, metric in METRICS.items():
                value = launched.metrics.get(metric)
                if value is not None:
                    parts[-1].setdefault(name, []).append(value)
    planned = products()
    if len(parts) != len(planned):
        raise SystemExit(f"expected {len(planned)} GEMMs in ncu's table; got {len(parts)}")
    return [
        {**about(name, problem), **{key: total(key, values) for key, values in part.items()}}
        for (name, problem), part in zip(planned, parts, strict=True)
    ]


def total(name: str, values: Iterable[float]) -> float:
    """Return a counter of several kernels: amounts add, shares are the first kernel's."""
    shares = name.endswith("percent") or name.startswith(("stall_", "registers"))
    return next(iter(values)) if shares else sum(values)


def main() -> None:
    """Time, count, or read a table; write what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--time", action="store_true")
    add("--count", action="store_true", help="by ncu; its table is kept beside the results")
    add("--csv", type=Path, help="ncu's table of an earlier run, may be compressed (.xz)")
    add("--ncu", default=shutil.which("ncu") or "ncu")
    add("--out", type=Path, default=RESULTS)
    add("--launch", action="store_true", help="what ncu runs")
    a = parser.parse_args()
    if a.launch:
        bench = Gpu()
        operands = {p: bench.operands(p, "float32", 0)[0] for p in PROBLEMS}
        gemms = {name: make() for name, make in STEPS.items()}
        launch(bench, [(gemms[name], operands[problem]) for name, problem in products()])
        return
    result = results.read(a.out)
    if a.time:
        bench = Gpu()
        head = {"command": results.command("gemm.steps", sys.argv[1:]), "date": results.now()}
        result["time"] = {**head, **bench.describe(), "rows": clock(bench)}
        results.write(a.out, result, 6)
    text = None
    if a.count:
        text = profile(a.ncu, tuple(METRICS.values()), "gemm.steps")
        a.out.with_name(TABLE).write_bytes(lzma.compress(text.encode()))
    elif a.csv:
        read = lzma.open if a.csv.suffix == ".xz" else open
        with read(a.csv, "rt") as file:
            text = file.read()
    if text is not None:
        result["counters"] = {
            "command": results.command("gemm.steps", ["--count"]), "date": results.now(),
            "metrics": METRICS, "rows": counted(text),
            "clocks": "not locked (--clock-control none); each kernel alone, caches flushed before",
        }  # fmt: skip
        results.write(a.out, result, 6)


if __name__ == "__main__":
    main()
