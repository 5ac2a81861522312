"""Writes docs/trainer.md's section on CUDA-aware MPI: python -m benchmarks.cuda_aware.report."""

from __future__ import annotations

import statistics
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.pages import microseconds, put, table
from benchmarks.cuda_aware.__main__ import RESULTS, SUMMED, TRAINED
from perfmodel.base.units import si

PAGE: Final = folders.DOCS / "trainer.md"
SCRIPT: Final = "benchmarks.cuda_aware.report"

Row = dict[str, Any]


def medians(rows: list[Row], **which: Any) -> list[float]:
    """Return the median of every launch of what is asked for, sorted."""
    return sorted(
        r["median_s"] for r in rows
        if "median_s" in r and all(r.get(name) == value for name, value in which.items())
    )  # fmt: skip


def ranged(found: list[float]) -> str:
    """Write the median of launches, and their range."""
    if not found:
        return "–"
    middle = microseconds(statistics.median(found))
    return f"{middle} ({microseconds(found[0])} to {microseconds(found[-1])})"


def batches(rows: list[Row]) -> str:
    """Return the table of batches, by transport and hidden size."""
    sizes = sorted({r["H"] for r in rows if r["what"] == "batch"})
    head = ["transport", *(f"H = {h}" for h in sizes), "parameters"]
    lines = []
    for name in TRAINED:
        found = [r for r in rows if r["what"] == "batch" and r["transport"] == name]
        checked = [r for r in found if "bits_equal" in r]
        if not checked:
            continue
        error = max(r["max_relative_error"] for r in checked)
        alike = "the same bits" if all(r["bits_equal"] for r in checked) else f"within {error:.0e}"
        cells = (ranged(medians(rows, what="batch", transport=name, H=h)) for h in sizes)
        lines.append([f"`{name}`", *cells, alike])
    return table(head, lines)


def messages(rows: list[Row]) -> str:
    """Return the table of sums, by transport and bytes."""
    names = [*SUMMED, "exchange"]
    lines = []
    for size in sorted({r["message_bytes"] for r in rows if r["what"] == "message"}):
        found = {n: medians(rows, what="message", transport=n, message_bytes=size) for n in names}
        cells = [microseconds(statistics.median(f)) if f else "–" for f in found.values()]
        lines.append([si(size, "B"), *cells])
    return table(["message", *(f"`{n}`" for n in names[:-1]), "MPI_Sendrecv alone"], lines)


def main() -> None:
    """Write the page's parts."""
    found = results.read(RESULTS)
    rows, said = found["rows"], found["versions"]
    launches = len({r["launch"] for r in rows})
    about = f"{found['ranks']} {said['gpu']}s of one host, {said['mpi']} built with CUDA, CuPy "
    about += f"{said['cupy']}, {found['date'][:10]}; {launches} launches"
    put(PAGE, SCRIPT, f"{about}.\n\n{batches(rows)}", "batches")
    put(PAGE, SCRIPT, messages(rows), "messages")
    print(f"docs/{PAGE.name}: batches, messages")


if __name__ == "__main__":
    main()
