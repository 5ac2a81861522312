"""Parts of a benchmark's results: rows that were measured, or what to run where there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a results file.

    Attributes
    ----------
    rows : tuple of mapping
        What was measured; empty where nothing was.
    device, date : str
        On what and when; empty where nothing was measured.
    missing : str
        What is lacking and how to measure it; empty where there are rows.
    data : mapping
        The whole part, as in the file.
    """

    rows: tuple[Mapping[str, Any], ...]
    device: str
    date: str
    missing: str
    data: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.rows)


def read_part(path: Path, name: str, command: str) -> Part:
    """Read one part of what benchmarks.layers, resnet.py or vecadd.py wrote.

    Parameters
    ----------
    path : Path
        A file that does not exist has no part.
    name : str
    command : str
        What measures it, for the sentence that says so.

    Raises
    ------
    ReportError
        If the file is there and is something else.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        part = read.get(name, {})
        rows = tuple(row for row in part.get("rows", ()) if "problem" not in row)
        about = part.get("about", {})
        why = "; ".join(printable(str(p).splitlines()[0]) for p in part.get("problems", ()))
        date = str(part.get("date", ""))[:10]
    except (OSError, ValueError, AttributeError, TypeError, IndexError) as error:
        raise ReportError(
            f"{printable(path.name)}: wanted results with a part {name!r}; found a file without "
            f"such parts ({type(error).__name__}); run {command}"
        ) from None
    if rows:
        return Part(rows, str(about.get("device", "")), date, "", part)
    tried = f" (tried {date}: {why or 'no rows'})" if part else ""
    said = f"{path.stem}, part {name!r}, is not measured yet{tried}: run {command}"
    return Part((), "", "", said, part)
