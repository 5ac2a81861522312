"""How often changes over commits are found, and how often there is none where one is reported.

    python -m benchmarks.history            the tables of docs/history.md

Series of 100 commits of equal programs, and with one slowdown of 5 % at a commit drawn at random.
How runs of one program differ is drawn

    independent, correlated, t3, outliers   from a distribution, at several standard deviations;
                                            t3: Student's t of 3 degrees of freedom; outliers: one
                                            run in twenty is up to ten standard deviations slower
    GPU, host, GEMMs                        from the recorded runs of this repository: differences
                                            from the median of their configuration
    host, by pieces                         the same with the pieces of the host's time
                                            (`benchmarks.gate`), and a slowdown in one of them

`found` is a change within three commits of the true one, with all 100 commits known; `in time`,
the same with the slow commit and the two after it known only. `watched` counts series with a false
alarm where somebody looks after every commit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from benchmarks.common import results
from benchmarks.common.folders import IMAGES, RESULTS
from benchmarks.gate import drawn
from benchmarks.reruns import logs
from perfmodel.analysis.history import histories
from perfmodel.base.arrays import Floats
from perfmodel.base.table import Column, Table, render
from perfmodel.models.history import FEWEST, Change, change_points
from perfmodel.readers.results import Recorded
from perfmodel.render.history import picture
from perfmodel.render.plot import save

COMMITS: Final = 100
SLOWER: Final = 1.05
WITHIN: Final = 3
LEAST: Final = 0.01
"""As `perfmodel compare --least` by default."""
WATCHED: Final = 5
"""One series in so many is watched commit by commit, which takes 90 times as long."""
WATCHED_HOSTS: Final = 10
FEWEST_RUNS: Final = 3
SEED: Final = 20261124
"""The constants of `perfmodel.models.history` were chosen with the seeds 0, 5 and 38."""
COLUMNS: Final = (
    Column("noise", "Runs differ"),
    Column("sd", "Standard deviation", "percent", digits=2),
    Column("runs", "Runs a commit", "int"),
    Column("false", "False alarm", "percent", digits=1),
    Column("watched", "Watched", "percent", digits=1),
    Column("found", "Found", "percent", digits=1),
    Column("in_time", "In time", "percent", digits=1),
    Column("places", "Commit in range", "percent", digits=1),
)

Draw = Callable[[np.random.Generator, int], Floats]


def distributions() -> Iterator[tuple[str, float, Draw]]:
    """Yield name, standard deviation and what draws logarithms of runs."""

    def independent(made: np.random.Generator, n: int) -> Floats:
        return made.standard_normal(n)

    def correlated(made: np.random.Generator, n: int) -> Floats:
        values = made.standard_normal(n)
        for i in range(1, n):
            values[i] = 0.5 * values[i - 1] + np.sqrt(0.75) * values[i]
        return values

    def heavy(made: np.random.Generator, n: int) -> Floats:
        return made.standard_t(3, n) / np.sqrt(3)

    def outliers(made: np.random.Generator, n: int) -> Floats:
        return made.standard_normal(n) + 10 * made.random(n) * (made.random(n) < 0.05)

    for sd in (0.002, 0.007, 0.01, 0.015, 0.02, 0.03):
        for name, draw in (
            ("independent", independent), ("correlated 0.5", correlated), ("t3", heavy),
            ("outliers", outliers),
        ):  # fmt: skip
            yield name, sd, lambda made, n, draw=draw, sd=sd: sd * draw(made, n)


def recorded() -> Iterator[tuple[str, float, Draw]]:
    """Yield the same of runs that were recorded: differences from their configuration's median."""
    for kind in ("GPU", "host", "GEMMs"):
        found = [
            (np.array(values) - np.median(values)) * np.sqrt(len(values) / (len(values) - 1))
            for half in (0, 1)
            for values in logs(half).get(kind, {}).values()
            if len(values) >= FEWEST_RUNS
        ]
        values = np.concatenate(found)
        yield (
            f"recorded, {kind}",
            float(np.std(values)),
            lambda made, n, v=values: made.choice(v, n),
        )


def series(made: np.random.Generator, draw: Draw, runs: int) -> Floats:
    """Draw the medians of the runs of 100 commits."""
    return np.median(draw(made, COMMITS * runs).reshape(COMMITS, runs), axis=1)


Make = Callable[[np.random.Generator, int], Any]
"""Draws a history that is slower from a commit on."""
Find = Callable[[Any, int], list[Change]]
"""Finds the changes of the first commits of a history."""
Scores = tuple[float, float, float, float, float]


def score(make: Make, changes: Find, count: int, watch: int) -> Scores:
    """Count alarms of `count` equal histories, and the slowdowns of as many that are found."""
    made = np.random.default_rng(SEED)
    alarms = watched = found = in_time = places = 0
    for i in range(count):
        equal = make(made, COMMITS)
        alarms += bool(changes(equal, COMMITS))
        if i % watch == 0:
            watched += any(changes(equal, n) for n in range(FEWEST, COMMITS + 1))
        at = int(made.integers(2 * FEWEST, COMMITS - WITHIN))
        slower = make(made, at)
        near = [one for one in changes(slower, COMMITS) if abs(one.at - at) <= WITHIN]
        found += bool(near)
        places += any(one.first <= at <= one.last for one in near)
        in_time += any(abs(one.at - at) <= WITHIN for one in changes(slower, at + WITHIN))
    return (
        alarms / count, watched / -(-count // watch), found / count, in_time / count,
        places / max(found, 1),
    )  # fmt: skip


def score_series(draw: Draw, runs: int, count: int) -> Scores:
    """Score series of medians of the runs of a commit."""

    def make(made: np.random.Generator, at: int) -> Floats:
        seconds = np.exp(series(made, draw, runs))
        seconds[at:] *= SLOWER
        return seconds

    return score(make, lambda found, n: change_points(found[:n].tolist(), LEAST), count, WATCHED)


def of_hosts(made: np.random.Generator, runs: int, at: int) -> list[Recorded]:
    """Draw runs whose host limits the steps, and is slower in one piece from a commit on."""
    (before, after), _ = drawn(made, COMMITS * runs, SLOWER - 1, "one piece")
    found = []
    for i in range(COMMITS * runs):
        pieces = (before if i // runs < at else after)[i]
        times = {("step", "step"): float(pieces.sum())}
        times |= {("idle", str(k)): float(s) for k, s in enumerate(pieces[:-1])}
        found.append(Recorded(f"{i // runs:03d}", f"{i:06d}", "host", times))
    return found


def score_hosts(runs: int, count: int) -> Scores:
    """Score histories of runs with the pieces of the host's time."""

    def changes(found: list[Recorded], commits: int) -> list[Change]:
        return [shift.change for shift in histories(found[: commits * runs])[0].shifts]

    return score(lambda made, at: of_hosts(made, runs, at), changes, count, WATCHED_HOSTS)


def draw_example() -> None:
    """Draw a history with the noise of recorded GPU-limited runs, a slowdown and a repair."""
    made = np.random.default_rng(38)
    draw = next(d for name, _, d in recorded() if name == "recorded, GPU")
    runs = []
    for at in range(COMMITS):
        step_s = 16.4e-3 * (SLOWER if 40 <= at < 75 else 1.0) * math.exp(draw(made, 1)[0])
        commit, hour = f"{made.integers(16**7):07x}", f"{at // 24 + 1:02d}T{at % 24:02d}"
        times = {("step", "step"): step_s, ("GPU busy", "GPU busy"): 0.9 * step_s}
        runs.append(
            Recorded(commit, f"2026-01-{hour}:00:00", "planted: +5 %, then repaired", times)
        )
    save(picture(histories(runs)), IMAGES, "history", ("png",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=400, help="of each kind")
    count = parser.parse_args().series
    rows: list[tuple[str, float | None, int, float, float, float, float, float]] = []
    for name, sd, draw in (*recorded(), *distributions()):
        for runs in (1, 3) if name.startswith("recorded") else (1,):
            rows.append((name, sd, runs, *score_series(draw, runs, count)))
            print(rows[-1], flush=True)
    for runs in (1, 3):
        rows.append(("recorded, host, by pieces", None, runs, *score_hosts(runs, count // 2)))
        print(rows[-1], flush=True)
    title = f"Changes over {COMMITS} commits, {count} series of each kind; a slowdown of 5 %"
    found = Table(title, COLUMNS, rows)
    draw_example()
    results.write_tables(RESULTS / "history.json", [found])
    print(render(found, "table", width=120))


if __name__ == "__main__":
    main()
