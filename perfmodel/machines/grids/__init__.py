"""GEMMs and attention that were timed over sizes, shipped: `perfmodel machine measure --gemm-grid`.

One file per GPU, compressed.
"""

from __future__ import annotations

import lzma
from functools import cache
from importlib.resources import files
from typing import Final

from perfmodel.base.document import parse_toml
from perfmodel.machines.measure.measurement import MachineMeasurement, parse

_SUFFIX: Final = ".toml.xz"


@cache
def grids() -> tuple[MachineMeasurement, ...]:
    """Return all shipped measurements, by the names of their files."""
    found = sorted(
        (f for f in files("perfmodel.machines.grids").iterdir() if f.name.endswith(_SUFFIX)),
        key=lambda f: f.name,
    )
    return tuple(parse(parse_toml(lzma.decompress(f.read_bytes()).decode()), f.name) for f in found)


def grid_of(gpu: str) -> MachineMeasurement | None:
    """Return the measurement of a GPU by its name in reports; None where none is shipped."""
    return next((m for m in grids() if gpu in m.gpus), None)
