"""The trainer of the two-layer MLP: its ranges, formulas and settings, and its parts to predict."""

from __future__ import annotations

from typing import Final

SETTING_FLAGS: Final = {
    "transport": ("NAME", "host, pinned, host-flat, nccl, peer ..."),
    "data_on": ("WHERE", "host, pinned, prefetch or device."),
    "gemm": ("KERNEL", "cublas, thin, fused, ..."),
    "math": ("HOW", "ieee, tf32 or tf32x3."),
    "parallel": ("WHAT", "data or model."),
}
"""Settings of the trainer that commands take: by name, what stands for the value, and its help."""
SWITCH_FLAGS: Final = {
    "graph": "The step as a CUDA graph.",
    "overlap": "Sum gradients while others are computed.",
    "sync": "The assignment's barriers and synchronizations.",
}
"""Settings that are on or off: by name, the help."""
LEADING_SETTING: Final = "transport"
"""The setting that a configuration is called by."""
LINKS: Final = ("host", "mpi", "nccl", "peer", "none")
"""What sums over the ranks: MPI between copies, MPI alone, NCCL, one kernel, nothing."""
