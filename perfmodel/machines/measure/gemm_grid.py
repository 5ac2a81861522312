"""Times GEMMs and attention of PyTorch over a grid of sizes, for the prediction of operators.

Times are those of the kernels as CUPTI gives them to torch.profiler, which a report of Nsight
Systems has, too. Operands lie at changing places of a pool that is larger than L2, so that none is
in a cache; the libraries choose kernels as they do in a program, PyTorch's own being asked.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.measure.measurement import Attention, Found, Products, Shape, Spread

ROWS: Final = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
"""Rows of a layer's input: tokens, images."""
WIDTHS: Final = (256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 6144)
WORDS: Final = (8192, 12288, 16384, 24576, 32768)
"""Widths of a last layer."""
LAST_INPUTS: Final = (256, 384, 512, 768, 1024, 1280, 1536, 2048)
COARSE_ROWS: Final = (512, 2048, 8192)
COARSE_WIDTHS: Final = (256, 512, 1024, 2048, 4096)
LAYOUTS: Final = ("nt", "nn", "tn")
"""A linear layer's forward pass, its input's gradient, its weight's."""
TYPES: Final = {
    "bfloat16": "bfloat16", "float16": "float16", "tf32": "float32", "float32": "float32",
}  # fmt: skip
HEADS: Final = (32, 96, 256, 512)
"""Batch times heads."""
LENGTHS: Final = (128, 256, 512, 768, 1024, 2048)
HEAD_SIZES: Final = (64, 128, 96, 32)
_MOST_SCORES: Final = 1 << 19
_POOL: Final = 1 << 30
"""Elements of the pool that operands are taken from."""
_AT_ONCE: Final = 256
"""Calls' groups in one recording of the profiler."""
_REPEATS: Final = 3
_MARK: Final = "spin_kernel"
"""Kernel of `torch.cuda._sleep`, which parts one call from the next."""


class Timer:
    """Times calls of PyTorch by their kernels.

    Raises
    ------
    PerfmodelError
        If PyTorch or a GPU is missing.
    """

    def __init__(self, device: int) -> None:
        try:
            self.torch = importlib.import_module("torch")
        except ImportError as error:
            raise PerfmodelError(
                f"expected the package torch, whose GEMMs and attention --gemm-grid times; got "
                f"none ({error}); install it, or measure without --gemm-grid"
            ) from error
        if not self.torch.cuda.is_available():
            raise PerfmodelError("expected a GPU that PyTorch can use; got none; check nvidia-smi")
        self.device = self.torch.device("cuda", device)
        self.torch.cuda.set_device(self.device)
        self._pools: dict[str, Any] = {}
        self._at = 0

    def random(self, dtype: str, rows: int, columns: int) -> Any:
        """Return a row-major matrix of normal numbers, at another place of the pool each time."""
        pool = self._pools.get(dtype)
        if pool is None:
            kind = getattr(self.torch, dtype)
            pool = self.torch.empty(_POOL, dtype=kind, device=self.device).normal_()
            self._pools = {dtype: pool}
        count = rows * columns
        if self._at + count > _POOL:
            self._at = 0
        found = pool[self._at : self._at + count].view(rows, columns)
        self._at += (count + 511) // 512 * 512
        return found

    def seconds(self, calls: Sequence[Callable[[], Any]]) -> list[Spread]:
        """Return the GPU time of every call: the sum of its kernels."""
        found: list[Spread] = []
        for first in range(0, len(calls), _AT_ONCE):
            group = calls[first : first + _AT_ONCE]
            times = self._recorded([call for call in group for _ in range(_REPEATS + 1)])
            for i in range(len(group)):
                mine = times[i * (_REPEATS + 1) + 1 : (i + 1) * (_REPEATS + 1)]
                found.append(Spread.of(mine))
        return found

    def _recorded(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Seconds of each of these calls, recorded together."""
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
            for call in calls:
                self.torch.cuda._sleep(100)
                call()
            self.torch.cuda.synchronize()
        cuda = self.torch.autograd.DeviceType.CUDA
        events = recorded.profiler.kineto_results.events()
        kernels = sorted(
            (e.start_ns(), e.duration_ns(), e.name())
            for e in events
            if e.device_type() == cuda and e.duration_ns() > 0 and "Sync" not in e.name()
        )
        sums: list[int] = []
        for _, lasts_ns, name in kernels:
            if _MARK in name:
                sums.append(0)
            elif sums:
                sums[-1] += lasts_ns
        if len(sums) != len(calls) or not all(sums):
            raise PerfmodelError(
                f"expected kernels of {len(calls)} calls in torch.profiler's recording; got "
                f"{sum(map(bool, sums))} of {len(sums)}; check that CUPTI is allowed here"
            )
        return [ns * 1e-9 for ns in sums]


def shapes_of(dtype: str) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of linear layers that a data type's GEMMs are measured at."""
    if dtype != "bfloat16":
        return list(product(COARSE_ROWS, COARSE_WIDTHS, COARSE_WIDTHS))
    pairs = [*product(WIDTHS, WIDTHS), *product(LAST_INPUTS, WORDS)]
    return [(rows, *pair) for rows in ROWS for pair in pairs]


def shape_of(layout: str, rows: int, inputs: int, outputs: int) -> Shape:
    """(m, n, k) of a linear layer's GEMM in one of `LAYOUTS`.

    >>> shape_of("tn", 2048, 512, 1024)
    (1024, 512, 2048)
    """
    return {
        "nt": (rows, outputs, inputs),
        "nn": (rows, inputs, outputs),
        "tn": (outputs, inputs, rows),
    }[layout]


def gemms(timer: Timer, dtype: str) -> Found:
    """Time the GEMMs of linear layers in one data type; TF32's are float32's, rounded."""
    kind = TYPES[dtype]
    timer.torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    found = []
    for layout in LAYOUTS:
        shapes = list(dict.fromkeys(shape_of(layout, *sizes) for sizes in shapes_of(dtype)))
        seconds = timer.seconds([_gemm(timer, kind, layout, shape) for shape in shapes])
        rounded = map(_rounded, seconds)
        named = dict(zip(shapes, rounded, strict=True))
        found.append(Products.of("linear", dtype, layout, named))
    return Found(products=tuple(found))


def _gemm(timer: Timer, kind: str, layout: str, shape: Shape) -> Callable[[], Any]:
    """A call of the GEMM as autograd makes it; a forward pass adds a bias, but a last layer."""
    m, n, k = shape
    torch = timer.torch

    def call() -> Any:
        if layout == "nt" and n in WORDS:
            return torch.mm(timer.random(kind, m, k), timer.random(kind, n, k).t())
        if layout == "nt":
            bias = timer.random(kind, 1, n)[0]
            return torch.addmm(bias, timer.random(kind, m, k), timer.random(kind, n, k).t())
        first = timer.random(kind, k, m).t() if layout == "tn" else timer.random(kind, m, k)
        return torch.mm(first, timer.random(kind, k, n))

    return call


def attention(timer: Timer, dtype: str, seconds: float) -> Found:
    """Time scaled dot product attention under a causal mask, forward and backward."""
    deadline = time.perf_counter() + seconds
    found: dict[str, dict[Shape, Spread]] = {"forward": {}, "backward": {}}
    for size, length, heads in product(HEAD_SIZES, LENGTHS, HEADS):
        if heads * length > _MOST_SCORES or time.perf_counter() > deadline:
            continue
        forward, backward = _attention(timer, dtype, heads, length, size)
        spreads = map(_rounded, timer.seconds([forward, backward]))
        for phase, spread in zip(found, spreads, strict=True):
            found[phase][heads, length, size] = spread
    return Found(
        attention=tuple(
            Attention.of(phase, dtype, times) for phase, times in found.items() if times
        )
    )


def _attention(
    timer: Timer, dtype: str, heads: int, length: int, size: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward and backward calls; the heads of a token lie side by side, as a layer leaves them."""
    torch, kind = timer.torch, getattr(timer.torch, dtype)
    batch = heads // 8

    def tensor() -> Any:
        made = torch.randn(batch, length, 8, size, dtype=kind, device=timer.device)
        return made.transpose(1, 2).detach().requires_grad_()

    q, k, v, grad = (tensor() for _ in range(4))

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    made = forward()

    def backward() -> Any:
        return torch.autograd.grad(made, (q, k, v), grad.detach(), retain_graph=True)

    return forward, backward


def _rounded(spread: Spread) -> Spread:
    """To nanoseconds: the file has thousands of them."""
    return Spread(round(spread.median, 9), round(spread.q1, 9), round(spread.q3, 9), spread.repeats)


def parts(device: int, seconds: float) -> Iterator[tuple[str, Callable[[], Found]]]:
    """Yield the grid's parts by name; attention ends in about half of `seconds`."""
    timer = Timer(device)
    for dtype in TYPES:
        yield f"grid of GEMMs {dtype}", partial(gemms, timer, dtype)
    yield "grid of attention", partial(attention, timer, "bfloat16", seconds / 2)
