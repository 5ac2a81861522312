"""Writes the tables and the picture of docs/utilization.md from benchmarks/results/utilization*.

python -m benchmarks.utilization.report
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import put, table, written_in
from benchmarks.common.results import called
from benchmarks.common.results import read as read_json
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.utilization import Idle, idle_of
from perfmodel.base.units import si
from perfmodel.machines.gpu_samples import read_series
from perfmodel.programs.program import Options
from perfmodel.readers import read, trace
from perfmodel.render.plot import panels, save
from perfmodel.render.plot.lines import Percentages, utilization

RESULTS = folders.RESULTS / "utilization.json"
SERIES = folders.RESULTS / "utilization"
PAGE = folders.DOCS / "utilization.md"
SCRIPT = "benchmarks.utilization.report"
written = written_in(Path(__file__).with_name("text.md"))
NOTHING: dict[str, Any] = {"data_on": "host", "transport": "host"}


@dataclass(frozen=True)
class Busy:
    """What the launches of one setting say, medians over them; the first one's causes.

    Shares are of the median step.
    """

    files: tuple[str, ...]
    busy_share: float
    kernels_share: float
    first: Idle


def settings_of(flags: list[str]) -> dict[str, Any]:
    """Return the flags of the trainer as the ladder's index has them."""
    found = dict(NOTHING)
    words = iter(flags)
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        found[name] = True if name == "graph" else next(words)
    return found


def busy_of(name: str, flags: list[str], ranks: int) -> Busy:
    """Read the setting's own report, or the ladder's launches of its flags.

    All are of H = 512, B = 3000.
    """
    paths = [folders.PROFILES / "utilization" / f"{name}.sqlite.xz"]
    if not paths[0].exists():
        ladder, wanted = folders.PROFILES / "ladder", settings_of(flags)
        index: Any = read_json(ladder / "index.json")
        same = [r for r in index if r["settings"] == wanted and f"-n {ranks} " in r["command"]]
        paths = [ladder / r["file"] for r in same]
    all_of_it, kernels = zip(*(read_idle(path) for path in paths), strict=True)
    files = tuple(str(path.relative_to(folders.ROOT)) for path in paths)
    shares = (median(one.busy_share for one in side) for side in (all_of_it, kernels))
    return Busy(files, *shares, all_of_it[0])


def read_idle(path: Path) -> tuple[Idle, Idle]:
    """Return what the GPUs idle in by all operations, and by kernels alone."""
    whole = read(path)
    kernels = replace(whole, ops=trace.rows(whole.ops, whole.ops.kind == trace.KERNEL))
    first, second = (idle_of(analyze([t], Options()).fitted) for t in (whole, kernels))
    return first, second


def mean(row: dict[str, Any], counter: str) -> float | None:
    """Mean of a counter over the GPUs."""
    known = [g[counter] for g in row.get("gpus", []) if g[counter] is not None]
    return sum(known) / len(known) if known else None


def percent(value: float | None) -> str:
    """Write a percentage."""
    return "–" if value is None else f"{value:.0f} %"


Reports = dict[str, Busy]
"""What reports say, by setting."""


def reports(results: dict[str, Any]) -> Reports:
    """Read the reports of the same settings."""
    return {r["name"]: busy_of(r["name"], r["flags"], r["ranks"]) for r in sampled(results)}


def sampled(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that NVML has figures of."""
    return [r for r in results["rows"] if "gpus" in r]


def rows(results: dict[str, Any], found: Reports) -> str:
    """Write the before and after."""
    lines = []
    for row in sampled(results):
        shares = found[row["name"]].kernels_share, found[row["name"]].busy_share
        each = [g["gpu_percent"] for g in row["gpus"] if g["gpu_percent"] is not None]
        lines.append(
            [row["name"], f"`{' '.join(row['flags'])}`", si(row["batch_s"], "s"),
             f"{percent(mean(row, 'gpu_percent'))} ({', '.join(map(percent, each))})",
             *(percent(100 * share) for share in shares),
             percent(mean(row, "memory_percent")), si(mean(row, "memory_used_bytes"), "B"),
             si(mean(row, "power_w"), "W"), si(mean(row, "pcie_rx_bytes_per_s"), "B/s")]
        )  # fmt: skip
    head = ["setting", "flags", "batch", "NVML utilization (by GPU)", "kernels, by nsys",
            "GPU busy, by nsys", "memory busy", "memory used", "power", "PCIe in"]  # fmt: skip
    return table(head, lines)


def causes(found: Reports) -> str:
    """Write what the GPU idles in, setting by setting, and which reports say so."""
    idle = {name: busy.first.shares for name, busy in found.items()}
    names = list(dict.fromkeys(cause for one in idle.values() for cause in one))
    lines = [
        [name, *(percent(100 * one.get(n, 0.0)) for n in names), ", ".join(found[name].files)]
        for name, one in idle.items()
    ]
    return table(["setting", *(f"idle: {n}" for n in names), "reports"], lines)


def answers(results: dict[str, Any], found: Reports) -> str:
    """Answer the lab's two questions from the first and the last setting."""
    first, *_, last = sampled(results)
    before, after = mean(first, "gpu_percent") or 0.0, mean(last, "gpu_percent") or 0.0
    close = ["is close to" if share >= 95 else "is not close to" for share in (before, after)]
    text = written(
        "questions", seconds=first["window_s"][1] - first["window_s"][0], before=percent(before),
        memory=percent(mean(first, "memory_percent")), first=first["name"], last=last["name"],
        is_before=close[0], is_after=close[1], after=percent(after),
        batch_before=si(first["batch_s"], "s"), batch_after=si(last["batch_s"], "s"),
    )  # fmt: skip
    both = [found[row["name"]] for row in (first, last)]
    shares = [percent(100 * s) for one in both for s in (one.kernels_share, one.busy_share)]
    text += written("reports", **dict(zip(("k0", "w0", "k1", "w1"), shares, strict=True)))
    return f"\n{text}\n"


def draw(results: dict[str, Any], found: Reports, folder: Path) -> None:
    """Draw the series of all settings, one above the other."""
    good = sampled(results)
    axes = panels("double", 1.7 * len(good) + 0.2, rows=len(good), letters=False)
    for row, ax in zip(good, axes, strict=True):
        series = read_series(SERIES / f"{row['name']}.csv")
        curves = [
            Percentages(gpu, f"GPU {gpu}, NVML", mine.time_s, mine.values["gpu_percent"])
            for gpu in series.gpus for mine in [series.of(gpu)]
        ]  # fmt: skip
        busy = {"GPU busy, by nsys": found[row["name"]].busy_share}
        utilization(curves, window_s=row["window_s"], busy=busy, ax=ax, title=row["name"],
                    legend="" if ax is axes[0] else None)  # fmt: skip
        ax.set_xlabel("Time since the start (s); grey: the window" if ax is axes[-1] else "")
    save(axes[0], folder, "utilization", ("png",))


def text(results: dict[str, Any], given: Reports | None = None) -> str:
    """Return what the page shows of the results, and of reports, by default those there are."""
    found = reports(results) if given is None else given
    said = f"{results['gpu']}, {results['date']}: `{called(results['command'])}`.\n\n"
    said += f"{rows(results, found)}\n{written('nsys')}\n{answers(results, found)}"
    said += "\n![NVML utilization over time, setting by setting](images/utilization.png)\n"
    said += (
        "\nIdle time of the GPU by cause, as a share of the median step by the first report:\n\n"
    )
    return (said + causes(found)).strip()


def main() -> None:
    report(__doc__)
    found = reports(measured := read_json(RESULTS))
    draw(measured, found, folders.IMAGES)
    put(PAGE, SCRIPT, text(measured, found))


if __name__ == "__main__":
    main()
