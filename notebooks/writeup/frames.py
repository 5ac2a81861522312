"""Run records and results as tidy frames, and frames as lines of a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.errors import ModelError, PerfmodelError
from writeup.places import repository, shipped

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.render.plot.lines import Series

_INSIDE = ("cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice")


def records(pattern: str) -> pd.DataFrame:
    """Read all CSV files that a pattern names, such as 'notebooks/data/long*.csv'.

    Returns
    -------
    DataFrame
        The rows of all files; ``file`` is the name, without suffix, that each comes from.

    Raises
    ------
    PerfmodelError
        If there is no such file.
    """
    import pandas as pd

    found: Sequence[Path] = sorted(repository().glob(pattern))
    if not found:
        raise PerfmodelError(
            f"wanted run records {pattern!r} in the repository; found none; write them with "
            f"python -m benchmarks.convergence"
        )
    frames = [pd.read_csv(path).assign(file=path.stem) for path in found]
    return pd.concat(frames, ignore_index=True)


def series(frame: pd.DataFrame, x: str, y: str, by: str, label: str = "{}") -> dict[str, Series]:
    """Turn a tidy frame into lines: `y` over `x`, one line for every value of `by`.

    Parameters
    ----------
    frame : DataFrame
    x, y, by : str
        Columns; lines come in the order of their values, points in that of `x`.
    label : str
        What a line is called, with ``{}`` for the value.

    Raises
    ------
    ModelError
        If a line has two values at one place: the frame then holds more than one run for it.
    """
    from perfmodel.render.plot.lines import Series

    found = {}
    for value, part in frame.groupby(by, sort=True):
        ordered = part.sort_values(x)
        if ordered[x].duplicated().any():
            twice = ordered.loc[ordered[x].duplicated(), x].iloc[0]
            raise ModelError(
                f"wanted one {y} at every {x} for {by} = {value}; found several at {twice}; choose "
                f"the rows of one run, or another column to tell the lines apart"
            )
        found[label.format(value)] = Series(ordered[x].tolist(), ordered[y].tolist())
    return found


def batch_parts(host_s: Mapping[str, float]) -> dict[str, float]:
    """Divide a batch's host time into parts that do not overlap and add up to it.

    Parameters
    ----------
    host_s : mapping of str to float
        Median host times by the document's ranges, in seconds. Medians of parts need not add up
        exactly to that of the whole: what is left, at least 0, is 'between ranges'.
    """
    backward = host_s["backward"] - sum(host_s[name] for name in _INSIDE)
    parts = {
        "copying images": host_s["copying images host -> device"],
        "forward": host_s["forward"],
        "backward, products": max(backward, 0.0),
        "gradients to host": host_s["cudaMemcpyDeviceToHost"],
        "MPI_Allreduce": host_s["MPI_Allreduce"],
        "gradients back": host_s["cudaMemcpyHostToDevice"],
        "step": host_s["step"],
    }
    rest = host_s["batch iteration"] - sum(parts.values())
    return {**parts, "between ranges": max(rest, 0.0)}


def verified(name: str = "benchmarks/results/verify_gpu.json") -> pd.DataFrame:
    """Read how runs on GPUs differ from the sequential one, as benchmarks.convergence.verify_gpu wrote it.

    Returns
    -------
    DataFrame
        ``ranks``, ``dtype``, ``learning_rate``, ``epochs``, ``error`` (largest relative one of all
        parameters), ``bound``, ``passed``, ``precision_test``, ``sequential_precision_test``.

    Raises
    ------
    PerfmodelError
        If the repository has no such file, or it holds no run that was verified.
    """
    import pandas as pd

    rows = [
        {
            **{key: row[key] for key in ("ranks", "dtype", "learning_rate", "epochs")},
            "error": max(row["max_relative_error"].values()),
            **{key: row[key] for key in ("bound", "passed")},
            "precision_test": row["precision_test"]["parallel"],
            "sequential_precision_test": row["precision_test"]["sequential"],
        }
        for row in json.loads(shipped(name).read_text(encoding="utf-8"))["rows"]
        if "max_relative_error" in row
    ]
    if not rows:
        raise PerfmodelError(
            f"wanted runs that were verified in {name!r}; found none; write them with "
            f"python -m benchmarks.convergence.verify_gpu on a machine with GPUs"
        )
    return pd.DataFrame(rows)


def trained(name: str = "benchmarks/results/verify_gpu.json") -> pd.DataFrame:
    """Read the long trainings of the same file, which were not held against another run.

    Returns
    -------
    DataFrame
        ``ranks``, ``dtype``, ``learning_rate``, ``epochs``, ``precision_test`` and
        ``precision_train``; no row where there was none.

    Raises
    ------
    PerfmodelError
        If the repository has no such file.
    """
    import pandas as pd

    keys = ["ranks", "dtype", "learning_rate", "epochs", "precision_test", "precision_train"]
    rows = json.loads(shipped(name).read_text(encoding="utf-8"))["rows"]
    long = [{key: row[key] for key in keys} for row in rows if "max_relative_error" not in row]
    return pd.DataFrame(long, columns=keys)
