"""Where the notebooks read and write: files of the repository, and the folder of figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from perfmodel.base.errors import PerfmodelError

FIGURES_VARIABLE: Final = "PERFMODEL_FIGURES"
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
        f"wanted to run in the repository of perfmodel, which has {', '.join(_MARKS)}; found none "
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
            f"wanted {name!r} of the repository; found no such file in {str(repository())!r}; "
            f"check the name, or check out the whole repository"
        )
    return path


def figures_folder() -> Path:
    """Return where figures are written: $PERFMODEL_FIGURES, else out/figures of the repository."""
    chosen = os.environ.get(FIGURES_VARIABLE)
    return Path(chosen) if chosen else repository() / "out" / "figures"
