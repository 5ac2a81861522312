"""Exported figures: what `export` wrote to a folder, by name and by number."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable

SUFFIXES: Final = ("pdf", "svg", "png")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Figure:
    """One exported figure.

    Attributes
    ----------
    name : str
        Of its files, such as 'fig12_roofline'.
    caption : str
        Plain text.
    width_in : float
        3.5 for one column, 7.2 for both.
    """

    name: str
    caption: str
    width_in: float


def read_figures(folder: Path) -> tuple[Figure, ...]:
    """Read the figures that notebooks exported to a folder, by name.

    Raises
    ------
    PerfmodelError
        If the folder has none, one lacks a file, or its caption is empty or cannot be read.
    """
    found = tuple(_read(path) for path in sorted(folder.glob("*.json")))
    if not found:
        raise PerfmodelError(
            f"wanted figures in {printable(str(folder))!r}; found none; run make figures, or name "
            f"the folder with --figures"
        )
    return found


def find(figures: Sequence[Figure], key: str) -> Figure | None:
    """Return the figure of this name, or the only one whose name begins with it and '_'.

    A write-up then keeps calling 'fig12' what a notebook calls 'fig12_roofline'.

    Raises
    ------
    PerfmodelError
        If several do.
    """
    exact = [f for f in figures if f.name == key]
    found = exact or [f for f in figures if f.name.startswith(f"{key}_")]
    if len(found) > 1:
        raise PerfmodelError(
            f"wanted one figure {key!r}; found {', '.join(f.name for f in found)}; give the whole "
            f"name"
        )
    return found[0] if found else None


def _read(path: Path) -> Figure:
    where = printable(path.name)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        figure = Figure(path.stem, " ".join(str(read["caption"]).split()), float(read["width_in"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PerfmodelError(
            f"{where}: wanted a figure's caption as writeup.export writes it; found "
            f"{type(error).__name__}; run the notebook again, or move the file away"
        ) from None
    lacking = [s for s in SUFFIXES if not path.with_suffix(f".{s}").is_file()]
    if lacking:
        raise PerfmodelError(
            f"{where}: wanted {', '.join(f'{path.stem}.{s}' for s in lacking)} beside it; found no "
            f"such file; run the notebook again"
        )
    if not figure.caption:
        raise PerfmodelError(f"{where}: wanted a caption; found an empty one; give it to export")
    if not _NAME.fullmatch(figure.name):
        raise PerfmodelError(
            f"{where}: wanted a name of letters, digits, - and _; found another; rename the figure"
        )
    return figure
