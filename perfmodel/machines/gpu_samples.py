"""Series: samples over time as columns, from and to CSV, cut to windows and averaged."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.base.files import check_path
from perfmodel.machines.sampler import Reading

Floats = npt.NDArray[np.float64]

COUNTERS: Final = tuple(f.name for f in fields(Reading) if f.name != "gpu")
"""Columns of a series, but for `time_s` and `gpu`."""

_LONG: Final = 10
"""So many times the usual step between two samples is a gap."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one or more GPUs, by time.

    Attributes
    ----------
    time_s : float64, shape (n,)
        Since the command was started.
    gpu : int64, shape (n,)
    values : dict of str to float64, shape (n,)
        By the names in `COUNTERS`; NaN where a GPU does not tell.
    """

    time_s: Floats
    gpu: Int64
    values: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of the series, ascending."""
        return tuple(int(g) for g in np.unique(self.gpu))

    def of(self, gpu: int) -> Series:
        """Return the samples of one GPU."""
        return self._rows(self.gpu == gpu)

    def only(self, gpus: Sequence[int]) -> Series:
        """Return the samples of some GPUs.

        Raises
        ------
        SchemaError
            If one of them was not sampled.
        """
        for gpu in gpus:
            if gpu not in self.gpus:
                raise SchemaError(
                    f"expected GPU {gpu}; the series has {', '.join(map(str, self.gpus))}; take "
                    f"one of these"
                )
        return self._rows(np.isin(self.gpu, gpus))

    def gaps(self, gpu: int) -> tuple[tuple[float, float], ...]:
        """Return from when until when a GPU was not sampled: `_LONG` times the usual step."""
        times = self.of(gpu).time_s
        steps = np.diff(times)
        if len(steps) < 2:
            return ()
        at = np.flatnonzero(steps > _LONG * np.median(steps))
        return tuple((float(times[i]), float(times[i + 1])) for i in at)

    def window(self, start_s: float, end_s: float) -> Series:
        """Return the samples from `start_s` on and before `end_s`.

        Raises
        ------
        SchemaError
            If there is none.
        """
        cut = self._rows((self.time_s >= start_s) & (self.time_s < end_s))
        if len(cut) == 0:
            raise SchemaError(
                f"expected samples from {start_s:g} s to {end_s:g} s; got none among those from "
                f"{self.time_s[0]:.1f} s to {self.time_s[-1]:.1f} s; take another --window"
            )
        return cut

    def mean(self, counter: str) -> float | None:
        """Return the mean of a counter weighted by time; None where it was never told.

        A sample stands for the time from half-way since the one before it of its GPU to half-way
        until the next.
        """
        total = weight = 0.0
        for gpu in self.gpus:
            mine = self.of(gpu)
            value, width = mine.values[counter], _widths(mine.time_s)
            told = ~np.isnan(value)
            total += float((value[told] * width[told]).sum())
            weight += float(width[told].sum())
        return total / weight if weight else None

    def largest(self, counter: str) -> float | None:
        """Return the largest value of a counter; None where it was never told."""
        told = self.values[counter][~np.isnan(self.values[counter])]
        return float(told.max()) if len(told) else None

    def _rows(self, keep: npt.NDArray[np.bool_]) -> Series:
        values = {name: column[keep] for name, column in self.values.items()}
        return Series(self.time_s[keep], self.gpu[keep], values)


def _widths(time_s: Floats) -> Floats:
    if len(time_s) < 2:
        return np.ones(len(time_s))
    gaps = np.diff(time_s)
    ends = np.concatenate([gaps[:1], gaps, gaps[-1:]])
    widths: Floats = np.maximum((ends[:-1] + ends[1:]) / 2, 1e-9)
    return widths


def series_of(samples: Sequence[tuple[float, Reading]]) -> Series:
    """Turn readings with their times into columns, by time."""
    ordered = sorted(samples, key=lambda sample: (sample[0], sample[1].gpu))
    return Series(
        np.array([time for time, _ in ordered], float),
        np.array([reading.gpu for _, reading in ordered], np.int64),
        {
            name: np.array(
                [math.nan if (v := getattr(r, name)) is None else v for _, r in ordered], float
            )
            for name in COUNTERS
        },
    )


def to_csv(series: Series) -> str:
    """Return the series as CSV with units in the names; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time_s", "gpu", *COUNTERS])
    for i in range(len(series)):
        cells = (series.values[name][i] for name in COUNTERS)
        shown = ("" if math.isnan(v) else f"{v:.12g}" for v in cells)
        writer.writerow([f"{series.time_s[i]:.4f}", int(series.gpu[i]), *shown])
    return out.getvalue()


def read_series(path: Path) -> Series:
    """Read what `to_csv` wrote.

    Raises
    ------
    ReportError
        If the file cannot be read.
    SchemaError
        If it is no such CSV, or holds no sample.
    """
    check_path(path)
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReportError(f"{path}: cannot be read as CSV ({error}); sample again") from error
    wanted = {"time_s", "gpu", "gpu_percent"}
    if not rows or not wanted <= set(rows[0]):
        found = ", ".join(str(name) for name in rows[0]) if rows else "no row"
        raise SchemaError(
            f"{path}: expected a series of perfmodel utilization (columns time_s, gpu, "
            f"gpu_percent, ...); got {found[:200]}; make one with: perfmodel utilization -- COMMAND"
        )
    try:
        return series_of([_sample(row) for row in rows])
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{path}: expected rows of numbers; got {error}; sample again") from error


def _sample(row: dict[str, str]) -> tuple[float, Reading]:
    """Return a row's time and reading; refuse one that is torn or holds no finite numbers."""
    if None in row.values():
        raise ValueError("a row that ends early")
    told = {name: _finite(row[name]) for name in COUNTERS if row.get(name)}
    return _finite(row["time_s"]), Reading(gpu=int(row["gpu"]), **told)


def _finite(cell: str) -> float:
    value = float(cell)
    if not 0 <= value < math.inf:
        raise ValueError(f"{cell!r}, not a finite number of at least 0")
    return value
