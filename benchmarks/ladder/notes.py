"""What is to be known of some rows of the ladder, such as kernels that were mended afterwards.

Notes are written into ladder.json by hand: `text`, `runs` (their names), `rungs`, and `H` and
`dtype` if only some are meant. A note is about the rows that still are of those runs, so that
measuring a rung again takes it out of the note, and the note out of the file with its last row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Note = dict[str, Any]


def noted(note: Note, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a note is about."""
    return [
        row
        for row in rows
        if row["run"] in note["runs"]
        and row["rung"] in note["rungs"]
        and all(row[key] in note.get(key, [row[key]]) for key in ("H", "dtype"))
    ]


def notes(record: dict[str, Any]) -> str:
    """Return the notes as a list, each with the rows that it is about; nothing without any."""
    lines = []
    for note in record.get("notes", []):
        rungs: dict[tuple[Any, ...], list[str]] = {}
        for row in noted(note, record["rows"]):
            rungs.setdefault((row["p"], row["H"], row["dtype"]), []).append(row["rung"])
        cells: dict[str, list[tuple[Any, ...]]] = {}
        for cell, names in rungs.items():
            cells.setdefault(", ".join(names), []).append(cell)
        lines += [f"- {n} ({_places(at)}): {note['text']}.\n" for n, at in cells.items()]
    return "\nTo be measured again:\n\n" + "".join(lines) if lines else ""


def _places(cells: Sequence[tuple[Any, ...]]) -> str:
    """Write p, H and dtype of cells, together if they are all combinations of theirs."""
    p, hidden, dtype = (list(dict.fromkeys(values)) for values in zip(*cells, strict=True))
    if math.prod(map(len, (p, hidden, dtype))) > len(cells):
        return "; ".join(f"p = {p}, H = {h}, {d}" for p, h, d in cells)
    listed = [" and ".join(map(str, values)) for values in (p, hidden, dtype)]
    return f"p = {listed[0]}, H = {listed[1]}, {listed[2]}"
