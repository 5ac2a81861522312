"""A version of a recorder is supported only where a real file of it is in the tests."""

from __future__ import annotations

import re

import pytest
import support_matrix
from support_matrix import Row

from benchmarks.common.folders import DOCS

pytestmark = pytest.mark.slow  # reads every recording of the tests


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [*support_matrix.rows()]


def test_the_page_says_what_the_files_say(rows: list[Row]) -> None:
    """Run python docs/support_matrix.py where this fails."""
    written = support_matrix.PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line for line in written if line.startswith("| ") and "recorder" not in line]
    assert listed == [str(row) for row in rows]


def test_the_page_of_the_schema_names_no_other_version(rows: list[Row]) -> None:
    """Its versions by column are those of real exports, with the same numbers of the schema."""
    page = (DOCS / "schema.md").read_text(encoding="utf-8")
    lines = page[page.index("## By version") :].splitlines()
    heads, schemas = (re.findall(r"[\d.]+", line) for line in (lines[2], lines[4]))
    ours = {
        (".".join(row.version.split(".")[:2]), row.schema)
        for row in rows
        if row.recorder == "Nsight Systems"
    }
    assert {*zip(heads, schemas, strict=True)} == ours


def test_every_kind_of_recorder_has_a_real_file(rows: list[Row]) -> None:
    assert {row.recorder for row in rows} == {
        "Nsight Systems", "Nsight Compute", "torch.profiler", "XPlane",
    }  # fmt: skip
    assert all(row.files for row in rows)
