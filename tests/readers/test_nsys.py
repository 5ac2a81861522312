"""Reports of every schema become the same trace, whatever order, place or spelling they use."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.readers import read
from perfmodel.readers.nsys import ALL_PARTS, read_sqlite
from perfmodel.readers.trace import NULL, STYLES, Diagnostic, Trace
from perfmodel.timing.range_times import RangeTimes, time_ranges
from support.build_report import VERSIONS, ReportBuilder
from support.build_thread import Thread
from support.document_report import document_report
from support.foreign_reports import SHIPPED
from support.plain import assert_equal

REPORTS = [*SHIPPED, *sorted(TESTS.glob("reports/*.sqlite"))]
SHAPES = [*VERSIONS, "2024.2.3-full"]
Fill = Callable[[ReportBuilder, Thread], None]


@pytest.fixture
def built(tmp_path: Path) -> Callable[..., Trace]:
    """Build a report that has one thread, fill it, and read it."""

    def build(fill: Fill, version: str = "2024.2.3", **options: Any) -> Trace:
        report = ReportBuilder(version, **options)
        fill(report, report.thread())
        return read_sqlite(report.write(tmp_path / "built.sqlite"))

    return build


def document(folder: Path, shape: str) -> Path:
    version, _, full = shape.partition("-")
    return document_report(folder / f"{shape}.sqlite", version, all_tables=bool(full))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(document(tmp_path_factory.mktemp("reference"), "2024.2.3"))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_schema_gives_the_same_spans(shape: str, reference: Trace, tmp_path: Path) -> None:
    trace = read(document(tmp_path, shape))
    times, found = time_ranges(trace, "batch iteration")
    wanted, as_found = time_ranges(reference, "batch iteration")
    for name in RangeTimes.__slots__[2:]:
        if name != "mpi_bytes" or shape != "2022.4.2":
            assert getattr(times, name).tolist() == getattr(wanted, name).tolist(), name
    assert [times.paths[p] for p in times.path] == [wanted.paths[p] for p in wanted.path]
    assert found.total == as_found.total
    assert trace.ranks == reference.ranks == {0: 0, 1: 1}
    assert trace.gpus == reference.gpus
    assert trace.product_version.startswith(shape.partition("-")[0])
    assert trace.schema_version != "unknown"


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_both_ways_of_reading_real_reports(report: Path) -> None:
    assert_equal(read_sqlite(report), read_sqlite(report, fast=False))


def rebuilt(path: Path, target: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """Copy every table with its columns as `change` orders them."""
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target)) as db:
        db.execute("ATTACH ? AS old", [str(path)])
        tables = db.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = [row[1] for row in db.execute(f"PRAGMA old.table_info({table})")]
            chosen = ", ".join(change(columns))
            db.execute(f"CREATE TABLE {table} AS SELECT {chosen} FROM old.{table}")
        db.commit()
    return target


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns[::-1],
        lambda columns: sorted(columns, key=lambda c: c[::-1]),
        lambda columns: [c for i, old in enumerate(columns) for c in (f"{i} AS new{i}", old)],
        lambda columns: [*columns[:2], "'text' AS greenContextId2", "NULL AS n", *columns[2:]],
        lambda columns: ["zeroblob(6000) AS large", *columns],
    ],
    ids=["reversed", "shuffled", "one between any two", "mid-row", "behind an overflowing one"],
)
def test_columns_are_found_by_name(change: Any, reference: Trace, tmp_path: Path) -> None:
    other = rebuilt(reference.source, tmp_path / "other.sqlite", change)
    for fast in (True, False):
        assert_equal(read_sqlite(other, fast=fast), reference, but=("source",))


def test_an_empty_report_of_all_tables(built: Callable[..., Trace]) -> None:
    for version in VERSIONS:
        trace = built(lambda *_: None, version, all_tables=True)
        assert len(trace.ranges) == len(trace.ops) == len(trace.api) == len(trace.mpi) == 0
        assert (trace.marks, trace.ranks, trace.world_size) == ((), {}, None)
        assert trace.nvtx_last_ns is None
        times, found = time_ranges(trace, "batch iteration")
        assert len(times) == found.total == 0


def test_parts_that_are_not_wanted_are_not_read(reference: Trace, tmp_path: Path) -> None:
    path = document(tmp_path, "2024.2.3")
    assert_equal(read_sqlite(path, parts=ALL_PARTS), reference, but=("source",))
    nvtx = read_sqlite(path, parts={"nvtx"})
    assert len(nvtx.ops) == len(nvtx.api) == len(nvtx.mpi) == 0
    assert_equal(nvtx.ranges, reference.ranges)
    bare = read_sqlite(path, parts={"ops", "api"})
    assert bare.ops.end_ns.tolist() == reference.ops.end_ns.tolist()
    assert set(bare.ops.bytes.tolist()) == {NULL}
    assert set(bare.api.name.tolist()) == {-1}
    assert (bare.range_names, bare.nvtx_last_ns, len(bare.ranges)) == ((), None, 0)


def names(trace: Trace) -> list[str | None]:
    return [trace.range_names[n] if n >= 0 else None for n in trace.ranges.name]


@pytest.mark.parametrize("version", VERSIONS)
def test_text_is_inline_or_registered(version: str, built: Callable[..., Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        t.range("registered", 0, 1)
        t.range("inline", 10, 11, registered=False)
        t.range("both", 20, 21, text="ignored")
        t.range(None, 30, 31)
        t.range("inline", 40, 41, textId=12345, registered=False)
        t.range(None, 50, 51, textId=12345)
        t.range("registered", 60, 61, registered=False)

    trace = built(fill, version)
    assert names(trace) == ["registered", "inline", "both", None, "inline", None, "registered"]
    assert len(trace.range_names) == 3


def test_domains(built: Callable[..., Trace]) -> None:
    """The earliest name counts, by process; the default domain has none; one may be empty."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        other = report.thread(pid=200)
        t.event(75, 50, text="late", domainId=3)
        t.event(75, 10, text="early", domainId=3)
        other.event(75, 90, text="theirs", domainId=3)
        t.event(75, 5, text="", domainId=4)
        t.event(75, 5, textId=report.string("by id"), domainId=5)
        for i, (thread, domain) in enumerate([(t, 3), (other, 3), (t, 4), (t, 0), (t, 9), (t, 5)]):
            thread.range("x", 100 * i, 100 * i + 1, domainId=domain)

    trace = built(fill)
    assert names(trace) == ["early:x", "theirs:x", ":x", "x", "x", "by id:x"]
    assert [trace.range_labels[n] for n in trace.ranges.name] == ["x"] * 6
    domains = [trace.range_domains[n] for n in trace.ranges.name]
    assert domains == ["early", "theirs", "", "", "", "by id"]


def test_styles_and_ending_threads(built: Callable[..., Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        other = report.thread(tid=101)
        for i, style in enumerate(("pushpop", "startend", "text pushpop", "text startend")):
            t.range("r", i, i + 1, style=style)
        t.range("r", 10, None, style="startend", ended_by=other)
        t.event(40, 20, textId=report.string("no range"))

    trace = built(fill)
    assert [STYLES[s] for s in trace.ranges.style] == [
        "PushPop", "StartEnd", "PushPop", "StartEnd", "StartEnd",
    ]  # fmt: skip
    assert trace.ranges.other_thread.tolist() == [False] * 4 + [True]
    assert trace.ranges.end_ns.tolist() == [1, 2, 3, 4, NULL]
    assert trace.nvtx_last_ns == 20


@pytest.mark.parametrize("registered", [True, False])
def test_marks_that_hold_json(registered: bool, built: Callable[..., Trace]) -> None:
    mark = '{"perfmodel_config": 1, "hidden_size": 512}'

    def fill(report: ReportBuilder, t: Thread) -> None:
        t.mark("just a mark", 5, registered=registered)
        t.mark(mark, 7, registered=registered)
        report.thread(pid=200).mark("{}", 9, registered=registered)

    trace = built(fill)
    assert trace.marks == ((7, 0, mark), (9, 1, "{}"))
    assert (trace.threads >> 24 & 0xFFFFFF).tolist() == [100, 200]
    assert len(trace.ranges) == 0
    assert trace.nvtx_last_ns == 9


@pytest.mark.parametrize("version", VERSIONS)
def test_ranks(version: str, built: Callable[..., Trace]) -> None:
    """From MPI_RANKS, or from threads named 'MPI Rank N'; by process, not by thread."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        report.thread(pid=300, rank=1)
        report.thread(pid=200, rank=0)
        t.event(39, 0, text="MPI Rank one")
        t.event(39, 0, text="a MPI Rank 7")

    trace = built(fill, version, world_size=4)
    pids = {p: int(process) >> 24 & 0xFFFFFF for p, process in enumerate(trace.processes)}
    assert {pids[p]: rank for p, rank in trace.ranks.items()} == {200: 0, 300: 1}
    assert trace.world_size == (None if version == "2022.4.2" else 4)


def test_recorded_ranks_come_before_named_ones(built: Callable[..., Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        t.event(39, 0, text="MPI Rank 5")
        report.insert("MPI_RANKS", globalTid=t.global_tid, rank=2)
        report.thread(pid=200).event(39, 0, text="MPI Rank 5")

    assert built(fill).ranks == {0: 2, 1: 5}


def test_threads_are_those_that_did_something(built: Callable[..., Trace]) -> None:
    """Processes come by rank, threads by process."""

    def fill(report: ReportBuilder, t: Thread) -> None:
        report.thread(pid=200, rank=0).range("r", 0, 1)
        report.thread(pid=300, rank=1)
        report.thread(tid=101).api("cudaFree", 0, 1)
        t.kernel("k", None, (5, 6))

    trace = built(fill)
    assert (trace.threads & 0xFFFFFF).tolist() == [200, 101]
    assert (trace.processes >> 24 & 0xFFFFFF).tolist() == [200, 300, 100]
    assert trace.thread_process.tolist() == [0, 2]


def test_gpus(built: Callable[..., Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        report.gpu(0)
        report.gpu(3, name=None, smCount=None, clockRate=0, computeMajor=None, uuid=None)

    first, other = built(fill, "2025.3.2").gpus
    assert (first.id, first.name, first.sm_count) == (0, "NVIDIA H200", 132)
    assert first.memory_bandwidth_bytes_per_s == 4_814_304_000_000
    assert (first.clock_hz, first.compute_capability) == (1_980_000_000, (9, 0))
    assert (other.id, other.name, other.sm_count) == (3, "unnamed GPU", None)
    assert (other.clock_hz, other.compute_capability, other.uuid) == (None, None, None)


def test_cuda_ordinals(built: Callable[..., Trace]) -> None:
    trace = built(lambda report, _: report.gpu(2), "2025.3.2")
    assert trace.cuda_devices == {(100, 2): 2}
    assert built(lambda report, _: report.gpu(2), "2024.2.3").cuda_devices == {}


def test_diagnostics(built: Callable[..., Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        report.diagnostic("No NVTX events collected\n", "error")
        report.diagnostic("All is well", "verbose")

    trace = built(fill)
    assert trace.diagnostics == (  # of the same moment: by text
        Diagnostic("verbose", "All is well"),
        Diagnostic("error", "No NVTX events collected"),
    )


def test_utc_start(built: Callable[..., Trace]) -> None:
    assert built(lambda *_: None, utc_start_ns=17).utc_start_ns == 17
    assert built(lambda *_: None, utc_start_ns=None).utc_start_ns is None


def test_the_real_reports_know_their_machine() -> None:
    for report in REPORTS:
        trace = read(report)
        assert sorted(trace.ranks.values()) in ([0, 1], [0], [1])
        assert trace.product_version.startswith(report.stem.rpartition("nsys")[2][:6])
        assert trace.utc_start_ns is not None
        assert trace.utc_start_ns > 1_600_000_000 * 10**9
        assert trace.source == report
        if report.stem.startswith("h200"):
            assert {gpu.name for gpu in trace.gpus} == {"NVIDIA H200"}
            assert {gpu.sm_count for gpu in trace.gpus} == {132}
        else:
            assert trace.gpus == ()
