"""Makes the tables of docs/scale.md from benchmarks/results/many.json and large.json.

python -m benchmarks.scale
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import folders
from benchmarks.common.pages import put_parts

PAGE = folders.DOCS / "scale.md"
SCRIPT = "benchmarks.scale"
RECIPES = "nsys recipe"


def parts() -> dict[str, str]:
    """The made parts of the page, by name."""
    many, large = (
        json.loads((folders.RESULTS / f"{name}.json").read_text()) for name in ("many", "large")
    )
    return {"many": many_reports(many), "large": large_reports(large)}


def many_reports(result: dict[str, Any]) -> str:
    """Seconds and memory of many reports, a row per way."""
    lines = [
        "| reports | read by | wall | CPU | wall per report | parent's peak | worker's peak |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {"one": "one process", "two": "two processes", "dask": "Dask, two workers"}
    for row in result["rows"]:
        for way, name in names.items():
            if way not in row:
                continue
            f = row[way]
            worker = f"{f['worker_mb']:.0f} MB" if way == "two" else "–"
            cpu = f"{f['cpu_s']:.1f} s" + (" (the client's)" if way == "dask" else "")
            lines.append(
                f"| {row['ranks']} | {name} | {f['wall_s']:.1f} s | {cpu} | "
                f"{f['wall_ms_per_report']:.0f} ms | {f['parent_mb']:.0f} MB | {worker} |"
            )
    equal = all(row["equal"] for row in result["rows"])
    return "\n".join([*lines, "", _where(result, f"Outputs equal byte for byte: {_yes(equal)}.")])


def large_reports(result: dict[str, Any]) -> str:
    """Seconds and memory of large reports, a row per case."""
    lines = [
        "| event rows | ranks | file | `nsys stats`: wall, CPU | perfmodel: wall, CPU | "
        "ratio: wall, CPU | perfmodel's peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ours, theirs, ratio = row["perfmodel"], row.get("nsys"), row.get("nsys_over_perfmodel")
        nsys = f"{theirs['wall_s']:.1f} s, {theirs['cpu_s']:.1f} s" if theirs else "not run"
        times = f"{ratio['wall_s']:.0f}, {ratio['cpu_s']:.0f}" if ratio else "–"
        lines.append(
            f"| {row['event_rows'] / 1e6:.1f} million | {row['ranks']} | {row['file_mb']:.0f} MB | "
            f"{nsys} | {ours['wall_s']:.2f} s, {ours['cpu_s']:.2f} s | {times} | "
            f"{ours['peak_mb']:.0f} MB |"
        )
    equal = all(row.get("csv_equal", True) for row in result["rows"])
    lines += ["", _where(result, f"CSVs equal byte for byte: {_yes(equal)}.")]
    with_recipes = [row for row in result["rows"] if "recipes" in row]
    if with_recipes:
        lines += [
            "",
            "| event rows | ranks | recipe `nvtx_sum` | recipe `nvtx_gpu_proj_sum` | "
            "perfmodel, the same two | ratio of CPU | recipes' peak |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in with_recipes:
        one, two = row["recipes"]["nvtx_sum"], row["recipes"]["nvtx_gpu_proj_sum"]
        lines.append(
            f"| {row['event_rows'] / 1e6:.1f} million | {row['ranks']} | "
            f"{one['cpu_s']:.1f} s CPU | "
            f"{two['cpu_s']:.1f} s CPU | {row['perfmodel_two']['cpu_s']:.2f} s CPU | "
            f"{row['recipes_over_perfmodel_cpu_s']:.1f} | "
            f"{max(one['peak_mb'], two['peak_mb']):.0f} MB |"
        )
    return "\n".join(lines)


def _yes(equal: bool) -> str:
    return "yes" if equal else "**no**"


def _where(result: dict[str, Any], said: str) -> str:
    machine = result["machine"]
    return f"{said} {result['date']}, {machine['processor']}, {machine['cores']} cores."


if __name__ == "__main__":
    put_parts(PAGE, SCRIPT, parts())
