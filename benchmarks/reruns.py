"""How often intervals of medians hold, and how wide they are: of a run's batches, and of a rerun.

    python -m benchmarks.reruns              the tables
    python -m benchmarks.reruns --learn      the numbers of perfmodel/models/reruns.toml

Three kinds of evidence:

    simulations  batches that are independent, that correlate, of two modes and with a drift: the
                 interval of `perfmodel.models.launches.interval` and the true median
    halves       the interval of each half of every shipped report, and the median of the whole
    runs         the interval of a rerun from one run, and from all others of its configuration, and
                 the run left out; `--half` takes the configurations that were not learned from

Widths are of the logarithm: 0.02 is 1 % on either side.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, ndtr

from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from perfmodel.base.arrays import Floats
from perfmodel.base.table import Column, Table, render
from perfmodel.models.launches import Median, Spread, host_speeds, interval, spreads
from perfmodel.programs import steps_of_run
from perfmodel.programs.mlp.settings import BATCH_RANGE
from perfmodel.readers import read
from perfmodel.timing.async_batches import head_of
from perfmodel.timing.run import time_run
from perfmodel.timing.samples import Clock, tabulate

SETS: Final = ("launches", "fresh", "hosts", "scale")
REPORTS: Final = ("campaign/*.xz", "ladder/*.xz", "ddp/ddp_p2*.xz", "launches/*.sqlite.xz")
RANGES: Final[tuple[tuple[str, str, Clock], ...]] = (
    ("GEMM 1", "forward GEMM 1", "gpu_projection"),
    ("all-reduce", "MPI_Allreduce", "host"),
    ("copies", "copying images host -> device", "gpu_projection"),
)
KERNELS: Final = (
    "large GEMMs", "small GEMMs", "element-wise", "step kernels", "all-reduce [NCCL]", "fused",
)  # fmt: skip
PIECES: Final = ("launch ", "copy ", "between ", "all-reduce [MPI", "sum alone", "first launch")
STEADY: Final = "host at one speed"
LIMITED: Final = 0.95
TRIALS: Final = 500
BATCHES: Final = (40, 80, 200)
ENOUGH: Final = 20
"""Batches of a report from which its halves are judged."""
TICK_S: Final = 17e-9

Groups = dict[str, dict[tuple[str, ...], list[float]]]


def half_of(name: str) -> int:
    """Which half of the configurations one belongs to: 0 was learned from, 1 is for the score."""
    return zlib.crc32(name.encode()) % 2


def logs(half: int) -> Groups:
    """Logarithms of recorded times by what limits them and configuration, a number a run."""
    found: Groups = defaultdict(lambda: defaultdict(list))
    hosts: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for name in SETS:
        for run in results.read(PROFILES / name / "launches.json")["launches"]:
            if not run["recorded"] or not isinstance(run.get("batch_s"), float):
                continue
            if half_of(run["name"]) != half:
                continue
            where, parts = (name, run["machine"], run["name"]), run["parts"]
            computing = sum(s for part, s in parts.items() if part.startswith(KERNELS))
            by_gpu = run["settings"]["graph"] == "yes" or computing >= LIMITED * run["batch_s"]
            times = {
                "GPU" if by_gpu else "host": run["batch_s"],
                "GEMMs": parts.get("large GEMMs [cublas ieee 32 bit]", 0.0),
                "NCCL": parts.get("all-reduce [NCCL]", 0.0),
                "copies": sum(s for part, s in parts.items() if part.startswith("copy ")),
            }
            for kind, seconds in times.items():
                if seconds > 0:
                    found[kind][where].append(math.log(seconds))
            if not any("queued" in part for part in parts) and not by_gpu:
                hosts[where].append(run)
    for where, runs in hosts.items():
        found[STEADY][where] = at_one_speed(runs)
    return {kind: {k: v for k, v in by.items() if len(v) > 1} for kind, by in found.items()}


def pieces_of(run: dict[str, Any]) -> dict[str, float]:
    """Seconds of the host by piece, of a run whose host waits in every batch."""
    return {name: s for name, s in run["parts"].items() if name.startswith(PIECES)}


def at_one_speed(runs: list[dict[str, Any]]) -> list[float]:
    """Logarithms of the batches of one configuration, had their hosts been equally fast.

    As `perfmodel.analysis.compare` does it; none where the speed is unknown.
    """
    pieces = [pieces_of(run) for run in runs]
    speeds = host_speeds(pieces)
    if speeds is None:
        return []
    shares = [sum(p.values()) / run["batch_s"] for p, run in zip(pieces, runs, strict=True)]
    share = min(float(np.mean(shares)), 1.0)
    return [
        math.log(run["batch_s"]) - share * c for run, c in zip(runs, speeds.tolist(), strict=True)
    ]


def evidence() -> Groups:
    """Return what the spreads are learned from: half 0.

    Of hosts at one speed both halves: half 0 alone has no configuration that differs much more than
    the others, half 1 has five of 38. The ladder's reports are their score (`benchmarks.gate`).
    """
    found = logs(0)
    found[STEADY] = {**found[STEADY], **logs(1)[STEADY]}
    return found


def learned(groups: dict[tuple[str, ...], list[float]]) -> tuple[float, float]:
    """Fit sd and df of `Spread` to the variances of configurations, by maximum likelihood.

    s^2 ~ sd^2 F(n - 1, df): G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 3, 3 (2004).
    """
    squares = np.array([np.var(v, ddof=1) + 1e-8 for v in groups.values()])
    n = np.array([len(v) - 1.0 for v in groups.values()])

    def loss(at: Floats) -> float:
        df, variance = np.exp(at)
        a, b, x = n / 2, df / 2, squares / variance
        density = (
            gammaln(a + b) - gammaln(a) - gammaln(b) + a * np.log(n / df)
            + (a - 1) * np.log(x) - (a + b) * np.log1p(n * x / df) - np.log(variance)
        )  # fmt: skip
        return -float(density.sum())

    starts = [np.log([df, float(np.median(squares))]) for df in (2.0, 10.0)]
    best = min((minimize(loss, x, method="Nelder-Mead") for x in starts), key=lambda r: r.fun)
    df, variance = np.exp(best.x)
    return math.sqrt(variance), float(df)


def reruns(half: int) -> Table:
    """Score the interval of a rerun: from one run, and from all others where they are three."""
    rows = []
    for kind, groups in logs(half).items():
        spread = spreads()[kind]
        for few, given in (("one run", 1), ("three runs or more", 3)):
            held, widths, none = [], [], 0
            for values in groups.values():
                for i, out in enumerate(values):
                    rest = values[:i] + values[i + 1 :]
                    for side in [[one] for one in rest] if given == 1 else [rest]:
                        found = _expected(spread, side) if len(side) >= given else None
                        none += len(side) >= given and found is None
                        if found:
                            held.append(found[0] <= out <= found[1])
                            widths.append(found[1] - found[0])
            if held or none:
                rows.append((kind, few, len(groups), len(held), none, *_summary(held, widths)))
    return Table("Reruns", (
        Column("kind", "Limited by"), Column("given", "From"), Column("groups", "Settings", "int"),
        Column("held", "Intervals", "int"), Column("none", "Record three", "int"), *_SCORES,
    ), rows)  # fmt: skip


def _expected(spread: Spread, values: list[float]) -> tuple[float, float] | None:
    found = spread.another([Median(math.exp(x), x, 0.0, 1.0) for x in values])
    return None if found is None else (math.log(found[0]), math.log(found[1]))


_SCORES: Final = (
    Column("coverage", "Coverage", "percent", digits=1),
    Column("width", "Median width", "float", digits=4),
)


def _summary(held: list[bool], widths: list[float]) -> tuple[float | None, float | None]:
    return (float(np.mean(held)), float(np.median(widths))) if held else (None, None)


def halves() -> Table:
    """Score the interval of each half of a report against the median of the whole."""
    tables: dict[str, list[Floats]] = defaultdict(list)
    for path in sorted(p for pattern in REPORTS for p in PROFILES.glob(pattern)):
        for kind, table in _tables(path):
            tables[kind].append(table[:, np.isfinite(table).any(axis=0)])
    rows = []
    for kind, found in tables.items():
        held, widths = [], []
        for table in (t for t in found if t.shape[1] >= ENOUGH):
            middle, whole = table.shape[1] // 2, interval(table).value
            for one in (interval(table[:, :middle]), interval(table[:, middle:])):
                held.append(one.low - TICK_S <= whole <= one.high + TICK_S)
                widths.append(math.log(one.high / one.low))
        rows.append((kind, len(held), *_summary(held, widths)))
    columns = (Column("kind", "Time"), Column("held", "Halves", "int"), *_SCORES)
    return Table("Halves of reports", columns, rows)


def _tables(path: Path) -> Iterator[tuple[str, Floats]]:
    """Seconds by rank and batch of a report of the trainer, without its warm-up."""
    run = time_run([read(path)], BATCH_RANGE, label=path.name)
    everything = tabulate(run.range_times, run.ranks, run.batch_label)
    head = head_of(run, everything).seconds["host"]
    warmup = steps_of_run(run).warmup
    yield "batch", head[:, warmup:]
    for times in everything:
        for kind, label, clock in RANGES:
            if times.label == label and np.isfinite(times.seconds[clock][:, warmup:]).any():
                yield kind, times.seconds[clock][:, warmup:]


def correlated(rng: np.random.Generator, batches: int, rho: float) -> Floats:
    """Runs of unit variance, a row each, whose neighbours correlate by rho."""
    x = rng.normal(size=(TRIALS, batches))
    for i in range(1, batches):
        x[:, i] = rho * x[:, i - 1] + math.sqrt(1 - rho**2) * x[:, i]
    return x


def simulated(rng: np.random.Generator, batches: int) -> Iterator[tuple[str, Floats, float]]:
    """Yield a name, runs of batches, and their true median."""
    for rho in (0.0, 0.5, 0.9):
        yield f"AR {rho}" if rho else "independent", correlated(rng, batches, rho), 0.0
    slow = rng.random((TRIALS, batches)) < 0.48
    two = np.where(slow, 5.0, 0.0) + 0.3 * rng.normal(size=(TRIALS, batches))
    grid = np.linspace(-2, 7, 90_001)
    below = 0.52 * ndtr(grid / 0.3) + 0.48 * ndtr((grid - 5) / 0.3)
    yield "two modes, 52:48", two, float(grid[np.searchsorted(below, 0.5)])
    yield "drift and noise", correlated(rng, batches, 0.9) + correlated(rng, batches, 0.0), 0.0
    trend = np.linspace(-1, 1, batches) + 0.5 * correlated(rng, batches, 0.0)
    yield "trend", trend, 0.0


def simulations() -> Table:
    """Score the interval on batches whose true median is known."""
    rows = []
    for batches in BATCHES:
        for name, runs, truth in simulated(np.random.default_rng(213), batches):
            found = [interval(np.exp(0.05 * row)[None]) for row in runs]
            held = [one.low <= math.exp(0.05 * truth) <= one.high for one in found]
            widths = [math.log(one.high / one.low) for one in found]
            rows.append((name, batches, *_summary(held, widths)))
    columns = (Column("name", "Batches"), Column("n", "Number", "int"), *_SCORES)
    return Table(f"Simulations, {TRIALS} runs each", columns, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learn", action="store_true", help="fit the spreads between runs")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1, help="0: learned from")
    options = parser.parse_args(arguments)
    if options.learn:
        for kind, groups in evidence().items():
            sd, df = learned(groups)
            runs = sum(map(len, groups.values()))
            print(f"[{kind}] sd = {sd:.2g}, df = {df:.2g}, runs = {runs}")
        return
    tables = [simulations(), halves(), reruns(options.half)]
    for table in tables:
        print(render(table, "markdown"))


if __name__ == "__main__":
    main()
