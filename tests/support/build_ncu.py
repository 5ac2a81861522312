"""Writes tables as Nsight Compute 2025 prints them: both forms, any notation, any unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PUSH_POP = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
START_STOP = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
TIME = "gpu__time_duration.sum"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, L1 = "lts__t_bytes.sum", "l1tex__t_bytes.sum"
UNITS = {TIME: "ns", READ: "byte", WRITE: "byte", L2: "byte", L1: "byte", FFMA: "inst",
         FADD: "inst", TF32: ""}  # fmt: skip

BEFORE = '==PROF== Connected to process 77 (/usr/bin/python3.12)\nepoch 1/1  loss "2.30\n'
AFTER = "==PROF== Disconnected from process 77\n"


@dataclass(frozen=True)
class Kernel:
    """One launch to be written; values in bytes, nanoseconds and counts, None for n/a."""

    name: str
    counts: Mapping[str, float | None]
    ranges: Sequence[str] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    grid: str = "(12, 24, 1)"


def stack(ranges: Sequence[str]) -> str:
    """A cell of open push/pop ranges, the outermost first."""
    return "77" + "".join(f'  "<default domain>:{n}:none:none:none:none:none:none"' for n in ranges)


def shown(value: float | None, notation: str = "en") -> str:
    """A number as a locale shows it: 1,208.50 (en), 1.208,50 (de), 1208.50 (C), 1 208,50 (fr)."""
    if value is None:
        return "n/a"
    whole = value == int(value)
    text = f"{int(value):,d}" if whole else f"{value:,.2f}"
    marks = {"en": ",.", "de": ".,", "C": ["", "."], "fr": ["\u202f", ","]}[notation]
    return text.replace(",", "\0").replace(".", marks[1]).replace("\0", marks[0])


def line(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def wide(kernels: Sequence[Kernel], notation: str = "en", *, nvtx: bool = True) -> str:
    """What --page raw prints: a row of units, then a row a launch."""
    metrics = list(dict.fromkeys(m for k in kernels for m in k.counts))
    header, units = _fixed(nvtx), ["" for _ in _fixed(nvtx)]
    rows = [
        _cells(i, k, nvtx) + [shown(k.counts[m], notation) for m in metrics]
        for i, k in enumerate(kernels)
    ]
    units += [{**UNITS, **kernels[0].units}.get(m, "") for m in metrics]
    return "".join(line(row) for row in ([*header, *metrics], units, *rows))


def long(kernels: Sequence[Kernel], notation: str = "en", *, nvtx: bool = True) -> str:
    """What ncu --csv --metrics prints without --page: a row a metric."""
    header = [*_fixed(nvtx), "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    rows = [
        [*_cells(i, k, nvtx), "Command line profiler metrics", m, {**UNITS, **k.units}.get(m, ""),
         shown(v, notation)]
        for i, k in enumerate(kernels) for m, v in k.counts.items()
    ]  # fmt: skip
    return "".join(line(row) for row in (header, *rows))


def _fixed(nvtx: bool) -> list[str]:
    ranges = [PUSH_POP, START_STOP] if nvtx else []
    return ["ID", "Process ID", "Process Name", "Host Name", *ranges, "Kernel Name", "Context",
            "Stream", "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip


def _cells(i: int, kernel: Kernel, nvtx: bool) -> list[str]:
    ranges = [stack(kernel.ranges) if kernel.ranges else "", ""] if nvtx else []
    return [str(i), "77", "python3.12", "127.0.0.1", *ranges, kernel.name, "1", "7",
            "(256, 1, 1)", kernel.grid, "0", "9.0"]  # fmt: skip
