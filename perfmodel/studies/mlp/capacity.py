"""Cases of the trainer that do not fit into the memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import si
from perfmodel.machines.devices import datasheet
from perfmodel.programs.mlp.memory import Training, allocations, footprint
from perfmodel.studies.mlp.case import Case
from perfmodel.studies.models import terms


def needed_bytes(case: terms.Case, images: int) -> int | None:
    """Return the device memory that the trainer's allocations need at least.

    What no formula gives (NCCL's buffers, CUDA's own) is left out. None where the trainer's
    allocations are not counted: a workload of the user's own, or a run on the CPU.

    Parameters
    ----------
    case : Case
    images : int
        Of the training set, which stays on the GPU with --data-on device.
    """
    if not isinstance(case, Case) or case.settings["backend"] != "cupy":
        return None
    sums = footprint(allocations(Training(case.sizes, case.settings, images)))
    return sums.reserved_bytes + sums.apart_bytes


def too_large(cases: Sequence[terms.Case], gpu: str, images: int) -> str | None:
    """Say which cases do not fit into a GPU's memory; None where all do, or its size is not known.

    Parameters
    ----------
    cases : sequence of Case
        At least one.
    gpu : str
        Its name as a report has it: 'NVIDIA H200'.
    images : int
        Of the training set.
    """
    machine = datasheet((gpu,))
    capacity = machine.capacity_bytes.get("hbm") if machine else None
    if capacity is None:
        return None
    found = [(need, case) for case in cases if (need := needed_bytes(case, images) or 0) > capacity]
    if not found:
        return None
    need, case = min(found, key=lambda pair: pair[0])
    which = (
        case.label if len(cases) == 1 else f"{len(found)} of {len(cases)} points, from {case.label}"
    )
    return (
        f"{which}: does not fit: the trainer allocates at least {si(need, 'B')} on each GPU, "
        f"{gpu} has {si(capacity, 'B')}; take more ranks, a smaller batch, or --data-on pinned "
        f"(perfmodel memory lists the tensors)"
    )
