"""Summary reports as tables: CSV as `nsys stats` writes it, and for other formats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from perfmodel.base.table import Column, Table
from perfmodel.timing.nsys_stats.values import Counted, Groups

API_VERSION: Final = re.compile(r"_v....$", re.DOTALL)
_SPECIAL: Final = re.compile(r'[,"\r\n]')
_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52
_BASE: Final = (
    "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)",
)  # fmt: skip


def to_csv(table: Table) -> str:
    """Write a summary as `nsys stats --format csv` does, without the blank line at its end.

    Fields that hold a comma, quote or line break are quoted, as RFC 4180 wants it; nsys doubles
    no quotes.
    """
    lines = [[c.key for c in table.columns]]
    lines += [list(map(_cell, row, table.columns)) for row in table.rows]
    return "".join(",".join(map(_field, line)) + "\n" for line in lines)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return ""
    return f"{value:.{column.digits}f}" if column.digits else str(value)


def _table(
    name: str, headers: Sequence[str], digits: Sequence[int | None], rows: Sequence[tuple[Any, ...]]
) -> Table:
    """Return a summary whose columns have so many decimals: 0 for integers, None for text."""
    columns = tuple(
        Column(header, header, "text" if n is None else "float" if n else "int", digits=n or None,
               wrap=False)
        for header, n in zip(headers, digits, strict=True)
    )  # fmt: skip
    return Table(name, columns, tuple(rows))


def to_table(name: str, counted: Counted) -> Table:
    """Make the summary report `name` of its material; keys are the headers that nsys uses."""
    groups, keys = counted.groups(), counted.keys
    if name == "nvtx_gpu_proj_sum":
        return _projected(counted, groups)
    if name == "cuda_gpu_mem_size_sum":
        return _sizes(counted, groups)
    if name == "cuda_gpu_kern_sum":
        kernels = lambda g: (-groups.total[g], groups.count[g], keys[g][0] or "")  # noqa: E731
        return _timed(name, groups, [("Name", [k[0] for k in keys])], key=kernels)
    if name == "cuda_api_sum":
        texts = [None if k[0] is None else API_VERSION.sub("", str(k[0])) for k in keys]
        return _timed(name, groups, [("Name", texts)], counted="Num Calls")
    if name == "mpi_event_sum":
        labels = [(title, [k[i] for k in keys]) for i, title in enumerate(("Source", "Name"))]
        return _timed(name, groups, labels)
    of_copies = name == "cuda_gpu_mem_time_sum"
    title, what = ("Operation", "Count") if of_copies else ("Range", "Instances")
    return _timed(name, groups, [(title, [k[0] for k in keys])], counted=what)


def _timed(
    name: str,
    groups: Groups,
    labels: list[tuple[str, list[Any]]],
    *,
    counted: str = "Instances",
    key: Callable[[int], Any] | None = None,
) -> Table:
    """Time %, total, count, average, median, minimum, maximum, deviation and labels by group."""
    grand = int(groups.total.sum())
    longest_first = key or (lambda g: (groups.timed[g] == 0, -groups.total[g]))
    table = []
    for g in sorted(range(len(groups.count)), key=longest_first):
        total = int(groups.total[g]) if groups.timed[g] else None
        share = None if total is None or not grand else round_half_up(total * 100.0 / grand)
        texts = (values[g] for _, values in labels)
        table.append((share, total, *_figures(groups, g), *texts))
    headers = ("Time (%)", *(counted if h == "Instances" else h for h in _BASE))
    digits = (1, 0, 0, 1, 1, 0, 0, 1, *(None for _ in labels))
    return _table(name, (*headers, *(title for title, _ in labels)), digits, table)


def _sizes(counted: Counted, groups: Groups) -> Table:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        size = [groups.mean[g], groups.median[g], groups.minimum[g], groups.maximum[g]]
        megabytes = [float(v) / 1e6 for v in (groups.total[g], *size, groups.stddev[g])]
        table.append((megabytes[0], int(groups.count[g]), *megabytes[1:], counted.keys[g][0]))
    total, *titles = (f"{h} (MB)" for h in ("Total", "Avg", "Med", "Min", "Max", "StdDev"))
    digits = (3, 0, 3, 3, 3, 3, 3, None)
    return _table("cuda_gpu_mem_size_sum", (total, "Count", *titles, "Operation"), digits, table)


def _projected(counted: Counted, groups: Groups) -> Table:
    table = []
    for g in sorted(range(len(counted.keys)), key=lambda g: -groups.total[g]):
        totals = {title: int(values[g]) for title, values in counted.sums.items()}
        means = (totals[k] / int(groups.count[g]) for k in ("ops", "level", "children"))
        table.append((
            *counted.keys[g], int(groups.total[g]), totals["host"], *_figures(groups, g),
            totals["ops"], *map(round_half_up, means),
        ))  # fmt: skip
    headers = (
        "Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances",
        "Proj Avg (ns)", "Proj Med (ns)", "Proj Min (ns)", "Proj Max (ns)", "Proj StdDev (ns)",
        "Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child",
    )  # fmt: skip
    digits = (None, None, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1)
    return _table("nvtx_gpu_proj_sum", headers, digits, table)


def _figures(groups: Groups, g: int) -> tuple[Any, ...]:
    """Count, average, median, minimum, maximum, standard deviation of one group."""
    if groups.timed[g] == 0:
        return (int(groups.count[g]), None, None, None, None, 0.0)
    return (
        int(groups.count[g]),
        round_half_up(float(groups.mean[g])),
        round_half_up(float(groups.median[g])),
        int(groups.minimum[g]),
        int(groups.maximum[g]),
        round_half_up(float(groups.stddev[g])),
    )


def round_half_up(value: float, digits: int = 1) -> float:
    """Round to one or more decimals, half away from zero, as SQLite before 3.43 does.

    Nsight Systems 2024.2 rounds with it. It adds half a unit, and below about 4e12 also 3e-16 of
    the value, in extended precision, and takes up to sixteen digits off the sum one by one, with
    their rounding errors: so 1.25 gives 1.3, and so does the double just below it.

    Source: `sqlite3_str_vappendf`, case etFLOAT, of SQLite 3.40.
    """
    if abs(value) > _WHOLE:
        return value
    left = np.longdouble(abs(value))
    half = np.longdouble(0.5) / 10**digits
    if digits + (math.frexp(value)[1] - 1) // 3 < _FINE:
        half += left * np.longdouble(3e-16)
    left += half
    exponent = max(len(str(int(left))) - 1, 0)
    left /= np.longdouble(10**exponent)
    while left < 1:
        left *= 10
        exponent -= 1
    wanted = exponent + 1 + digits
    units = 0
    for _ in range(min(wanted, _SIGNIFICANT)):
        digit = int(left)
        left = (left - digit) * 10
        units = 10 * units + digit
    return math.copysign(units * 10 ** max(wanted - _SIGNIFICANT, 0) / 10**digits, value)
