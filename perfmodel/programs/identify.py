"""Identities: what a program says of itself in a report, in its configuration mark or otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perfmodel.base.units import DTYPE_BYTES
from perfmodel.programs import MARK_SYMBOLS
from perfmodel.readers.trace import Trace
from perfmodel.workloads.work import LARGEST

MARK_KEY: Final = "perfmodel_config"
"""Key of the JSON object that a program may leave in an NVTX mark: its configuration."""

_LONGEST_MARK: Final = 100_000
_DEEPEST_MARK: Final = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """Values of a workload's symbols and where each one comes from.

    Attributes
    ----------
    values : mapping of str to int
    source : str
        Where the values come from, in words.
    config : mapping
        The configuration mark's content, empty without one.
    settings : mapping of str to str
        What must agree, beside the symbols, for two runs to be compared.
    uses_gpu, uses_mpi : bool
        False where the program says that its batches use none; a report without GPU operations, or
        without MPI calls, then lacks nothing.
    inseparable : str
        Why communication and computing cannot be separated; empty where they can.
    overlaps : bool
        Reductions go on beside other work, so that their range times the wait that is left.
    """

    values: Mapping[str, int]
    source: str
    config: Mapping[str, Any]
    settings: Mapping[str, str] = field(default_factory=dict)
    uses_gpu: bool = True
    uses_mpi: bool = True
    inseparable: str = ""
    overlaps: bool = False


def read_mark(trace: Trace) -> dict[str, Any]:
    """Return the program's configuration mark, an empty dict if the report has none.

    Of several ranks' that of the first one.
    """
    for _, _, text in sorted(trace.marks, key=lambda mark: mark[1]):
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


def missing_values(label: str, symbols: Sequence[str], *, marked: bool) -> str:
    """Say which flags give the values that a report does not give."""
    flags = " ".join(
        f"--{MARK_SYMBOLS[s].replace('_', '-')} {s}" if s in MARK_SYMBOLS else f"--set {s}=..."
        for s in symbols
    )
    return (
        f"{label}: the report has {'a' if marked else 'no'} configuration mark"
        f"{' without' if marked else ', and the sizes of its messages do not give'} "
        f"{', '.join(symbols)}; give: {flags}"
    )
