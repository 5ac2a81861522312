"""The floor of a step: what the machine's ceilings, measured in the same run, leave as time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = dist = None  # without it there are no ceilings, and only `Sizes` is of use

from trainer.mpi import Communicator

FLOAT: Final = 4
KERNELS: Final = 5
"""The chain no fusion shortens: z1; z2 and its softmax; dz1; dW1; the step."""


@dataclass
class Ceilings:
    """What this machine reaches; the slowest rank's.

    Attributes
    ----------
    gemm_flops : dict of float
        FLOP/s of the best large square product, by math.
    copy_bytes_per_s : float
        Device memory read and written by a large copy.
    launch_s : float
        One small kernel in a graph, after the one before.
    allreduce_s : dict of float
        NCCL's all-reduce (gloo's without a GPU) by bytes; empty on one rank.
    """

    gemm_flops: dict[str, float] = field(default_factory=dict)
    copy_bytes_per_s: float = 0.0
    launch_s: float = 0.0
    allreduce_s: dict[int, float] = field(default_factory=dict)
    device: Any = None
    comm: Communicator | None = None

    @classmethod
    def measure(cls, device: torch.device, comm: Communicator) -> Ceilings:
        """Measure all but the all-reduces, which wait for their sizes (collective)."""
        found = cls(device=device, comm=comm)
        cuda = device.type == "cuda"
        for math in ("fp32", "tf32"):
            torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
            rates = []
            for n in (4096, 8192) if cuda else (256,):
                a, b, out = (torch.randn(n, n, device=device) for _ in range(3))
                rates.append(2 * n**3 / found._per_call(lambda: torch.mm(a, b, out=out), 4))  # noqa: B023
            found.gemm_flops[math] = max(rates)
        n = 1 << (28 if cuda else 20)
        source, target = (torch.zeros(n, device=device) for _ in range(2))
        found.copy_bytes_per_s = (
            2 * FLOAT * n / found._per_call(lambda: torch.neg(source, out=target), 4)
        )
        small = torch.zeros(1024, device=device)
        found.launch_s = found._per_call(lambda: small.add_(1), 100)
        return found

    def allreduce(self, size: int) -> float:
        """Return the seconds of an all-reduce of so many bytes; 0 on one rank (collective)."""
        assert self.comm is not None
        if self.comm.size == 1:
            return 0.0
        if size not in self.allreduce_s:
            values = torch.zeros(size // FLOAT, device=self.device)
            self.allreduce_s[size] = self._per_call(lambda: dist.all_reduce(values), 20)
        return self.allreduce_s[size]

    def products(self, shapes: dict[str, tuple[int, int, int]], math: str) -> dict[str, float]:
        """Return cuBLAS's seconds of products m x k by k x n at their real shapes (collective)."""
        torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
        found = {}
        for name, (m, n, k) in shapes.items():
            a, b = torch.randn(m, k, device=self.device), torch.randn(k, n, device=self.device)
            out = torch.empty(m, n, device=self.device)
            found[name] = self._per_call(lambda: torch.mm(a, b, out=out), 10)  # noqa: B023
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON types."""
        reduced = {str(size): seconds for size, seconds in self.allreduce_s.items()}
        found = {k: getattr(self, k) for k in ("gemm_flops", "copy_bytes_per_s", "launch_s")}
        return {**found, "allreduce_s": reduced}

    def __str__(self) -> str:
        rates = ", ".join(f"{m} {r / 1e12:.1f} TFLOP/s" for m, r in self.gemm_flops.items())
        copy, launch = self.copy_bytes_per_s / 1e12, self.launch_s * 1e6
        return f"{rates}; copy {copy:.2f} TB/s; launch {launch:.2f} us"

    def _per_call(self, call: Callable[[], Any], calls: int, repeats: int = 5) -> float:
        """Return the best seconds per call, the slowest rank's, of a graph of calls."""
        assert self.comm is not None
        run = _captured(call, calls) if self.device.type == "cuda" else _looped(call, calls)
        best = float("inf")
        for _ in range(repeats):
            self._wait()
            self.comm.barrier()
            started = time.perf_counter()
            run()
            self._wait()
            best = min(best, self.comm.largest((time.perf_counter() - started) / calls))
        return best

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _looped(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            call()

    run()
    return run


def _captured(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        for _ in range(calls):
            call()
    graph.replay()
    return graph.replay


@dataclass(frozen=True)
class Sizes:
    """Of the mean batch on one rank: D inputs, h hidden neurons, C classes, b images."""

    inputs: int
    hidden: float
    classes: int
    images: float

    @classmethod
    def of(cls, cell: Any, ranks: int, parallel: str) -> Sizes:
        """Share the images, or with model parallelism the hidden neurons."""
        batches = -(-cell.images // cell.batch)
        mean = cell.images / batches
        if parallel == "model":
            return cls(cell.inputs, cell.hidden / ranks, cell.classes, mean)
        return cls(cell.inputs, cell.hidden, cell.classes, mean / ranks)

    @property
    def parameters(self) -> float:
        """Return n = hD + h + Ch + C."""
        return self.hidden * (self.inputs + 1 + self.classes) + self.classes

    @property
    def elementwise_bytes(self) -> float:
        """Bytes of the element-wise steps when each is one pass over its matrices.

        Sigmoid reads and writes h b elements, its gradient reads two and writes one; softmax reads
        z2 and y and writes dz2, C b each; the step reads parameters and gradients and writes
        parameters, n each. Fusing them into the products can go below.
        """
        h, b, c = self.hidden, self.images, self.classes
        return FLOAT * (5 * h * b + 3 * c * b + 3 * self.parameters)

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Return m, n, k of the five products, as the peers compute them."""
        d, h, c, b = self.inputs, round(self.hidden), self.classes, round(self.images)
        return {
            "forward 1": (b, h, d), "forward 2": (b, c, h), "backward 1": (b, h, c),
            "backward 2": (c, h, b), "backward 3": (h, d, b),
        }  # fmt: skip

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of the large products, each, and of the thin ones, each."""
        return {
            "large": 2 * self.inputs * self.hidden * self.images,
            "thin": 2 * self.hidden * self.classes * self.images,
        }


def terms(
    sizes: Sizes, ceilings: Ceilings, math: str, parallel: str, ranks: int, images: float
) -> dict[str, float]:
    """Return the floor's terms in seconds (collective); their sum is the floor.

    gemm: the FLOPs of two large and three thin products at the best rate; elementwise: one pass
    each at the copy's bandwidth; allreduce: with data parallelism what the product of W1's gradient
    cannot hide, at least a message without content, with model parallelism all of C B elements;
    launch: `KERNELS` small kernels.
    """
    flops = sizes.flops
    # of three products of split factors, raw pixels save one
    rate = ceilings.gemm_flops["tf32"] / 2 if math == "tf32x3" else ceilings.gemm_flops[math]
    last = flops["large"] / rate
    exposed = 0.0
    if ranks > 1 and parallel == "model":
        exposed = ceilings.allreduce(FLOAT * round(sizes.classes * images))
    elif ranks > 1:
        full = ceilings.allreduce(FLOAT * round(sizes.parameters))
        exposed = max(ceilings.allreduce(FLOAT * 16), full - last)
    return {
        "gemm_s": (2 * flops["large"] + 3 * flops["thin"]) / rate,
        "elementwise_s": sizes.elementwise_bytes / ceilings.copy_bytes_per_s,
        "allreduce_s": exposed,
        "launch_s": KERNELS * ceilings.launch_s,
    }
