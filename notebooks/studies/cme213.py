"""The CME 213 assignment's solution: its printed medians, and the throughputs that follow from them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from perfmodel.models.roofline import Roofline
from perfmodel.programs.mlp.mlp import DOCUMENT_GEMMS, mlp

COPIES = ("cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice")


@dataclass(frozen=True, slots=True)
class Study:
    """All numbers that the solution prints and the notebooks compare with.

    Attributes
    ----------
    sizes : mapping of str to int
        D, H, C, B, p, b.
    host_s, gpu_projection_s : mapping of str to float
        Medians by range of Figure 11, in seconds.
    rates : mapping of str to float
        P_flops in FLOP/s, P_pci and P_mpi in B/s (Question 2.4).
    shares : mapping of str to float
        Of a typical batch (Question 2.1).
    setup_share : float
        Of the training (Question 2.1).
    learning_rate, fastest_learning_rate : float
        That of the profile, and that which seems to converge fastest.
    accuracy : float
        Of the test set, on CPU and GPU alike.
    relative_error_single, relative_error_double, discrepancy : float
        Of weights: as tested, by precision, and at a large learning rate.
    """

    sizes: Mapping[str, int]
    host_s: Mapping[str, float]
    gpu_projection_s: Mapping[str, float]
    rates: Mapping[str, float]
    shares: Mapping[str, float]
    setup_share: float
    learning_rate: float
    fastest_learning_rate: float
    accuracy: float
    relative_error_single: float
    relative_error_double: float
    discrepancy: float


@cache
def study() -> Study:
    """Return the solution's numbers as printed."""
    file = resources.files("studies").joinpath("cme213.toml")
    return Study(**tomllib.loads(file.read_text(encoding="utf-8")))


def rates() -> dict[str, float]:
    """Compute P_flops, P_pci and P_mpi from the printed medians (Question 2.4).

    P_flops = 4 B'H(D + C) over the sum of four products' projections, P_pci = 2 n b over that of
    both copies, P_mpi = 2 n b over the host time of the all-reduce; n = HD + H + CH + C.

    Returns
    -------
    dict
        FLOP/s, B/s and B/s.
    """
    known = study()
    total = mlp("document").total().subs(known.sizes)
    return {
        "P_flops": total.flops / sum(known.gpu_projection_s[name] for name in DOCUMENT_GEMMS),
        "P_pci": total.pci_bytes / sum(known.gpu_projection_s[name] for name in COPIES),
        "P_mpi": total.mpi_bytes / known.host_s["MPI_Allreduce"],
    }


def roofline() -> Roofline:
    """Return the roof of Figure 12, from the recomputed throughputs and shares of bytes."""
    known, found = study(), rates()
    total = mlp("document").total().subs(known.sizes)
    return Roofline(
        "CME 213 assignment",
        found["P_flops"],
        {"pci": found["P_pci"], "mpi": found["P_mpi"]},
        {
            "pci": total.pci_bytes / total.moved_bytes,
            "mpi": total.mpi_bytes / total.moved_bytes,
        },
    )
