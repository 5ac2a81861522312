"""Reads Nsight Compute's tables: CSV in both its forms, and `.ncu-rep` through `ncu --import`."""

from __future__ import annotations

import csv
import lzma
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.base.files import check_path, opened_unpacked, read_at_most
from perfmodel.readers.rep import converted

TIME: Final = "gpu__time_duration.sum"
DEVICE: Final = "device__attribute_display_name"
_LONG: Final = ("Metric Name", "Metric Unit", "Metric Value")
_DURATION: Final = re.compile(r"(?:GPU Time )?Duration(?: ?[(\[](?P<unit>[^)\]]*)[)\]])?")
"""Names of `TIME` on the page of details, in some exports with its unit."""
_RENAMED: Final = re.compile(r"([^(<]*)/")
"""Prefix by --print-nvtx-rename kernel of a kernel's name, which has no slash of its own."""

Rows = list[list[str]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel, and what was counted of it.

    Attributes
    ----------
    kernel : str
        Name as ncu prints it.
    ranges : tuple of str
        NVTX ranges that were open when it was launched, the outermost first.
    metrics : mapping of str to float or None
        By the metric's name, in bytes, seconds and operations; None is what ncu could not count.
    process, grid, block, compute_capability : str
        As ncu prints them; empty where it does not.
    device : str
        Name of the GPU, where `device__attribute_display_name` was collected.
    source : str
        Which file it was read from.
    """

    kernel: str
    ranges: tuple[str, ...]
    metrics: Mapping[str, float | None]
    process: str = ""
    grid: str = ""
    block: str = ""
    compute_capability: str = ""
    device: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Counters:
    """Launches in the order they ran, and what a reader should know of them."""

    launches: tuple[Launch, ...]
    warnings: tuple[str, ...] = ()


def read_counters(paths: Sequence[str | Path]) -> Counters:
    """Read files of Nsight Compute; passes of one program are put together, runs one by one.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV of ``ncu --csv``, with or without ``--page raw``, also compressed (``.csv.xz``), or
        ``.ncu-rep`` (needs ncu).

    Raises
    ------
    ReportError
        If a file cannot be read, or cannot be exported here, or is given twice.
    SchemaError
        If it holds no launch.
    """
    given = [Path(path) for path in paths]
    return merge(
        [parse(read_text(p), name) for p, name in zip(given, names_of(given), strict=True)]
    )


def merge(parts: Sequence[Counters]) -> Counters:
    """Put counters together: metrics of the same launches side by side, other launches in a row.

    Two parts are passes of one program if their launches are the same, kernel by kernel, and no
    metric but the time was counted by both.
    """
    runs: list[tuple[Launch, ...]] = []
    warnings = [w for part in parts for w in part.warnings]
    for part in parts:
        counted = _counted(part.launches)
        apart = [i for i, run in enumerate(runs) if run and not _counted(run) & counted]
        fits = [i for i in apart if _signature(runs[i]) == _signature(part.launches)]
        if fits:
            runs[fits[0]] = tuple(map(_together, runs[fits[0]], part.launches))
            continue
        if apart and part.launches:
            warnings.append(
                f"{part.launches[0].source}: other metrics than in {runs[apart[0]][0].source}, and "
                f"other launches: taken as another run; to put passes of one program together, "
                f"make it launch the same kernels in the same order"
            )
        runs.append(part.launches)
    return Counters(tuple(one for run in runs for one in run), tuple(dict.fromkeys(warnings)))


def parse(text: str, source: str = "ncu's output") -> Counters:
    """Read what ``ncu --csv`` printed, in both forms, with all that stands around the table.

    ``--page raw`` is a row a launch, a column a metric and a row of units; the other form is a row
    a metric, with columns Metric Name, Metric Unit and Metric Value. Lines of ncu (``==PROF==``)
    and of the program are passed over, also amid the table.

    Raises
    ------
    ReportError
        If there is no such table, or its numbers are in two notations.
    SchemaError
        If the table holds no launch.
    """
    tables, torn = _tables(text)
    if not tables:
        raise ReportError(f"{source}: {_why_no_table(text)}")
    warnings: list[str] = []
    if torn:
        warnings.append(
            f"{source}: {torn} rows of ncu's table lack some of its columns: left out; keep the "
            f"program's output apart with ncu --log-file FILE"
        )
    parts = []
    for header, rows in tables:
        form = _long if _is_long(header) else _wide
        parts.append(Counters(tuple(form(header, rows, source, warnings))))
    merged = merge(parts)
    if not merged.launches:
        raise SchemaError(
            f"{source}: expected launches of kernels; got a table without any; profile a program "
            f"that launches kernels inside the ranges of --nvtx-include"
        )
    return replace(merged, warnings=tuple(dict.fromkeys((*warnings, *merged.warnings))))


def _why_no_table(text: str) -> str:
    expected = 'expected the CSV table of ncu, whose header begins with "ID"; got '
    if "ERR_NVGPUCTRPERM" in text:
        return (
            f"{expected}ERR_NVGPUCTRPERM: this user may not read the GPU's counters; ask the "
            f"administrator for NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )
    if "No kernels were profiled" in text:
        return (
            f"{expected}that no kernels were profiled; check --nvtx-include, --kernel-name and "
            f"--launch-skip, and take --target-processes all"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = repr(lines[-1][:120]) if lines else "nothing"
    return f"{expected}{last}; run ncu with --csv, as `perfmodel counters --command` prints it"


def _tables(text: str) -> tuple[list[tuple[list[str], Rows]], int]:
    """Part the text into tables, header and rows each, and count rows that are torn.

    Line by line: a quote that the program leaves open must not swallow the rows behind it.
    """
    tables: list[tuple[list[str], Rows]] = []
    torn = 0
    for line in text.splitlines():
        if line.startswith(('"ID"', "ID,")) and "Kernel Name" in _cells(line):
            tables.append((_cells(line), []))
        elif tables and (line.startswith(('"', ",")) or line[:1].isdigit()):
            header, rows = tables[-1]
            cells = _cells(line)
            is_long = _is_long(header)
            least = header.index(_LONG[2]) + 1 if is_long else len(header)
            first = cells[0].strip() if cells else ""
            if least <= len(cells) <= len(header) and (first.isdigit() or not (first or is_long)):
                rows.append(cells + [""] * (len(header) - len(cells)))
            elif line.startswith('"') and first.isdigit():
                torn += 1
    return tables, torn


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error:  # a line of the program that is no CSV
        return []


def _is_long(header: list[str]) -> bool:
    return set(_LONG) <= set(header)


def _wide(header: list[str], rows: Rows, source: str, warnings: list[str]) -> Iterator[Launch]:
    """A row a launch; the row without an ID has the units."""
    units = next((row for row in rows if not row[0].strip()), [""] * len(header))
    header, units = [*header], [*units]
    for i, label in enumerate(header):
        header[i], units[i] = _metric(label, units[i])
    metrics = [i for i, name in enumerate(header) if "__" in name]
    counted = [row for row in rows if row[0].strip()]
    mark = decimal_mark((row[i] for row in counted for i in metrics), source)
    scales = {i: _scale(header[i], units[i], source, warnings) for i in metrics}
    for row in counted:
        values = {header[i]: _value(row[i], mark, scales[i]) for i in metrics}
        texts = {header[i]: row[i] for i in metrics}
        yield _launch(dict(zip(header, row, strict=True)), values, texts, source)


def _long(header: list[str], rows: Rows, source: str, warnings: list[str]) -> Iterator[Launch]:
    """A row a metric; rows of a rule have no metric."""
    name, unit, value = (header.index(word) for word in _LONG)
    of_process = header.index("Process ID") if "Process ID" in header else 0
    mark = decimal_mark((row[value] for row in rows if row[name]), source)
    launches: dict[tuple[str, str], list[list[str]]] = {}
    for row in rows:
        launches.setdefault((row[of_process], row[0]), []).append(row)
    for group in launches.values():
        for row in group:
            row[name], row[unit] = _metric(row[name], row[unit])
        scales = {row[name]: _scale(row[name], row[unit], source, warnings) for row in group}
        values = {row[name]: _value(row[value], mark, scales[row[name]]) for row in group}
        texts = {row[name]: row[value] for row in group}
        values.pop("", None)
        yield _launch(dict(zip(header, group[0], strict=True)), values, texts, source)


def _metric(label: str, unit: str) -> tuple[str, str]:
    """Return a metric's name and unit, given its label on the page of details.

    >>> _metric("Duration", "us"), _metric("Duration [ns]", ""), _metric("SM Frequency", "Ghz")
    (('gpu__time_duration.sum', 'us'), ('gpu__time_duration.sum', 'ns'), ('SM Frequency', 'Ghz'))
    """
    found = _DURATION.fullmatch(label.strip())
    return (TIME, unit or found["unit"] or "") if found else (label, unit)


def _scale(metric: str, unit: str, source: str, warnings: list[str]) -> float | None:
    has_one = metric == TIME or "bytes" in metric
    found = None if has_one and not unit.strip() else scale(unit)
    if found is None and metric.endswith(".sum"):
        warnings.append(
            f"{source}: the unit {unit!r} of {metric} is unknown: left out; collect it with "
            f"ncu --print-units base"
        )
    return found


def _value(cell: str, mark: str, factor: float | None) -> float | None:
    value = number(cell, mark)
    return None if value is None or factor is None else value * factor


def _launch(
    record: Mapping[str, str],
    values: Mapping[str, float | None],
    texts: Mapping[str, str],
    source: str,
) -> Launch:
    cells = [cell for column, cell in record.items() if "Push/Pop_Range" in column]
    cells += [cell for column, cell in record.items() if "Start/Stop_Range" in column]
    stacks = [found for cell in cells if (found := nvtx_ranges(cell))]
    kernel, ranges = record.get("Kernel Name", ""), stacks[0] if stacks else ()
    renamed = _RENAMED.match(kernel)
    if renamed:
        kernel = kernel[renamed.end() :]
        ranges = ranges or tuple(renamed[1].split("/"))
    return Launch(
        kernel, ranges, values, record.get("Process ID", ""), record.get("Grid Size", ""),
        record.get("Block Size", ""), record.get("CC", ""), texts.get(DEVICE, ""), source,
    )  # fmt: skip


def _together(a: Launch, b: Launch) -> Launch:
    """Two passes of one launch; what the first could not count is taken from the second."""
    counted = {name: v for name, v in a.metrics.items() if v is not None or name not in b.metrics}
    ranges, device = a.ranges or b.ranges, a.device or b.device
    return replace(a, metrics={**b.metrics, **counted}, ranges=ranges, device=device)


def _signature(launches: Sequence[Launch]) -> list[tuple[str, str, str]]:
    return [(one.kernel, one.grid, one.block) for one in launches]


def _counted(launches: Sequence[Launch]) -> set[str]:
    """Names of the metrics, but for those that every pass brings."""
    names = {name for one in launches for name in one.metrics}
    return {n for n in names if n != TIME and not n.startswith(("device__", "launch__"))}


def names_of(paths: Sequence[Path]) -> list[str]:
    """Name files by their last parts, as many as tell them apart: runs of one name are not one."""
    whole = [path.resolve().parts for path in paths]
    for path, parts in zip(paths, whole, strict=True):
        if whole.count(parts) > 1:
            raise ReportError(f"{path}: expected every file once; got it twice; leave one out")
    tails = (["/".join(parts[-n:]) for parts in whole] for n in range(1, max(map(len, whole)) + 1))
    return next((names for names in tails if len(set(names)) == len(names)), [])


def read_text(path: Path) -> str:
    """Return what ncu printed, or prints of a report; bytes that are no text become marks."""
    check_path(path)
    if path.suffix == ".ncu-rep":
        return _import(path)
    data = _unpacked(path)
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # redirected by PowerShell
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _unpacked(path: Path) -> bytes:
    try:
        with opened_unpacked(path) as file:
            data = read_at_most(file, _MOST_BYTES)
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise ReportError(f"{path}: cannot be unpacked ({error}); copy it again") from error
    if len(data) > _MOST_BYTES:
        raise ReportError(
            f"{path}: expected at most {_MOST_BYTES} bytes of text; got more; print fewer "
            f"metrics or kernels: ncu --import REPORT --csv --metrics NAMES"
        )
    return data


def _import(path: Path) -> str:
    """Let ncu print a report; the report holds all metrics that were collected."""
    command = ["ncu", "--import", str(path.resolve()), "--csv", "--page", "raw"]
    instead = f"ncu --import {path.name} --csv --page raw > {path.stem}.csv  and read that"
    return converted(path, [*command, "--print-units", "base"], instead)


_MOST_BYTES: Final = 1 << 29

_BASES: Final = frozenset(("inst", "byte", "B", "second", "s", "hz", "Hz", "op", "ops", "%"))
_PREFIXES: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
"""Nsight Compute's Kbyte is 1000 bytes; a binary prefix says that it is one."""

_BLANKS: Final = re.compile(r"[\s'’]")
_NUMBER: Final = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?")
_ENTRY: Final = re.compile(r'"(.*?)"(?=\s|$)')
_ATTRIBUTES: Final = 6  # PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg


def decimal_mark(cells: Iterable[str], source: str) -> str:
    """Return what separates decimals in a table: Nsight Compute writes numbers by the locale.

    ``1,208.5`` and ``1.208,5`` tell; so do two separators alike and a part behind the separator
    that is not three digits long. A table whose cells tell nothing has a point.

    Raises
    ------
    ReportError
        If some cells tell a point and others a comma.
    """
    marks: dict[str, str] = {}
    for cell in cells:
        if cell.isdecimal():  # as most are: it tells nothing
            continue
        text = _bare(cell)
        if text is not None:
            mark = _mark_of(text)
            if mark:
                marks.setdefault(mark, cell)
    if len(marks) > 1:
        raise ReportError(
            f"{source}: expected numbers in one notation; got {marks['.']!r} and {marks[',']!r}; "
            f"export again with LC_ALL=C ncu --import REPORT --csv --page raw"
        )
    return next(iter(marks), ".")


def number(cell: str, mark: str) -> float | None:
    """Read ``'1,208,975'`` or ``'5,3'``; None for n/a, nan and what is no number."""
    text = cell if cell.isdecimal() else _bare(cell)  # most cells are plain
    if text is None:
        return None
    other = "," if mark == "." else "."
    try:
        value = float(text.replace(other, "").replace(mark, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def scale(unit: str) -> float | None:
    """Return what a value in `unit` is multiplied by to be in bytes, seconds, operations.

    None if the unit is not known; a word in small letters is a unit without prefix. Rates keep
    their denominator.

    Examples
    --------
    >>> scale("Mbyte"), scale("us"), scale("nsecond"), scale("")
    (1000000.0, 1e-06, 1e-09, 1.0)
    """
    name = unit.strip().partition("/")[0]
    if not name or name in _BASES:
        return 1.0
    for length in (2, 1):
        if name[:length] in _PREFIXES and name[length:] in _BASES:
            return _PREFIXES[name[:length]]
    return 1.0 if name.isalpha() and name.islower() else None  # 'cycle'


def nvtx_ranges(cell: str) -> tuple[str, ...]:
    r"""Return the names in a cell of NVTX ranges, the outermost first, without their domains.

    ``--nvtx`` adds columns ``thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:
    Msg_Type:Msg``, whose cells hold a thread and then an entry in quotes for every open range.

    Examples
    --------
    >>> nvtx_ranges('77  "<default domain>:forward:none:none:none:none:none:none" ')
    ('forward',)
    """
    return tuple(name for entry in _ENTRY.findall(cell) if (name := _range_name(entry)))


def _range_name(entry: str) -> str:
    fields = entry.split(":")
    if fields[0].strip().isdigit():  # the Id of a Start/Stop range
        fields = fields[1:]
    fields = fields[1:]  # the domain
    if len(fields) <= _ATTRIBUTES:
        return ":".join(fields[:1])
    half = (len(fields) - _ATTRIBUTES + 1) // 2  # the message repeats the name, colons and all
    if fields[:half] == fields[-half:]:
        return ":".join(fields[:half])
    name = ":".join(fields[:-_ATTRIBUTES])
    return name or (fields[-1] if fields[-1] != "none" else "")


def _bare(cell: str) -> str | None:
    """The number of a cell without blanks and the values of instances; None if it is none."""
    text = _BLANKS.sub("", cell.partition("(")[0])
    return text if _NUMBER.fullmatch(text) else None


def _mark_of(text: str) -> str | None:
    digits = re.split(r"[eE]", text.lstrip("+-"))[0]
    points, commas = digits.count("."), digits.count(",")
    if points and commas:
        return "." if digits.rindex(".") > digits.rindex(",") else ","
    if not points and not commas:
        return None
    found, other = (".", ",") if points else (",", ".")
    if points + commas > 1:
        return other
    before, _, behind = digits.partition(found)
    grouped = len(behind) == 3 and 1 <= len(before) <= 3 and before != "0"
    return None if grouped else found
