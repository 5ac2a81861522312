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
