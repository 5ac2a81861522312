"""Trains a ResNet-50 on small images, seed by seed, for the time to an accuracy (HPML lab 5A, 2).

    python -m benchmarks.tta.resnet --name h200 --seeds 1 2 3 4 5     # one GPU, about 3 minutes
    python -m benchmarks.tta.resnet --name cifar --data cifar10       # downloads CIFAR-10

A training is --epochs long at batch 128: SGD with Nesterov momentum, one cycle of the rate, bf16
autocast, channels last; images lie on the GPU and are shifted by up to two pixels a batch. The
seed sets weights, order and shifts. Time counts batches, not set-up (which captures forward and
backward pass as a CUDA graph) and not the evaluation behind every epoch. The network that first
reaches the target, and the last one, classify the 50 images of another source, too. Records, one
a seed, go to benchmarks/results/tta_resnet/NAME.json, which `perfmodel study tta` reads.
`--data digits` are benchmarks.common.digits; of CIFAR-10 the other source is a folder (--others) of
CLASS/*.png.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.common.arguments import count, positive, require_module

if __name__ == "__main__":
    require_module("torch", "torch")

import torch
from torch import nn

from benchmarks.common import digits, folders, gpus, results
from benchmarks.common.digits import Images
from benchmarks.common.torch_device import Device
from benchmarks.common.torch_nets import Network
from benchmarks.tta.__main__ import write
from perfmodel.workloads.cnns import RESNET_NAMES, resnet

RESULTS: Final = folders.RESULTS / "tta_resnet"
TARGET: Final = 0.92
SHIFT: Final = 2
TESTED: Final = 1000
"""Images of a batch of the evaluation."""


class Training:
    """A network in training on images that lie on the device.

    Parameters
    ----------
    seed : int
        Of weights, order and shifts.
    steps : int
        Of the whole training, for the cycle of the learning rate.
    """

    def __init__(self, c: argparse.Namespace, data: Images, seed: int, device: Device) -> None:
        torch.manual_seed(seed)
        self.c, self.on, self.device = c, device, device.device
        self.layout = torch.channels_last
        net = resnet(c.net, digits.SIDE, digits.CLASSES, small=True)
        self.net = Network(net).to(self.device, memory_format=self.layout).train()
        self.images, self.labels = pixels(data, self.device), classes(data, self.device)
        self.batches = len(self.images) // c.batch
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), c.rate, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, c.rate, total_steps=c.epochs * self.batches + 1, pct_start=0.25
        )
        self.x = self.images[: c.batch].clone(memory_format=self.layout)
        self.y = self.labels[: c.batch].clone()
        self.loss = torch.zeros((), device=self.device)
        self.graph = self._captured() if device.cuda and not c.no_graph else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return self.net(x)

    def gradients(self) -> None:
        """Compute the loss of `x` and `y`, and its gradients."""
        self.loss = nn.functional.cross_entropy(self.forward(self.x).float(), self.y)
        self.loss.backward()

    def _captured(self) -> Any:
        """Capture forward and backward pass; weights and statistics stay as they were."""
        before = copy.deepcopy(self.net.state_dict())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                self.gradients()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.gradients()
        self.net.load_state_dict(before)  # copies into the tensors that the graph uses
        return graph

    def step(self, chosen: torch.Tensor, shift: tuple[int, int]) -> None:
        """Train on a batch, all shifted alike."""
        self.x.copy_(self.images[chosen].roll(shift, (2, 3)))
        self.y.copy_(self.labels[chosen])
        if self.graph is not None:
            self.graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.gradients()
        self.optimizer.step()
        self.schedule.step()

    def epoch(self, made: torch.Generator) -> tuple[float, float]:
        """Train on every image once; return the seconds and the mean loss."""
        total = torch.zeros((), device=self.device)
        self.on.synchronize()
        began = time.perf_counter()
        order = torch.randperm(len(self.images), generator=made).to(self.device)
        shifts = torch.randint(-SHIFT, SHIFT + 1, (self.batches, 2), generator=made).tolist()
        for at, shift in enumerate(shifts):
            self.step(order[at * self.c.batch : (at + 1) * self.c.batch], tuple(shift))
            total += self.loss.detach()
        self.on.synchronize()
        return time.perf_counter() - began, float(total) / self.batches

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the share of images that are classified rightly."""
        self.net.eval()
        right = 0
        with torch.inference_mode():
            for at in range(0, len(images), TESTED):
                found = self.forward(images[at : at + TESTED]).argmax(1)
                right += int((found == labels[at : at + TESTED]).sum())
        self.net.train()
        return right / len(images)


def pixels(data: Images, device: torch.device) -> torch.Tensor:
    """Return images as numbers of about unit spread, channels last, on the device."""
    found = torch.from_numpy(data.images).to(device).float().sub_(127.5).div_(64)
    return found.to(memory_format=torch.channels_last)


def classes(data: Images, device: torch.device) -> torch.Tensor:
    """Return labels on the device."""
    return torch.from_numpy(data.labels).to(device)


def run(
    c: argparse.Namespace, seed: int, data: tuple[Images, Images, Images | None], device: Device
) -> dict[str, Any]:
    """Train once; return the record."""
    began = time.perf_counter()
    train, test, other = data
    training = Training(c, train, seed, device)
    tested = pixels(test, device.device), classes(test, device.device)
    wild = (pixels(other, device.device), classes(other, device.device)) if other else None
    device.synchronize()
    setup_s, made = time.perf_counter() - began, torch.Generator().manual_seed(seed)
    epochs: list[dict[str, Any]] = []
    at_target = None
    for number in range(1, c.epochs + 1):
        seconds, loss = training.epoch(made)
        reached = training.accuracy(*tested)
        epochs.append({"epoch": number, "loss": loss, "precision_test": reached,
                       "seconds": seconds})  # fmt: skip
        if at_target is None and reached >= c.target and wild:
            at_target = training.accuracy(*wild)
    return {
        "status": "finished", "run_id": f"seed{seed}", "ranks": 1, "setup_s": setup_s,
        "graph": training.graph is not None,
        "config": {
            "net": c.net, "data": c.data, "batch_size": c.batch, "epochs": c.epochs,
            "learning_rate": c.rate, "dtype": "bfloat16 autocast", "train_size": len(train.labels),
            "test_size": len(test.labels), "seed": seed,
        },
        "versions": {
            "python": platform.python_version(), "torch": torch.__version__,
            "gpu": device.about()["device"],
        },
        "other_source": {
            "images": len(other.labels) if other else 0, "accuracy_at_target": at_target,
            "accuracy_final": training.accuracy(*wild) if wild else None,
        },
        "epochs": epochs,
    }  # fmt: skip


def data_sets(c: argparse.Namespace) -> tuple[Images, Images, Images | None]:
    """Return training and test images, and those of another source where there are any."""
    if c.data == "cifar10":
        from benchmarks.tta.cifar10 import cifar10, folder_of_images

        train, test = cifar10()
        return train.first(c.images), test, folder_of_images(c.others) if c.others else None
    train, test = digits.digits(c.images, c.test_images)
    return train, test, digits.others()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--name", required=True, help="of the machine: NAME.json holds its records")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    add("--data", choices=("digits", "cifar10"), default="digits")
    add("--others", type=Path, help="folder of CLASS/*.png, with --data cifar10")
    add("--net", choices=RESNET_NAMES, default="resnet50")
    add("--images", type=count, default=20_000, help="train on the first so many")
    add("--test-images", type=count, default=10_000)
    add("--batch", type=count, default=128)
    add("--epochs", type=count, default=12)
    add("--rate", type=positive, default=0.1, help="highest learning rate")
    add("--target", type=float, default=TARGET)
    add("--no-graph", action="store_true", help="launch every kernel by itself")
    add("--budget", type=float, default=1e9, help="seconds: no run begins that would end later")
    add("--out", type=Path, default=RESULTS)
    add("--cpu", action="store_true", help="rehearse without a GPU: --out must name a folder")
    c = parser.parse_args()
    if c.images < c.batch:
        parser.error(f"expected --images of at least a batch of {c.batch}; got {c.images}")
    if not c.cpu:
        gpus.require()
    elif c.out == RESULTS:
        parser.error("expected --out FOLDER with --cpu; got none")
    torch.backends.cudnn.benchmark = True
    began, device, records, longest = time.perf_counter(), Device(), list[dict[str, Any]](), 0.0
    data = data_sets(c)
    warm = argparse.Namespace(**{**vars(c), "epochs": 1})
    run(warm, 0, (data[0].first(4 * c.batch), data[1].first(TESTED), data[2]), device)
    print(f"[{time.perf_counter() - began:6.1f} s] ready", flush=True)
    for seed in c.seeds:
        started = time.perf_counter()
        if started - began + longest > c.budget:
            print(f"[{started - began:6.1f} s] no time left for seed {seed}", flush=True)
            break
        record = run(c, seed, data, device)
        longest = max(longest, time.perf_counter() - started)
        records.append(record)
        curve = " ".join(f"{e['precision_test']:.3f}" for e in record["epochs"])
        print(f"[{started - began:6.1f} s] seed {seed}: {curve}; "
              f"{sum(e['seconds'] for e in record['epochs']):.1f} s", flush=True)  # fmt: skip
        about = {
            "name": c.name, "command": results.command("tta.resnet", sys.argv[1:]),
            "date": results.today(), "device": device.about()["device"],
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }  # fmt: skip
        write(c.out / f"{c.name}.json", about, records)


if __name__ == "__main__":
    main()
