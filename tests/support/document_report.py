"""A report with the medians of Figure 11 of the CME 213 final project, built as a timeline.

Two ranks train one epoch of 20 batches, rank 1 `LAG` behind rank 0: 40 instances of each range.
Batch 0 warms up (kernels are loaded in its forward pass). Of the others, 9 are faster than the
median one, 2 equal to it and 8 slower, all ranges together, so that every median is exact and
the ranges of a batch add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.build_report import ReportBuilder
from support.build_thread import Span, Thread

D, H, C, B, RANKS, ITEM_BYTES = 784, 512, 10, 3000, 2, 4
BATCHES: Final = 20
LAG: Final = 20_000
GRADIENTS: Final = tuple(ITEM_BYTES * n for n in (H * D, H, C * H, C))
"""Bytes of W1, b1, W2, b2: 1,628,200 together, and 3,256,400 both ways."""
IMAGES: Final = tuple(ITEM_BYTES * n * B // RANKS for n in (D, C))
"""Bytes of a rank's share of a batch: its images and its one-hot labels."""

# Nanoseconds: median, half the spread of the batches after the first, the first batch.
# The first has the document's maximum where the batch's own maximum leaves room for it.
Spread = tuple[int, int, int]
HOST: Final[dict[str, Spread]] = {
    "batch iteration": (4_958_000, 190_000, 9_941_000),
    "copying images host -> device": (2_002_000, 120_000, 2_002_000),
    "forward": (698_573, 6_000, 4_955_000),
    "forward GEMM 1": (6_166, 500, 41_610),
    "forward GEMM 2": (5_285, 300, 8_547),
    "backward": (2_156_000, 60_000, 2_879_000),
    "backward GEMM 1": (5_555, 300, 9_728),
    "backward GEMM 2": (5_300, 300, 9_000),
    "backward GEMM 3": (5_290, 300, 9_949),
    "cudaMemcpyDeviceToHost": (135_983, 900, 155_386),
    "MPI_Allreduce": (409_599, 12_000, 1_007_000),
    "cudaMemcpyHostToDevice": (145_807, 3_000, 177_147),
    "step": (55_300, 1_200, 58_962),
}
"""Time between push and pop. The document does not show backward GEMM 2."""

PROJECTION: Final[dict[str, Spread]] = {
    "copying images host -> device": (574_799, 20_000, 934_559),
    "forward": (682_111, 5_800, 4_885_000),
    "forward GEMM 1": (470_879, 5_000, 486_527),
    "forward GEMM 2": (100_112, 500, 130_143),
    "backward GEMM 1": (234_144, 200, 249_759),
    "backward GEMM 2": (101_000, 500, 130_000),
    "backward GEMM 3": (688_815, 5_000, 705_215),
    "cudaMemcpyDeviceToHost": (124_960, 190, 125_152),
    "cudaMemcpyHostToDevice": (131_055, 400, 158_016),
    "step": (44_608, 800, 45_440),
}
"""From the first GPU operation's start to the last one's end."""

DERIVED_PROJECTION: Final = {"batch iteration": 3_571_000, "backward": 2_143_000}
"""Medians of the projections that follow from the others."""

TRAIN: Final = (133_294_000, 133_489_000)
SETUP: Final = (29_012_000, 29_072_000)
"""GPU parallel train and its train setup, by rank."""


def document_report(path: Path, version: str = "2024.2.3", *, all_tables: bool = False) -> Path:
    """Write the report to `path`."""
    report = ReportBuilder(version, all_tables=all_tables)
    report.gpu(0)
    report.gpu(1)
    for rank in range(RANKS):
        thread = report.thread(pid=1000 + rank, rank=rank)
        thread.mpi("MPI_Init", 1_000, 200_000, source="other")
        start = 1_000_000 + rank * LAG
        thread.range("GPU parallel train", start, start + TRAIN[rank])
        thread.range("train setup", start + 5_000, start + 5_000 + SETUP[rank])
        at = start + max(SETUP) + 10_000
        for batch in range(BATCHES):
            at = _Batch(thread, rank, _pace(batch)).run(at)
        thread.mpi(
            "MPI_Finalize", start + TRAIN[rank], start + TRAIN[rank] + 100_000, source="other"
        )
    return report.write(path)


def _pace(batch: int) -> int | None:
    """Return how slow a batch is, from -9 to 9; None for the first."""
    paces = [*range(-9, 0), 0, 0, *range(1, 9)]
    return None if batch == 0 else paces[7 * batch % len(paces)]


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch of one rank; each method adds a range's content and returns its end."""

    thread: Thread
    device: int
    pace: int | None

    def run(self, start: int) -> int:
        at = self.copy_images(start + 5_000) + 10_000
        at = self.forward(at) + 10_000
        at = self.backward(at) + 10_000
        self.step(at)
        return self.enclose("batch iteration", start)

    def copy_images(self, start: int) -> int:
        end = self.enclose("copying images host -> device", start)
        length = self.on_gpu("copying images host -> device")
        self.copies("h2d", IMAGES, end - 62_020 - length, length)
        return end

    def forward(self, start: int) -> int:
        end = self.enclose("forward", start)
        first = start + 8_000
        last = first + self.on_gpu("forward")
        small = self.on_gpu("forward GEMM 2")
        at = self.gemm("forward GEMM 1", start + 1_000, first)
        self.kernel("sigmoid", at, (last - small - 100_000, last - small - 50_000))
        at = self.gemm("forward GEMM 2", at + 5_000, last - small - 50_000)
        self.kernel("softmax", at, (last - 50_000, last))
        self.thread.synchronize(at + 5_000, end - 1_000)
        return end

    def backward(self, start: int) -> int:
        end = self.enclose("backward", start)
        h2d = end - 1_000 - self.on_host("cudaMemcpyHostToDevice")
        mpi = h2d - 1_000 - self.on_host("MPI_Allreduce")
        d2h = mpi - 1_000 - self.on_host("cudaMemcpyDeviceToHost")
        at, gpu = start + 1_000, start + 8_000
        for name in ("backward GEMM 1", "backward GEMM 2", "backward GEMM 3"):
            at = self.gemm(name, at, gpu) + 500
            gpu += self.on_gpu(name)
            self.kernel("row sums", at, (gpu, gpu + 90_000))
            at, gpu = at + 5_000, gpu + 90_000
        self.thread.synchronize(at, d2h - 1_000)
        self.staged("cudaMemcpyDeviceToHost", "d2h", d2h)
        self.all_reduce(mpi)
        self.staged("cudaMemcpyHostToDevice", "h2d", h2d)
        return end

    def step(self, start: int) -> int:
        end = self.enclose("step", start)
        gpu = start + 5_000
        ends = gpu + self.on_gpu("step")
        spans = [
            (gpu, ends - 12_000),
            *((ends - k, ends - k + 3_000) for k in (12_000, 8_000, 3_000)),
        ]
        for i, span in enumerate(spans):
            self.kernel("update", start + 1_000 + 3_500 * i, span)
        self.thread.synchronize(start + 15_000, end - 500)
        return end

    def gemm(self, name: str, start: int, gpu: int) -> int:
        """Add a range with one kernel; the kernel outlives it."""
        end = self.enclose(name, start)
        kernel = "void gemm<float>(const T1 *, const T1 *, T1 *, int, int, int)"
        launch = (start + 500, end - 500)
        self.thread.kernel(kernel, launch, (gpu, gpu + self.on_gpu(name)), device=self.device)
        return end

    def kernel(self, name: str, launch: int, gpu: Span) -> None:
        self.thread.kernel(name, (launch, launch + 3_000), gpu, device=self.device)

    def staged(self, name: str, kind: str, start: int) -> None:
        """Add a range of synchronous copies that ends with the last of them, but for 5 µs."""
        end = self.enclose(name, start)
        length = self.on_gpu(name)
        self.copies(kind, GRADIENTS, end - 4_000 - length, length)

    def copies(self, kind: str, sizes: tuple[int, ...], start: int, length: int) -> None:
        """Add copies that take `length` together; all but the first are short."""
        took = [length - 3_000 * (len(sizes) - 1)] + [2_000] * (len(sizes) - 1)
        for size, ns in zip(sizes, took, strict=True):
            api = (start - 600, start + ns + 300)
            self.thread.memcpy(kind, size, api, (start, start + ns), device=self.device,
                               api_name="cudaMemcpy_v3020")  # fmt: skip
            start += ns + 1_000

    def all_reduce(self, start: int) -> None:
        end = self.enclose("MPI_Allreduce", start)
        ends = (end - 15_000, end - 10_000, end - 5_000, end)
        for size, begin, finish in zip(GRADIENTS, (start, *ends[:-1]), ends, strict=True):
            self.thread.mpi("MPI_Allreduce", begin + 200, finish - 200, size)

    def enclose(self, name: str, start: int) -> int:
        """Add a range and return its end."""
        end = start + self.on_host(name)
        self.thread.range(name, start, end)
        return end

    def on_host(self, name: str) -> int:
        return self._take(HOST[name])

    def on_gpu(self, name: str) -> int:
        return self._take(PROJECTION[name])

    def _take(self, spread: Spread) -> int:
        median, half, first = spread
        return first if self.pace is None else median + half * self.pace // 9
