"""The DDP lab (HPML lab 4), rank by rank: what is sent, what it takes, what breaks without it.

    python -m torch.distributed.run --nproc-per-node 4 -m benchmarks.scaling.ddp_lab --out FILE.json

ResNet-18 as for CIFAR-10, on benchmarks.common.digits, which lie on every GPU; SGD with momentum.

    epochs     an epoch at 32, 128 and 512 images a GPU (questions 1 and 2)
    steps      a step of the network alone, and under DistributedDataParallel: without any message
               (no_sync), with gradients only, with buffers, with other buckets (question 3)
    messages   every collective of DDP's construction and of the first three steps (question 6)
    large      five epochs at 512 a GPU: the rate kept, scaled, and scaled with warm-up; and what
               else than gradients the replicas need (questions 4 and 7). On one GPU: 128 images
    sampler    training with and without `set_epoch` (question 5)
    emulation  DDP against the same ranks in one process (--emulate), parameters after each step

NCCL refuses two ranks on one GPU: where ranks are more than GPUs, they share them, and gloo
sends. Rows are appended to the JSON file as they come; benchmarks.scaling.ddp_report writes the
page.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.common.arguments import count, require_module

if __name__ == "__main__":
    require_module("torch", "torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from benchmarks.common import digits, results
from benchmarks.common.torch_device import Device
from benchmarks.common.torch_nets import Network
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import INPUT, Chain, Conv, Linear, Net, Norm, Pool, Relu, Shape

BATCHES: Final = (32, 128, 512)
RATE: Final = 0.1
BASE: Final = 128
"""Images of the batch that the rate is for."""
TINY: Final = "tiny"
LARGE_EPOCHS: Final = 5
SAMPLER_EPOCHS: Final = 10
SAMPLER_IMAGES: Final = 20_000
EMULATED_STEPS: Final = 5
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "base": {},
    "scaled": {"power": 1.0},
    "rule": {"power": 1.0, "warmup": 2},
    "long warm-up": {"power": 1.0, "warmup": 6},
    "root": {"power": 0.5, "warmup": 2},
    "gradients only": {"ddp": {"broadcast_buffers": False}},
    "other starts": {"apart": True, "ddp": {"broadcast_buffers": False, "init_sync": False}},
    "SyncBatchNorm": {"sync_norm": True},
}  # fmt: skip
"""Of the large batch: the learning rate; what DDP sends, at the rate of --rates."""
SENT: Final = ("gradients only", "other starts", "SyncBatchNorm")
SYNCHRONIZED: Final = "SyncBatchNorm"
"""Left out without NCCL: torch has none on a CPU."""


class Lab:
    """A rank: its device, its place, its images, and where rank 0 writes rows."""

    def __init__(self, c: argparse.Namespace) -> None:
        self.c, self.rank = c, int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        gpus = torch.cuda.device_count()
        self.on = Device(int(os.environ.get("LOCAL_RANK", "0")) % max(1, gpus))
        self.device, self.cuda = self.on.device, self.on.cuda
        self.shares = c.emulate or self.ranks
        self.backend = c.backend or ("nccl" if self.ranks <= gpus else "gloo")
        if self.cuda:
            torch.cuda.set_device(self.device)
        if self.ranks > 1:
            dist.init_process_group(
                self.backend, timeout=timedelta(seconds=60),
                device_id=self.device if self.backend == "nccl" else None,
            )  # fmt: skip
        train, test = digits.digits(c.images, c.test_images)
        self.images, self.labels = self._placed(train)
        self.test = self._placed(test)
        self.began = time.perf_counter()
        about = self.on.about(
            ranks=self.shares, gpus=min(gpus, self.ranks), images=len(self.images),
            backend="emulated" if c.emulate else self.backend,
        )  # fmt: skip
        self.found: dict[str, Any] = {
            "date": results.today(), "command": results.command("scaling.ddp_lab", sys.argv[1:]),
            "about": about, "rows": [],
        }  # fmt: skip

    def _placed(self, data: digits.Images) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.from_numpy(data.images).to(self.device).float().sub_(127.5).div_(64)
        return pixels, torch.from_numpy(data.labels).to(self.device)

    def keep(self, row: dict[str, Any]) -> None:
        """Write a row, on rank 0."""
        if self.rank == 0:
            self.found["rows"].append(row)
            results.write(self.c.out, self.found)
            shown = {k: v for k, v in row.items() if k not in ("events", "samples_s")}
            print(f"{time.perf_counter() - self.began:6.1f} s {shown}", flush=True)

    def network(self, seed: int = 0) -> nn.Module:
        """Return a ResNet-18."""
        torch.manual_seed(seed)
        net = self.c.net
        made = tiny() if net == TINY else resnet(net, digits.SIDE, digits.CLASSES, small=True)
        return Network(made).to(self.device).train()

    def parallel(self, net: nn.Module, **how: Any) -> nn.Module:
        """Wrap a network; on one rank return it as it is, or ranks of it in one process."""
        if self.c.emulate:
            return Emulated(net, self.c.emulate)
        if self.ranks == 1:
            return net
        ids = [self.device.index] if self.cuda else None
        return DistributedDataParallel(net, device_ids=ids, **how)

    def gathered(self, value: float) -> list[float]:
        """Return every rank's number."""
        if self.ranks == 1:
            return [value]
        where = self.device if self.backend == "nccl" else "cpu"
        mine = torch.tensor([value], dtype=torch.float64, device=where)
        every = [torch.zeros_like(mine) for _ in range(self.ranks)]
        dist.all_gather(every, mine)
        return [float(v) for v in every]


class Emulated(nn.Module):
    """Ranks of DistributedDataParallel in one process: one set of parameters, buffers of each.

    Images are those of rank 0, of rank 1 and so on, as many each: every rank normalizes its own.
    The mean loss over all of them has the gradient that DDP has after its all-reduce, the mean over
    ranks, but for the order of sums.
    """

    def __init__(self, net: nn.Module, ranks: int) -> None:
        super().__init__()
        self.replicas = nn.ModuleList([net, *(copy.deepcopy(net) for _ in range(ranks - 1))])
        for other in self.replicas[1:]:
            for mine, first in zip(other.modules(), net.modules(), strict=True):
                for name in mine._parameters:
                    mine._parameters[name] = first._parameters[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, rank by rank; first every rank gets the buffers of rank 0."""
        first = list(self.replicas[0].buffers())
        for other in self.replicas[1:]:
            torch._foreach_copy_(list(other.buffers()), first)
        parts = x.chunk(len(self.replicas))
        return torch.cat([one(part) for one, part in zip(self.replicas, parts, strict=True)])


def tiny() -> Net:
    """Return three convolutions with batch normalization: what a CPU trains in seconds."""
    chain = Chain()
    x = INPUT
    for number, (channels, kernel) in enumerate(((16, 5), (32, 3), (64, 3)), 1):
        x = chain.add(f"conv{number}", Conv(channels, kernel, 2, kernel // 2), x)
        x = chain.add(f"relu{number}", Relu(), chain.add(f"bn{number}", Norm(), x))
    chain.add("fc", Linear(digits.CLASSES), chain.add("pool", Pool("mean"), x))
    return Net(TINY, Shape(3, digits.SIDE, digits.SIDE), tuple(chain.nodes))


def optimizer_of(net: nn.Module, rate: float = RATE) -> torch.optim.SGD:
    """Return SGD as the lab has it."""
    return torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=5e-4)


def step(
    net: nn.Module, optimizer: torch.optim.SGD, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Train on a batch; return the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


# --- times


def epochs(lab: Lab) -> None:
    """Time an epoch at every batch size, after some steps that warm up."""
    for batch in BATCHES:
        net = lab.parallel(lab.network())
        optimizer = optimizer_of(net)
        for _ in range(lab.c.steps):
            step(net, optimizer, lab.images[:batch], lab.labels[:batch])
        order = DistributedSampler(range(len(lab.images)), lab.ranks, lab.rank)
        lab.on.synchronize()
        began = time.perf_counter()
        chosen = torch.tensor(list(order), device=lab.device).split(batch)
        for part in chosen:
            step(net, optimizer, lab.images[part], lab.labels[part])
        lab.on.synchronize()
        spent = max(lab.gathered(time.perf_counter() - began))
        lab.keep({"part": "epochs", "batch": batch, "steps": len(chosen), "epoch_s": spent})


def variants(lab: Lab) -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """Return how the network is wrapped, by name, with the context of its steps."""
    alone = {"alone": lambda: (lab.network(), None)}
    if lab.ranks == 1:
        return alone
    return {
        **alone,
        "no messages": lambda: ((net := lab.parallel(lab.network())), net.no_sync),
        "gradients": lambda: (lab.parallel(lab.network(), broadcast_buffers=False), None),
        "all": lambda: (lab.parallel(lab.network()), None),
        "view": lambda: (lab.parallel(lab.network(), gradient_as_bucket_view=True), None),
        "buckets of 1 MiB": lambda: (lab.parallel(lab.network(), bucket_cap_mb=1), None),
        "one bucket": lambda: (lab.parallel(lab.network(), bucket_cap_mb=1000), None),
    }


def steps(lab: Lab) -> None:
    """Time steps of all variants in turn, and one all-reduce of as many bytes as gradients."""
    made = {name: make() for name, make in variants(lab).items()}
    optimizers = {name: optimizer_of(net) for name, (net, _) in made.items()}
    for batch in BATCHES:
        x, y = lab.images[:batch], lab.labels[:batch]
        samples: dict[str, list[float]] = {name: [] for name in made}
        for round_ in range(-1, lab.c.rounds):
            for name, (net, context) in made.items():
                if lab.ranks > 1:
                    dist.barrier()
                lab.on.synchronize()
                began = time.perf_counter()
                with context() if context else contextlib.nullcontext():
                    for _ in range(lab.c.steps):
                        step(net, optimizers[name], x, y)
                lab.on.synchronize()
                if round_ >= 0:
                    samples[name].append((time.perf_counter() - began) / lab.c.steps)
        for name, taken in samples.items():
            lab.keep({"part": "steps", "batch": batch, "variant": name,
                      "step_s": statistics.median(taken), "samples_s": taken})  # fmt: skip
    if lab.ranks > 1:
        collectives(lab, made["alone"][0])


def collectives(lab: Lab, net: nn.Module) -> None:
    """Time an all-reduce of all gradients, and a broadcast of all buffers, by themselves."""
    sizes = {"all-reduce of gradients": sum(p.numel() for p in net.parameters()),
             "broadcast of buffers": sum(b.numel() for b in net.buffers())}  # fmt: skip
    for name, numbers in sizes.items():
        message, taken = torch.zeros(numbers, device=lab.device), []
        for round_ in range(-1, lab.c.rounds):
            dist.barrier()
            lab.on.synchronize()
            began = time.perf_counter()
            for _ in range(20):
                if name.startswith("all"):
                    dist.all_reduce(message)
                else:
                    dist.broadcast(message, 0)
            lab.on.synchronize()
            if round_ >= 0:
                taken.append((time.perf_counter() - began) / 20)
        lab.keep({"part": "collective", "collective": name, "bytes": message.nbytes,
                  "seconds": statistics.median(taken), "samples_s": taken})  # fmt: skip


# --- messages


def messages(lab: Lab) -> None:
    """Record the collectives of construction and of three steps, as torch.profiler sees them."""
    if lab.ranks == 1:
        return
    for how in ({}, {"broadcast_buffers": False}, {"bucket_cap_mb": 1}):
        state: dict[str, Any] = {}

        def construct(state: dict[str, Any] = state, how: dict[str, Any] = how) -> None:
            state["net"] = lab.parallel(lab.network(), **how)
            state["optimizer"] = optimizer_of(state["net"])

        def train(state: dict[str, Any] = state) -> None:
            step(state["net"], state["optimizer"], lab.images[:32], lab.labels[:32])

        for phase, run in (("construction", construct), ("step 1", train), ("step 2", train),
                           ("step 3", train)):  # fmt: skip
            events = recorded(lab, run)
            lab.keep({"part": "messages", "how": how, "phase": phase, "events": events,
                      "count": len(events)})  # fmt: skip
    net = lab.network()
    lab.keep({
        "part": "tensors",
        "parameters": sum(p.numel() for p in net.parameters()),
        "parameter_tensors": sum(1 for _ in net.parameters()),
        "buffers_bytes": sum(b.nbytes for b in net.buffers()),
        "buffer_tensors": sum(1 for _ in net.buffers()),
    })  # fmt: skip


def recorded(lab: Lab, run: Callable[[], None]) -> list[dict[str, Any]]:
    """Return the events of a run that torch.profiler gives a collective's name or sizes."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if lab.cuda else []
    lab.on.synchronize()
    dist.barrier()
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
        run()
        lab.on.synchronize()
    dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{lab.rank}.json"
        profiler.export_chrome_trace(str(path))
        read = json.loads(path.read_text(encoding="utf-8"))
    words = ("nccl", "gloo", "record_param_comms", "c10d::")
    return [
        {k: e.get(k) for k in ("name", "cat", "ts", "dur", "args")}
        for e in read["traceEvents"]
        if e.get("ph") == "X" and any(word in str(e.get("name", "")).lower() for word in words)
    ]


# --- training


def train(lab: Lab, batch: int, count: int, seed: int, n: int, **how: Any) -> dict[str, Any]:
    """Train for some epochs; return the curve, and how far the replicas are from each other.

    Parameters
    ----------
    batch, count, n : int
        Images of a batch of a GPU, epochs, and images to train on.
    how : dict
        `power` of the batch of all ranks over `BASE` that multiplies the rate; `warmup` epochs;
        `ddp`: keywords of DDP;
        `apart`: each rank starts from weights of its own; `sync_norm`; `fixed`: no `set_epoch`.
    """
    net = lab.network(seed + (1000 * lab.rank if how.get("apart") else 0))
    if how.get("sync_norm") and lab.ranks > 1:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    wrapped = lab.parallel(net, **how.get("ddp", {}))
    rate = RATE * (batch * lab.shares / BASE) ** how.get("power", 0.0)
    optimizer = optimizer_of(wrapped, rate)
    orders = [
        DistributedSampler(range(n), lab.shares, rank, seed=seed, drop_last=True)
        for rank in (range(lab.shares) if lab.c.emulate else (lab.rank,))
    ]
    curve, seen = [], set[int]()
    lab.on.synchronize()
    began = time.perf_counter()
    for number in range(count):
        for order in orders:
            order.set_epoch(0 if how.get("fixed") else number)
        mine = [list(order) for order in orders]
        seen.update(mine[0])
        found = one_epoch(
            lab, wrapped, optimizer, mine, batch,
            lambda done, n=number: rate * warmed(n + done, how.get("warmup", 0)),
        )  # fmt: skip
        curve.append({"epoch": number + 1, **found})
    lab.on.synchronize()
    spent = time.perf_counter() - began
    return {
        "batch": batch, "seed": seed, "images": n, "rate": rate, "warmup": how.get("warmup", 0),
        "seconds": spent, "curve": curve, "test_accuracy": lab.gathered(accuracy(lab, net)),
        "distinct_images": len(seen), **apart(lab, net),
    }  # fmt: skip


def warmed(epochs_done: float, warmup: int) -> float:
    """Return the share of the rate after so many epochs, some of them warm-up."""
    return min(1.0, epochs_done / warmup) if warmup else 1.0


def one_epoch(
    lab: Lab, net: nn.Module, optimizer: torch.optim.SGD, mine: list[list[int]], batch: int,
    rate_at: Callable[[float], float],
) -> dict[str, float]:  # fmt: skip
    """Train on this rank's images; return loss and accuracy, means over batches and ranks.

    Parameters
    ----------
    mine : list of list of int
        Images of this rank, or of each rank that is emulated.
    rate_at : callable
        Learning rate by the share of the epoch that is done with a batch.
    """
    whole = len(mine[0]) // batch
    parts = [p.flatten() for p in torch.tensor(mine, device=lab.device).split(batch, 1)[:whole]]
    total, right = torch.zeros((), device=lab.device), torch.zeros((), device=lab.device)
    for done, part in enumerate(parts, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(done / len(parts))
        x, y = lab.images[part], lab.labels[part]
        optimizer.zero_grad(set_to_none=True)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        right += (logits.detach().argmax(1) == y).sum()
    means = float(total) / len(parts), float(right) / sum(map(len, parts))
    loss_, accuracy_ = (statistics.fmean(lab.gathered(mean)) for mean in means)
    return {"loss": loss_, "train_accuracy": accuracy_}


def accuracy(lab: Lab, net: nn.Module) -> float:
    """Return the share of test images that this rank's replica classifies rightly."""
    net.eval()
    images, labels = lab.test
    with torch.inference_mode():
        right = sum(
            int((net(x).argmax(1) == y).sum())
            for x, y in zip(images.split(1000), labels.split(1000), strict=True)
        )
    net.train()
    return right / len(images)


def apart(lab: Lab, net: nn.Module) -> dict[str, float]:
    """Return the largest difference of any parameter, and of any buffer, from rank 0's."""
    if lab.ranks == 1:  # emulated ranks have one set of parameters
        return {}
    found = {}
    for name, tensors in (("parameters", net.parameters()), ("buffers", net.buffers())):
        mine = torch.cat([t.detach().double().flatten() for t in tensors])
        first = mine.clone()
        dist.broadcast(first, 0)
        found[f"{name}_apart"] = max(lab.gathered(float((mine - first).abs().max())))
    return found


def large(lab: Lab) -> None:
    """Train at 512 images a GPU in every setting; on one GPU at 128."""
    names = lab.c.settings or [n for n in SETTINGS if lab.backend == "nccl" or n != SYNCHRONIZED]
    rates = SETTINGS[lab.c.rates]
    chosen = {n: {**(rates if n in SENT else {}), **SETTINGS[n]} for n in names}
    if lab.shares == 1:
        chosen = {"reference": {}}
    batch = BASE if lab.shares == 1 else lab.c.large
    for seed in range(lab.c.first, lab.c.first + lab.c.seeds):
        for name, how in chosen.items():
            found = train(
                lab, batch, lab.c.large_epochs, seed, len(lab.images), **copy.deepcopy(how)
            )
            lab.keep({"part": "large", "setting": name, "rates": lab.c.rates, **found})


def emulation(lab: Lab) -> None:
    """Train by DDP and, on rank 0, with emulated ranks on the same images; compare parameters."""
    if lab.ranks == 1:
        return
    batch, everything = lab.c.large, lab.c.large * lab.ranks
    net = lab.network(1)
    wrapped, emulated = lab.parallel(net), Emulated(lab.network(1), lab.ranks)
    optimizers = optimizer_of(wrapped), optimizer_of(emulated)
    for number in range(EMULATED_STEPS):
        x, y = (t[number * everything :][:everything] for t in (lab.images, lab.labels))
        own = slice(lab.rank * batch, (lab.rank + 1) * batch)
        loss = step(wrapped, optimizers[0], x[own], y[own])
        if lab.rank == 0:
            step(emulated, optimizers[1], x, y)
            pairs = list(zip(net.parameters(), emulated.parameters(), strict=True))
            lab.keep({
                "part": "emulation", "batch": batch, "step": number + 1, "loss": float(loss),
                "parameters_apart": max(float((a - b).detach().abs().max()) for a, b in pairs),
                "parameters_largest": max(float(a.detach().abs().max()) for a, _ in pairs),
            })  # fmt: skip


def sampler(lab: Lab) -> None:
    """Train with the epoch given to the sampler, and without."""
    n = min(SAMPLER_IMAGES, len(lab.images))
    for seed in range(lab.c.first, lab.c.first + lab.c.seeds):
        for name, how in (("set_epoch", {}), ("no set_epoch", {"fixed": True})):
            found = train(lab, lab.c.sampled, lab.c.epochs, seed, n, **how)
            lab.keep({"part": "sampler", "setting": name, **found})


PARTS: Final = {
    "messages": messages, "steps": steps, "epochs": epochs, "large": large, "sampler": sampler,
    "emulation": emulation,
}  # fmt: skip


def largest_batch(lab: Lab) -> int:
    """Return the images of all ranks in the largest batch that the trainings' parts need."""
    batches = {
        "large": BASE if lab.shares == 1 else lab.c.large, "sampler": lab.c.sampled,
        "emulation": lab.c.large if lab.ranks > 1 else 0,
    }  # fmt: skip
    return lab.shares * max(batches.get(part, 0) for part in lab.c.parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    add("--net", default="resnet18", help="tiny: for ranks that share a CPU")
    add("--backend", choices=("nccl", "gloo"), help="gloo where ranks share a GPU or a CPU")
    add("--emulate", type=int, default=0, help="so many ranks in one process, for `large`")
    add(
        "--rates",
        choices=tuple(SETTINGS),
        default="rule",
        help="setting whose learning rate is kept where what DDP sends is changed",
    )
    add("--settings", nargs="+", choices=tuple(SETTINGS), help="of the large batch; all of them")
    add("--images", type=count, default=50_000)
    add("--test-images", type=count, default=10_000)
    add("--steps", type=count, default=10, help="in a row, for one sample")
    add("--rounds", type=count, default=7)
    add("--seeds", type=count, default=3)
    add("--first", type=int, default=1, help="seed; to add to what was trained")
    add("--large", type=count, default=512, help="images a GPU of the large batch")
    add("--large-epochs", type=count, default=LARGE_EPOCHS)
    add("--sampled", type=count, default=128, help="images a GPU of the sampler's training")
    add("--epochs", type=count, default=SAMPLER_EPOCHS, help="of the sampler's training")
    add("--out", type=Path, required=True)
    c = parser.parse_args()
    lab = Lab(c)
    needed = largest_batch(lab)
    if len(lab.images) < needed:
        parser.error(
            f"expected --images of at least a batch of all ranks, {needed}; got {c.images}"
        )
    failed = False
    for part in c.parts:
        try:
            PARTS[part](lab)
        except Exception as problem:  # the same on all ranks, or the next collective times out
            failed = True
            print(f"rank {lab.rank}, {part}: {problem!r}", file=sys.stderr, flush=True)
            if lab.ranks > 1 and isinstance(problem, dist.DistBackendError):
                raise
    if lab.ranks > 1:
        dist.destroy_process_group()
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
