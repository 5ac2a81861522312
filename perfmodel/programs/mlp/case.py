"""Cases: what one run is, its sizes and its settings, from a mark or from flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.rules import check
from perfmodel.workloads.work import Symbol, Workload

MLP: Final = "mlp"
"""Name of the trainer's own workload."""
SIZES: Final = {
    "D": "input size",
    "H": "hidden size",
    "C": "number of classes",
    "B": "batch size of all ranks together",
    "p": "ranks",
    "b": "bytes per element",
}
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "transport": (
        "host", "pinned", "host-flat", "chunked", "cuda-aware", "nccl", "peer", "none",
    ),
    "data_on": ("host", "pinned", "prefetch", "device"),
    "gemm": ("cublas", "naive", "tiled", "register", "hierarchical", "thin", "fused"),
    "math": ("ieee", "tf32", "tf32x3"),
    "parallel": ("data", "model"),
    "graph": ("no", "yes"),
    "overlap": ("no", "yes"),
    "sync": ("no", "yes"),
    "backend": ("cupy", "numpy"),
}  # fmt: skip
"""Settings of the trainer that change what a batch costs; the first value is the default."""

TRAIN_IMAGES: Final = 60_000
"""Images of MNIST's training set: what an epoch is, unless said otherwise."""


@dataclass(frozen=True)
class Case:
    """One run: values of the workload's symbols, and settings by name.

    Attributes
    ----------
    sizes : mapping of str to int
        D, H, C, B, p and b of the MLP, or the symbols of a workload of the user's own.
    settings : mapping of str to str
        A value for every key of `SETTINGS`; empty for a workload of the user's own.
    workload : Workload or None
        The user's own; None is the trainer's MLP.
    """

    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    workload: Workload | None = None

    @property
    def key(self) -> tuple[tuple[str, object], ...]:
        """What two launches of one configuration share."""
        return (*sorted(self.sizes.items()), *sorted(self.settings.items()))

    @property
    def label(self) -> str:
        """A short name: sizes, and the settings that are not the default."""
        sizes = " ".join(f"{k}={v}" for k, v in self.sizes.items() if k not in ("D", "C"))
        default = {name: values[0] for name, values in SETTINGS.items()}
        said = [
            v if name in ("transport", "gemm", "math") else f"{name}={v}"
            for name, v in self.settings.items()
            if v != default.get(name) or name == "transport"
        ]
        return " ".join([sizes, *said])


def mlp_case(sizes: Mapping[str, int], settings: Mapping[str, str]) -> Case:
    """Return a case of the MLP, defaults filled in.

    Raises
    ------
    WorkloadError
        If a size is missing, not positive or impossible, or a setting is unknown or goes with
        no other.
    """
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        raise WorkloadError(
            f"wanted settings among {', '.join(SETTINGS)}; found {unknown[0]!r}; leave it out"
        )
    checked = {
        name: Symbol(name, meaning).check(sizes.get(name)) for name, meaning in SIZES.items()
    }
    if checked["p"] > checked["B"]:
        raise WorkloadError(
            f"wanted at most as many ranks as images in a batch; found p={checked['p']}, "
            f"B={checked['B']}; take a larger batch or fewer ranks"
        )
    full = {name: settings.get(name, values[0]) for name, values in SETTINGS.items()}
    if "data_on" not in settings:
        full["data_on"] = _usual_data(full["transport"], full["backend"])
    for name, value in full.items():
        if value not in SETTINGS[name]:
            raise WorkloadError(
                f"wanted {name} among {', '.join(SETTINGS[name])}; found {value!r}; take one"
            )
    if full["backend"] != "numpy":
        check(full, checked["b"], checked["C"])
    if full["parallel"] == "model" and checked["p"] > checked["H"]:
        raise WorkloadError(
            f"wanted at most as many ranks as hidden units; found p={checked['p']}, "
            f"H={checked['H']}; take fewer ranks"
        )
    if full["transport"] == "none" and checked["p"] > 1:
        raise WorkloadError(
            f"wanted a transport for {checked['p']} ranks; found 'none', which sums nothing; take "
            "host, pinned or nccl"
        )
    return Case(checked, full)


def own_case(workload: Workload, sizes: Mapping[str, int]) -> Case:
    """Return a case of a workload of the user's own.

    Raises
    ------
    WorkloadError
        If a symbol is missing, unknown or impossible.
    """
    return Case(workload.check(sizes), {}, workload)


def _usual_data(transport: str, backend: str) -> str:
    """Where the trainer keeps its images unless told."""
    if backend == "numpy":
        return "host"
    return "pinned" if transport == "pinned" else "host"


def from_mark(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Case:
    """Return the case that a configuration mark describes.

    Marks of older trainers lack the settings that these did not have: they are at their default.
    """
    settings = {}
    for name in SETTINGS:
        if name == "gemm" and config.get("backend") == "numpy":
            continue  # the BLAS that NumPy has
        said = config.get("sync_ranges" if name == "sync" else name)
        if isinstance(said, bool):
            settings[name] = "yes" if said else "no"
        elif isinstance(said, str):
            settings[name] = said
    return mlp_case(sizes, settings)
