"""Counted work and effective throughputs as frames: by range and counting, beside a document's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from perfmodel.api import Results
from perfmodel.base.errors import ModelError
from perfmodel.workloads.work import Workload

if TYPE_CHECKING:
    import pandas as pd

RATES: Final = ("P_flops", "P_pci", "P_mpi")


def work_table(workloads: Mapping[str, Workload], sizes: Mapping[str, int]) -> pd.DataFrame:
    """Count every range's own work by several ways to count.

    Parameters
    ----------
    workloads : mapping of str to Workload
        By what the way is called.
    sizes : mapping of str to int
        Values of the symbols.

    Returns
    -------
    DataFrame
        Indexed by ``counting`` and ``range``; ``flops``, ``pci_bytes``, ``mpi_bytes`` and
        ``dram_bytes`` per rank and batch.
    """
    import pandas as pd

    keys = ("flops", "pci_bytes", "mpi_bytes", "dram_bytes")
    rows = [
        {"counting": name, "range": label, **{key: float(getattr(counts, key)) for key in keys}}
        for name, load in workloads.items()
        for label, counts in load.evaluate(sizes).items()
    ]
    return pd.DataFrame(rows).set_index(["counting", "range"])


def rates_table(
    results: Results, *, printed: Mapping[str, float], recomputed: Mapping[str, float]
) -> pd.DataFrame:
    """Put a run's effective throughputs beside a document's.

    Returns
    -------
    DataFrame
        Indexed by P_flops (FLOP/s), P_pci and P_mpi (B/s): ``printed``, ``recomputed``,
        ``measured`` with its 95 % interval ``low`` and ``high``, and ``ratio`` of measured over
        printed.

    Raises
    ------
    ModelError
        If the run has no such rate.
    """
    import pandas as pd

    measured = results.rates.set_index("name").loc[list(RATES), ["value", "low", "high"]]
    if measured["value"].isna().any():
        raise ModelError(
            f"{results.run.label}: wanted P_flops, P_pci and P_mpi; found one missing; take a run "
            f"of several ranks that copies its gradients"
        )
    frame = pd.DataFrame({"printed": printed, "recomputed": recomputed}).loc[list(RATES)]
    frame = frame.join(measured.rename(columns={"value": "measured"}))
    frame["ratio"] = frame["measured"] / frame["printed"]
    return frame
