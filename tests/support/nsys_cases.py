"""Awkward but legal reports; `golden/nsys_cases` holds what `nsys stats` says about each.

`PYTHONPATH=tests python -m support.nsys_cases FOLDER` writes them all as FOLDER/<case>.sqlite. The
`QUIRKS` are those where `nsys stats` does what need not be copied; their names start with 'quirk'.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

from support import nsys_cases_names, nsys_cases_numbers, nsys_cases_quirks, nsys_cases_ranges
from support.build_report import VERSIONS, ReportBuilder
from support.build_thread import Thread
from support.document_report import document_report

STATISTICS: Final = (
    "nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum", "cuda_api_sum", "mpi_event_sum",
)  # fmt: skip

Case = Callable[[Path], Path]


def _write(fill: Callable[[ReportBuilder, Thread], None], path: Path) -> Path:
    report = ReportBuilder()
    fill(report, report.thread())
    return report.write(path)


def _cases(module: ModuleType) -> dict[str, Case]:
    """Every public function of a module is a case: it fills a report that has one thread."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name: partial(_write, fill)
        for name, fill in functions
        if fill.__module__ == module.__name__ and not name.startswith("_")
    }


CASES: Final[dict[str, Case]] = {
    **_cases(nsys_cases_numbers),
    **_cases(nsys_cases_ranges),
    **_cases(nsys_cases_names),
    **_cases(nsys_cases_quirks),
    **{f"document_{v}": partial(document_report, version=v) for v in VERSIONS},
}
"""What writes each case's report to a path, by the case's name."""

QUIRKS: Final = frozenset(_cases(nsys_cases_quirks))

if __name__ == "__main__":
    for case, write in CASES.items():
        write(Path(sys.argv[1]) / f"{case}.sqlite")
