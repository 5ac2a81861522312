"""Summaries gathered from a stream equal those of the whole trace, whatever the report holds."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.folders import TESTS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.arrays import Arena
from perfmodel.base.errors import PerfmodelError
from perfmodel.programs.program import Options
from perfmodel.readers import pages
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.pages import PageFile, Unsupported
from perfmodel.readers.trace import Trace
from perfmodel.timing import projection as projector
from perfmodel.timing.nesting import nest
from perfmodel.timing.nsys_stats import collect as streamed
from perfmodel.timing.nsys_stats.tables import Counted, Tally, to_csv, to_table
from support.build_report import ReportBuilder
from support.cli import perfmodel
from support.document_report import document_report
from support.foreign_reports import SHIPPED
from support.nsys_cases import STATISTICS

REPORTS = [*SHIPPED, *sorted(TESTS.glob("reports/*.sqlite"))]


@pytest.fixture(params=["large chunks", "chunks of a page"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "chunks of a page":
        monkeypatch.setattr(pages, "_CHUNK", 1)
        monkeypatch.setattr(pages, "_JOINED", 1)


def in_whole(trace: Trace, name: str) -> str:
    try:
        return to_csv(streamed.compute(name, trace))
    except PerfmodelError as error:
        return f"{type(error).__name__}: {error}"


def written(name: str, found: Counted | PerfmodelError) -> str:
    if isinstance(found, PerfmodelError):
        return f"{type(found).__name__}: {found}"
    return to_csv(to_table(name, found))


def of_the_whole(path: Path) -> dict[str, str]:
    trace = read_sqlite(path, fast=False)
    return {name: in_whole(trace, name) for name in STATISTICS}


known = cache(of_the_whole)


def check(path: Path, whole: Callable[[Path], dict[str, str]] = of_the_whole) -> dict[str, str]:
    """Compare all summaries; return them."""
    found = streamed.collect(path, STATISTICS)
    texts = {name: written(name, found[name]) for name in STATISTICS}
    assert texts == whole(path)
    return texts


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_real_reports(path: Path) -> None:
    assert any("Error" not in text for text in check(path, known).values())


def test_summaries_are_gathered_one_by_one() -> None:
    """Reading only what a summary needs changes nothing."""
    together = streamed.collect(REPORTS[0], STATISTICS)
    for name in STATISTICS:
        alone = streamed.collect(REPORTS[0], [name])
        assert written(name, alone[name]) == written(name, together[name])


@settings(
    max_examples=6, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(seed=st.integers(0, 2**32), threads=st.integers(1, 3), calls=st.integers(0, 20),
       horizon=st.sampled_from([30, 300, 3000]), shared=st.booleans())  # fmt: skip
def test_random_reports(
    seed: int, threads: int, calls: int, horizon: int, shared: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Ranges that nest, touch or cross; calls of no length; ids that are shared or far apart."""
    monkeypatch.setattr(pages, "_CHUNK", 1)
    monkeypatch.setattr(pages, "_JOINED", 1)
    rng = random.Random(seed)
    report = ReportBuilder()

    def span(longest: int) -> tuple[int, int]:
        start = rng.randrange(horizon)
        return start, start + rng.randrange(longest + 1)

    for nth in range(threads):
        t = report.thread(100 + nth // 2, 100 + nth)
        for _ in range(rng.randrange(12)):
            t.range(rng.choice(["a", "b", "c"]), *span(horizon))
        for _ in range(calls):
            t.kernel(rng.choice(["k", "l"]), span(horizon // 10), span(horizon // 5))
    if shared:
        for row in report.rows.get("CUPTI_ACTIVITY_KIND_RUNTIME", []):
            row["correlationId"] = rng.choice([1, 2, 3, 10**9, 2**40])
    check(report.write(tmp_path / "random.sqlite"))


def test_plain_reports_are_projected_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole trace is read for what is not plain only."""
    monkeypatch.setattr(streamed, "project", None)
    for path in [p for p in REPORTS if "h200" in p.stem]:
        found = streamed.collect(path, ["nvtx_gpu_proj_sum"])["nvtx_gpu_proj_sum"]
        assert isinstance(found, Counted)


def test_calls_that_share_an_id_in_two_ranges_are_no_stream() -> None:
    ids = projector._Ids((Arena(np.int32), Arena(np.bool_)))
    ids.put(np.array([5, 9, 9, -7, 2**40]), np.array([0, 4, 4, -1, 2]))
    asked = np.array([9, 4, 6, 2**40, -7, -8, 2**50])
    assert ids.take(asked).tolist() == [4, -2, -2, 2, -1, -2, -2]
    assert sorted(np.concatenate([*ids.launching()]).tolist()) == [2, 4]
    with pytest.raises(projector.Irregular):
        ids.put(np.array([5]), np.array([1]))
    with pytest.raises(projector.Irregular):
        ids.put(np.array([6, 6]), np.array([1, 2]))


def test_ids_far_apart_are_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "_FEW", 10)
    trace = read_sqlite(next(p for p in REPORTS if "h200" in p.stem))
    projected = projector.Projector(nest(trace.ranges, len(trace.threads)), trace.threads)
    few, ids = np.arange(4), np.arange(4) * 2**20
    with pytest.raises(projector.Irregular):
        projected.add_calls(few, few + 1, np.full(4, trace.threads[0]), ids)


def test_what_the_page_reader_refuses_late_is_read_by_sqlite(tmp_path: Path) -> None:
    """The last of many rows was there before a column was added: only SQLite knows its value."""
    path = tmp_path / "late.sqlite"
    path.write_bytes(next(p for p in REPORTS if "h200" in p.stem).read_bytes())
    table, columns = "CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, correlationId"
    with closing(sqlite3.connect(path)) as db:
        name, last = db.execute(f"SELECT nameId, max(rowid) FROM {table}").fetchone()
        db.execute(f"ALTER TABLE {table} RENAME TO old")
        db.execute(f"CREATE TABLE {table} ({columns})")
        db.execute(f"INSERT INTO {table} (rowid, {columns}) SELECT rowid, {columns} FROM old "
                   f"WHERE rowid = {last}")  # fmt: skip
        db.execute(f"ALTER TABLE {table} ADD COLUMN nameId INTEGER DEFAULT {name}")
        db.execute(f"INSERT INTO {table} (rowid, {columns}, nameId) SELECT rowid, {columns}, "
                   f"nameId FROM old WHERE rowid < {last}")  # fmt: skip
        db.execute("DROP TABLE old")
        db.commit()
    with PageFile(path) as file, closing(sqlite3.connect(path)) as db:
        schema = f"SELECT rootpage FROM sqlite_master WHERE name = '{table}'"
        (root,) = db.execute(schema).fetchone()
        with pytest.raises(Unsupported):
            for _ in file.chunks(root, [4]):
                pass
    check(path)


def test_merged_reports_count_what_their_parts_count() -> None:
    """Two reports together: totals add up, medians are those of all values."""
    names = ["cuda_gpu_kern_sum", "nvtx_gpu_proj_sum", "cuda_api_sum", "mpi_event_sum"]
    paths = [p for p in REPORTS if "2025" in p.stem][:2]
    parts = [streamed.collect(p, names) for p in paths]
    both = streamed.merged(names, parts)
    for name in names:
        one, two, found = parts[0][name], parts[1][name], both[name]
        assert isinstance(one, Counted)
        assert isinstance(two, Counted)
        assert isinstance(found, Counted)
        assert set(found.keys) == {*one.keys, *two.keys}
        assert int(found.groups().total.sum()) == int(
            one.groups().total.sum() + two.groups().total.sum()
        )
        assert int(found.count.sum()) == int(one.count.sum() + two.count.sum())
    twice = streamed.merged(names, [parts[0], parts[0]])["cuda_gpu_kern_sum"]
    alone = parts[0]["cuda_gpu_kern_sum"]
    assert isinstance(twice, Counted)
    assert isinstance(alone, Counted)
    every = np.arange(len(alone.keys))
    least = (counted.groups().figures(every).minimum for counted in (twice, alone))
    assert np.array_equal(*least)
    assert np.array_equal(twice.groups().total, 2 * alone.groups().total)


def test_what_one_report_lacks_another_may_have() -> None:
    names = ["cuda_gpu_kern_sum"]
    without = next(p for p in REPORTS if "cpu" in p.stem)
    with_kernels = next(p for p in REPORTS if "h200" in p.stem)
    lacking, having = (streamed.collect(p, names) for p in (without, with_kernels))
    assert isinstance(lacking[names[0]], PerfmodelError)
    merged = streamed.merged(names, [lacking, having])
    assert written(names[0], merged[names[0]]) == written(names[0], having[names[0]])
    assert isinstance(streamed.merged(names, [lacking])[names[0]], PerfmodelError)


def test_what_one_report_cannot_tell_is_not_left_out() -> None:
    """Calls that one export keeps as ranges would be missing from the sums of all."""
    name = "mpi_event_sum"
    old, new = (next(p for p in REPORTS if year in p.stem) for year in ("2022", "2024"))
    for paths in ([old, new], [new, old]):
        found = streamed.merged([name], [streamed.collect(p, [name]) for p in paths])[name]
        assert isinstance(found, PerfmodelError)
        assert "keeps MPI calls as NVTX ranges" in str(found)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**40), 2**40)), min_size=1, max_size=60),
    st.integers(1, 60),
)
def test_a_tally_does_not_depend_on_its_chunks(rows: list[tuple[int, int]], cut: int) -> None:
    codes, values = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    whole, tally = Tally(), Tally()
    whole.add(codes, values)
    for part in (slice(None, cut), slice(cut, None)):
        tally.add(codes[part], values[part])
    found, at_once = tally.groups(5), whole.groups(5)
    np.testing.assert_array_equal(found.timed, at_once.timed)
    np.testing.assert_array_equal(found.total, at_once.total)
    every = np.arange(5)
    for figure, expected in zip(found.figures(every), at_once.figures(every), strict=True):
        np.testing.assert_array_equal(figure, expected)


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a report that has every table, some of them empty."""
    path = tmp_path_factory.mktemp("all") / "report.sqlite"
    return document_report(path, all_tables=True).read_bytes()


EVENTS = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")


@pytest.mark.parametrize("tables", [*((t,) for t in EVENTS), EVENTS], ids="+".join)
def test_an_empty_table_is_as_an_absent_one(
    tables: tuple[str, ...], all_tables: bytes, tmp_path: Path
) -> None:
    """As `nsys export --lazy=false` writes them."""
    found = []
    for statement in ("DELETE FROM", "DROP TABLE"):
        path = tmp_path / "report.sqlite"
        path.write_bytes(all_tables)
        with closing(sqlite3.connect(path)) as db, db:
            for table in tables:
                db.execute(f"{statement} CUPTI_ACTIVITY_KIND_{table}")
        found.append(check(path))
    assert found[0] == found[1]


EVENT_VIEWS = ["NVTX_EVENTS", *(f"CUPTI_ACTIVITY_KIND_{t}" for t in EVENTS)]


@pytest.mark.parametrize("table", [*EVENT_VIEWS, "MPI_RANKS", "TARGET_INFO_GPU", "StringIds"])
def test_a_view_in_place_of_a_table_is_named(table: str, all_tables: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(all_tables)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"ALTER TABLE {table} RENAME TO stored")
        db.execute(f"CREATE VIEW {table} AS SELECT * FROM stored")
    try:
        told = ["\n".join(analyze_reports([path], Options()).fitted.warnings)]
    except PerfmodelError as error:
        told = [str(error)]
    if table not in ("MPI_RANKS", "TARGET_INFO_GPU"):  # summaries need neither
        told.append(perfmodel("stats", path).stderr)
    for said in told:
        assert table in said
        assert "which perfmodel does not read" in said


def test_names_that_a_domain_makes_equal_are_one_group(tmp_path: Path) -> None:
    """The text of one range is another's domain and text; both launch a kernel."""
    report = ReportBuilder()
    thread = report.thread()
    thread.range("b", 0, 100, domain="a")
    thread.kernel("k", (10, 20), (30, 40))
    thread.range("a:b", 200, 250)
    thread.kernel("k", (210, 220), (230, 260))
    found = streamed.collect(report.write(tmp_path / "r.sqlite"), STATISTICS)
    for name, total in (("nvtx_pushpop_sum", 150), ("nvtx_gpu_proj_sum", 40)):
        counted = found[name]
        assert isinstance(counted, Counted)
        assert [key[0] for key in counted.keys] == ["a:b"]
        assert counted.count.tolist() == [2]
        assert counted.groups().total.tolist() == [total]
