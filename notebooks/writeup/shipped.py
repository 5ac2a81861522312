"""Files of the repository, and the parts of a benchmark's results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import PerfmodelError, ReportError
from perfmodel.base.escape import printable

_MARKS: Final = ("pyproject.toml", "profiles", "perfmodel")


def repository(start: Path | None = None) -> Path:
    """Return the repository's folder: the first above `start` (here) that looks like it.

    Raises
    ------
    PerfmodelError
        If there is none.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if all((folder / mark).exists() for mark in _MARKS):
            return folder
    raise PerfmodelError(
        f"expected to run in the repository of perfmodel, which has {', '.join(_MARKS)}; got none "
        f"of them above {str(here)!r}; clone it, and start there"
    )


def shipped(name: str) -> Path:
    """Return the path of a file of the repository, such as 'profiles/index.json'.

    Raises
    ------
    PerfmodelError
        If the repository has no such file.
    """
    path = repository() / name
    if not path.exists():
        raise PerfmodelError(
            f"expected {name!r} of the repository; got no such file in {str(repository())!r}; "
            f"check the name, or check out the whole repository"
        )
    return path


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
            f"{printable(path.name)}: expected results with a part {name!r}; got a file without "
            f"such parts ({type(error).__name__}); run {command}"
        ) from None
    if rows:
        return Part(rows, str(about.get("device", "")), date, "", part)
    tried = f" (tried {date}: {why or 'no rows'})" if part else ""
    said = f"{path.stem}, part {name!r}, is not measured yet{tried}: run {command}"
    return Part((), "", "", said, part)
