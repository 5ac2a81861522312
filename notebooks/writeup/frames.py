"""Run records and results as tidy frames, and frames as lines of a figure (notebooks 01, 03)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from perfmodel.base.errors import ModelError, PerfmodelError
from writeup.shipped import repository, shipped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from perfmodel.render.plot.lines import Series

_MEASURES: Final[dict[str, tuple[str, str, Literal["linear", "log"]]]] = {
    "learning_rate": ("Learning rate", "", "log"),
    "epoch": ("Epoch", "", "log"),
    "hidden_size": ("Hidden size H", "", "log"),
    "H": ("Hidden size H", "", "log"),
    "error": ("Relative error of weights", "", "log"),
    "loss": ("Loss", "", "log"),
    "accuracy": ("Accuracy", "", "linear"),
    "accuracy_test": ("Test accuracy", "", "linear"),
    "P_flops_flops_per_s": ("P_flops", "FLOP/s", "log"),
    "P_pci_bytes_per_s": ("P_pci", "B/s", "linear"),
    "P_mpi_bytes_per_s": ("P_mpi", "B/s", "linear"),
}
"""Of the columns that notebooks draw: the label of the axis, its unit, its scale."""


def records(pattern: str) -> pd.DataFrame:
    """Read all CSV files that a pattern names, such as 'notebooks/data/long*.csv'.

    Returns
    -------
    DataFrame
        The rows of all files; ``file`` is the name, without suffix, that each comes from.
        Columns that a file calls precision are called accuracy.

    Raises
    ------
    PerfmodelError
        If there is no such file.
    """
    import pandas as pd

    found: Sequence[Path] = sorted(repository().glob(pattern))
    if not found:
        raise PerfmodelError(
            f"expected run records {pattern!r} in the repository; got none; write them with "
            f"python -m benchmarks.convergence"
        )
    frames = [pd.read_csv(path).assign(file=path.name.split(".")[0]) for path in found]
    return _renamed(pd.concat(frames, ignore_index=True))


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
                f"expected one {y} at every {x} for {by} = {value}; got several at {twice}; choose "
                f"the rows of one run, or another column to tell the lines apart"
            )
        found[label.format(value)] = Series(ordered[x].tolist(), ordered[y].tolist())
    return found


def draw_lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    ax: Axes,
    *,
    label: str = "{}",
    linear: bool = False,
    **looks: Any,
) -> Axes:
    """Draw `y` over `x`, one line for every value of `by`; see `series`.

    Parameters
    ----------
    frame : DataFrame
    x, y : str
        Columns whose axes are known here, such as 'epoch' and 'loss'.
    linear : bool
        Whether the axis of `x` is linear; by default as known here.
    looks
        Of `perfmodel.render.plot.lines.lines`: ordered, references, legend.
    """
    from perfmodel.render.plot.lines import lines
    from perfmodel.render.plot.style import Measure

    across = Measure(_MEASURES[x][0]) if linear else Measure(*_MEASURES[x])
    return lines(series(frame, x, y, by, label), across, Measure(*_MEASURES[y]), ax=ax, **looks)


_ON_GPUS: Final = "benchmarks/results/verify_gpu.json"


def _rows_on_gpus() -> list[dict[str, Any]]:
    """Read what benchmarks.convergence.verify_gpu wrote."""
    rows: list[dict[str, Any]] = json.loads(shipped(_ON_GPUS).read_text(encoding="utf-8"))["rows"]
    return rows


def verified() -> pd.DataFrame:
    """Read how runs on GPUs differ from the sequential one, as benchmarks.convergence.verify_gpu wrote it.

    Returns
    -------
    DataFrame
        ``ranks``, ``dtype``, ``learning_rate``, ``epochs``, ``error`` (largest relative one of all
        parameters), ``bound``, ``passed``, ``accuracy_test``, ``sequential_accuracy_test``.

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
            "accuracy_test": row["precision_test"]["parallel"],
            "sequential_accuracy_test": row["precision_test"]["sequential"],
        }
        for row in _rows_on_gpus()
        if "max_relative_error" in row
    ]
    if not rows:
        raise PerfmodelError(
            f"expected runs that were verified in {_ON_GPUS!r}; got none; write them with "
            f"python -m benchmarks.convergence.verify_gpu on a machine with GPUs"
        )
    return pd.DataFrame(rows)


def trained() -> pd.DataFrame:
    """Read the long trainings of the same file, which were not held against another run.

    Returns
    -------
    DataFrame
        ``ranks``, ``dtype``, ``learning_rate``, ``epochs``, ``accuracy_test`` and
        ``accuracy_train``; no row where there was none.

    Raises
    ------
    PerfmodelError
        If the repository has no such file.
    """
    import pandas as pd

    keys = ["ranks", "dtype", "learning_rate", "epochs", "precision_test", "precision_train"]
    long = [
        {key: row[key] for key in keys}
        for row in _rows_on_gpus()
        if "max_relative_error" not in row
    ]
    return _renamed(pd.DataFrame(long, columns=keys))


def _renamed(frame: pd.DataFrame) -> pd.DataFrame:
    names = {str(c): str(c).replace("precision_t", "accuracy_t") for c in frame.columns}
    return frame.rename(columns=names)
