"""Two stages of a PyTorch network on two GPUs, two micro-batches, blocking send and recv.

nsys profile -t cuda,nvtx -s none --capture-range=cudaProfilerApi -o pipeline torchrun
--nproc-per-node 2 pipeline.py

`pipeline_shared` is a recording of it while another process multiplied matrices on GPU 1.
"""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS, BLOCKS, STEPS = 2048, 4096, 3, 6


class Stage(nn.Module):
    """Three blocks of a layer norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(BLOCKS)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the blocks, each beside a connection around it."""
        for block in self.blocks:
            x = x + block(x)
        return x


def step(stage: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Send every micro-batch forward, then every gradient back, and update."""
    first, kept = dist.get_rank() == 0, []
    for part in x.bfloat16().chunk(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            if first:
                sent = stage(part).bfloat16()
                dist.send(sent.detach(), 1)
                kept.append((sent, sent))
            else:
                got = torch.empty_like(part)
                dist.recv(got, 0)
                got.requires_grad_()
                kept.append((got, stage(got).float().square().mean()))
    for start, end in kept:
        if first:
            gradient = torch.empty_like(end)
            dist.recv(gradient, 1)
            end.backward(gradient)
        else:
            end.backward()
            dist.send(start.grad, 0)
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    """Warm up, then record six steps with the operators' sizes."""
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    dist.init_process_group("nccl", device_id=device)
    stage = Stage().to(device)
    x = torch.randn(ROWS, WIDTH, device=device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-5, fused=True)
    for _ in range(4):
        step(stage, optimizer, x)
    dist.barrier()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    began = time.perf_counter()
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        for _ in range(STEPS):
            step(stage, optimizer, x)
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / STEPS
    dist.barrier()
    torch.cuda.cudart().cudaProfilerStop()
    if rank == 0:
        print(json.dumps({"step_s_profiled": seconds, "steps": STEPS, "torch": torch.__version__}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
