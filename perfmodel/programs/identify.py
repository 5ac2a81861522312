"""Identifies what a report ran: from its configuration mark, or from the sizes of its messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final

from perfmodel.readers.trace import Trace
from perfmodel.workloads.work import LARGEST

MARK_KEY: Final = "perfmodel_config"
"""Key of the JSON object that the trainer leaves in an NVTX mark."""

MARK_SYMBOLS: Final = {
    "D": "input_size",
    "H": "hidden_size",
    "C": "num_classes",
    "B": "batch_size",
    "p": "ranks",
}
"""Symbols of the MLP and the mark's (and the command line's) names for them."""

_PEAKS: Final = {2: "float16_tensor", 4: "float32", 8: "float64"}
_MATHS: Final = {"tf32": "tf32_tensor", "tf32x3": "tf32x3_tensor"}
_TWO_PRODUCTS: Final = "tf32x2_tensor"
_THIN: Final = ("forward GEMM 2", "backward GEMM 1", "backward GEMM 2")
_THIN_KERNELS: Final = ("thin", "fused")

DTYPE_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_LONGEST_MARK: Final = 100_000
_DEEPEST_MARK: Final = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """Values of the workload's symbols and where each one comes from.

    `config` is the configuration mark's content, empty without one.
    """

    values: Mapping[str, int]
    source: str
    config: Mapping[str, Any]


def read_mark(trace: Trace) -> dict[str, Any]:
    """Return the trainer's configuration mark, an empty dict if the report has none."""
    for _, _, text in trace.marks:
        if MARK_KEY in text and len(text) <= _LONGEST_MARK:
            try:
                config = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(config, dict) and MARK_KEY in config and _is_shallow(config):
                return config
    return {}


def _is_shallow(value: Any) -> bool:
    """Whether JSON nests no deeper than a configuration has reason to."""
    level = [value]
    for _ in range(_DEEPEST_MARK):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return not level


def from_mark(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the symbols a configuration mark gives; what it gives wrongly is left out."""
    values = {
        symbol: config[name]
        for symbol, name in MARK_SYMBOLS.items()
        if type(config.get(name)) is int and 0 < config[name] <= LARGEST
    }
    width = DTYPE_BYTES.get(str(config.get("dtype")))
    return values | ({"b": width} if width else {})


def precision(width: int, config: Mapping[str, Any], *, seen_tf32: bool) -> str:
    """Return which of a machine's peaks the products run against.

    Parameters
    ----------
    width : int
        Bytes per element.
    config : mapping
        The mark's content: its "math", or "tf32" in older ones, says how float32 is multiplied, and
        "tf32_products" how many TF32 products that takes (3 by default).
    seen_tf32 : bool
        The kernels' names say that some run on tensor cores, whatever was asked for.
    """
    name = _PEAKS.get(width, "float32")
    if name != "float32":
        return name
    math = "tf32" if config.get("tf32") is True else str(config.get("math"))
    if math == "tf32x3" and config.get("tf32_products") == 2:
        return _TWO_PRODUCTS
    return _MATHS.get(math, "tf32_tensor" if seen_tf32 else name)


def precision_of(label: str, run: str, config: Mapping[str, Any]) -> str:
    """Return the peak of one range's products in a run whose large products run against `run`.

    The trainer's kernels for the products with C rows or columns multiply float32 as it is, even
    where the large products run on tensor cores.
    """
    apart = label in _THIN and config.get("gemm") in _THIN_KERNELS
    return "float32" if apart and run in (*_MATHS.values(), _TWO_PRODUCTS) else run


def from_messages(
    gradients: Iterable[int], inputs: Iterable[int], ranks: int
) -> dict[str, int] | None:
    """Solve the MLP's symbols from the sizes of the messages of one batch, or return None.

    The four gradients take b H D, b H, b C H and b C bytes; their sizes give D, H, C and b, of
    which only one assignment fits. The images take b D B/p bytes and the one-hot labels b C B/p.

    Parameters
    ----------
    gradients : iterable of int
        Distinct sizes of the gradients' copies or all-reduces in bytes.
    inputs : iterable of int
        Distinct sizes of the input copies in bytes; without them B stays unknown.
    ranks : int
        p.

    Examples
    --------
    >>> from_messages([1605632, 2048, 20480, 40], [4704000, 60000], 2)
    {'D': 784, 'H': 512, 'C': 10, 'b': 4, 'p': 2, 'B': 3000}
    """
    sizes = sorted(set(gradients), reverse=True)
    if len(sizes) != 4 or ranks < 1:
        return None
    images = sorted(set(inputs), reverse=True)
    solutions = []
    for w1, b1, w2, b2 in permutations(sizes):
        for width in (4, 8, 2):
            if b1 % width or b2 % width or w1 % b1 or w2 != b1 * b2 // width:
                continue
            found = {"D": w1 // b1, "H": b1 // width, "C": b2 // width, "b": width, "p": ranks}
            batch = _batch(found, images)
            if batch is None and images:
                continue
            solutions.append(found | ({"B": batch} if batch else {}))
    return solutions[0] if len(solutions) == 1 else None


def _batch(found: Mapping[str, int], images: list[int]) -> int | None:
    """Global batch from the input copies: images of b D B/p bytes, labels of b C B/p, if any."""
    if not images:
        return None
    share, rest = divmod(images[0], found["b"] * found["D"])
    labels = images[1] if len(images) > 1 else None
    if rest or share < 1 or (labels is not None and labels != found["b"] * found["C"] * share):
        return None
    return share * found["p"]
