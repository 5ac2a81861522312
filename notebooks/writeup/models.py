"""Counted work, effective throughputs, and models of a batch beside its measurement (03, 04)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.analysis.result import RunAnalysis
from perfmodel.api import Report, Results
from perfmodel.base.errors import ModelError
from perfmodel.models.roofline import Point, Roofline
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.timing.run import time_run
from perfmodel.workloads.work import Workload

if TYPE_CHECKING:
    import pandas as pd

BATCH = "batch iteration"
PHASES = "forward + backward + step"
_LINKS = {"P_pci": "pci_bytes", "P_mpi": "mpi_bytes"}
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
    """Put the effective throughputs of a run beside those of the CME 213 assignment.

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
            f"{results.run.label}: expected P_flops, P_pci and P_mpi; got one missing; take a run "
            f"of several ranks that copies its gradients"
        )
    frame = pd.DataFrame({"printed": printed, "recomputed": recomputed}).loc[list(RATES)]
    frame = frame.join(measured.rename(columns={"value": "measured"}))
    frame["ratio"] = frame["measured"] / frame["printed"]
    return frame


def three_rate_model(results: Results) -> pd.DataFrame:
    """Predict every run by P_flops, P_pci and P_mpi of the fitted run.

    t = F / P_flops + Q_pci / P_pci + Q_mpi / P_mpi (CME 213 assignment, Question 2.5, as a time).

    Returns
    -------
    DataFrame
        ``run``, the symbols, ``batch_s`` and ``phases_s`` as measured (the batch, and without
        copying images), ``three_rates_s`` with the fitted run's rates, ``own_s`` with the run's own.

    Raises
    ------
    ModelError
        If a rate is missing.
    """
    import pandas as pd

    rows = []
    for run in results.analysis.runs:
        checks = {check.label: check.measured_s for check in run.model}
        rows.append(
            {
                "run": run.label,
                "batch_s": checks[BATCH],
                "phases_s": checks[PHASES],
                "three_rates_s": _seconds(run, results.run),
                "own_s": _seconds(run, run),
            }
        )
    sizes = results.runs[["run", *results.run.workload.symbols]]
    return sizes.merge(pd.DataFrame(rows), on="run", validate="one_to_one")


def _seconds(run: RunAnalysis, fitted: RunAnalysis) -> float:
    rates = {name: fitted.rates.get(name) for name in ("P_flops", *_LINKS)}
    missing = [name for name, rate in rates.items() if rate is None]
    if missing:
        raise ModelError(
            f"{fitted.label}: expected P_flops, P_pci and P_mpi; got no {missing[0]}; take another "
            f"run to fit, one of several ranks that copies its gradients"
        )
    values = {name: rate.value for name, rate in rates.items() if rate is not None}
    links = sum(float(getattr(run.totals, key)) / values[name] for name, key in _LINKS.items())
    return run.totals.flops / values["P_flops"] + links


def calibrated_model(
    reports: Sequence[Report | Path | str], known: Collection[str]
) -> tuple[Model, pd.DataFrame]:
    """Fit perfmodel's model to some reports of the trainer, and predict all of them.

    Parameters
    ----------
    reports : sequence of Report, Path or str
    known : collection of str
        Labels of those that the model is fitted to, as `three_rate_model` has them in ``run``.

    Returns
    -------
    Model
    DataFrame
        ``run``, ``calibrated_s`` with ``low_s`` and ``high_s`` (90 %), ``unseen``.

    Raises
    ------
    ModelError
        If `known` names none of the reports, or the model cannot predict a batch.
    """
    import pandas as pd

    from perfmodel.api import read

    runs = [r if isinstance(r, Report) else read(r) for r in reports]
    seen = {}
    for one in runs:
        label = one.trace.source.name.split(".sqlite")[0]
        seen[label] = observe(time_run([one.trace], BATCH, label=label))
    missing = [name for name in known if name not in seen]
    if missing or not known:
        raise ModelError(
            f"expected some of the reports {', '.join(list(seen)[:3])}, ... to fit the model to; "
            f"got {missing[:1] or 'none'}; name those that are given"
        )
    model = calibrate([seen[name] for name in known])
    rows = []
    for label, observation in seen.items():
        found = predict(model, observation.case)
        rows.append(
            {"run": label, "calibrated_s": found.batch_s, "low_s": found.low_s,
             "high_s": found.high_s, "unseen": label not in known}
        )  # fmt: skip
    return model, pd.DataFrame(rows)


def shares_of_roof(points: Sequence[Point], roof: Roofline) -> list[float]:
    """Return what measured points reach of the smooth roof at their intensity; above 1 is above it."""
    return [p.flops_per_s / float(roof.smooth(p.intensity_flops_per_byte)) for p in points]


def roofs_meet(one: Roofline, other: Roofline) -> float:
    """Return the intensity, in FLOP/byte, at which two smooth roofs are equally high.

    1/f = 1/P + 1/(AI W), with P the compute throughput and W the bandwidth of all links, is equal
    for both at AI = (1/W_2 - 1/W_1) / (1/P_1 - 1/P_2).

    Raises
    ------
    ModelError
        If one is the higher roof everywhere.

    Examples
    --------
    >>> slow = Roofline("a", 1e12, {"pci": 2e9}, {"pci": 1.0})
    >>> fast = Roofline("b", 2e12, {"pci": 1e9}, {"pci": 1.0})
    >>> roofs_meet(slow, fast)
    1000.0
    """
    links = 1.0 / other.bandwidth_bytes_per_s - 1.0 / one.bandwidth_bytes_per_s
    compute = 1.0 / one.flops_per_s - 1.0 / other.flops_per_s
    if compute == 0.0 or links / compute <= 0.0:
        raise ModelError(
            f"expected two roofs that meet; got {one.label} and {other.label}, of which one is "
            f"higher everywhere; compare their rates"
        )
    return links / compute


def errors(frame: pd.DataFrame, predicted: str, measured: str) -> dict[str, float]:
    """Summarize a model's relative errors, (predicted - measured) / measured.

    Parameters
    ----------
    frame : DataFrame
        A row for every run.
    predicted, measured : str
        Columns, in seconds.

    Returns
    -------
    dict
        ``mean`` (the bias), ``mean_abs``, ``median_abs`` and ``largest`` (of the absolute ones).

    Raises
    ------
    ModelError
        If there is no run.
    """
    if frame.empty:
        raise ModelError("expected runs to test a model on; got none; leave some to be predicted")
    relative = frame[predicted] / frame[measured] - 1.0
    return {
        "mean": float(relative.mean()),
        "mean_abs": float(relative.abs().mean()),
        "median_abs": float(relative.abs().median()),
        "largest": float(relative.abs().max()),
    }
