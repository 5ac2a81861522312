"""Which metrics of Nsight Compute count what, and the command that collects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

TIME: Final = "gpu__time_duration.sum"

_LETTERS: Final = {"fp64": "d", "fp32": "f", "fp16": "h"}
SCALAR: Final = {
    unit: {
        f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum": 2 if op == "fma" else 1
        for op in ("add", "mul", "fma")
    }
    for unit, letter in _LETTERS.items()
}
"""By unit: instructions of threads that were not predicated off; a multiply-add is two
operations (Nsight Compute, Kernel Profiling Guide, roofline charts)."""

_PATH: Final = "sm__ops_path_tensor_src_"
TENSOR: Final = {
    "tensor fp64": {f"{_PATH}fp64.sum": 1},
    "tensor tf32": {f"{_PATH}tf32_dst_fp32.sum": 1},
    "tensor fp16": {f"{_PATH}fp16_dst_fp16.sum": 1, f"{_PATH}fp16_dst_fp32.sum": 1},
    "tensor bf16": {f"{_PATH}bf16_dst_fp32.sum": 1},
}
"""By type of the factors: operations already, two for a multiply-add; GPUs since Ampere."""

UNITS: Final = {**SCALAR, **TENSOR}
"""By unit, the metrics that count its operations, each with the operations of one count."""

LEVELS: Final = {
    "l1": ("l1tex__t_bytes.sum",),
    "l2": ("lts__t_bytes.sum",),
    "dram": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
}
"""By level of memory, the metrics whose sum are the bytes it moves; L1's lack shared memory."""

SECTORS: Final = ("lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum")
"""32-byte sectors that L2 held, and that it did not."""

METRICS: Final = (
    TIME,
    *(name for level in LEVELS.values() for name in level),
    *(name for unit in UNITS.values() for name in unit),
)
"""What is collected: time, bytes of every level, operations of every unit."""


def command(
    program: Sequence[str] = (), *, ranges: Iterable[str] = (), sectors: bool = False
) -> list[str]:
    """Return the words of a command that counts `program`'s kernels and writes counters.csv.

    Parameters
    ----------
    program : sequence of str
        The program and its arguments.
    ranges : iterable of str
        Count only kernels launched inside a push/pop range of one of these names.
    sectors : bool
        Count hits and misses of L2, too.

    Notes
    -----
    Clocks are left as they are (``--clock-control none``): ceilings are those of the boost clock,
    and a base clock would put all points below them by as much. Caches are emptied before every
    kernel, ncu's default, so that the bytes of DRAM do not depend on what ran before.
    """
    metrics = METRICS + (SECTORS if sectors else ())
    words = ["ncu", "--target-processes", "all", "--nvtx", "--clock-control", "none"]
    for name in ranges:
        words += ["--nvtx-include", f"{_escaped(name)}/"]
    words += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", "counters.csv"]
    return [*words, "--metrics", ",".join(metrics), *program]


def _escaped(name: str) -> str:
    """A range's name as a filter of ncu, in which some letters have a meaning."""
    return "".join(f"\\{c}" if c in "\\/@[]*+," else c for c in name)
