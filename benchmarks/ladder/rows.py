"""Rows of the ladder: times of visits become medians, ratios and intervals; the file of them.

A row holds its launches, with the times of all their rounds, and what they say together. Times on
different hosts are not comparable: ratios to PyTorch are taken within each launch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import results
from benchmarks.common.launches import LAUNCH_SD, ratio_over
from benchmarks.ladder.configurations import RUNGS

Row = dict[str, Any]
KEY: Final = ("rung", "H", "B", "p", "dtype")
"""What a row is about: a later run adds its launch to the rows that it repeats."""
OF_LAUNCH: Final = (
    "run", "median_s", "min_s", "q1_s", "q3_s", "max_s", "rounds", "round_s", "peer",
    "peer_median_s", "ratio", "ratio_low", "ratio_high", "ratio_confidence", "error", "valid",
    "floor_s",
)  # fmt: skip
"""What is kept of every launch, its interval from its rounds; all else is of the last one."""
GRAPHS: Final = {rung.name for rung in RUNGS if rung.settings.get("graph")}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the smallest, the quartiles (linear between order statistics) and the largest."""
    found = np.percentile(seconds, (0, 25, 75, 100)).tolist()
    return dict(zip(("min_s", "q1_s", "q3_s", "max_s"), found, strict=True))


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return order statistics around the median, and the confidence that they enclose it.

    Of n independent values the k-th smallest and the k-th largest enclose the distribution's
    median with probability 1 - 2 P(X < k), X binomial(n, 1/2), whatever the distribution (Conover,
    Practical Nonparametric Statistics, 3.2). The largest k that reaches 95 % is taken; under 6
    values none does, and the extremes come with the confidence they have.
    """
    ordered, n = sorted(values), len(values)
    below, best = 0.0, (ordered[0], ordered[-1], 1 - 2 * 0.5**n)
    for k in range(1, n // 2 + 1):
        below += math.comb(n, k - 1) * 0.5**n
        if 1 - 2 * below < 0.95:
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
        "peer": None, "peer_median_s": None,
        "ratio": None, "ratio_low": None, "ratio_high": None, "ratio_confidence": None,
        "floor_s": None, "floor": floor,
    }  # fmt: skip
    if floor is not None:
        row["floor_s"] = sum(floor.values())
    if seconds:
        row |= {"median_s": statistics.median(seconds), **spread(seconds)}
        if peer is not None and about.get("valid", True):
            name, theirs = peer
            row |= {"peer": name, "peer_median_s": statistics.median(theirs)}
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
    record: dict[str, Any], run: dict[str, Any], rows: Sequence[Row], *, replace: bool = False,
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the record with a run's rows added: launches beside those of the same key.

    With `replace` they take the place of the earlier launches. A run is called by its date and
    ranks unless `name` is given.

    Raises
    ------
    ValueError
        If the record's launches ran on another GPU: times and ratios are of one.
    """
    gpus = {run["versions"].get("gpu") for run in (*record.get("runs", {}).values(), run)}
    if len(gpus) > 1:
        raise ValueError(f"expected launches on one GPU; got {' and '.join(map(str, gpus))}")
    name = name or f"{run['date']} p={run['ranks']}"
    found = {tuple(r[k] for k in KEY): r for r in record.get("rows", [])}
    for row in rows:
        fresh = {**row, "run": name}
        before = found.get(tuple(row[k] for k in KEY))
        found[tuple(row[k] for k in KEY)] = (
            joined([fresh]) if before is None or replace else joined([*launches(before), fresh])
        )
    merged = sorted(found.values(), key=_order)
    runs = {**record.get("runs", {}), name: run}
    used = {launch["run"] for row in merged for launch in launches(row)}
    return {
        "ratio": "seconds of the rung / seconds of whole-graph PyTorch; below 1 is faster",
        "runs": {key: runs[key] for key in sorted(used)},
        "rows": merged,
        "notes": [note for note in record.get("notes", []) if noted(note, merged)],
    }


def launches(row: Row) -> list[Row]:
    """Return the row of every launch; what is not kept of each is the last one's."""
    of_all = {k: v for k, v in row.items() if k not in OF_LAUNCH and k != "launches"}
    unknown = dict.fromkeys(OF_LAUNCH)
    return [{**of_all, **unknown, **launch} for launch in row.get("launches") or [row]]


def joined(rows: Sequence[Row]) -> Row:
    """Return the rows of one key's launches as one: medians over launches, and their spread.

    Of several launches that were timed, the quartiles and extremes are of their medians. What was
    never timed is as in the last launch.
    """
    by_run = {row["run"]: row for row in rows}  # a launch written again replaces itself
    timed = [row for row in by_run.values() if row["median_s"] is not None]
    row = {**(timed or rows)[-1]}
    row["launch_sd"] = launch_sd(row)
    row["launches"] = [{k: r[k] for k in OF_LAUNCH if r.get(k) is not None} for r in timed]
    if len(timed) > 1:
        medians = [r["median_s"] for r in timed]
        row |= {"median_s": statistics.median(medians), **spread(medians)}
        row["error"] = max(r.get("error") or 0.0 for r in timed)
        row["valid"] = all(r["valid"] for r in timed)
    compared = [r for r in timed if r.get("ratio") is not None]
    if compared and not row["valid"]:
        row |= dict.fromkeys(("ratio", "ratio_low", "ratio_high", "ratio_confidence"))
    elif compared:
        names = [r["peer"] for r in compared]
        row["peer"] = max(names, key=names.count)
        row["peer_median_s"] = statistics.median(r["peer_median_s"] for r in compared)
        row |= ratio_over([r["ratio"] for r in compared], ratio_sd(row))
    return row


def launch_sd(row: Row) -> float:
    """Return the standard deviation of a batch's logarithm that is assumed between launches.

    Source: `benchmarks.common.launches.LAUNCH_SD`, of the launches in profiles/launches: of batches
    that are CUDA graphs, with all-reduces or without; else of batches that the host queues.
    """
    is_graph = row.get("whole_graph") or row["rung"] in GRAPHS
    return _of_graphs(row) if is_graph else LAUNCH_SD["queued"]


def ratio_sd(row: Row) -> float:
    """Return that of the ratio's to PyTorch, which is a CUDA graph."""
    return math.hypot(launch_sd(row), _of_graphs(row))


def _of_graphs(row: Row) -> float:
    return LAUNCH_SD["replayed" if row["p"] == 1 else "NCCL"]


def coverage(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many launches' ratios the interval of their row's others holds, and of how many.

    A ratio that is PyTorch's best over itself is left out.
    """
    held = count = 0
    for row in rows:
        ratios = [r["ratio"] for r in launches(row) if r.get("ratio") and r["peer"] != row["rung"]]
        if len(ratios) < 2 or not row["valid"]:
            continue
        for i, left_out in enumerate(ratios):
            others = ratio_over(ratios[:i] + ratios[i + 1 :], ratio_sd(row))
            held += others["ratio_low"] <= left_out <= others["ratio_high"]
            count += 1
    return held, count


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["p"], row["H"], row["B"], row["dtype"], row["kind"] != "rung", row["place"]


def write(path: Path, run: dict[str, Any], rows: Sequence[Row], *, replace: bool = False) -> None:
    """Merge rows into the file at `path`; of floats six significant digits: the rest is noise."""
    results.write(path, merge(results.read(path), run, rows, replace=replace), digits=6)
