"""Rungs of the optimization ladder: what a run already does, by its mark, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OWN_KERNELS = ("hierarchical", "thin", "fused")


@dataclass(frozen=True, slots=True)
class Rungs:
    """What to advise to a run with this configuration mark; without one, everything.

    Parameters
    ----------
    config : mapping
        The mark's content. Only what it says is done is left out, and flags of the trainer are
        named only to runs of the trainer.
    """

    config: Mapping[str, Any]

    @property
    def known(self) -> bool:
        """Whether the mark is the trainer's."""
        return "transport" in self.config

    @property
    def transport(self) -> str:
        """How gradients are summed."""
        return str(self.config.get("transport", ""))

    @property
    def overlaps(self) -> bool:
        """Whether gradients are summed while others are computed."""
        return self.config.get("overlap") is True

    @property
    def replays(self) -> bool:
        """Whether the step is a CUDA graph."""
        return self.config.get("graph") is True

    @property
    def by_data(self) -> bool:
        """Whether the ranks share the batch."""
        return self.config.get("parallel") != "model"

    def flag(self, flag: str) -> str:
        """Return a flag of the trainer in parentheses, nothing to other programs."""
        return f" ({flag})" if self.known else ""

    def launch_less(self, *, synchronizes: bool) -> str:
        """What shortens the time in which the GPU waits for the host."""
        steps = []
        if self.config.get("gemm") != "fused":
            fused = self.flag("--gemm fused") if self.by_data else ""
            steps.append(f"fuse elementwise kernels{fused}")
        if synchronizes or not self.known:
            steps.append("drop synchronizations between ranges")
        if not self.replays:
            steps.append(f"capture the step in a CUDA graph{self._graph()}")
        if not steps:
            return "give the GPU more work per launch: a larger batch, or fewer ranks"
        return f"launch less: {', '.join(steps)}"

    def _graph(self) -> str:
        """Return the flag for a CUDA graph with those that it needs."""
        needs = []
        if self.config.get("data_on") != "device":
            needs.append("--data-on device")
        if self.transport not in ("nccl", "peer", "none"):
            needs.append("--transport nccl")
        return self.flag(f"--graph, which needs {' and '.join(needs)}" if needs else "--graph")

    def pin(self, direction: str) -> str:
        """How to take host buffers from page-locked memory."""
        flags = "--transport host-flat" if direction == "Device-to-Host" else (
            "--transport host-flat, --data-on pinned"
        )  # fmt: skip
        said = "allocate the host buffers with cudaMallocHost (CuPy: cupyx.empty_pinned)"
        return f"{said[:-1]}; {flags})" if self.known else said

    def keep_inputs(self) -> str:
        """How not to wait for images."""
        keep = f"keep the training set on the GPU{self.flag('--data-on device')}"
        if self.config.get("data_on") == "prefetch":
            return keep
        return (
            f"{keep}, or copy the next batch on a stream of its own while this one computes"
            f"{self.flag('--data-on prefetch')}"
        )

    def balance(self) -> str:
        """How ranks wait less for each other."""
        said = "balance the ranks' work before the collective"
        if self.overlaps or not self.by_data or self.transport in ("chunked", "peer"):
            return said
        return f"{said}, or overlap it with computing{self.flag('--overlap')}"

    def multiply(self) -> str:
        """What a product may still gain from."""
        gemm, math = self.config.get("gemm"), self.config.get("math")
        rounded = self.config.get("tf32") is True or math in ("tf32", "tf32x3")
        steps = []
        if gemm not in _OWN_KERNELS:
            steps.append(f"a kernel tiled for this shape{self.flag('--gemm hierarchical')}")
        if not rounded:
            steps.append(f"tensor cores{self.flag('--math tf32 or tf32x3') or ' (TF32)'}")
        if math == "tf32x3":
            steps.append("one product of TF32 numbers for three, less exact (--math tf32)")
        if gemm != "fused":
            fused = self.flag("--gemm fused") if self.by_data else ""
            steps.append(f"fusing it with its neighbours{fused}")
        if not steps:
            return "larger matrices: a larger batch, or fewer ranks"
        return ", ".join(steps[:-1]) + (", or " if len(steps) > 1 else "") + steps[-1]
