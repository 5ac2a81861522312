"""Adds batches that the host only queues: NCCL, a kernel between GPUs, CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from support.build_thread import Thread
from support.build_training import Training, training_report

Launch = tuple[str, tuple[str, ...], int]
"""A kernel, the ranges around its launch from the batch inwards, its microseconds on the GPU."""

NCCL_KERNEL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAUNCH_US: Final = 3
"""The host's time for a launch; ranges begin and end without any."""


@dataclass(frozen=True, slots=True)
class QueuedTraining:
    """Batches whose images stay on the GPU and whose host waits for nothing.

    The host needs 3 µs a launch and 4 µs beside them, the GPU what the kernels take, one after the
    other; the first batch compiles, for 2 ms. With `graph` the first epoch of `epoch` batches
    records them. Rank r's last product takes `skew_us` r less and its collective so much more.
    """

    transport: str = "nccl"
    gemm: str = "cublas"
    math: str = "ieee"
    parallel: str = "data"
    graph: str = ""
    overlap: bool = False
    batches: int = 12
    epoch: int = 4
    skew_us: int = 0
    D: int = 784
    H: int = 512
    C: int = 10
    B: int = 3000
    p: int = 2
    gpu: bool = True
    mpi: bool = False

    @property
    def mark(self) -> str:
        """The trainer's configuration mark of such a run."""
        names = {"D": "input_size", "H": "hidden_size", "C": "num_classes", "B": "batch_size"}
        sizes = {name: getattr(self, symbol) for symbol, name in names.items()}
        said = {k: asdict(self)[k] for k in ("transport", "gemm", "math", "parallel", "overlap")}
        return json.dumps(
            {"perfmodel_config": 1, "workload": "mlp", **sizes, "ranks": self.p, "dtype": "float32",
             **said, "backend": "cupy", "graph": bool(self.graph), "data_on": "device",
             "sync_ranges": False}
        )  # fmt: skip

    def launches(self, rank: int) -> list[Launch]:
        """Kernels of a batch, in order; 20 µs for a large product."""
        waited = self.skew_us * rank
        forward, backward = ("forward",), ("backward",)
        last = ("gemm", (*backward, "backward GEMM 3"), 20 - waited)
        if self.gemm == "fused":
            compute = [
                ("gemm", (*forward, "forward GEMM 1"), 20),
                ("output_layer", forward, 6),
                ("backward_hidden", (*backward, "backward GEMM 1"), 8),
                last,
            ]
        else:
            compute = [
                ("gemm", (*forward, "forward GEMM 1"), 20),
                ("bias_sigmoid", forward, 3),
                ("gemm", (*forward, "forward GEMM 2"), 4),
                ("softmax_gradient", forward, 2),
                ("gemm", (*backward, "backward GEMM 1"), 4),
                ("gemm", (*backward, "backward GEMM 2"), 4),
                ("sigmoid_gradient", backward, 3),
                last,
            ]
        step: Launch = ("descend", ("step",), 3)
        if self.transport == "peer":
            return [*compute, ("sum_and_step", ("peer all-reduce and step",), 12 + waited)]
        if self.transport != "nccl":
            return [*compute, step]
        if self.parallel == "model":
            compute.insert(3, (NCCL_KERNEL, (*forward, "ncclAllReduce"), 14 + waited))
            return [*compute, step]
        early = [(NCCL_KERNEL, (*backward, "ncclAllReduce"), 10)] if self.overlap else []
        reduce: Launch = (NCCL_KERNEL, (*backward, "ncclAllReduce"), 26 + waited)
        return [*compute[:-1], *early, last, reduce, step]

    def run(self, thread: Thread, start: int = 1_000_000, *, device: int = 0) -> int:
        """Add all batches from `start` (ns) on; return the end of the last on the GPU."""
        at = done = start
        for batch in range(self.batches):
            recorded = bool(self.graph) and 0 < batch < self.epoch
            replayed = bool(self.graph) and batch > 0
            begin = at
            if not replayed or recorded:
                at, done = self._eager(thread, at, done, device, queued=not recorded)
            if batch == 0:
                at += 2_000_000
            if replayed:
                at, done = self._replay(thread, at, done, device)
            at += 4_000
            thread.range("batch iteration", begin, at)
            at += 1_000
        return done

    def _eager(
        self, thread: Thread, at: int, done: int, device: int, *, queued: bool
    ) -> tuple[int, int]:
        """Launch every kernel below its ranges; while a graph is recorded, none of them runs."""
        open_since: dict[tuple[str, ...], int] = {}
        spans: list[tuple[str, int, int]] = []
        before: tuple[str, ...] = ()
        for kernel, path, us in self.launches(device):
            here = {path[: i + 1] for i in range(len(path))}
            for gone in [p for p in open_since if p not in here or before == path]:
                if gone not in here or len(gone) == len(path) == 2:
                    spans.append((gone[-1], open_since.pop(gone), at))
            for p in sorted(here, key=len):
                open_since.setdefault(p, at)
            if queued:
                gpu = max(done, at + 2_000)
                done = gpu + 1_000 * us
                thread.kernel(kernel, (at + 100, at + 2_900), (gpu, done), device=device)
            at += 1_000 * LAUNCH_US
            before = path
        spans += [(path[-1], since, at) for path, since in open_since.items()]
        for name, since, until in spans:
            thread.range(name, since, until)
        return at, done

    def _replay(self, thread: Thread, at: int, done: int, device: int) -> tuple[int, int]:
        api = (at + 100, at + 7_900)
        gpu = max(done, at + 2_000)
        kernels = [(kernel, span) for kernel, span in self._nodes(gpu, device)]
        done = kernels[-1][1][1]
        if self.graph == "node":
            thread.graph_launch(api, kernels=kernels, device=device)
        else:
            thread.graph_launch(api, (gpu, done), device=device)
        thread.range("CUDA graph", at, at + 8_000)
        return at + 8_000, done

    def _nodes(self, at: int, rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
        for kernel, _, us in self.launches(rank):
            yield kernel, (at, at + 1_000 * us)
            at += 1_000 * us


def queued_report(path: Path, training: QueuedTraining | None = None, **options: Any) -> Path:
    """Write one report of all ranks with its mark; `options` are those of `training_report`."""
    training = training or QueuedTraining()
    as_training: Any = training
    return training_report(path, as_training, **{"mark": training.mark} | options)


def marked(training: Training, **changes: Any) -> str:
    """Return a mark of `Training`'s sizes with other entries."""
    config = {
        "perfmodel_config": 1, "input_size": training.D, "hidden_size": training.H,
        "num_classes": training.C, "batch_size": training.B, "ranks": training.p,
        "dtype": "float32", "backend": "cupy", "transport": "host",
    }  # fmt: skip
    return json.dumps(config | changes)
