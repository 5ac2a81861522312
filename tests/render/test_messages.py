"""Tables of messages between ranks, on the halo exchange in which rank 3 is 2 ms late."""

from __future__ import annotations

import json

import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import Analysis
from perfmodel.programs.program import Options
from perfmodel.render import messages, summary, tables
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.outputs import csv_tables

HALO = PROGRAMS / "halo.sqlite.xz"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze_reports([HALO], Options())


def test_the_matrix_has_a_row_for_each_sender(analysis: Analysis) -> None:
    shown = {table.title: table for table in messages.blocks(analysis.fitted)}
    sent = shown["Bytes from rank to rank, per step"].rows
    assert [row[0] for row in sent] == list(range(8))
    for a, row in enumerate(sent):
        neighbours = {(a - 1) % 8, (a + 1) % 8}
        assert {b for b in range(8) if row[1 + b] is not None} == neighbours
        assert all(row[1 + b] == 8192 for b in neighbours)
    waiting = shown["Waiting from rank to rank, per step"].rows
    assert waiting[3][1 + 2] == pytest.approx(2.4e-3, rel=0.1)
    assert waiting[2][1 + 3] == 0


def test_who_is_late_and_where(analysis: Analysis) -> None:
    shown = {table.title: table for table in messages.blocks(analysis.fitted)}
    assert tables.late_ranks(analysis.fitted).rows[0][0] == 3
    assert [1, 2, 3] in [row[:3] for row in shown["Waiting that is passed on, per step"].rows]
    unequal = shown["Ranges that are not equal: the slowest rank"].rows
    assert unequal[0][:2] == ["compute", 3]


def test_every_pair_is_in_the_files(analysis: Analysis) -> None:
    found = json.loads(json.dumps(analysis_document(analysis), default=str))
    pairs = found["point_to_point"]["pairs"]
    assert len(pairs) == 16
    assert pairs[0].keys() == {"from", "to", "messages", "bytes", "waiting_s"}
    assert found["point_to_point"]["chains"][0]["origin"] == 3
    tables = dict(csv_tables(analysis))
    assert len(tables["messages"].rows) == 16
    assert {"waiting", "chains", "ranges_by_rank"} <= tables.keys()
    assert "10 of 16; all of them with --out or --json" in summary.result(analysis, "all").render()
