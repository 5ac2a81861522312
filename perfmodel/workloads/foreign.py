"""What readers of other libraries' models share: imports, and refusals in the same words."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.workloads.cnn import total
from perfmodel.workloads.layers import Net


def imported(name: str, advice: str) -> Any:
    """Import an optional module; WorkloadError with `advice` if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        said = printable(str(problem))
        raise WorkloadError(f"wanted the module {name}; found: {said}: {advice}") from problem


def square(size: int | Iterable[Any], where: str) -> int:
    """Return the one number of a size; WorkloadError if height and width differ."""
    sizes = {size} if isinstance(size, int) else set(size)
    if len(sizes) != 1 or not isinstance(next(iter(sizes)), int):
        raise unknown(f"a size of {size}", where)
    return int(next(iter(sizes)))


def unknown(found: str, where: str) -> WorkloadError:
    """Return the refusal of a layer."""
    return WorkloadError(
        f"wanted layers that perfmodel knows; found {printable(found)} in {printable(where)}: "
        f"add it to perfmodel/workloads/layers.py"
    )


def check_parameters(net: Net, wanted: int) -> None:
    """Raise WorkloadError unless the layers have all of the model's parameters."""
    found = total(net).parameters
    if found != wanted:
        raise WorkloadError(
            f"wanted all {wanted:,} parameters of {printable(net.name)} in its layers; found "
            f"{found:,}: layers used twice, layers that do not run "
            f"(auxiliary classifiers), and parameters outside of layers are not known"
        )
