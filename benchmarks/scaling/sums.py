"""Tables of benchmarks/results/all_reduce.json: the peer all-reduce against NCCL's, by size."""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

from matplotlib.figure import Figure

from benchmarks.common.pages import markdown, short
from perfmodel.machines.machine import bus_bytes_per_s
from perfmodel.render.plot import figure_of, panels
from perfmodel.render.plot.lines import Series, lines
from perfmodel.render.plot.style import Measure, legend_over

NCCL, BOTH, PEER = "nccl", "nccl and step", "peer"
COLUMNS: Final = (
    "GPUs; size=B; NCCL=s; NCCL and step=s; peer (sum and step)=s; peer / NCCL and step; "
    "NCCL, bus=B/s; peer, bus=B/s"
)
Place = tuple[str, int]
"""The GPU's name, and how many of one host."""
Times = dict[Place, dict[int, dict[str, list[float]]]]
"""Medians of launches by kind and bytes, of every place."""


def times(record: dict[str, Any]) -> Times:
    """Return the median time of a call in every launch."""
    found: Times = {}
    for run in record["runs"]:
        place = run["versions"]["gpu"].removeprefix("NVIDIA "), run["ranks"]
        for row in run["rows"]:
            kinds = found.setdefault(place, {}).setdefault(row["bytes"], {})
            kinds.setdefault(row["kind"], []).append(statistics.median(row["round_s"]))
    return dict(sorted(found.items(), key=lambda item: (item[0][0] != "H200", item[0])))


def named(place: Place) -> str:
    """Write the place in words."""
    return f"{place[1]} x {place[0]}"


def ratios(kinds: dict[str, list[float]]) -> tuple[float, float, float]:
    """Return the median, smallest and largest peer / NCCL and step over launches."""
    each = [peer / both for peer, both in zip(kinds[PEER], kinds[BOTH], strict=True)]
    return statistics.median(each), min(each), max(each)


def crossover_bytes(by_size: dict[int, dict[str, list[float]]]) -> float | None:
    """Return the size from which NCCL with the step's kernel is faster; None if it never is.

    Between the last size at which the peer all-reduce is the faster and the next one, the ratio's
    logarithm is taken as a line over the size's. It is 0 where the peer all-reduce never is.
    """
    sizes = list(by_size)
    logs = [math.log(ratios(by_size[size])[0]) for size in sizes]
    for i in range(len(sizes) - 1, 0, -1):
        if logs[i] > 0 >= logs[i - 1]:
            share = -logs[i - 1] / (logs[i] - logs[i - 1])
            return math.exp(math.log(sizes[i - 1]) + share * math.log(sizes[i] / sizes[i - 1]))
    return 0.0 if logs[0] > 0 else None


def table(record: dict[str, Any]) -> str:
    """Return what the times come to, and the times by size and number of GPUs."""
    rows = []
    for place, by_size in times(record).items():
        for size, kinds in by_size.items():
            nccl, both, peer = (statistics.median(kinds[k]) for k in (NCCL, BOTH, PEER))
            ratio, low, high = ratios(kinds)
            bus = [bus_bytes_per_s("all-reduce", size, s, place[1]) for s in (nccl, peer)]
            said = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            rows.append((named(place), size, nccl, both, peer, said, *bus))
    return f"{text(record)}\n\n{markdown(COLUMNS, rows)}"


def text(record: dict[str, Any]) -> str:
    """Say where the lines cross, and latency and bandwidth at the ends."""
    said = []
    for place, by_size in times(record).items():
        least, most = min(by_size), max(by_size)
        latency = {k: 1e6 * statistics.median(by_size[least][k]) for k in (NCCL, BOTH, PEER)}
        buses = [
            1e-9 * max(
                bus_bytes_per_s("all-reduce", size, statistics.median(kinds[k]), place[1])
                for size, kinds in by_size.items()
            )
            for k in (NCCL, PEER)
        ]  # fmt: skip
        cross = crossover_bytes(by_size)
        where = (
            f"is the faster up to {most / 1e6:.0f} MB" if cross is None
            else f"is the faster up to {cross / 1e6:.2g} MB" if cross > 0
            else f"is the slower from {least / 1e3:.0f} kB on"
        )  # fmt: skip
        said.append(
            f"- {named(place)}, {len(by_size[least][PEER])} launches: the peer all-reduce {where}. "
            f"At {least} bytes it takes {short(latency[PEER])} µs, NCCL {short(latency[NCCL])} µs "
            f"and with the step's kernel {short(latency[BOTH])} µs; the largest bus bandwidth is "
            f"{short(buses[1])} against {short(buses[0])} GB/s."
        )
    return "\n".join(said)


def picture(record: dict[str, Any]) -> Figure:
    """Draw the time of an all-reduce against its size, a panel for every number of GPUs."""
    found = times(record)
    axes = panels("double", 2.9, columns=len(found), letters=False)
    for i, (ax, (place, by_size)) in enumerate(zip(axes, found.items(), strict=True)):
        each = {
            name: Series(list(by_size), [statistics.median(k[kind]) for k in by_size.values()])
            for name, kind in (
                ("NCCL", NCCL), ("NCCL and step", BOTH), ("peer: sum and step", PEER),
            )
        }  # fmt: skip
        time = Measure("" if i else "Time of a call", "s", "log")
        lines(each, Measure("Message", "B", "log"), time, ax=ax, legend=None, title=named(place))
    ends = [end for ax in axes for end in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(ends), max(ends))
    legend_over(axes)
    return figure_of(axes[0])
