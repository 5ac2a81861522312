"""Buffers of the kernels that torch.compile makes: which are read, which written, of which types.

A kernel's range names the operators that were fused and the sizes of its buffers: first those that
it changes, then those that it reads, then those that it writes (torch/_inductor/codegen/triton.py:
`in_out_ptr`, `in_ptr`, `out_ptr`). Which is which, and the types, are not recorded. The rules here
were read off the DRAM counters of a compiled GPT (docs/pytorch.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.base.kernels.types import ITEM_BYTES
from perfmodel.programs.pytorch.names import Size, Sizes
from perfmodel.programs.pytorch.operators import distinct_rows, numel

_IN_FP32: Final = re.compile(r"norm|softmax|nll_loss|cross_entropy|embedding")
"""Operators that autocast runs in float32, or that make what it does not cast."""
_TWO_INPUTS: Final = re.compile(r"_(?:add|sub|mul|div)_|_backward")


@dataclass(frozen=True, slots=True)
class Types:
    """Known types of a program's tensors.

    Attributes
    ----------
    of_product : mapping of tuple of int to str
        By the sizes of arguments and results of products.
    of_numel : mapping of int to str
        The same by their number of elements, for views.
    parameter : str
    """

    of_product: Mapping[Size, str]
    of_numel: Mapping[int, str]
    parameter: str


@dataclass(frozen=True, slots=True)
class Buffers:
    """Of every buffer the bytes that are read and written."""

    read: tuple[int, ...]
    written: tuple[int, ...]


def buffers(name: str, sizes: Sizes, phase: str, known: Types) -> Buffers:
    """Find what a fused kernel reads and writes.

    Parameters
    ----------
    name : str
        Such as 'triton_poi_fused__to_copy_3'.
    sizes : tuple of tuple of int
        Of its arguments; () for numbers.
    phase : str
        'forward', 'backward' or 'optimizer'.
    known : Types
    """
    places = [i for i, size in enumerate(sizes) if size]
    mine = [sizes[i] for i in places]
    changed, outputs = _roles(name, mine, phase)
    types = _types(name, mine, phase, outputs, known)
    read, written = [0] * len(sizes), [0] * len(sizes)
    for at, (place, size, dtype) in enumerate(zip(places, mine, types, strict=True)):
        moved = _elements(name, size, mine) * ITEM_BYTES[dtype]
        scattered = at >= outputs and moved < numel(size) * ITEM_BYTES[dtype]
        if at < outputs or scattered:  # rows that a table's gradient is added to are read, too
            read[place] = moved
        if at >= outputs or (changed and at == 0):
            written[place] = moved
    return Buffers(tuple(read), tuple(written))


def _roles(name: str, sizes: list[Size], phase: str) -> tuple[bool, int]:
    """Whether the first buffer is changed in place, and where those begin that are only written.

    Element-wise kernels and sums write the last buffer. What a normalization writes follows its
    weights, in the backward pass its statistics: two results forward, the normalized input and what
    is made of it, one backward. What is missing of these is the first buffer, changed in place.
    """
    last = len(sizes) - 1
    if "norm" not in name:
        alike = len(sizes) == 2 and numel(sizes[0]) == numel(sizes[1])
        both = alike and name.startswith("triton_poi_") and bool(_TWO_INPUTS.search(name))
        return both, last + both
    ends = [i for i, s in enumerate(sizes[:-1]) if len(s) == 1]
    if phase == "backward":
        ends += [i for i, s in enumerate(sizes[:-1]) if i and s[-1] == 1]
    begin = min(max(ends, default=last - 1) + 1, last)
    outputs = [numel(s) for s in sizes[begin:]]
    if phase == "backward":
        return all(len(s) == 1 for s in sizes[begin:]), begin
    return numel(sizes[0]) == max(outputs) and outputs.count(max(outputs)) < 2, begin


def _types(name: str, sizes: list[Size], phase: str, outputs: int, known: Types) -> list[str]:
    """Types of buffers: those of products they come from or go to, else the parameters'.

    A kernel with casts (`_to_copy`) has both, one without the same everywhere.
    """
    exact = [known.of_product.get(s) if len(s) > 1 else None for s in sizes]
    if _IN_FP32.search(name):
        tokens = _tokens(sizes)
        found = [
            t if t and s[0] == tokens else known.parameter
            for t, s in zip(exact, sizes, strict=True)
        ]
        if "_to_copy" in name and phase == "forward":  # its last result is cast for a product
            largest = max(map(numel, sizes[outputs:]), default=0)
            cast = max((i for i in range(outputs, len(sizes)) if numel(sizes[i]) == largest),
                       default=len(sizes) - 1)  # fmt: skip
            found[cast] = known.of_numel.get(largest, found[cast])
        return found
    same = next((t for t in exact if t), None) or known.of_numel.get(max(map(numel, sizes)))
    if "_to_copy" not in name or same is None:
        return [same or known.parameter] * len(sizes)
    if len(sizes) == 2 and bool(exact[0]) == bool(exact[1]):
        return [known.parameter, same] if phase == "forward" else [same, known.parameter]
    return [t or known.parameter for t in exact]


def _elements(name: str, size: Size, sizes: list[Size]) -> int:
    """Elements that are moved of a buffer: of a table of an embedding the rows that are named."""
    tokens = _tokens(sizes)
    if "embedding" in name and len(size) == 2 and size[0] > tokens > 0:
        return distinct_rows(size[0], tokens) * size[1]
    if len(size) == 2 and (rows := _looked_up(size, sizes)):
        return distinct_rows(size[0], rows) * size[1]
    return numel(size)


def _looked_up(table: Size, sizes: list[Size]) -> int:
    """Rows of a table that an index names, 0 if none does: beside both are rows of the result."""
    indices = [s[0] for s in sizes if len(s) == 1 and 0 < s[0] < table[0]]
    return next((n for n in indices if (n, table[1]) in sizes), 0)


def _tokens(sizes: list[Size]) -> int:
    """Rows of the largest buffer of more than two dimensions, as products see it; 0 without."""
    rows = [(numel(s), numel(s) // s[-1]) for s in sizes if len(s) > 2 and s[-1]]
    return max(rows, default=(0, 0))[1]
