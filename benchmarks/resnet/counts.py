"""Sums up what ncu counted of ResNet's training steps: per cell and phase, from the raw tables."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any, Final

from writeup.counters import PHASES, between

from perfmodel.readers.ncu import Launch, parse

_SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
SCALAR: Final = {
    _SASS.format(kind + op): 2 if op == "fma" else 1
    for kind in "fh" for op in ("add", "mul", "fma")
}  # fmt: skip
"""Floating-point instructions of the CUDA cores; an FMA is two operations."""
TENSOR: Final = "sm__ops_path_tensor_src_"
BYTES: Final = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "l1_bytes": ("l1tex__t_bytes.sum",),
}
TIME: Final = "gpu__time_duration.sum"


def counted(part: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return a row per cell and phase, and one per cell with `phase` 'all'.

    Of a step that was cut off the phases that were whole are there, and no 'all'.

    Parameters
    ----------
    part : mapping
        The part 'counters' of the results: its cells in order, its tables' names.
    folder : path
        Where the tables lie.
    """
    found = []
    for net, table in part["tables"].items():
        path = folder / table["file"]
        cells = [r for r in part["rows"] if r["net"] == net]
        if not table["kernels"] or not cells:
            continue
        launches = parse(lzma.decompress(path.read_bytes()).decode(), path.name).launches
        parts = between(launches)
        # the step that the time limit ended has no marker behind its last phase, and no time
        whole = sum(cell["profiled_step_s"] is not None for cell in cells)
        if not 4 * whole <= len(parts) <= 4 * len(cells):
            raise SystemExit(
                f"{path.name}: expected {4 * whole} markers for {whole} steps; got "
                f"{len(parts)}; run python -m benchmarks.resnet --part counters again"
            )
        for i, cell in enumerate(cells):
            mine = parts[4 * i : 4 * i + 4]
            of_cell = dict(zip(PHASES, mine[:-1], strict=False))
            if len(of_cell) == len(PHASES):
                of_cell["all"] = [launch for phase in of_cell.values() for launch in phase]
            found += [{**cell, "phase": p, **sums(kernels)} for p, kernels in of_cell.items()]
    return found


def sums(launches: list[Launch]) -> dict[str, Any]:
    """Add up a phase; what ncu did not count of every kernel is None."""

    def added(weights: dict[str, int]) -> float | None:
        values = [
            (launch.metrics.get(m), weight) for launch in launches for m, weight in weights.items()
        ]
        if not values or any(v is None for v, _ in values):
            return None
        return sum(v * weight for v, weight in values)

    tensor = {m: 1 for m in (launches[0].metrics if launches else ()) if m.startswith(TENSOR)}
    single = {m: w for m, w in SCALAR.items() if "_op_f" in m}
    half = {m: w for m, w in SCALAR.items() if "_op_h" in m}
    return {
        "kernels": len(launches), "kernel_time_s": added({TIME: 1}),
        "scalar_flops": added(single), "half_flops": added(half), "tensor_flops": added(tensor),
        **{name: added(dict.fromkeys(metrics, 1)) for name, metrics in BYTES.items()},
    }  # fmt: skip
