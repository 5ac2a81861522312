"""Recordings of other projects, of which a clone has only the list: tests/reports/public.toml.

PERFMODEL_PUBLIC names a folder with them. Its `small/` holds those of the list by their names, and
a README with their licences; larger ones lie anywhere below the folder. Quick tests read small
ones alone.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

import pytest

from benchmarks.common.folders import ROOT

FOLDER: Final = os.environ.get("PERFMODEL_PUBLIC", "")
RECORDINGS: Final[list[dict[str, str]]] = tomllib.loads(
    (ROOT / "tests" / "reports" / "public.toml").read_text(encoding="utf-8")
)["recording"]
NAMES: Final = tuple(sorted(recording["file"] for recording in RECORDINGS))
"""Files in `small/`."""


def folder() -> Path:
    """Path of the folder with other people's recordings; skips where there is none."""
    path = Path(FOLDER).resolve()
    if not FOLDER or not (path / "small").is_dir():
        pytest.skip("PERFMODEL_PUBLIC names no folder of other people's recordings")
    return path


def small(name: str) -> Path:
    """Path of a small one; skips where there is no folder of them."""
    assert name in NAMES, f"tests/reports/public.toml does not list {name}"
    return folder() / "small" / name


def larger(*patterns: str) -> Path:
    """Path of the first one that matches a pattern; skips where none does."""
    for pattern in patterns:
        if found := sorted(folder().rglob(pattern)):
            return found[0]
    pytest.skip(f"no {patterns[0]} below PERFMODEL_PUBLIC")
