"""Measure this machine part by part; a part that fails or comes too late is left out, and said."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.parallel import cores
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure import host, kernels
from perfmodel.machines.measure.device import (
    Device,
    arithmetic,
    copies,
    device_memory,
    second_level_cache,
    squares,
    trainer_products,
)
from perfmodel.machines.measure.gemm_grid import parts as grid_parts
from perfmodel.machines.measure.host_calls import device_calls, driver_launch, python_calls
from perfmodel.machines.measure.measurement import DTYPES, Effort, Found, MachineMeasurement
from perfmodel.machines.measure.nccl import over_nccl
from perfmodel.machines.measure.ranks import Ranks, over_mpi

SOURCE: Final = "measured by perfmodel machine measure"


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its name, its work, and whether all ranks do it or only the first."""

    name: str
    work: Callable[[], Found]
    together: bool = False


def measure(
    ranks: Ranks,
    effort: Effort,
    *,
    device: str = "auto",
    gemm_grid: bool = False,
    seconds: float = 60.0,
    command: str = "",
    only: Sequence[str] = (),
    own: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[MachineMeasurement]:
    """Measure this machine (collective); yield what there is at first and after every part.

    Parameters
    ----------
    ranks : Ranks
    effort : Effort
    device : {'auto', 'gpu', 'cpu'}
        'auto' is the GPU where there is one.
    gemm_grid : bool
        Whether PyTorch's GEMMs and attention are timed over a grid, too.
    seconds : float
        A part that has not begun by then is left out with a warning.
    command : str
        How this was called, for the file.
    only : sequence of str
        Parts whose name has one of these words in it; all where there is none.
    own : str, optional
        Module of a program's own kernels; see `perfmodel.machines.measure.kernels`.
    say : callable
        Called with each part's name and seconds as it ends.

    Raises
    ------
    PerfmodelError
        If a GPU is asked for and there is none, the module cannot be imported, or no part has one
        of the words.
    """
    began = time.perf_counter()
    gpu, why_not = _device(ranks, effort, device)
    parts = list(_device_parts(gpu, ranks, effort) if gpu else _host_parts(ranks, effort))
    if gemm_grid and gpu and ranks.rank == 0:
        parts += [Part(*part) for part in grid_parts(gpu.index, seconds)]
    if gpu and own is not None:
        parts += _own_parts(gpu, ranks, effort, kernels.of_module(own))
    parts = _chosen(parts, only, ranks)
    found = MachineMeasurement(
        machine=Machine.of(gpu.name if gpu else host.name(), SOURCE, {}),
        gpus=(gpu.name,) if gpu else (),
        cpus=(host.name(),),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=command,
        ranks=ranks.size,
        cores=cores(),
        versions=_versions(gpu, ranks),
        warnings=(f"no GPU: {why_not}",) if why_not else (),
    )
    yield found
    for part in (p for p in parts if not p.together):
        if ranks.rank == 0:
            found = _with(found, part, began + seconds, say)
            yield found
    ranks.rest()
    for part in (p for p in parts if p.together and ranks.size > 1):
        found = _with(found, part, began + seconds, say, ranks)
        yield found


def _device_parts(device: Device, ranks: Ranks, effort: Effort) -> Iterator[Part]:
    yield Part("host calls", partial(python_calls, ranks, effort.repeats))
    yield Part("launches", partial(device_calls, device, ranks))
    yield Part("driver launches", partial(driver_launch, device, ranks))
    for dtype in ("float32", "float64", "float16"):
        yield Part(f"multiply-adds {dtype}", partial(arithmetic, device, dtype))
    yield Part("device memory", partial(device_memory, device, effort.dram_bytes))
    yield Part("L2", partial(second_level_cache, device))
    yield Part("copies", partial(copies, device, Ranks(), effort.copy_bytes))
    for dtype in DTYPES:
        yield Part(f"products {dtype}", partial(squares, device, dtype, effort.squares))
    for dtype in ("float32", "tf32"):
        yield Part(f"trainer's products {dtype}", partial(trainer_products, device, dtype, effort))
    yield Part("copies of all ranks", partial(copies, device, ranks, effort.copy_bytes), True)
    by_mpi = partial(over_mpi, ranks, effort.reduce_bytes, effort.repeats)
    yield Part("MPI all-reduce", by_mpi, True)
    by_nccl = partial(over_nccl, device, ranks, effort.reduce_bytes)
    yield Part("NCCL all-reduce", by_nccl, True)


def _own_parts(device: Device, ranks: Ranks, effort: Effort, module: Any) -> Iterator[Part]:
    by_shape = partial(kernels.by_shape, device, module, effort.hidden, effort.batches)
    yield Part("own kernels", by_shape)
    yield Part("own steps", partial(kernels.by_size, device, Ranks(), module, effort.hidden))
    together = partial(kernels.by_size, device, ranks, module, effort.hidden)
    yield Part("own steps of all ranks", together, True)


def _chosen(parts: list[Part], only: Sequence[str], ranks: Ranks) -> list[Part]:
    """Return the parts whose names have one of the words; all without words."""
    found = [p for p in parts if not only or any(word in p.name for word in only)]
    if not found and ranks.rank == 0:
        raise PerfmodelError(
            f"expected parts with {' or '.join(only)} in their name; got none; take from "
            f"{', '.join(p.name for p in parts)}"
        )
    return found


def _host_parts(ranks: Ranks, effort: Effort) -> Iterator[Part]:
    yield Part("memory", partial(host.memory, effort))
    for dtype in ("float32", "float64"):
        yield Part(f"products {dtype}", partial(host.squares, dtype, effort))
    yield Part("trainer's products float32", partial(host.trainer_products, "float32", effort))
    yield Part("host calls", partial(python_calls, ranks, effort.repeats))
    by_mpi = partial(over_mpi, ranks, effort.reduce_bytes, effort.repeats)
    yield Part("MPI all-reduce", by_mpi, True)


def _with(
    found: MachineMeasurement,
    part: Part,
    deadline: float,
    say: Callable[[str], None],
    ranks: Ranks | None = None,
) -> MachineMeasurement:
    """Return what was found with one part more, or with the warning why not."""
    began = time.perf_counter()
    late = "its time is up; give more --seconds" if began > deadline else ""
    late = ranks.of_first(late) if ranks else late
    new, said = Found(), late
    if not late:
        try:
            new = part.work()
        except Exception as error:  # a part may fail in any library; the others still count
            said = _words(error)
        said = ranks.agree(said) if ranks else said
        new = Found() if said else new
    elapsed_s = time.perf_counter() - began
    say(f"{part.name}: {'left out: ' + said if said else f'{elapsed_s:.2f} s'}")
    figures = {**found.machine.figures, **new.figures}
    return replace(
        found,
        machine=Machine.of(found.machine.name, SOURCE, figures),
        series=found.series + new.series,
        products=found.products + new.products,
        attention=found.attention + new.attention,
        elapsed_s={**found.elapsed_s, part.name: round(elapsed_s, 4)},
        warnings=(*found.warnings, f"{part.name}: {said}") if said else found.warnings,
    )


def _device(ranks: Ranks, effort: Effort, wanted: str) -> tuple[Device | None, str]:
    """Return this rank's GPU, or why there is none; all ranks take the same kind."""
    if wanted == "cpu":
        return None, ""
    found, said = None, ""
    try:
        found = Device(ranks.local_rank, effort.repeats)
    except Exception as error:
        said = _words(error)
    said = ranks.agree(said)
    if said and wanted == "gpu":
        raise PerfmodelError(said)
    return (None, said) if said else (found, "")


def _words(error: Exception) -> str:
    if isinstance(error, PerfmodelError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _versions(device: Device | None, ranks: Ranks) -> Mapping[str, str]:
    from perfmodel import __version__

    found = {
        "perfmodel": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(terse=True),
    }
    if library := ranks.library():
        found["mpi"] = library
    return {**found, **(device.versions() if device else {})}
