"""What PyTorch experts would write for the trainer's step: DDP, compiled DDP, whole-step graphs.

The mathematics is `trainer.networks`': z1 = x W1^T + b1, a1 = sigmoid(z1), z2 = a1 W2^T + b2,
softmax cross-entropy averaged over the global batch, p <- p - rate (g + decay p) with decay on W1
and W2 only. The training set lies on the GPU and every step reads its own batch there; the loss of
every batch is stored on the device. Ours does both.

Without a GPU the peers run on the CPU over gloo, and a graph is replaced by its body: enough to
test what they compute.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes under mpirun

import torch
import torch.distributed as dist
from torch.nn import functional

from trainer.config import Config
from trainer.data import Dataset
from trainer.mpi import Communicator
from trainer.steps.batches import Split

WARM_UP: Final = 2  # bodies run per shape before a capture: libraries load, NCCL connects


def join(comm: Communicator) -> torch.device:
    """Make torch's process group out of MPI's ranks; return this rank's device."""
    cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", comm.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if comm.size > 1 and not dist.is_initialized():
        port = np.zeros(1, np.int64)
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port[0] = probe.getsockname()[1]
            comm.broadcast(port)  # rank 0's, bound until all know it
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port[0]))
        dist.init_process_group(
            "nccl" if cuda else "gloo", rank=comm.rank, world_size=comm.size,
            timeout=timedelta(seconds=120), device_id=device if cuda else None,
        )  # fmt: skip
    return device


def leave() -> None:
    """End the process group; every graph that captured it must be gone."""
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class Problem:
    """What all peers of one size share: the sizes, the start, and this rank's batches.

    Attributes
    ----------
    initial : float32 tensor, shape (n,)
        W1 (H, D), b1 (H), W2 (C, H), b2 (C), one after the other.
    x, labels : tuples of tensors
        Per batch: images (B', D) and classes (B') of this rank, on the device.
    sizes : tuple of int
        Images of each batch over all ranks.
    """

    config: Config
    ranks: int
    device: torch.device
    initial: torch.Tensor
    x: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]

    @classmethod
    def make(
        cls, config: Config, dataset: Dataset, initial: np.ndarray, comm: Communicator,
        device: torch.device,
    ) -> Problem:  # fmt: skip
        """Put this rank's share of every batch of `dataset` on the device."""
        split = Split(len(dataset.labels), config.batch_size, comm.size, comm.rank)
        x, labels = [], []
        for low, high in map(split.bounds, range(len(split))):
            if low == high:
                raise ValueError(f"batch {len(x) + 1}: expected an image for every rank; got none")
            pixels = torch.from_numpy(dataset.images[low:high]).to(device).to(torch.float32)
            x.append(pixels.div_(255) if config.pixels == "unit" else pixels)
            labels.append(torch.from_numpy(dataset.labels[low:high]).to(device).to(torch.int64))
        start = torch.from_numpy(initial.astype(np.float32)).to(device)
        sizes = tuple(split.size(index) for index in range(len(split)))
        return cls(config, comm.size, device, start, tuple(x), tuple(labels), sizes)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """View a flat buffer of n elements as W1, b1, W2, b2."""
        d, h, c = self.config.input_size, self.config.hidden_size, self.config.num_classes
        parts = flat.split([h * d, h, c * h, c])
        return [parts[0].view(h, d), parts[1], parts[2].view(c, h), parts[3]]


class Net(torch.nn.Module):
    """The network as a module whose output is the loss, so that a compiler sees all of forward."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        config = problem.config
        kind = {"device": problem.device, "dtype": torch.float32}
        self.first = torch.nn.Linear(config.input_size, config.hidden_size, **kind)
        self.second = torch.nn.Linear(config.hidden_size, config.num_classes, **kind)
        self.reset(problem)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of images x (B', D) with classes labels (B')."""
        return functional.cross_entropy(self.second(torch.sigmoid(self.first(x))), labels)

    @torch.no_grad()
    def reset(self, problem: Problem) -> None:
        """Start from the common initial parameters."""
        for parameter, start in zip(self.parameters(), problem.views(problem.initial), strict=True):
            parameter.copy_(start)

    def optimizer(self, config: Config) -> torch.optim.Optimizer:
        """Return fused SGD; weights decay, biases do not."""
        weights, biases = (
            [m.get_parameter(kind) for m in (self.first, self.second)]
            for kind in ("weight", "bias")
        )
        groups = [{"params": weights, "weight_decay": config.regularization}, {"params": biases}]
        return torch.optim.SGD(groups, lr=config.learning_rate, fused=True)


class Peer(ABC):
    """One way to train; `run_batches` goes on through the epoch's batches, asynchronously.

    Parameters
    ----------
    math : {'fp32', 'tf32'}
        How matrix products of float32 are computed.
    """

    def __init__(self, problem: Problem, math: str) -> None:
        self.problem, self.math = problem, math
        self._next = 0
        self._losses = torch.zeros(len(problem.x), device=problem.device)
        # DDP averages over ranks; the gradient is the sum over images / the batch's size.
        self._factors = [
            len(x) * problem.ranks / size for x, size in zip(problem.x, problem.sizes, strict=True)
        ]

    def prepare(self) -> None:
        """Make everything (collective), then stand before batch 0 with the initial parameters."""
        self._use_math()
        self._make()
        self.synchronize()
        self._next = 0

    def run_batches(self, count: int) -> None:
        """Train on the next `count` batches; the last batch of the set is followed by the first."""
        self._use_math()
        step, batches = self._step, len(self.problem.x)
        for _ in range(count):
            step(self._next)
            self._next = (self._next + 1) % batches

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.problem.device.type == "cuda":
            torch.cuda.synchronize(self.problem.device)

    @abstractmethod
    def parameters(self) -> np.ndarray:
        """Return W1, b1, W2, b2 as a flat host array of n elements."""

    def close(self) -> None:
        """Free what is on the device: graphs first, because they hold NCCL's communicator."""
        self.synchronize()
        self.__dict__.clear()

    def _use_math(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self.math == "tf32"

    @abstractmethod
    def _make(self) -> None:
        """Build what trains, on the device."""

    @abstractmethod
    def _step(self, index: int) -> None:
        """Train on a batch."""


class Ddp(Peer):
    """DistributedDataParallel with torch.optim.SGD(fused=True); on one rank the module alone.

    Parameters
    ----------
    compiled : bool
        Under torch.compile.
    """

    def __init__(self, problem: Problem, math: str, *, compiled: bool = False) -> None:
        super().__init__(problem, math)
        self._compiled = compiled

    def _make(self) -> None:
        problem = self.problem
        self._net = Net(problem)
        self._model: Any = self._net
        if problem.ranks > 1:
            cuda = problem.device.type == "cuda"
            self._model = torch.nn.parallel.DistributedDataParallel(
                self._net, device_ids=[problem.device.index] if cuda else None,
                gradient_as_bucket_view=True, static_graph=not self._compiled,
            )  # fmt: skip
        if self._compiled:
            allow_recompilation()
            self._model = torch.compile(self._model, dynamic=False)
        self._optimizer = self._net.optimizer(problem.config)
        for index in first_of_each_shape(problem):
            for _ in range(WARM_UP):  # compiles; DDP rebuilds its buckets after the first
                self._step(index)
        self._net.reset(problem)

    def _step(self, index: int) -> None:
        problem, factor = self.problem, self._factors[index]
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._model(problem.x[index], problem.labels[index])
        (loss if factor == 1 else loss * factor).backward()
        self._optimizer.step()
        self._losses[index] = loss.detach()

    def parameters(self) -> np.ndarray:
        return torch.nn.utils.parameters_to_vector(self._net.parameters()).detach().cpu().numpy()


def first_of_each_shape(problem: Problem) -> list[int]:
    """Return one batch of each number of images: libraries and compilers work per shape."""
    lengths = [len(x) for x in problem.x]
    return sorted({length: lengths.index(length) for length in lengths}.values())


def allow_recompilation() -> None:
    """Let one function be compiled for every size of the ladder."""
    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit"):
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 256)
