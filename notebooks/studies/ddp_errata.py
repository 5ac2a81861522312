"""What is wrong in the DistributedDataParallel study, each with the arithmetic that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.base.units import si
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import total
from studies.ddp import Communication, against_smaller_batch, run, speedup, strong, study
from studies.resnet_errata import Erratum

TRAIN_IMAGES: Final = 50_000
IMAGE_BYTES: Final = 32 * 32 * 3
"""CIFAR-10's training images (A. Krizhevsky, *Learning Multiple Layers of Features from Tiny
Images*, 2009)."""


def errata() -> tuple[Erratum, ...]:
    """Return every error, the weightiest first."""
    return tuple(Erratum(claim, finding) for claim, finding in _errata())


def gradient_bytes() -> int:
    """Return the gradients of a ResNet-18 in float32, as an example: the study names no network."""
    return 4 * total(resnet("resnet18"), 1).parameters


def steps(of: Communication) -> int:
    """Return the steps of one epoch of CIFAR-10, the last one partly filled."""
    return -(-TRAIN_IMAGES // (of.batch_per_gpu * of.gpus))


def _errata() -> Iterator[tuple[str, str]]:
    yield from _about_speedups()
    yield from _about_communication()
    yield from _about_bandwidth()


def _about_speedups() -> Iterator[tuple[str, str]]:
    sizes = study().batches_per_gpu
    printed = "; ".join(
        ", ".join(f"{run(size, gpus).speedup:.4g}" for gpus in (1, 2, 4)) for size in sizes
    )
    true = "; ".join(
        f"{speedup(run(size, 2)):.3f}, {speedup(run(size, 4)):.3f} (batch {size})" for size in sizes
    )
    one = run(128, 1)
    yield (
        f"the speed-ups on 1, 2 and 4 GPUs are {printed}",
        f"These divide the time at the next smaller batch by this one on as many GPUs: "
        f"{run(32, 1).time_s:.3f} s / {one.time_s:.3f} s = {against_smaller_batch(one):.4f}. They "
        f"tell what a larger batch gains, not what GPUs gain. T1 / Tp on 2 and 4 GPUs: {true}.",
    )
    two, four = run(512, 2), run(512, 4)
    yield (
        "at batch 512, 4 GPUs were slower by 0.5 s",
        f"The table has {two.time_s:.2f} s on 2 and {four.time_s:.2f} s on 4: faster by "
        f"{two.time_s - four.time_s:.2f} s. Only at batch 32 are 4 GPUs slower, by "
        f"{1e3 * (run(32, 4).time_s - run(32, 2).time_s):.1f} ms.",
    )
    pairs = ", ".join(f"{s:.3f} on {b.gpus} (batch {b.batch} in all)" for _, b, s in strong())
    ideal = ", ".join(f"{100 * speedup(run(size, 4)) / 4:.0f} %" for size in sizes)
    yield (
        "it scales strongly with the batch, and weakly with the number of GPUs",
        f"Strong scaling holds the batch of all GPUs, weak scaling the batch of each. The tables "
        f"hold the batch of each: efficiencies on 4 GPUs are {ideal}. Pairs with the same batch in "
        f"all give the strong speed-ups: {pairs}.",
    )


def _about_communication() -> Iterator[tuple[str, str]]:
    rows = study().communication
    share = [100 * c.communication_s / c.run.time_s for c in rows]
    left = [100 * c.neither_s / c.run.time_s for c in rows]
    yield (
        "communication time is how long the data loader took to load from memory",
        f"That is input, not communication: an all-reduce runs inside the backward pass. By its "
        f"own numbers it is {min(share):.1f} to {max(share):.1f} % of a run and cannot be why GPUs "
        f"do not pay; {min(left):.0f} to {max(left):.0f} % are neither this nor computing.",
    )
    pairs = [(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    ratios = ", ".join(f"{b.compute_s / a.compute_s:.2f}" for a, b in pairs)
    yield (
        "computing takes as long on 4 GPUs as on 2",
        f"With the batch per GPU held, each of 4 GPUs does half the steps of an epoch that each of "
        f"2 does, so its computing should halve. Printed are {ratios} times: the times are not "
        f"those of one rank's share of an epoch.",
    )


def _about_bandwidth() -> Iterator[tuple[str, str]]:
    rows = study().communication
    used = {round(c.data_bytes / 1e9, 6) for c in rows}
    said = study().dataset_gigabytes
    first = rows[0]
    yield (
        f"bandwidth is {said} GB over the communication time",
        f"All six cells are of {', '.join(f'{u:g}' for u in sorted(used))} GB: "
        f"{first.bandwidth_gigabytes_per_s:.5f} GB/s times {first.communication_s:.6f} s. With "
        f"{said} GB the first is {said / first.communication_s:.4f} GB/s. The 50,000 training "
        f"images of CIFAR-10 are {TRAIN_IMAGES * IMAGE_BYTES / 1e9:.4f} GB.",
    )
    handed = steps(first) * gradient_bytes()
    yield (
        "that is the bandwidth utilization of the all-reduce",
        f"An all-reduce moves gradients in every step, not images: a ResNet-18, say (the study "
        f"names no network), {si(gradient_bytes(), 'B')} in each of {steps(first)} steps, "
        f"{si(handed, 'B')} an epoch at batch 32 on 2 GPUs; in the printed time that would take "
        f"{si(first.bus_bytes_per_s(handed), 'B/s')}.",
    )
    second = rows[1]
    yield (
        "T = 2 (N - 1) T(X itsize / N)",
        f"Quoted and not used: the bytes that a ring sends per rank are 2 (p - 1)/p of the vector, "
        f"1 on 2 GPUs and 1.5 on 4. The table divides the same bytes on both, which is algorithm, "
        f"not bus bandwidth: {second.bandwidth_gigabytes_per_s:.3f} GB/s on 4 GPUs at batch 32 "
        f"would be {second.bus_bytes_per_s(second.data_bytes) / 1e9:.3f} GB/s.",
    )
