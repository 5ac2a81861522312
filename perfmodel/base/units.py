"""SI formatting and parsing: 1.63e12 FLOP/s <-> '1.63 TFLOP/s', never powers of two."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from perfmodel.base.errors import PerfmodelError

_PREFIXES = {
    "Y": 1e24, "Z": 1e21, "E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3,
    "": 1.0, "m": 1e-3, "µ": 1e-6, "u": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12,
}  # fmt: skip
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")

_SMALLEST: Final = 1e-15
"""A thousandth of the smallest prefix: no clock and no count is finer."""

DTYPE_BYTES: Final = {
    "float8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4, "float64": 8,
}  # fmt: skip
"""Bytes of an element by data type."""


def si(value: float | None, unit: str, digits: int = 3) -> str:
    """Format `value` with an SI prefix.

    Parameters
    ----------
    value : float or None
        In base units; None (missing) gives an en dash, never 0.
    unit : str
        Unit without prefix, such as ``'FLOP/s'``, ``'B'`` or ``'s'``.
    digits : int
        Significant digits.

    Examples
    --------
    >>> si(1.632730e12, "FLOP/s")
    '1.63 TFLOP/s'
    >>> si(0.000470879, "s", 4)
    '470.9 µs'
    """
    if value is None or math.isnan(value):
        return "–"
    if abs(value) < _SMALLEST:  # what is left of two numbers that should be equal
        return f"0 {unit}"
    if math.isinf(value):
        return f"{value:g} {unit}"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = min(24, max(-12, 3 * math.floor(math.log10(abs(rounded)) / 3)))
    prefix = next(p for p, scale in _PREFIXES.items() if round(math.log10(scale)) == exponent)
    scaled = rounded / 10.0**exponent
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def percent(share: float, digits: int = 0) -> str:
    """Format a share of one.

    Examples
    --------
    >>> percent(0.0063, 2)
    '0.63 %'
    """
    return f"{100 * share:.{digits}f} %"


def sizes_text(sizes: Sequence[Sequence[int]]) -> str:
    """Format tensors' sizes: those with any, of many the first ones.

    Examples
    --------
    >>> sizes_text([(96, 32), (), (32,)])
    '96×32, 32'
    """
    named = [size for size in sizes if size]
    shown = ", ".join("×".join(map(str, size)) for size in named[:4])
    return f"{shown}, … ({len(named)})" if len(named) > 4 else shown


def parse_si(text: str, unit: str) -> float:
    """Parse `'27 GB/s'`, `'27e9'` or `'27e9 B/s'` into base units of `unit`.

    Raises
    ------
    PerfmodelError
        If the text is no number, or its unit is another one.
    """
    match = _NUMBER.fullmatch(text)
    example = "27 ms" if unit == "s" else f"27 G{unit}"
    if match is None:
        raise PerfmodelError(f"expected a number in {unit}, such as '{example}'; got {text!r}")
    number, suffix = float(match[1]), match[2]
    if suffix == "":
        return number
    for prefix, scale in _PREFIXES.items():
        if suffix == prefix + unit:
            return number * scale
    raise PerfmodelError(f"expected a quantity in {unit}, such as '{example}'; got {text!r}")
