"""A seeded part of benchmarks.robustness: no crash, no wrong number, no half file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.common.folders import BASE
from benchmarks.common.pages import section
from benchmarks.robustness.__main__ import PAGE, UNKNOWABLE, tables
from benchmarks.robustness.reading import READING, read_faults
from benchmarks.robustness.writing import WRITING, Place, prepare, write_faults

pytestmark = pytest.mark.slow

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")
FEW = {"beside": 3, "plain": 4, "changed": 6}
ONLY_ERRORS = ("cut", "xz", "xz_cut", "summed", "beside")


@pytest.mark.parametrize("name", READING)
def test_reading(name: str, tmp_path: Path) -> None:
    found = read_faults(name, FEW.get(name, 8), BASE, tmp_path, seed=5)
    assert "broken" not in found
    if name not in UNKNOWABLE:
        assert "wrong" not in found
    if name in ONLY_ERRORS:
        assert set(found) == {"error"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return prepare(BASE, tmp_path_factory.mktemp("place"), plots=False)


@LINUX
@pytest.mark.parametrize("name", ["small_files", "killed", "failing_reads"])
def test_writing(name: str, place: Place) -> None:
    if name == "failing_reads" and shutil.which("strace") is None:
        pytest.skip("no strace to fail system calls with: apt install strace")
    found = write_faults(name, 2, place, seed=1)
    assert not {"broken", "wrong"} & set(found)


def test_every_fault_is_in_the_table() -> None:
    made = tables()
    for name, text in made.items():
        assert section(PAGE, "benchmarks.robustness", name) == text
    for title, _ in READING.values():
        assert f"| {title} |" in made["reading"]
    for title, _ in WRITING.values():
        assert f"| {title} |" in made["writing"]


def test_nothing_recorded_was_wrong() -> None:
    """But for what the format cannot tell: bits of plain numbers, whole pages that fit."""
    for part in ("reading", "writing"):
        for row in tables()[part].splitlines()[2:]:
            *_, wrong, crash, _ = (cell.strip() for cell in row.split("|"))
            assert crash == "0", row
            assert wrong == "0" or wrong.endswith("¹"), row
