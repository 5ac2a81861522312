"""Writes what docs/utilization.md shows of the ResNet-50, from utilization_resnet.json.

python -m benchmarks.utilization.resnet_report
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.pages import markdown, put
from benchmarks.common.results import read as read_json
from perfmodel.machines.gpu_samples import read_series
from perfmodel.render.plot import panels, save
from perfmodel.render.plot.lines import Percentages, utilization

RESULTS: Final = folders.RESULTS / "utilization_resnet.json"
SERIES: Final = folders.RESULTS / "utilization"
PAGE: Final = folders.DOCS / "utilization.md"
SCRIPT: Final = "benchmarks.utilization.resnet_report"
NOT_YET: Final = "Not measured yet: `python -m benchmarks.utilization.resnet --seconds 180`."


def measured() -> list[dict[str, Any]]:
    """Return the rows of the steps that were measured."""
    return list(read_json(RESULTS).get("rows", ()))


def page(rows: list[dict[str, Any]]) -> str:
    """Return what stands between the marks."""
    if not rows:
        return NOT_YET
    columns = (
        "step; window=s; batch=s; images/s=int; GPU utilization=percent.1; "
        "memory utilization=percent.1; GPU busy, by nsys=percent.1; memory used=B; power=W; "
        "PCIe in=B/s"
    )
    table = []
    for row in rows:
        means, window = row["means"], row["window_s"]
        table.append(
            (f"`{row['name']}`", window[1] - window[0], row["batch_s"], round(128 / row["batch_s"]),
             share(means["gpu_percent"]), share(means["memory_percent"]), row.get("busy_share"),
             means["memory_used_bytes"], means["power_w"], means["pcie_rx_bytes_per_s"])
        )  # fmt: skip
    first = rows[0]
    commands = dict.fromkeys(f"`{row['command']}`" for row in rows)
    return (
        f"{first['device']}, torch {first['torch']}, {first['date']}: {', '.join(commands)}.\n\n"
        f"{markdown(columns, table)}\n\n"
        "![GPU and memory utilization over three minutes, before and after]"
        "(images/utilization_resnet.png)"
    )


def share(percent: float | None) -> float | None:
    """Return per cent as a fraction."""
    return None if percent is None else percent / 100


def draw(rows: list[dict[str, Any]]) -> Any:
    """Draw the series of the first step and of the last, core above memory."""
    chosen = [row for row in (rows[0], rows[-1]) if (SERIES / f"resnet_{row['name']}.csv").exists()]
    axes = panels("double", 3.6, rows=len(chosen), letters=False)
    for row, ax in zip(chosen, axes, strict=True):
        series = read_series(SERIES / f"resnet_{row['name']}.csv")
        mine = series.of(series.gpus[0])
        curves = [
            Percentages(0, "GPU", mine.time_s, mine.values["gpu_percent"]),
            Percentages(1, "memory", mine.time_s, mine.values["memory_percent"]),
        ]
        utilization(curves, window_s=tuple(row["window_s"]), ax=ax, title=row["name"],
                    legend="" if ax is axes[0] else None)  # fmt: skip
        ax.set_xlabel("Time since the start (s)" if ax is axes[-1] else "")
    return axes[0]


def main() -> None:
    rows = measured()
    put(PAGE, SCRIPT, page(rows))
    if rows:
        save(draw(rows), folders.IMAGES, "utilization_resnet", ("png",))


if __name__ == "__main__":
    main()
