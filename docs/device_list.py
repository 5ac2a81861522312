"""Writes docs/devices.md: the devices that perfmodel knows, from their files, as a test holds them.

python docs/device_list.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perfmodel.base.units import si
from perfmodel.machines.devices import Device, devices

PAGE: Final = Path(__file__).resolve().parent / "devices.md"

_INTRO: Final = """# Devices

<!-- written by docs/device_list.py -->

The GPUs and CPUs that perfmodel knows, a file each in `perfmodel/machines/devices/`. `perfmodel
machine show NAME` prints every figure of one with its source; [machines.md](machines.md) explains
them, and what happens with a GPU that is not listed.

Peaks are dense, in operations per second. Data sheets give many of them with sparsity: these are
halved. Matrix units accumulate in FP32; on GeForce cards that halves their FP16 and FP8 rates, and
the files also have the rates with FP16 (`float16_tensor_float16`). An empty cell is not published.

| name | device | names in reports | SMs or CUs | FP32 vector | BF16 or FP16 matrix | FP8 matrix \
| memory | bandwidth | source |
|---|---|---|---|---|---|---|---|---|---|
"""


def row(device: Device) -> str:
    """Return a device's row of the table."""
    machine = device.machine
    peaks, chip = machine.peak_flops_per_s, machine.chip
    matrix = ("bfloat16_tensor", "float16_tensor")  # as fast as each other where there are both
    links, sizes = machine.bandwidth_bytes_per_s, machine.capacity_bytes
    cells = (
        f"`{device.stem}`",
        machine.name,
        ", ".join(f"`{name}`" for name in device.names),
        str(chip.multiprocessors or "") if chip else "",
        _si(peaks.get("float32"), ""),
        _si(next((peaks[key] for key in matrix if key in peaks), None), ""),
        _si(peaks.get("float8_tensor"), ""),
        f"{sizes['hbm'] / 2**30:g} GB" if "hbm" in sizes else "",
        _si(links.get("hbm", links.get("dram")), "B/s"),
        f"[{machine.source}]({machine.url})" if machine.url else machine.source,
    )
    return f"| {' | '.join(cells)} |\n"


def _si(value: float | None, unit: str) -> str:
    return si(value, unit) if value else ""


def page() -> str:
    """Return the page."""
    found = sorted(devices(), key=lambda device: device.machine.name)
    return _INTRO + "".join(map(row, found))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
