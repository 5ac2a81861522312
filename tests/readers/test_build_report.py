"""Built reports look like real ones, to SQLite and to Nsight Systems."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.common.folders import TESTS
from support.build_report import VERSIONS, ReportBuilder
from support.document_report import (
    BATCHES,
    DERIVED_PROJECTION,
    GRADIENTS,
    HOST,
    IMAGES,
    PROJECTION,
    RANKS,
    document_report,
)
from support.nsys_cases import CASES, STATISTICS

SHAPES = [*VERSIONS, "2024.2.3-full"]
INSTANCES = RANKS * BATCHES
RANGE = "eventType = 59 AND coalesce(domainId, 0) = 0"
GOLDEN_CASES = TESTS / "golden" / "nsys_cases"
CUPTI = "CUPTI_ACTIVITY_KIND_"


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def document(shape: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document's report in every shape."""
    version, _, full = shape.partition("-")
    path = tmp_path_factory.mktemp("document") / f"{shape}.sqlite"
    return document_report(path, version, all_tables=bool(full))


@pytest.fixture
def db(document: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(document)) as connection:
        yield connection


def tables(db: sqlite3.Connection) -> set[str]:
    return {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.mark.nsys
def test_nsys_shows_the_documents_projections(
    document: Path, nsys_stats: Callable[[Path, str], str]
) -> None:
    rows = list(csv.DictReader(io.StringIO(nsys_stats(document, "nvtx_gpu_proj_sum"))))
    shown = {row["Range"]: float(row["Proj Med (ns)"]) for row in rows}
    wanted = {name: median for name, (median, _, _) in PROJECTION.items()}
    assert {name: shown[name] for name in wanted} == wanted
    assert {name: shown[name] for name in DERIVED_PROJECTION} == DERIVED_PROJECTION
    assert {row["Range Instances"] for row in rows} == {"2", str(INSTANCES)}


@pytest.mark.nsys
def test_nsys_shows_the_documents_host_times(
    document: Path, nsys_stats: Callable[[Path, str], str]
) -> None:
    rows = list(csv.DictReader(io.StringIO(nsys_stats(document, "nvtx_pushpop_sum"))))
    shown = {row["Range"]: float(row["Med (ns)"]) for row in rows}
    assert {name: shown[name] for name in HOST} == {name: ns for name, (ns, _, _) in HOST.items()}
    assert shown["GPU parallel train"] == 133_391_500.0


@pytest.mark.nsys
def test_nsys_reads_mpi_calls_where_the_version_has_them(
    document: Path, shape: str, nsys_stats: Callable[[Path, str], str]
) -> None:
    mpi = nsys_stats(document, "mpi_event_sum")
    ranges = nsys_stats(document, "nvtx_pushpop_sum")
    old = shape == "2022.4.2"
    assert (mpi == "") == old
    assert ("MPI:MPI_Allreduce" in ranges) == old


def test_a_lazy_export_has_no_empty_table(db: sqlite3.Connection, shape: str) -> None:
    empty = {table for table in tables(db) if count(db, table) == 0}
    assert bool(empty) == (shape == "2024.2.3-full")
    if empty:
        assert {f"{CUPTI}GRAPH_TRACE", "MPI_P2P_EVENTS", "DIAGNOSTIC_EVENT"} <= empty


def test_metadata_names_the_version(db: sqlite3.Connection, shape: str) -> None:
    table = "EXPORT_META_DATA" if shape == "2022.4.2" else "META_DATA_EXPORT"
    meta = dict(db.execute(f"SELECT name, value FROM {table}"))
    assert meta["EXPORT_PRODUCT_VERSION"].startswith(shape.partition("-")[0])


def test_row_counts(db: sqlite3.Connection, shape: str) -> None:
    ranges = db.execute(f"SELECT count(*) FROM NVTX_EVENTS WHERE {RANGE}").fetchone()[0]
    assert ranges == RANKS * 2 + INSTANCES * len(HOST)
    copies = len(IMAGES) + 2 * len(GRADIENTS)
    assert count(db, f"{CUPTI}MEMCPY") == INSTANCES * copies
    assert count(db, f"{CUPTI}KERNEL") == INSTANCES * (4 + 6 + 4)
    assert count(db, f"{CUPTI}RUNTIME") == INSTANCES * (copies + 14 + 3)
    if shape != "2022.4.2":
        assert count(db, "MPI_COLLECTIVES_EVENTS") == INSTANCES * len(GRADIENTS)
        assert db.execute("SELECT DISTINCT size FROM MPI_COMMUNICATORS").fetchall() == [(RANKS,)]


def test_bytes_are_the_models(db: sqlite3.Connection, shape: str) -> None:
    h2d, d2h = (
        db.execute(f"SELECT sum(bytes) FROM {CUPTI}MEMCPY WHERE copyKind = {kind}").fetchone()[0]
        for kind in (1, 2)
    )
    assert sum(GRADIENTS) * 2 == 3_256_400
    assert d2h == INSTANCES * sum(GRADIENTS)
    assert h2d == INSTANCES * (sum(GRADIENTS) + sum(IMAGES))
    if shape != "2022.4.2":
        size = db.execute("SELECT sum(size) FROM MPI_COLLECTIVES_EVENTS").fetchone()[0]
        assert size == INSTANCES * sum(GRADIENTS)


def test_events_are_sorted_by_start(db: sqlite3.Connection) -> None:
    for table in tables(db):
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if "start" in columns:
            starts = [s for (s,) in db.execute(f"SELECT start FROM {table} ORDER BY rowid")]
            assert starts == sorted(starts), table


def test_foreign_keys_resolve(db: sqlite3.Connection) -> None:
    strings = {i for (i,) in db.execute("SELECT id FROM StringIds")}
    for table in tables(db):
        for _, column, *_ in db.execute(f"PRAGMA table_info({table})").fetchall():
            if column in {"textId", "nameId", "demangledName", "shortName"}:
                used = {i for (i,) in db.execute(f"SELECT {column} FROM {table}")}
                assert used - {None} <= strings, f"{table}.{column}"
    calls = dict(
        db.execute(f"SELECT (globalTid >> 24 << 24) | correlationId, start FROM {CUPTI}RUNTIME")
    )
    for kind in ("KERNEL", "MEMCPY", "SYNCHRONIZATION"):
        query = f"SELECT globalPid | correlationId, start FROM {CUPTI}{kind}"
        assert all(calls[key] <= start for key, start in db.execute(query)), kind


def test_the_timeline_is_possible(db: sqlite3.Connection) -> None:
    """A thread makes one call at a time, a stream runs one operation at a time, ranges nest."""
    lanes = defaultdict(list)
    for table, lane in (("RUNTIME", "globalTid"), ("KERNEL", "deviceId"), ("MEMCPY", "deviceId")):
        for row in db.execute(f"SELECT {lane}, start, end FROM {CUPTI}{table}"):
            lanes[row[0]].append(row[1:])
    for spans in lanes.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    ranges = db.execute(f"SELECT globalTid, start, end FROM NVTX_EVENTS WHERE {RANGE}").fetchall()
    for tid in {row[0] for row in ranges}:
        open_until: list[int] = []
        for _, start, end in sorted(r for r in ranges if r[0] == tid):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_method_writes_rows(version: str, tmp_path: Path) -> None:
    report = ReportBuilder(version)
    report.gpu()
    thread, other = report.thread(rank=0), report.thread(tid=7)
    thread.range("forward", 10, 90, domain="net", registered=False)
    thread.range("async", 10, None, style="startend", ended_by=other)
    thread.mark("{}", 5)
    thread.kernel("gemm", (20, 30), (40, 50), in_range="launch")
    thread.memcpy("d2h", 4, (50, 60), (51, 59), dst="pinned")
    thread.memset(4, (60, 61), (62, 63))
    thread.synchronize(70, 80)
    thread.graph_launch((81, 82), kernels=[("a", (83, 84)), ("b", (85, 86))])
    thread.mpi("MPI_Send", 87, 88, 4, source="p2p", tag=1)
    with closing(sqlite3.connect(report.write(tmp_path / "all.sqlite"))) as db:
        assert count(db, f"{CUPTI}KERNEL") == 3
        assert count(db, f"{CUPTI}RUNTIME") == 5
        assert count(db, "ThreadNames") == 2
        tail = "SELECT name FROM ENUM_NSYS_EVENT_TYPE JOIN NVTX_EVENTS ON id = eventType"
        assert {"NvtxPushPopRange", "NvtxStartEndRange", "NvtxMark", "NvtxDomainCreate"} <= {
            name for (name,) in db.execute(tail)
        }


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="has no column greenContextId"):
        ReportBuilder("2022.4.2").insert("CUPTI_ACTIVITY_KIND_KERNEL", greenContextId=0)


def test_golden_files_are_of_known_cases() -> None:
    names = {path.name.rsplit(".", 2)[0] for path in GOLDEN_CASES.glob("*.csv")}
    assert names <= CASES.keys()
    assert CASES.keys() - names == {"empty_tables"}


@pytest.mark.nsys
@pytest.mark.parametrize("case", CASES)
def test_golden_files_are_what_nsys_says(
    case: str, tmp_path: Path, nsys_stats: Callable[[Path, str], str]
) -> None:
    report = CASES[case](tmp_path / f"{case}.sqlite")
    for statistic in STATISTICS:
        golden = GOLDEN_CASES / f"{case}.{statistic}.csv"
        wanted = golden.read_bytes().decode() if golden.exists() else ""
        assert nsys_stats(report, statistic) == wanted, statistic
