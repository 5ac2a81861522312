"""What cells of Nsight Compute's tables say: numbers in units and notations, NVTX ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from perfmodel.base.errors import ReportError

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
    told: dict[str, str] = {}
    for cell in cells:
        if cell.isdecimal():  # as most are: it tells nothing
            continue
        text = _bare(cell)
        if text is not None:
            mark = _mark_of(text)
            if mark:
                told.setdefault(mark, cell)
    if len(told) > 1:
        raise ReportError(
            f"{source}: wanted numbers in one notation, found {told['.']!r} and {told[',']!r}; "
            f"export again with LC_ALL=C ncu --import REPORT --csv --page raw"
        )
    return next(iter(told), ".")


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


def ranges(cell: str) -> tuple[str, ...]:
    r"""Return the names in a cell of NVTX ranges, the outermost first, without their domains.

    ``--nvtx`` adds columns ``thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:
    Msg_Type:Msg``, whose cells hold a thread and then an entry in quotes for every open range.

    Examples
    --------
    >>> ranges('77  "<default domain>:forward:none:none:none:none:none:none" ')
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
