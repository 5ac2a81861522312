"""A published study of DistributedDataParallel on 1, 2 and 4 GPUs: its numbers, recomputed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import bus_bytes_per_s


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of Tables 1 to 3: measured time, and the speed-up as printed."""

    batch_per_gpu: int
    gpus: int
    time_s: float
    speedup: float

    @property
    def batch(self) -> int:
        """Images of all GPUs together in a step."""
        return self.batch_per_gpu * self.gpus


@dataclass(frozen=True, slots=True)
class Communication:
    """One row of Tables 4 to 6 with its cell of Table 7; bandwidth as printed, in GB/s."""

    batch_per_gpu: int
    gpus: int
    compute_s: float
    communication_s: float
    bandwidth_gigabytes_per_s: float

    @property
    def run(self) -> Run:
        """The run of the same batch and GPUs."""
        return run(self.batch_per_gpu, self.gpus)

    @property
    def data_bytes(self) -> float:
        """Bytes that the printed bandwidth and time make."""
        return self.bandwidth_gigabytes_per_s * 1e9 * self.communication_s

    @property
    def neither_s(self) -> float:
        """What is left of the run: neither computing nor communication."""
        return self.run.time_s - self.compute_s - self.communication_s

    def bus_bytes_per_s(self, size_bytes: float) -> float:
        """Return 2 (p - 1)/p n/t, were the time an all-reduce's of n bytes."""
        return bus_bytes_per_s("all-reduce", size_bytes, self.communication_s, self.gpus)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Training loss and accuracy after the fifth epoch."""

    what: str
    loss: float
    percent: float


@dataclass(frozen=True, slots=True)
class Study:
    """All that the study printed; the size is what it says of its data."""

    dataset_gigabytes: float
    runs: tuple[Run, ...]
    communication: tuple[Communication, ...]
    accuracy: tuple[Accuracy, ...]

    @property
    def batches_per_gpu(self) -> tuple[int, ...]:
        """Batch sizes per GPU, as the tables follow each other."""
        return tuple(dict.fromkeys(r.batch_per_gpu for r in self.runs))


@cache
def study() -> Study:
    """Return the study's numbers as printed."""
    file = resources.files("studies").joinpath("ddp.toml")
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    return Study(
        read["dataset_gigabytes"],
        tuple(Run(**entry) for entry in read["run"]),
        tuple(Communication(**entry) for entry in read["communication"]),
        tuple(Accuracy(**entry) for entry in read["accuracy"]),
    )


def run(batch_per_gpu: int, gpus: int) -> Run:
    """Return one run.

    Raises
    ------
    ModelError
        If the study has none of this batch and number of GPUs.
    """
    for found in study().runs:
        if (found.batch_per_gpu, found.gpus) == (batch_per_gpu, gpus):
            return found
    raise ModelError(
        f"expected a run of batch 32, 128 or 512 per GPU on 1, 2 or 4 GPUs; got {batch_per_gpu} "
        f"on {gpus}; take one of those"
    )


def speedup(of: Run) -> float:
    """Return T1 / Tp at the same batch per GPU: images per second against one GPU.

    Every run trains on the same images, so that it is also the scaled speed-up of weak scaling.
    """
    return run(of.batch_per_gpu, 1).time_s / of.time_s


def against_smaller_batch(of: Run) -> float:
    """Return the time at the next smaller batch per GPU over this one: what the study printed."""
    sizes = study().batches_per_gpu
    at = sizes.index(of.batch_per_gpu)
    return run(sizes[at - 1], of.gpus).time_s / of.time_s if at else 1.0


def strong() -> tuple[tuple[Run, Run, float], ...]:
    """Return pairs of one and of more GPUs with the same batch of all GPUs, and T1 / Tp."""
    alone = {r.batch: r for r in study().runs if r.gpus == 1}
    return tuple(
        (alone[r.batch], r, alone[r.batch].time_s / r.time_s)
        for r in study().runs
        if r.gpus > 1 and r.batch in alone
    )
