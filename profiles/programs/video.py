"""A video classifier that writes a checkpoint after every third step; no range is a step.

nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi
--capture-range-end=stop -o video python video.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.flop_counter import FlopCounterMode

CLIPS, STEPS, SAVED_EVERY = 8, 9, 3


def seconds(call: Callable[[], None]) -> float:
    """Time of a call until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Train, and print what a report of it has to show."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = torchvision.models.video.r3d_18(weights=None, num_classes=100).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    clips = torch.randn(CLIPS, 3, 16, 112, 112).pin_memory()
    classes = torch.randint(0, 100, (CLIPS,)).pin_memory()

    def train() -> None:
        x, y = clips.to(device, non_blocking=True), classes.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)

    def save() -> None:
        state = {"model": model.state_dict(), "opt": optimizer.state_dict()}
        torch.save(state, Path(tempfile.gettempdir()) / "video.pt")

    with FlopCounterMode(display=False) as counter:
        train()
    for _ in range(5):
        train()
    bare = [seconds(train) for _ in range(25)]
    steps, saves = [], []
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        for step in range(STEPS):
            steps.append(seconds(train))
            if (step + 1) % SAVED_EVERY == 0:
                saves.append(seconds(save))
    torch.cuda.cudart().cudaProfilerStop()
    print(json.dumps({
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "flops": counter.get_total_flops(),
        "step_s_bare": statistics.median(bare),
        "step_s_profiled": statistics.median(steps),
        "checkpoint_s": statistics.median(saves),
        "steps_profiled": STEPS,
        "checkpoints": len(saves),
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
