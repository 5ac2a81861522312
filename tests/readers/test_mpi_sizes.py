"""Sizes of MPI's collectives, as Nsight Systems 2024.2 recorded them of buffers of 88 bytes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import NULL
from support.build_report import ReportBuilder

MS = 1_000_000
Recorded = tuple[int | None, int | None]
"""Size and received size."""


def report(path: Path, name: str, recorded: list[Recorded]) -> Path:
    """Each rank makes the call in three steps of 1 ms."""
    builder = ReportBuilder(world_size=len(recorded))
    for rank in range(len(recorded)):
        thread = builder.thread(100 + rank, rank=rank)
        for i in range(3):
            thread.mpi(name, i * MS, i * MS + 1000)
    file = builder.write(path / "r.sqlite")
    with sqlite3.connect(file) as db:
        db.executemany(
            "UPDATE MPI_COLLECTIVES_EVENTS SET size = ?, recvSize = ? WHERE globalTid = ?",
            [(*both, builder.threads[rank].global_tid) for rank, both in enumerate(recorded)],
        )
    return file


@pytest.mark.parametrize(
    ("name", "recorded", "expected"),
    [
        ("MPI_Bcast", [(None, 88), (264, 88), (None, 88)], [88, 88, 88]),
        ("MPI_Scatter", [(None, 88), (264, 88), (None, 88)], [88, 88, 88]),
        ("MPI_Scatter", [(None, 88), (176, None), (None, 88)], [88, 88, 88]),  # root in place
        ("MPI_Reduce", [(88, None), (88, 264), (88, None)], [88, 88, 88]),
        ("MPI_Reduce", [(88, None), (None, 176), (88, None)], [88, 88, 88]),  # root in place
        ("MPI_Scan", [(352, 88), (264, 176), (176, 264), (88, 352)], [88, 88, 88, 88]),
        ("MPI_Scan", [(264, 88), (176, 176), (88, 264)], [88, NULL, 88]),
        ("MPI_Scan", [(176, None), (88, 88), (None, 176)], [88, NULL, 88]),  # in place
        ("MPI_Exscan", [(176, None), (88, 88), (None, 176)], [88, 88, 88]),
        ("MPI_Allreduce", [(88, 88)], [88]),
        ("MPI_Allreduce", [(352, 352)] * 4, [88] * 4),  # no multiple of 3
        ("MPI_Iallreduce", [(352, 352)] * 4, [88] * 4),
        ("MPI_Allreduce", [(176, 176)] * 3, [88] * 3),  # in place: no multiple of 3
        ("MPI_Allgather", [(264, 264)] * 3, [264] * 3),  # all parts together
    ],
)
def test_sizes_are_those_of_the_buffer(
    name: str, recorded: list[Recorded], expected: list[int], tmp_path: Path
) -> None:
    calls = read(report(tmp_path, name, recorded)).mpi
    by_rank = [calls.size_bytes[calls.thread == rank] for rank in range(len(expected))]
    assert [sizes.tolist() for sizes in by_rank] == [[size] * 3 for size in expected]
    assert calls.least_bytes.tolist() == calls.size_bytes.tolist()


@pytest.mark.parametrize(
    ("ranks", "size", "in_place", "apart"),
    [(2, 176, 176, 88), (3, 264, 132, 88), (4, 264, 88, 66)],
)
def test_all_reduces_that_may_be_in_place_have_no_size_but_a_warning(
    ranks: int, size: int, in_place: int, apart: int, tmp_path: Path
) -> None:
    path = report(tmp_path, "MPI_Allreduce", [(size, size)] * ranks)
    calls = read(path).mpi
    assert set(calls.size_bytes.tolist()) == {in_place}  # as the trainer reduces
    assert set(calls.least_bytes.tolist()) == {apart}
    run = analyze_reports([path], Options({})).fitted
    assert run.collectives[0].bytes is None
    (said,) = [w for w in run.warnings if "all-reduces are missing" in w]
    assert f"not in place they are {apart}.0 B" in said
