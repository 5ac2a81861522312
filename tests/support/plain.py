"""Results as plain values, to compare."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def plain(found: Any) -> Any:
    """Return plain values of nested data classes and arrays."""
    if is_dataclass(found) and not isinstance(found, type):
        return {f.name: plain(getattr(found, f.name)) for f in fields(found)}
    if isinstance(found, tuple | list):
        return [plain(one) for one in found]
    return found.tolist() if isinstance(found, np.ndarray) else found


def assert_equal(a: Any, b: Any, but: tuple[str, ...] = ()) -> None:
    """Two traces, or tables of traces, hold the same."""
    for field in fields(a):
        if field.name in but:
            continue
        mine, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == other.dtype, field.name
            assert mine.tolist() == other.tolist(), field.name
        elif hasattr(mine, "__slots__") and hasattr(mine, "start_ns"):
            assert_equal(mine, other)
        else:
            assert mine == other, field.name
