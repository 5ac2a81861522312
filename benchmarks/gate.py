"""How often the gate of `perfmodel compare` decides, and how often it is wrong, on recorded runs.

python -m benchmarks.gate            the tables of docs/compare.md

recorded    runs whose host waits in every step: pieces of a configuration, each run with the
            differences of one recorded run from the mean of its own configuration, and a
            slowdown in one piece drawn at random, or in all of them alike
ladder      every pair of the three launches of each step of profiles/ladder, at a limit of 5 %
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from functools import cache
from typing import Any, Final

import numpy as np

from benchmarks.common import results
from benchmarks.common.folders import PROFILES, RESULTS
from benchmarks.reruns import SETS, pieces_of
from perfmodel.analysis.compare.compare import (
    CompareOptions,
    Gate,
    Side,
    compare_sides,
)
from perfmodel.analysis.compare.series import Launch, Series, launch_of
from perfmodel.analysis.runs import measure_report, runs_of
from perfmodel.base.arrays import Floats
from perfmodel.base.table import Column, Table, render
from perfmodel.models.launches import HOST_LIMITED, host_speeds
from perfmodel.programs.program import Options

LIMIT: Final = 0.05
TRIALS: Final = 1000
BATCHES: Final = 20
FEWEST_RUNS: Final = 3
FEWEST_PIECES: Final = 7
SEED: Final = 7
"""The rule was chosen among six with the seed 20261124, on the same recorded runs."""
ANSWERS: Final = (
    Column("slower", "Slower", "percent", digits=1),
    Column("equal", "Not slower", "percent", digits=1),
    Column("open", "Undecided", "percent", digits=1),
)


@cache
def hosts() -> tuple[tuple[tuple[str, ...], Floats, Floats], ...]:
    """Recorded pieces: their names, seconds of configurations, and differences of runs.

    The last column is the rest of the batch. Differences are of logarithms, made unbiased.
    """
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for name in SETS:
        for run in results.read(PROFILES / name / "launches.json")["launches"]:
            if run["recorded"] and isinstance(run.get("batch_s"), float):
                runs[name, run["machine"], run["name"]].append(run)
    usual: dict[tuple[str, ...], list[Floats]] = defaultdict(list)
    off: dict[tuple[str, ...], list[Floats]] = defaultdict(list)
    for group in runs.values():
        names = tuple(pieces_of(group[0]))
        queued = any("queued" in part for part in group[0]["parts"])
        known = all(all(pieces_of(run).get(n, 0.0) > 0 for n in names) for run in group)
        if len(group) < FEWEST_RUNS or len(names) < FEWEST_PIECES or queued or not known:
            continue
        seconds = np.array([[run["parts"][n] for n in names] for run in group])
        rest = np.array([run["batch_s"] for run in group]) - seconds.sum(axis=1)
        logs = np.log(seconds)
        usual[names].append(np.append(np.exp(logs.mean(axis=0)), max(float(rest.mean()), 0.0)))
        off[names] += [*((logs - logs.mean(axis=0)) * np.sqrt(len(group) / (len(group) - 1)))]
    return tuple((names, np.array(usual[names]), np.array(off[names])) for names in usual)


@cache
def of_launches() -> Floats:
    """Return what launches are longer or shorter than the speed of their run's host says.

    Logarithms, made unbiased, of the runs of the ladder whose host limits the steps.
    """
    found = []
    for one in trios().values():
        speeds = host_speeds([x.pieces for x in one])
        if speeds is not None and np.mean([x.idle_share for x in one]) >= HOST_LIMITED:
            off = np.log([x.launch_s for x in one]) - speeds
            found.append((off - off.mean()) * np.sqrt(len(one) / (len(one) - 1)))
    return np.concatenate(found)


def drawn(made: np.random.Generator, runs: int, slower: float, where: str) -> tuple[Floats, Floats]:
    """Draw the pieces of `runs` equal runs and of as many that are slower by a share of the batch.

    Returns
    -------
    array, shape (2, runs, pieces and the rest)
        Seconds.
    array, shape (2, runs)
        Seconds of a launch on the same hosts, which no slowdown changes.
    """
    kinds = hosts()
    weight = np.array([len(off) for *_, off in kinds], float)
    _, usual, off = kinds[made.choice(len(kinds), p=weight / weight.sum())]
    base = usual[made.integers(len(usual))]
    seconds = np.tile(base, (2, runs, 1))
    share = base[:-1] / base[:-1].sum()
    if where == "one piece":
        seconds[1, :, made.choice(len(share), p=share)] += slower * base.sum()
    else:
        seconds[1, :, :-1] += slower * base.sum() * share
    hosts_of = np.exp(off[made.integers(len(off), size=(2, runs))])
    seconds[:, :, :-1] *= hosts_of
    plain = (base[:-1] * hosts_of).reshape(2 * runs, -1)
    speeds = host_speeds([{str(k): float(s) for k, s in enumerate(run)} for run in plain])
    assert speeds is not None  # of `FEWEST_PIECES` or more
    noise = made.choice(of_launches(), (2, runs))
    return seconds, 4e-6 * np.exp(speeds.reshape(2, runs) + noise)


def gate(seconds: Floats, launch_s: Floats) -> Gate:
    """Judge two sides that have these pieces and launches."""
    sides = []
    for side, calls in zip(seconds, launch_s.tolist(), strict=True):
        launches = []
        for i, run in enumerate(side):
            batch = np.full(BATCHES, run.sum())  # what medians are off is in the recorded runs
            pieces = {str(k): float(s) for k, s in enumerate(run[:-1])}
            launches.append(
                Launch(
                    str(i), 0, 2, frozenset(), frozenset({"gpu"}),
                    {("range", ("step",)): Series(batch)},
                    pieces=pieces, idle_share=float(run[:-1].sum() / run.sum()),
                    launch_s=calls[i],
                )
            )  # fmt: skip
        sides.append(Side(tuple(launches), ({},) * len(launches)))
    found = compare_sides(sides[0], sides[1], CompareOptions(limit=LIMIT)).gate
    assert found is not None
    return found


def answers(runs: int, slower: float, where: str = "one piece", trials: int = TRIALS) -> Floats:
    """Return the shares of slower, not slower and undecided."""
    made = np.random.default_rng(SEED)
    said = Counter(gate(*drawn(made, runs, slower, where)).slower for _ in range(trials))
    return np.array([said[True], said[False], said[None]]) / trials


def recorded() -> Table:
    """Score the gate on drawn runs."""
    rows = [
        (where, slower, runs, *answers(runs, slower, where))
        for where in ("one piece", "all alike")
        for slower in ((0.0, 0.05, 0.1, 0.2) if where == "one piece" else (0.1, 0.2))
        for runs in (1, 2, 3, 5)
    ]
    columns = (
        Column("where", "Slower in"), Column("by", "By", "percent", digits=0),
        Column("runs", "Runs a side", "int"), *ANSWERS,
    )  # fmt: skip
    return Table(f"The host waits in every step: {TRIALS} comparisons each", columns, rows)


@cache
def trios() -> dict[str, list[Launch]]:
    """Return the launches of each step of the ladder."""
    found = {}
    for first in sorted((PROFILES / "ladder").glob("*_1.sqlite.xz")):
        name = first.name.removesuffix("_1.sqlite.xz")
        found[name] = [
            launch_of(run, done=True)
            for path in sorted(first.parent.glob(f"{name}_?.sqlite.xz"))
            for run in runs_of([measure_report(path, path, Options())], Options())
        ]
    return found


def ladder() -> Table:
    """Say how much the three launches of each step of the ladder differ."""
    rows = []
    for name, launches in trios().items():
        logs = np.log([
            float(np.nanmedian(next(iter(x.series.values())).seconds)) for x in launches
        ])  # fmt: skip
        share = float(np.mean([x.idle_share for x in launches]))
        speeds = host_speeds([x.pieces for x in launches])
        even = None if speeds is None else float(np.std(logs - share * speeds, ddof=1))
        calls = np.log([x.launch_s for x in launches])
        besides = None if speeds is None else float(np.std(logs - share * calls, ddof=1))
        rows.append((name, share, float(np.std(logs, ddof=1)), even, besides))
    columns = (
        Column("step", "Step"), Column("idle", "GPU idle", "percent", digits=0),
        Column("raw", "Launches differ by", "percent", digits=1),
        Column("even", "At one speed of the host", "percent", digits=1),
        Column("besides", "By its kernel launches", "percent", digits=1),
    )  # fmt: skip
    return Table("Launches of the ladder: standard deviations", columns, rows)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    tables = [recorded(), ladder()]
    results.write_tables(RESULTS / "gate.json", tables)
    print("\n".join(render(table, "table", width=120) for table in tables))


if __name__ == "__main__":
    main()
