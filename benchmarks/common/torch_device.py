"""PyTorch's device, a GPU or the CPU where there is none: what is timed on both alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Device:
    """Waits for a device, and marks moments in the order of its work.

    A mark is a CUDA event, or the host's clock on a CPU.
    """

    def __init__(self, index: int = 0) -> None:
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", index) if self.cuda else torch.device("cpu")

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        """Note now, in the order of the device's work."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, a: Any, b: Any) -> float:
        """Return the seconds between two marks; the device must be idle."""
        return float(a.elapsed_time(b) / 1e3 if self.cuda else b - a)

    def about(self, **more: Any) -> dict[str, Any]:
        """Return what measurements ran on."""
        return {
            "device": torch.cuda.get_device_name(self.device) if self.cuda else "CPU",
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version() if self.cuda else None, **more,
        }  # fmt: skip


def set_tf32(allowed: bool) -> None:
    """Let fp32 products of convolutions and of fully connected layers be TF32's, or not."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def saved(net: torch.nn.Module, forward: Callable[[], object]) -> dict[int, Any]:
    """Return the storages that autograd keeps of a forward pass, but for the network's own."""
    own = {t.untyped_storage()._cdata for t in (*net.parameters(), *net.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # alive, so that no two have one address
        return tensor.detach()  # a node that kept its own result would keep itself, and the graph

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return kept
