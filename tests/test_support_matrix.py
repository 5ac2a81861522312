"""A version of a recorder is supported only where a real file of it is in the tests."""

from __future__ import annotations

import re

import pytest
import support_matrix
from support_matrix import Row

from benchmarks.common.folders import DOCS
from support.public_recordings import folder

pytestmark = pytest.mark.slow  # reads every recording of the tests


@pytest.fixture(scope="module")
def own() -> list[Row]:
    return [*support_matrix.rows()]


@pytest.fixture(scope="module")
def others() -> list[Row]:
    folder()  # or skip
    return [*support_matrix.others()]


def listed() -> list[list[str]]:
    """The lines of both tables."""
    page = support_matrix.PAGE.read_text(encoding="utf-8")
    tables = page.partition("\n## Recordings of other projects\n")[::2]
    rows = (part.splitlines() for part in tables)
    return [[r for r in part if r.startswith("| ") and "recorder" not in r] for part in rows]


def test_the_page_says_what_the_files_say(own: list[Row]) -> None:
    """Run python docs/support_matrix.py where this fails."""
    assert listed()[0] == [str(row) for row in own]


def test_the_page_says_what_the_files_of_others_say(others: list[Row]) -> None:
    """Run python docs/support_matrix.py where this fails, with PERFMODEL_PUBLIC."""
    assert listed()[1] == [str(row) for row in others]


def test_the_page_of_the_schema_names_no_other_version() -> None:
    """Its versions by column are those of real exports, with the same numbers of the schema."""
    page = (DOCS / "schema.md").read_text(encoding="utf-8")
    lines = page[page.index("## By version") :].splitlines()
    heads, schemas = (re.findall(r"[\d.]+", line) for line in (lines[2], lines[4]))
    cells = [line.split(" | ") for table in listed() for line in table]
    ours = {
        (".".join(version.split(".")[:2]), schema)
        for recorder, version, schema, *_ in cells
        if recorder == "| Nsight Systems"
    }
    assert {*zip(heads, schemas, strict=True)} == ours


def test_every_kind_of_recorder_has_a_real_file(own: list[Row]) -> None:
    """JAX on other GPUs than NVIDIA's, and its XPlane, are in recordings of others alone."""
    assert {row.recorder for row in own} == {"Nsight Systems", "Nsight Compute", "torch.profiler"}
    assert any(line.startswith("| XPlane | ") for line in listed()[1])
    assert all(row.files for row in own)
