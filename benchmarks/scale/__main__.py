"""Makes the tables of docs/scale.md from benchmarks/results.

python -m benchmarks.scale
"""

from __future__ import annotations

from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.arguments import report
from benchmarks.common.pages import put_parts, table
from benchmarks.scale.large import COMMANDS

PAGE = folders.DOCS / "scale.md"
SCRIPT = "benchmarks.scale"
PROGRAMS = {
    "trainer": "the trainer",
    "pytorch": "PyTorch, DDP",
    "pytorch_sizes": "PyTorch, operators with sizes",
}
RUNS = {
    "two": "read by two processes, results kept",
    "kept": "again, from the kept results",
    "one_more": "and one report more",
    "page": "the HTML report, from the kept results",
    "dask_1": "Dask, one worker",
    "dask_2": "Dask, two workers",
}


def parts() -> dict[str, str]:
    """Return the made parts of the page, by name."""
    thousand, large, *commands = (
        results.read(folders.RESULTS / f"{name}.json")
        for name in ("thousand", "large", *(f"{command}_large" for command in COMMANDS))
    )
    return {
        "thousand": thousand_reports(thousand),
        "large": large_reports(large),
        **{
            command: large_reports_of(command, result)
            for command, result in zip(COMMANDS, commands, strict=True)
        },
    }


def thousand_reports(result: dict[str, Any]) -> str:
    """Return seconds and memory of a thousand reports, a row per way."""
    row = result["many"]
    lines = []
    for way, said in RUNS.items():
        f = row[way]
        workers = f"; the workers' {f['workers_cpu_s']:.0f} s" if "workers_cpu_s" in f else ""
        lines.append((said, f"{f['wall_s']:.0f} s", f"{f['cpu_s']:.0f} s{workers}",
                      f"{f['parent_mb']:.0f} MB",
                      f"{f['worker_mb']:.0f} MB" if f["worker_mb"] else "–"))  # fmt: skip
    head = f"{row['reports']:,} reports", "wall", "CPU", "parent's peak", "worker's peak"
    more = (
        f"\nThe reports have {row['file_mb']:.0f} MB, kept results "
        f"{row['kept_mb']:.0f} MB, the page {row['page_mb']:.1f} MB.\n"
    )
    return f"{table(head, lines)}\n{_where(result, 'Outputs', row['equal'])}\n{more}".rstrip()


def large_reports(result: dict[str, Any]) -> str:
    """Return seconds and memory of large reports, a row per case."""
    lines, recipes = [], []
    for row in result["rows"]:
        case = f"{row['event_rows'] / 1e6:.1f} million", str(row["ranks"])
        ours, theirs, ratio = row["perfmodel"], row.get("nsys"), row.get("nsys_over_perfmodel")
        lines.append((
            *case, f"{row['file_mb']:.0f} MB",
            f"{theirs['wall_s']:.1f} s, {theirs['cpu_s']:.1f} s" if theirs else "not run",
            f"{ours['wall_s']:.2f} s, {ours['cpu_s']:.2f} s",
            f"{ratio['wall_s']:.0f}, {ratio['cpu_s']:.0f}" if ratio else "–",
            f"{ours['peak_mb']:.0f} MB",
        ))  # fmt: skip
        if "recipes" in row:
            found = [row["recipes"][name] for name in ("nvtx_sum", "nvtx_gpu_proj_sum")]
            recipes.append((
                *case, *(f"{one['cpu_s']:.1f} s CPU" for one in found),
                f"{row['perfmodel_two']['cpu_s']:.2f} s CPU",
                f"{row['recipes_over_perfmodel_cpu_s']:.1f}",
                f"{max(one['peak_mb'] for one in found):.0f} MB",
            ))  # fmt: skip
    head = ("event rows", "ranks", "file", "`nsys stats`: wall, CPU", "perfmodel: wall, CPU",
            "ratio: wall, CPU", "perfmodel's peak")  # fmt: skip
    head_of_recipes = ("event rows", "ranks", "recipe `nvtx_sum`", "recipe `nvtx_gpu_proj_sum`",
                       "perfmodel, the same two", "ratio of CPU", "recipes' peak")  # fmt: skip
    equal = all(row.get("csv_equal", True) for row in result["rows"])
    blocks = [table(head, lines), _where(result, "CSVs", equal) + "\n"]
    return "\n".join([*blocks, table(head_of_recipes, recipes)]).strip()


def large_reports_of(command: str, result: dict[str, Any]) -> str:
    """Return what a command takes of large reports, a row per size, now and before."""
    lines = []
    for row in result["rows"]:
        now, before = row["now"], row.get("before")
        ratio = f"{now['cpu_s'] / before['cpu_s']:.2f}" if before else "–"
        lines.append((
            f"{row['event_rows'] / 1e6:.1f} million", PROGRAMS[row["program"]], str(row["ranks"]),
            f"{now['cpu_s']:.1f} s", f"{now['peak_mb']:.0f} MB",
            f"{before['cpu_s']:.1f} s, {before['peak_mb']:.0f} MB" if before else "not run", ratio,
        ))  # fmt: skip
    head = ("event rows", "of", "ranks", f"`{command}`: CPU", "peak", "before", "ratio of CPU")
    equal = all(row["equal"] for row in result["rows"] if "before" in row)
    return f"{table(head, lines)}\n{_where(result, 'Output', equal)}"


def _where(result: dict[str, Any], what: str, equal: bool) -> str:
    machine = result["machine"]
    return (
        f"{what} equal byte for byte: {'yes' if equal else '**no**'}. {result['date']}, "
        f"{machine['processor']}, {machine['cores']} cores."
    )


if __name__ == "__main__":
    report(__doc__)
    put_parts(PAGE, SCRIPT, parts())
