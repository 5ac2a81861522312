"""GPU utilization of a ResNet-50 in training, raised change by change (HPML lab 5A, problem 2).

    python -m benchmarks.utilization.resnet --seconds 30 30 30 30 180   # the lab's 3 minutes last

Each step trains batches of 128 images of 3 x 32 x 32 (bf16 autocast) for --seconds under
perfmodel's NVML recorder, and has one change more than the step before it:

    loader     images are cut and normalized one by one in the training process, sent from pageable
               memory, and the loss is read in every batch
    workers    eight processes make the batches, in page-locked memory, and copies do not wait
    queued     the loss is not read, so that the host launches ahead
    resident   images lie on the GPU, which shifts them
    graph      forward and backward pass are one CUDA graph: no launches in between

Means go to benchmarks/results/utilization_resnet.json, series to utilization/resnet_STEP.csv beside
that file.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common.arguments import count, positive, require_module

if __name__ == "__main__":
    require_module("torch", "torch")

import torch

from benchmarks.common import digits, folders, gpus, results
from benchmarks.common.processes import visible_gpus
from benchmarks.common.torch_device import Device
from benchmarks.tta.resnet import SHIFT, Training
from perfmodel.machines import gpu_samples
from perfmodel.machines.gpu_samples import NvmlSampler, Recorder
from perfmodel.workloads.cnns import RESNET_NAMES

RESULTS: Final = folders.RESULTS / "utilization_resnet.json"
WORKERS: Final = 8
SETTLED_S: Final = 1.0
"""NVML looks back up to a second: so much later than the first batches the window begins."""
CHECKED: Final = 20
"""Batches between two looks at the clock that wait for the GPU; the first choose algorithms."""

Batch = tuple[torch.Tensor, torch.Tensor]
STEPS: Final[dict[str, dict[str, Any]]] = {
    "loader": {"workers": 0, "read": True},
    "workers": {"workers": WORKERS, "read": True},
    "queued": {"workers": WORKERS},
    "resident": {},
    "graph": {"graph": True},
}


class Cut(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images that are padded, cut and normalized when they are asked for."""

    def __init__(self, data: digits.Images) -> None:
        self._data, self._made = data, np.random.default_rng()

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = np.pad(self._data.images[index], ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
        top, left = self._made.integers(0, 2 * SHIFT + 1, 2)
        part = image[:, top : top + digits.SIDE, left : left + digits.SIDE].astype(np.float32)
        return torch.from_numpy((part - 127.5) / 64), int(self._data.labels[index])


def loaded(data: digits.Images, batch: int, workers: int, device: torch.device) -> Iterator[Batch]:
    """Yield batches of a DataLoader without end, on the device."""
    ahead = workers > 0
    loader = torch.utils.data.DataLoader(
        Cut(data), batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=ahead,
        persistent_workers=ahead, prefetch_factor=2 if ahead else None,
    )  # fmt: skip
    for x, y in itertools.chain.from_iterable(itertools.repeat(loader)):
        yield x.to(device, non_blocking=ahead), y.to(device, non_blocking=ahead)


def trainer(
    c: argparse.Namespace, data: digits.Images, device: Device, *, workers: int | None = None,
    read: bool = False, graph: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """Return what trains one batch, in the way of a step."""
    how = argparse.Namespace(
        net=c.net, batch=c.batch, rate=1e-3, epochs=100_000, no_graph=not graph
    )
    training = Training(how, data, 0, device)
    if workers is None:
        made = torch.Generator().manual_seed(0)

        def resident() -> None:
            chosen = torch.randint(len(data.labels), (c.batch,), generator=made).to(device.device)
            training.step(chosen, (1, -1))

        return resident
    batches = loaded(data, c.batch, workers, device.device)

    def fed() -> None:
        x, y = next(batches)
        training.x.copy_(x)
        training.y.copy_(y)
        training.optimizer.zero_grad(set_to_none=True)
        training.gradients()
        training.optimizer.step()
        if read:
            training.loss.item()

    return fed


def measured(
    c: argparse.Namespace, name: str, seconds: float, data: digits.Images, device: Device,
    sampler: NvmlSampler,
) -> tuple[dict[str, Any], gpu_samples.Series]:  # fmt: skip
    """Train for some seconds under the recorder; return the window's means and all samples."""
    one = trainer(c, data, device, **STEPS[name])
    batches, at = 0, list[float]()
    with Recorder(sampler, c.period) as recorder:
        while not at or at[-1] < at[0] + SETTLED_S + seconds:
            for _ in range(CHECKED):
                one()
                batches += 1
            device.synchronize()
            at.append(recorder.elapsed_s)
    began, ended = at[0] + SETTLED_S, at[-1]
    series = recorder.series()
    inside = series.window(began, ended)
    gpu = series.gpus[0]
    later = [t for t in at if t >= began]
    per = batches / len(at)
    row = {
        "name": name, "window_s": [began, ended], "samples": len(inside), "batches": batches,
        "batch_s": (later[-1] - later[0]) / max(1, len(later) - 1) / per,
        "means": {k: inside.of(gpu).mean(k) for k in gpu_samples.COUNTERS},
    }  # fmt: skip
    return row, series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    add("--seconds", type=positive, nargs="+", default=[30.0], help="of all steps, or of each")
    add("--period", type=positive, default=0.2, help="seconds between samples")
    add("--net", choices=RESNET_NAMES, default="resnet50")
    add("--batch", type=count, default=128)
    add("--images", type=count, default=20_000)
    add("--unsampled", action="store_true", help="train only, for a profiler around it")
    add("--series", type=Path, help="folder (utilization, beside --out)")
    add("--out", type=Path, default=RESULTS)
    c = parser.parse_args()
    if c.images < c.batch:
        parser.error(f"expected --images of at least a batch of {c.batch}; got {c.images}")
    gpus.require()
    torch.backends.cudnn.benchmark = True
    device = Device()
    data, _ = digits.digits(c.images, 10)
    if c.unsampled:
        one = trainer(c, data, device, **STEPS[c.steps[0]])
        for _ in range(60):
            with torch.cuda.nvtx.range("batch"):
                one()
        device.synchronize()
        return
    sampler = NvmlSampler(visible_gpus(1))
    kept = {row["name"]: row for row in results.read(c.out).get("rows", [])}
    for name, seconds in zip(c.steps, itertools.cycle(c.seconds), strict=False):
        began = time.perf_counter()
        said = {"command": results.command("utilization.resnet", sys.argv[1:]),
                "date": results.today(), **device.about()}  # fmt: skip
        row, series = measured(c, name, seconds, data, device, sampler)
        kept[name] = {**row, **said}
        out = results.write(c.out, {"rows": [kept[name] for name in STEPS if name in kept]})
        folder = c.series or out.parent / "utilization"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"resnet_{name}.csv").write_text(gpu_samples.to_csv(series), encoding="utf-8")
        gpu, batch_s = kept[name]["means"]["gpu_percent"], kept[name]["batch_s"]
        print(f"{name}: {gpu} %, {1e3 * batch_s:.2f} ms a batch, "
              f"{time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
