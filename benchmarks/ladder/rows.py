"""Rows of the ladder: times of visits become medians, ratios and intervals; the file of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import results

Row = dict[str, Any]
KEY: Final = ("rung", "H", "B", "p", "dtype")
"""What a row is about: a later run replaces the rows it repeats."""


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the smallest, the quartiles (linear between order statistics) and the largest."""
    found = np.percentile(seconds, (0, 25, 75, 100)).tolist()
    return dict(zip(("min_s", "q1_s", "q3_s", "max_s"), found, strict=True))


def median_interval(values: Sequence[float], wanted: float = 0.95) -> tuple[float, float, float]:
    """Return order statistics around the median, and the confidence that they enclose it.

    Of n independent values the k-th smallest and the k-th largest enclose the distribution's
    median with probability 1 - 2 P(X < k), X binomial(n, 1/2), whatever the distribution (Conover,
    Practical Nonparametric Statistics, 3.2). The largest k that reaches `wanted` is taken; under 6
    values none does, and the extremes come with the confidence they have.
    """
    ordered, n = sorted(values), len(values)
    below, best = 0.0, (ordered[0], ordered[-1], 1 - 2 * 0.5**n)
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1) * 0.5**n
        if 1 - 2 * below < wanted:
            break
        best = (ordered[k - 1], ordered[n - k], 1 - 2 * below)
    return best


def best_peer(times: dict[str, list[float]], candidates: Sequence[str]) -> str | None:
    """Return the candidate with the smallest median; None if none was timed."""
    timed = [name for name in candidates if times.get(name)]
    return min(timed, key=lambda name: statistics.median(times[name]), default=None)


def compare(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return mine / theirs, round by round: median and interval; below 1 is faster."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    low, high, confidence = median_interval(ratios)
    return {
        "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high,
        "ratio_confidence": confidence,
    }  # fmt: skip


def make_row(
    about: dict[str, Any], seconds: Sequence[float], peer: tuple[str, Sequence[float]] | None,
    floor: dict[str, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """Return one row; what was not measured is None, with the reason in `about`.

    Parameters
    ----------
    about : dict
        The key, and whatever is known without timing: reason, error, valid.
    seconds : sequence of float
        Per round, seconds per batch of the slowest rank.
    peer : (str, sequence of float) or None
        The whole-graph PyTorch: its name and times in the same rounds.
    floor : dict or None
        Terms in seconds, by name; those called ``*_s`` and not in parentheses add up.
    """
    row: dict[str, Any] = {
        **about, "median_s": None, "rounds": len(seconds), "round_s": list(seconds),
        "peer": None, "peer_median_s": None, "peer_round_s": None,
        "ratio": None, "ratio_low": None, "ratio_high": None, "ratio_confidence": None,
        "floor_s": None, "floor": floor,
    }  # fmt: skip
    if floor is not None:
        row["floor_s"] = sum(floor.values())
    if seconds:
        row |= {"median_s": statistics.median(seconds), **spread(seconds)}
        if peer is not None and about.get("valid", True):
            name, theirs = peer
            row |= {
                "peer": name,
                "peer_median_s": statistics.median(theirs),
                "peer_round_s": list(theirs),
            }
            row |= compare(seconds, theirs)
    return row


def noted(note: dict[str, Any], rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a note is about: those of its runs that were not measured again.

    Notes say what is to be known of rows, such as a kernel that was fixed afterwards. They are
    written into ladder.json by hand: `text`, `runs` (their names), `rungs`, and `H` and `dtype` if
    only some are meant. A note leaves the file with the last of its rows.
    """
    return [
        row
        for row in rows
        if row["run"] in note["runs"]
        and row["rung"] in note["rungs"]
        and all(row[key] in note.get(key, [row[key]]) for key in ("H", "dtype"))
    ]


def merge(
    record: dict[str, Any], run: dict[str, Any], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the record with a run's rows added; those with the same key are replaced."""
    name = f"{run['date']} p={run['ranks']}"
    fresh = {tuple(row[k] for k in KEY): {**row, "run": name} for row in rows}
    kept = [r for r in record.get("rows", []) if tuple(r[k] for k in KEY) not in fresh]
    merged = sorted([*kept, *fresh.values()], key=_order)
    runs = {**record.get("runs", {}), name: run}
    used = {row["run"] for row in merged}
    return {
        "ratio": "seconds of the rung / seconds of whole-graph PyTorch; below 1 is faster",
        "runs": {key: runs[key] for key in sorted(used)},
        "rows": merged,
        "notes": [note for note in record.get("notes", []) if noted(note, merged)],
    }


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["p"], row["H"], row["B"], row["dtype"], row["kind"] != "rung", row["place"]


def write(path: Path, run: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Merge rows into the file at `path`; of floats six significant digits: the rest is noise."""
    results.write(path, merge(results.read(path), run, rows), digits=6)
