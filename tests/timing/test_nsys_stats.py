"""Statistics equal those of `nsys stats` byte for byte, on real reports and on awkward ones."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.base.table import Table
from perfmodel.readers import pages
from perfmodel.readers.nsys import read_sqlite
from perfmodel.readers.trace import Trace
from perfmodel.timing.nsys_stats.collect import REPORTS as NEEDS
from perfmodel.timing.nsys_stats.collect import collect, compute
from perfmodel.timing.nsys_stats.tables import Counted, to_csv, to_table
from support.build_report import ReportBuilder
from support.build_thread import Thread
from support.foreign_reports import SHIPPED
from support.nsys_cases import CASES, QUIRKS, STATISTICS
from support.plain import assert_equal

GOLDEN = TESTS / "golden"
REPORTS = [*SHIPPED, *sorted(TESTS.glob("reports/*.sqlite"))]

DIFFERENT = {
    "quirk_csv_quoting": {
        "nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_api_sum",
        "mpi_event_sum",
    },
    "quirk_domain_of_two_threads": {"nvtx_gpu_proj_sum", "nvtx_pushpop_sum"},
    "quirk_identical_instants": {"nvtx_gpu_proj_sum"},
    "quirk_identical_ranges": {"nvtx_gpu_proj_sum"},
    "quirk_three_identical_ranges": {"nvtx_gpu_proj_sum"},
    "quirk_ids_without_a_string": {"cuda_api_sum", "mpi_event_sum"},
    "quirk_instant_between_siblings": {"nvtx_gpu_proj_sum"},
    "quirk_parents_as_tight": {"nvtx_gpu_proj_sum"},
    "quirk_sums_beyond_doubles": {"cuda_gpu_kern_sum"},
}  # fmt: skip
"""Where nsys is not copied; what is done instead is asserted below, one test per case."""

Fill = Callable[[ReportBuilder, Thread], None]


def text(trace: Trace, statistic: str) -> str:
    """The CSV; '' where the report lacks the events, as nsys has it."""
    try:
        return to_csv(compute(statistic, trace))
    except SchemaError:
        return ""


def golden(folder: str, name: str, statistic: str) -> str:
    path = GOLDEN / folder / f"{name}.{statistic}.csv"
    return path.read_bytes().decode() if path.exists() else ""


def table(trace: Trace, statistic: str) -> dict[Any, dict[str, Any]]:
    """Rows by name."""
    found = compute(statistic, trace)
    headers = [column.key for column in found.columns]
    name = "Range" if "Range" in headers else headers[-1]
    rows = [dict(zip(headers, row, strict=True)) for row in found.rows]
    return {row[name]: row for row in rows}


def column(trace: Trace, statistic: str, header: str) -> dict[Any, Any]:
    return {name: row[header] for name, row in table(trace, statistic).items()}


@pytest.fixture
def built(tmp_path: Path) -> Callable[[Fill], Trace]:
    """Build a report that has one thread, fill it, and read it."""

    def build(fill: Fill) -> Trace:
        report = ReportBuilder()
        fill(report, report.thread())
        return read_sqlite(report.write(tmp_path / "built.sqlite"))

    return build


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Trace:
    return read_sqlite(CASES[request.param](tmp_path / f"{request.param}.sqlite"))


def quirk(name: str) -> Any:
    return pytest.mark.parametrize("case", [name], indirect=True)


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_real_reports(report: Path) -> None:
    trace = read_sqlite(report)
    for statistic in STATISTICS:
        assert text(trace, statistic) == golden("nsys_stats", report.stem, statistic), statistic


@pytest.mark.parametrize("name", CASES)
def test_awkward_reports(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in both ways, and gathered from a stream in chunks of a page."""
    report = CASES[name](tmp_path / f"{name}.sqlite")
    trace = read_sqlite(report)
    assert_equal(trace, read_sqlite(report, fast=False))
    monkeypatch.setattr(pages, "_CHUNK", 1)
    monkeypatch.setattr(pages, "_JOINED", 1)
    streamed = collect(report, STATISTICS)
    for statistic in STATISTICS:
        mine, found = text(trace, statistic), streamed[statistic]
        if isinstance(found, Counted):
            assert to_csv(to_table(statistic, found)) == mine, statistic
        else:
            with pytest.raises(type(found), match=re.escape(str(found))):
                compute(statistic, trace)
        if statistic in DIFFERENT.get(name, ()):
            assert mine != golden("nsys_cases", name, statistic), statistic
        else:
            assert mine == golden("nsys_cases", name, statistic), statistic


def test_only_quirks_differ() -> None:
    assert DIFFERENT.keys() <= QUIRKS
    assert {name for name in CASES if name.startswith("quirk")} == QUIRKS


@quirk("quirk_identical_ranges")
def test_of_identical_ranges_the_first_row_is_the_outer_one(case: Trace) -> None:
    """Nsys makes each the other's parent, loses both levels, and 'whole' loses them as children."""
    levels = column(case, "nvtx_gpu_proj_sum", "Avg Range Lvl")
    assert levels == {"whole": 0.0, "twin a": 1.0, "twin b": 2.0, "leaf": 3.0, "lonely": 1.0}
    children = column(case, "nvtx_gpu_proj_sum", "Avg Num Child")
    assert children == {"whole": 2.0, "twin a": 1.0, "twin b": 1.0, "leaf": 0.0, "lonely": 0.0}


@quirk("quirk_three_identical_ranges")
def test_three_identical_ranges_are_a_chain(case: Trace) -> None:
    levels = column(case, "nvtx_gpu_proj_sum", "Avg Range Lvl")
    assert levels == {"a": 0.0, "b": 1.0, "c": 2.0, "leaf": 3.0}


@quirk("quirk_identical_instants")
def test_identical_instants_are_a_chain(case: Trace) -> None:
    levels = column(case, "nvtx_gpu_proj_sum", "Avg Range Lvl")
    assert levels == {"whole": 0.0, "instant a": 1.0, "instant b": 2.0}


@quirk("quirk_domain_of_two_threads")
def test_a_domain_named_by_two_threads_counts_once(case: Trace) -> None:
    """Nsys counts its ranges twice, and fails to project at all."""
    assert column(case, "nvtx_pushpop_sum", "Instances") == {
        "net:step": 2, "net:inner": 1, "step": 1,
    }  # fmt: skip
    assert column(case, "nvtx_gpu_proj_sum", "Total GPU Ops") == {
        "net:step": 2, "net:inner": 1, "step": 1,
    }  # fmt: skip


@quirk("quirk_parents_as_tight")
def test_of_parents_of_one_length_the_last_to_start_counts(case: Trace) -> None:
    children = column(case, "nvtx_gpu_proj_sum", "Avg Num Child")
    assert children == {"early": 0.0, "late": 1.0, "child": 0.0}


@quirk("quirk_instant_between_siblings")
def test_an_instant_between_siblings_of_one_length_is_the_right_ones_child(case: Trace) -> None:
    children = column(case, "nvtx_gpu_proj_sum", "Avg Num Child")
    assert children == {"left": 0.0, "right": 1.0, "instant": 0.0}


@quirk("quirk_mark_after_an_open_range")
def test_a_mark_ends_open_ranges_on_the_host_but_not_in_projections(case: Trace) -> None:
    """Copied from nsys: the range opens at 100, the last range ends at 300, the mark is at 1000."""
    assert column(case, "nvtx_pushpop_sum", "Total Time (ns)")["open"] == 900
    assert column(case, "nvtx_gpu_proj_sum", "Total Range Time (ns)")["open"] == 200


@quirk("quirk_ids_without_a_string")
def test_calls_whose_name_is_missing_are_one_row(case: Trace) -> None:
    """Nsys keeps MPI calls apart by an id that nobody sees; both leave the name empty."""
    assert column(case, "mpi_event_sum", "Instances") == {None: 2, "MPI_Barrier": 1}
    assert column(case, "cuda_api_sum", "Num Calls") == {None: 1, "cudaLaunchKernel": 1}
    assert [*column(case, "cuda_api_sum", "Num Calls")] == [None, "cudaLaunchKernel"]


@quirk("quirk_copy_kind_unknown")
def test_copies_of_an_unknown_kind_are_left_out(case: Trace) -> None:
    assert column(case, "cuda_gpu_mem_time_sum", "Count") == {"[CUDA memcpy Host-to-Device]": 1}


@quirk("quirk_csv_quoting")
def test_csv_fields_survive_a_reader(case: Trace) -> None:
    """Nsys doubles no quotes and leaves line breaks bare."""
    found = compute("nvtx_pushpop_sum", case)
    rows = list(csv.reader(io.StringIO(to_csv(found), newline="")))
    assert [row[-1] for row in rows] == ["Range", *(row[-1] for row in found.rows)]
    assert {len(row) for row in rows} == {len(found.columns)}
    assert "a\rb" in rows[-1]


@quirk("quirk_sums_beyond_doubles")
def test_deviations_do_not_come_from_rounded_averages(case: Trace) -> None:
    # Of 19 equal values and one that is 19 more: 19 / sqrt(20) = 4.25; nsys says 4.3.
    assert column(case, "cuda_gpu_kern_sum", "StdDev (ns)")["19/20"] == 4.2


def test_open_mpi_calls_come_after_calls_of_no_length(built: Callable[[Fill], Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        t.mpi("MPI_A", 0, None)
        t.mpi("MPI_B", 10, 10)
        t.mpi("MPI_C", 20, 25)

    shares = column(built(fill), "mpi_event_sum", "Time (%)")
    assert list(shares.items()) == [("MPI_C", 100.0), ("MPI_B", 0.0), ("MPI_A", None)]


def elsewhere(report: ReportBuilder, t: Thread) -> None:
    """Ranges and launches, but none of these inside any of those."""
    t.range("step", 0, 100)
    t.range(None, 200, 300)
    t.kernel("k", (90, 110), (400, 410))
    t.kernel("k", (210, 220), (410, 420))
    t.kernel("k", None, (420, 430))


@pytest.mark.parametrize(
    ("statistic", "fill", "hint"),
    [
        ("nvtx_gpu_proj_sum", lambda _, t: t.kernel("k", (0, 1), (2, 3)), "--trace=nvtx"),
        ("nvtx_gpu_proj_sum", lambda _, t: t.range("r", 0, 1), "--trace=cuda"),
        ("nvtx_gpu_proj_sum", lambda _, t: t.graph_launch((0, 1), (2, 3)), "NVTX ranges"),
        ("nvtx_gpu_proj_sum", elsewhere, "got 3 operations, all launched elsewhere"),
        ("nvtx_pushpop_sum", lambda _, t: t.range("r", 0, 1, style="startend"), "--trace=nvtx"),
        ("cuda_gpu_kern_sum", lambda _, t: t.memset(8, (0, 1), (2, 3)), "--trace=cuda"),
        ("cuda_gpu_mem_time_sum", lambda _, t: t.kernel("k", (0, 1), (2, 3)), "--trace=cuda"),
        ("cuda_gpu_mem_size_sum", lambda _, t: t.kernel("k", (0, 1), (2, 3)), "--trace=cuda"),
        ("cuda_api_sum", lambda _, t: t.kernel("k", None, (2, 3)), "--trace=cuda"),
        ("mpi_event_sum", lambda _, t: t.range("MPI_Send", 0, 1), "--trace=mpi"),
        ("nvtx_sum", lambda _, t: None, "expected one of nvtx_gpu_proj_sum, nvtx_pushpop_sum"),
    ],
)
def test_what_is_missing_is_said(
    statistic: str, fill: Fill, hint: str, built: Callable[[Fill], Trace]
) -> None:
    with pytest.raises(SchemaError) as caught:
        compute(statistic, built(fill))
    assert hint in str(caught.value)
    assert statistic in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mpi_calls_of_2022_are_shown_elsewhere() -> None:
    trace = read_sqlite(TESTS / "reports" / "cpu_2ranks_nsys2022.4.2.sqlite")
    with pytest.raises(SchemaError, match=r"\(Nsight Systems 2022.4.2.*see nvtx_pushpop_sum"):
        compute("mpi_event_sum", trace)
    assert "MPI:MPI_Allreduce" in column(trace, "nvtx_pushpop_sum", "Instances")


def test_times_that_add_up_to_too_much_are_refused(built: Callable[[Fill], Trace]) -> None:
    def fill(report: ReportBuilder, t: Thread) -> None:
        for i in range(3):
            t.range("r", i, i + 2**62 - 9)
            t.kernel("k", (i, i + 1), (i, i + 2**62 - 9))

    trace = built(fill)
    for statistic in ("nvtx_pushpop_sum", "cuda_gpu_kern_sum", "nvtx_gpu_proj_sum"):
        with pytest.raises(ReportError, match="more than 2\\^63"):
            compute(statistic, trace)


@pytest.mark.nsys
@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_real_reports_live(
    report: Path, tmp_path: Path, nsys_stats: Callable[[Path, str], str]
) -> None:
    """On a copy: nsys adds tables of its own to the file."""
    copy = tmp_path / report.name
    shutil.copyfile(report, copy)
    trace = read_sqlite(report)
    for statistic in STATISTICS:
        assert text(trace, statistic) == nsys_stats(copy, statistic), statistic


@pytest.mark.nsys
@pytest.mark.parametrize("statistic", ["nvtx_gpu_proj_sum", "mpi_event_sum"])
def test_further_cases_live(
    statistic: str, tmp_path: Path, nsys_stats: Callable[[Path, str], str]
) -> None:
    report = ReportBuilder()
    thread = report.thread()
    elsewhere(report, thread)
    for i, end in enumerate((None, 10, 25)):
        thread.mpi(f"MPI_{i}", 10 * i, end)
    path = report.write(tmp_path / "further.sqlite")
    assert text(read_sqlite(path), statistic) == nsys_stats(path, statistic)


def test_every_report_says_what_it_reads(tmp_path: Path) -> None:
    """Reading only the parts a statistic names changes nothing."""
    report = REPORTS[0]
    whole = read_sqlite(report)
    for statistic, (parts, *_) in NEEDS.items():
        found = compute(statistic, read_sqlite(report, parts=parts))
        assert isinstance(found, Table)
        assert found == compute(statistic, whole)
