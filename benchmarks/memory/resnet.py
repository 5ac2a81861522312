"""Worker of benchmarks.memory: ResNet-18 and ResNet-50 in PyTorch, counted and measured.

Counted: parameters, gradients, momentum, buffers, and every tensor that autograd keeps for the
backward pass (torch.autograd.graph.saved_tensors_hooks), each storage once, at two small batches:
the difference is what a sample takes. Measured: PyTorch's allocator (peak allocated, peak reserved)
and NVML, over batches. Prints one JSON line per case.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.common.torch_device import saved
from benchmarks.common.torch_nets import Network
from perfmodel.workloads.cnns import resnet

NETS = ("resnet18", "resnet50")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COUNTED = (2, 4)
SIDE = 224
CLASSES = 1000


class Training:
    """One network with its optimizer on a device; gradients stay allocated between steps."""

    def __init__(self, net: str, autocast: bool, device: torch.device) -> None:
        self.device, self.autocast = device, autocast
        self.net = Network(resnet(net)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9)

    def data(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels."""
        x = torch.randn(batch, 3, SIDE, SIDE, device=self.device)
        return x, torch.randint(CLASSES, (batch,), device=self.device)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return torch.nn.functional.cross_entropy(self.net(x), y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Train on a batch."""
        self.optimizer.zero_grad(set_to_none=False)
        self.forward(x, y).backward()
        self.optimizer.step()

    def saved_bytes(self, batch: int) -> int:
        """Count what autograd keeps of a forward pass, and the images."""
        x, y = self.data(batch)
        images = x.untyped_storage()
        kept = {**saved(self.net, lambda: self.forward(x, y)), images._cdata: images}
        return sum(storage.nbytes() for storage in kept.values())

    def counts(self) -> dict[str, Any]:
        """Return the theory's terms, in bytes."""
        parameters = sum(p.nbytes for p in self.net.parameters())
        small, large = (self.saved_bytes(batch) for batch in COUNTED)
        per_sample = (large - small) / (COUNTED[1] - COUNTED[0])
        same = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
        return {
            **dict.fromkeys(same, parameters),
            "buffers_bytes": sum(b.nbytes for b in self.net.buffers()),
            "saved_constant_bytes": small - COUNTED[0] * per_sample,
            "saved_per_sample_bytes": per_sample,
        }


def measured(training: Training, batch: int, nvml: Any) -> dict[str, Any]:
    """Take three steps; return the allocator's peaks and NVML's bytes."""
    cuda = training.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    x, y = training.data(batch)
    for _ in range(3 if cuda else 1):
        training.step(x, y)
    if not cuda:
        return {"allocated_bytes": None, "reserved_bytes": None, "nvml_bytes": None}
    torch.cuda.synchronize()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "nvml_bytes": nvml.sample()[0].memory_used_bytes,
    }


def main() -> None:
    budget_s, device = float(sys.argv[1]), torch.device(sys.argv[2])
    began, nvml = time.perf_counter(), None
    if device.type == "cuda":
        from perfmodel.machines.gpu_samples import NvmlSampler

        nvml = NvmlSampler([0], pcie=False)
        before = nvml.sample()[0].memory_used_bytes
        torch.zeros(1, device=device)
        context = nvml.sample()[0].memory_used_bytes
        print(json.dumps({"nvml_before_bytes": before, "nvml_context_bytes": context}), flush=True)
    print(json.dumps({"versions": {"torch": torch.__version__}}), flush=True)
    for net, autocast in itertools.product(NETS, (False, True)):
        case = {"net": net, "autocast": autocast}
        try:
            for row in rows(Training(net, autocast, device), nvml, began + budget_s):
                print(json.dumps({**case, **row}), flush=True)
        except Exception as error:  # the other nets go on
            print(json.dumps({**case, "error": f"{type(error).__name__}: {error}"}), flush=True)
        gc.collect()


def rows(training: Training, nvml: Any, until: float) -> Iterator[dict[str, Any]]:
    """Yield the counts of a net, then a row per batch."""
    yield training.counts()
    for batch in BATCHES if training.device.type == "cuda" else BATCHES[:2]:
        if time.perf_counter() > until:
            yield {"stopped": "the time given was over"}
            return
        yield {"batch": batch, **measured(training, batch, nvml)}


if __name__ == "__main__":
    main()
