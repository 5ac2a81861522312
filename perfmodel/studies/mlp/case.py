"""A run of the trainer to predict: its sizes and settings, its parts, and whether it fits a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perfmodel.base.units import si
from perfmodel.machines.devices import datasheet
from perfmodel.programs.mlp.memory import Training, allocations, footprint
from perfmodel.programs.mlp.rules import accepted
from perfmodel.programs.mlp.settings import ON_DEVICE, SETTINGS, TRANSPORTS, Transport, parameters
from perfmodel.studies.models import terms

if TYPE_CHECKING:
    from perfmodel.studies.models.terms import Alone, Part, Route

MLP: Final = "mlp"
"""Name of the trainer's own workload."""


class Case(terms.Case):
    """A run of the trainer: sizes D, H, C, B, p and b, and a value for every key of `SETTINGS`."""

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return MLP

    @property
    def label(self) -> str:
        """A short name: sizes, and the settings that are not the default."""
        default = {name: values[0] for name, values in SETTINGS.items()}
        said = [
            v if name in ("transport", "gemm", "math") else f"{name}={v}"
            for name, v in self.settings.items()
            if v != default.get(name) or name == "transport"
        ]
        return " ".join([super().label, *said])

    @property
    def route(self) -> Route:
        """Return the mode in which host and GPU take turns."""
        if self.settings["graph"] == "yes":
            return "replayed"
        return "queued" if self.settings["transport"] in ON_DEVICE else "blocking"

    @property
    def streamed(self) -> bool:
        """Whether every batch copies its images from the host."""
        return self.settings["data_on"] != "device"

    @property
    def transport(self) -> Transport:
        """Return the way that sums gradients."""
        return TRANSPORTS[self.settings["transport"]]

    @property
    def shares(self) -> tuple[float, float]:
        """Hidden units and images of the rank with the most images (of the mean rank by units)."""
        h, images, p = float(self.sizes["H"]), self.sizes["B"], self.sizes["p"]
        if self.settings["parallel"] == "model":
            return h / p, float(images)
        return h, float(-(-images // p))

    @property
    def parameters(self) -> int:
        """Return n, elements of the gradients of one rank."""
        return round(parameters(self.sizes["D"], self.shares[0], self.sizes["C"]))

    @property
    def message_bytes(self) -> float:
        """Bytes of a batch that are summed: gradients, or z2 in model parallelism."""
        z = self.sizes
        apart = self.settings["parallel"] == "model"
        return float((z["C"] * z["B"] if apart else self.parameters) * z["b"])

    @property
    def command(self) -> str:
        """Return the command that runs the program."""
        s = self.settings
        words = ["--dtype float64"] if self.sizes["b"] == 8 else []
        words += [f"--{n.replace('_', '-')} {s[n]}" for n in ("transport", "data_on", "gemm")]
        switches = ("graph", "--graph"), ("overlap", "--overlap"), ("sync", "--sync-ranges")
        words += [flag for name, flag in switches if s[name] == "yes"]
        words += [f"--math {s['math']}"] if s["math"] != "ieee" else []
        words += ["--parallel model"] if s["parallel"] == "model" else []
        words += ["with nsys's --cuda-graph-trace=node"] if s["graph"] == "yes" else []
        return " ".join(["python -m trainer", *words])

    def parts(self, alone: Alone | None = None) -> tuple[Part, ...]:
        """Return the parts of one rank's batch; see `perfmodel.studies.mlp.parts.mlp_parts`."""
        from perfmodel.studies.mlp.parts import mlp_parts

        return mlp_parts(self, alone)

    def having(self, **settings: str) -> Case:
        """Return the case with other settings, those that are given."""
        return replace(self, settings={**self.settings, **settings})


def mlp_case(sizes: Mapping[str, int], settings: Mapping[str, str]) -> Case:
    """Return a case of the MLP, defaults filled in.

    Raises
    ------
    WorkloadError
        If a size is missing, not positive or impossible, or a setting is unknown or goes with
        no other.
    """
    return Case(*accepted(sizes, settings))


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
