"""Adds training batches of the MLP to a built report: simple timelines, sizes by the formulas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.result import Analysis
from perfmodel.programs.program import Options
from perfmodel.readers import read
from support.build_report import ReportBuilder
from support.build_thread import Thread

BATCH_US: Final = 1_000
"""One batch's own length in microseconds of pace 1; the next starts after 1.1 times that."""

TIMES_US: Final[dict[str, tuple[int, int]]] = {
    "copying images host -> device": (10, 110),
    "forward": (120, 220),
    "forward GEMM 1": (125, 135),
    "forward GEMM 2": (140, 150),
    "backward": (230, 800),
    "backward GEMM 1": (235, 245),
    "backward GEMM 2": (250, 260),
    "backward GEMM 3": (265, 275),
    "cudaMemcpyDeviceToHost": (400, 500),
    "MPI_Allreduce": (510, 650),
    "cudaMemcpyHostToDevice": (660, 760),
    "step": (810, 860),
}
"""Start and end of every range on the host, from the start of its batch."""

KERNELS_US: Final[dict[str, tuple[int, int]]] = {
    "forward GEMM 1": (150, 180),
    "forward GEMM 2": (180, 190),
    "backward GEMM 1": (260, 270),
    "backward GEMM 2": (270, 280),
    "backward GEMM 3": (280, 340),
    "step": (830, 850),
}
"""Start and end of the one kernel of every range on the GPU."""


MODEL_TIMES_US: Final[dict[str, tuple[int, int]]] = {
    "forward": (120, 620),
    "cudaMemcpyDeviceToHost": (230, 330),
    "MPI_Allreduce": (340, 480),
    "cudaMemcpyHostToDevice": (490, 590),
    "backward": (630, 800),
    "backward GEMM 1": (635, 645),
    "backward GEMM 2": (650, 660),
    "backward GEMM 3": (665, 675),
}
"""Where model parallelism differs: z2 is summed between the products of `forward`."""

MODEL_KERNELS_US: Final[dict[str, tuple[int, int]]] = {
    "backward GEMM 1": (660, 670),
    "backward GEMM 2": (670, 680),
    "backward GEMM 3": (680, 740),
}


@dataclass(frozen=True, slots=True)
class Training:
    """What the batches do; `pace` stretches every batch in turn.

    `parallel` is 'data' (all-reduce of the gradients) or 'model' (of z2, C x B).
    """

    D: int = 784
    H: int = 512
    C: int = 10
    B: int = 3000
    p: int = 2
    b: int = 4
    pace: Sequence[int] = (8, 1, 1, 1, 1, 1)
    gpu: bool = True
    mpi: bool = True
    memory: str = "pageable"
    label: str = "batch iteration"
    parallel: str = "data"

    @property
    def messages(self) -> tuple[int, ...]:
        """Bytes of every message that is copied out, summed and copied back."""
        return self.gradients if self.parallel == "data" else (self.b * self.C * self.B,)

    @property
    def gradients(self) -> tuple[int, ...]:
        """Bytes of W1, b1, W2, b2."""
        return tuple(self.b * n for n in (self.H * self.D, self.H, self.C * self.H, self.C))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Bytes of a rank's images and labels."""
        images = self.B // self.p if self.parallel == "data" else self.B
        return tuple(self.b * n * images for n in (self.D, self.C))

    def run(self, thread: Thread, start: int = 1_000_000, *, device: int = 0) -> int:
        """Add all batches from `start` (ns) on; return the end of the last."""
        at = start
        for pace in self.pace:
            self._batch(thread, at, 1000 * pace, device)
            at += 1100 * BATCH_US * pace
        return at

    def _batch(self, thread: Thread, start: int, unit: int, device: int) -> None:
        def span(of: tuple[int, int]) -> tuple[int, int]:
            return start + unit * of[0], start + unit * of[1]

        model = self.parallel == "model"
        places = TIMES_US | (MODEL_TIMES_US if model else {})
        kernels = KERNELS_US | (MODEL_KERNELS_US if model else {})
        thread.range(self.label, start, start + unit * BATCH_US)
        for name, times in sorted(places.items(), key=lambda item: item[1][0]):
            begin, end = span(times)
            thread.range(name, begin, end)
            if self.gpu and name in kernels:
                api = (begin + unit, begin + 2 * unit)
                thread.kernel("gemm", api, span(kernels[name]), device=device)
        if self.gpu:
            for name, kind, sizes in (
                ("copying images host -> device", "h2d", self.inputs),
                ("cudaMemcpyDeviceToHost", "d2h", self.messages),
                ("cudaMemcpyHostToDevice", "h2d", self.messages),
            ):
                self._copies(thread, kind, sizes, span(places[name]), device)
        if self.mpi:
            begin, end = span(places["MPI_Allreduce"])
            each = (end - begin) // len(self.messages)
            for i, size in enumerate(self.messages):
                thread.mpi("MPI_Allreduce", begin + i * each, begin + (i + 1) * each, size)

    def _copies(
        self, thread: Thread, kind: str, sizes: tuple[int, ...], span: tuple[int, int], device: int
    ) -> None:
        each = (span[1] - span[0]) // len(sizes)
        host = {"h2d": "src", "d2h": "dst"}[kind]
        for i, size in enumerate(sizes):
            begin = span[0] + i * each
            thread.memcpy(
                kind, size, (begin, begin + each), (begin + each // 10, begin + each),
                device=device, api_name="cudaMemcpy_v3020", **{host: self.memory},
            )  # fmt: skip


def training_report(
    path: Path,
    training: Training | None = None,
    *,
    ranks: Sequence[int] | None = None,
    version: str = "2024.2.3",
    lag_ns: int = 0,
    utc_start_ns: int = 1_700_000_000_000_000_000,
    world_size: int | None = None,
    mark: str | None = None,
) -> Path:
    """Write one report of `ranks` (all p by default), each `lag_ns` behind the one before it."""
    training = training or Training()
    report = ReportBuilder(version, utc_start_ns=utc_start_ns, world_size=world_size)
    chosen = range(training.p) if ranks is None else ranks
    for rank in chosen if training.gpu else ():
        report.gpu(rank)
    for rank in chosen:
        thread = report.thread(pid=1000 + rank, rank=rank if training.mpi else None)
        if mark is not None:
            thread.mark(mark, 500)
        training.run(thread, 1_000_000 + rank * lag_ns, device=rank)
    return report.write(path)


_WRITTEN: Final = TemporaryDirectory(prefix="perfmodel-reports-")


@cache
def shared_report(training: Training = Training(), *, name: str = "r", **options: Any) -> Path:
    """Write such a report once for all tests that only read it."""
    folder = Path(_WRITTEN.name) / str(len([*Path(_WRITTEN.name).iterdir()]))
    folder.mkdir()
    return training_report(folder / f"{name}.sqlite", training, **options)


def analyzed(*reports: Path, **options: Any) -> Analysis:
    """Analyze reports; `values` and the other fields of `analysis.runs.Options` are options."""
    return analyze([read(path) for path in reports], Options(**{"values": {}} | options))


MODEL: Final = Training(parallel="model")


def model_report(path: Path, training: Training = MODEL, **changes: Any) -> Path:
    """Write a run of model parallelism, with its mark."""
    config = {
        "perfmodel_config": 1, "workload": "mlp", "input_size": training.D,
        "hidden_size": training.H, "num_classes": training.C, "batch_size": training.B,
        "ranks": training.p, "dtype": "float32", "parallel": "model", "transport": "host",
    }  # fmt: skip
    return training_report(path, training, mark=json.dumps(config | changes))
