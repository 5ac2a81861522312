"""Which sizes and shapes are measured, fully and quickly, and the best of some products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.machines.machine import Figure
from perfmodel.machines.measure.measurement import Found, Products

Shape = tuple[int, int, int]
"""m, n, k"""
_INPUTS, _CLASSES = 784, 10
PEAK_OF_PRODUCT: Final = {
    "float64": "float64_tensor", "tf32": "tf32_tensor", "float16": "float16_tensor",
    "bfloat16": "bfloat16_tensor",
}  # fmt: skip
"""Products of these data types run on the tensor cores of a GPU that has them for it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes
    ----------
    repeats : int
    squares, host_squares : tuple of int
        Sizes n of products (n, n) x (n, n), of a GPU and of a CPU.
    hidden, batches, host_hidden, host_batches : tuple of int
        H and B' of the trainer's products, of a GPU and of a CPU: two cores would take minutes for
        a GPU's.
    dram_bytes, host_bytes : int
        One array of the copies in a GPU's memory and in a CPU's.
    copy_bytes, reduce_bytes : tuple of int
        Sizes of copies between host and device, and of all-reduces.
    """

    repeats: int
    squares: tuple[int, ...]
    host_squares: tuple[int, ...]
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    host_hidden: tuple[int, ...]
    host_batches: tuple[int, ...]
    dram_bytes: int
    host_bytes: int
    copy_bytes: tuple[int, ...]
    reduce_bytes: tuple[int, ...]


FULL: Final = Effort(
    repeats=11,
    squares=(4096, 8192),
    host_squares=(1024, 2048),
    hidden=(64, 128, 256, 512, 1024, 2048, 4096),
    batches=(750, 1500, 3000, 6000, 12000),
    host_hidden=(64, 256, 1024),
    host_batches=(750, 3000),
    dram_bytes=1 << 30,
    host_bytes=256 << 20,
    copy_bytes=tuple(4**i for i in range(6, 14)),
    reduce_bytes=(40, 256, *(4**i for i in range(5, 14))),
)
QUICK: Final = Effort(
    repeats=3,
    squares=(1024,),
    host_squares=(256,),
    hidden=(64,),
    batches=(750, 3000),
    host_hidden=(64,),
    host_batches=(750,),
    dram_bytes=256 << 20,
    host_bytes=32 << 20,
    copy_bytes=(4096, 65536, 1 << 20),
    reduce_bytes=(40, 4096, 65536, 1 << 20),
)


def products_of_the_trainer(
    hidden: Sequence[int], batches: Sequence[int]
) -> Iterator[tuple[str, str, list[Shape]]]:
    """Yield name, layout and shapes of the five products of a step of the MLP.

    With x (B', D), W1 (H, D) and W2 (C, H): z1 = W1 x^T, z2 = W2 a1, d1 = W2^T dz, dW2 = dz a1^T,
    dW1 = d1 x (docs/trainer.md).
    """
    sizes = [(h, b) for h in hidden for b in batches]
    yield "forward 1", "nt", [(h, b, _INPUTS) for h, b in sizes]
    yield "forward 2", "nn", [(_CLASSES, b, h) for h, b in sizes]
    yield "backward 1", "tn", [(h, b, _CLASSES) for h, b in sizes]
    yield "backward 2", "nt", [(_CLASSES, h, b) for h, b in sizes]
    yield "backward 3", "nn", [(h, _INPUTS, b) for h, b in sizes]


def best_product(found: Products, library: str, *, tensor: bool = True) -> Found:
    """Return products with the rate of the best of them as the data type's ceiling."""
    rates = found.flops_per_s
    i = max(range(len(rates)), key=rates.__getitem__)
    flops = 2 * found.m[i] * found.n[i] * found.k[i]
    how = f"{library}, {found.m[i]} x {found.n[i]} x {found.k[i]}"
    best = Figure(rates[i], how, flops / found.q3_s[i], flops / found.q1_s[i], found.repeats)
    figures = {("gemm_flops_per_s", found.dtype): best}
    if tensor and found.dtype in PEAK_OF_PRODUCT:
        figures["peak_flops_per_s", PEAK_OF_PRODUCT[found.dtype]] = best
    return Found(figures, products=(found,))
