"""A small measured machine, with something of everything that a file of one holds."""

from __future__ import annotations

from typing import Final

from perfmodel.machines.machine import Figure, Machine
from perfmodel.machines.measure.measurement import MachineMeasurement, Products, Series

MEASURED: Final = MachineMeasurement(
    machine=Machine.of("NVIDIA H200", "measured", {
        ("peak_flops_per_s", "float32"): Figure(6e13, "kernel", 5.9e13, 6.1e13, 5),
        ("bandwidth_bytes_per_s", "hbm"): Figure(4e12, "copy", 3.9e12, 4.1e12, 5),
    }),
    gpus=("NVIDIA H200",), cpus=("A CPU",), date="2026-01-01T00:00:00Z",
    command="perfmodel machine measure -o m.toml", ranks=2, cores=8, versions={"python": "3.12"},
    series=(Series("copy", "pinned", "h2d", "host", 1, (4096, 65536, 1048576),
                   (1e-5, 1.2e-5, 3e-5), (1e-5, 1.1e-5, 3e-5), (1e-5, 1.3e-5, 3e-5), 5),),
    products=(Products("square", "tf32", "nn", (64,), (64,), (64,), (1e-5,), (1e-5,), (1e-5,), 5),),
    elapsed_s={"copies": 0.5}, warnings=(),
)  # fmt: skip
