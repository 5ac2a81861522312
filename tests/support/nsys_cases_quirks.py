"""Cases of `nsys_cases` in which `nsys stats` does what need not be copied."""

from __future__ import annotations

from support.build_report import ReportBuilder
from support.build_thread import Thread


def _launch(thread: Thread, at: int, took: int = 5) -> None:
    """Launch a kernel with a call at [at, at + 2] that runs `took` from 100 later."""
    thread.kernel("k", (at, at + 2), (at + 100, at + 100 + took))


def quirk_identical_ranges(report: ReportBuilder, t: Thread) -> None:
    """Two ranges of one interval become each other's parents: neither has a level."""
    t.range("whole", 0, 1000)
    t.range("twin a", 100, 200)
    t.range("twin b", 100, 200)
    t.range("leaf", 120, 180)
    t.range("lonely", 300, 400)
    _launch(t, 130)
    _launch(t, 310)


def quirk_three_identical_ranges(report: ReportBuilder, t: Thread) -> None:
    for name in ("a", "b", "c"):
        t.range(name, 100, 200)
    t.range("leaf", 120, 180)
    _launch(t, 130)


def quirk_identical_instants(report: ReportBuilder, t: Thread) -> None:
    t.range("whole", 0, 1000)
    t.range("instant a", 500, 500)
    t.range("instant b", 500, 500)
    t.kernel("k", (500, 500), (600, 610))


def quirk_domain_of_two_threads(report: ReportBuilder, t: Thread) -> None:
    """Two threads of a process register one domain: its ranges count twice."""
    other = report.thread(tid=101)
    t.register_domain("net", 1)
    other.register_domain("net", 2)
    t.range("step", 10, 100, domain="net")
    t.range("inner", 20, 90, domain="net")
    t.range("step", 200, 320)
    other.range("step", 10, 70, domain="net")
    _launch(t, 30)
    _launch(t, 210)
    _launch(other, 40)


def quirk_parents_as_tight(report: ReportBuilder, t: Thread) -> None:
    """Two crossing ranges as tight around a third: which one is its parent?"""
    t.range("early", 0, 100, style="startend")
    t.range("late", 10, 110, style="startend")
    t.range("child", 20, 90)
    _launch(t, 30)


def quirk_mark_after_an_open_range(report: ReportBuilder, t: Thread) -> None:
    """A mark after all ranges ends open ranges in one statistic and not in the other."""
    t.range("open", 100, None)
    t.range("closed", 200, 300)
    t.mark("last", 1000)
    _launch(t, 250)
    _launch(t, 500)


def quirk_ids_without_a_string(report: ReportBuilder, t: Thread) -> None:
    """Names that StringIds does not have: rows are kept apart by id and have no name."""
    t.range("step", 0, 100)
    t.kernel("k", (10, 20), (30, 40), demangledName=999)
    t.kernel("k", (30, 40), (50, 70), shortName=999)
    report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]["nameId"] = 999
    t.mpi("MPI_Barrier", 0, 10, textId=999)
    t.mpi("MPI_Barrier", 20, 40, textId=None)
    t.mpi("MPI_Barrier", 50, 80)


def quirk_copy_kind_unknown(report: ReportBuilder, t: Thread) -> None:
    """A copy of a kind that the enumeration does not have is not counted."""
    t.memcpy("h2d", 8, (0, 5), (10, 20))
    t.memcpy("h2d", 8, (5, 9), (20, 30), copyKind=99)


def quirk_csv_quoting(report: ReportBuilder, t: Thread) -> None:
    """Fields are quoted for commas only, and quotes in them never doubled."""
    names = ('say "hi"', 'say "hi", you', '"', "two\nlines", "two,\nlines", "two\r\nlines", "a\rb")
    for i, name in enumerate(names):
        at, took = 1000 * i, 100 - i
        t.range(name, at, at + took)
        t.kernel(name, (at + 1, at + 3), (at + 10, at + 10 + took), api_name=f"cu{name}")
        t.mpi(name, at, at + took)


def quirk_instant_between_siblings(report: ReportBuilder, t: Thread) -> None:
    """An instant on the border of two siblings of one length: which one is its parent?"""
    t.range("left", 100, 200)
    t.range("right", 200, 300)
    t.range("instant", 200, 200)
    t.kernel("k", (200, 200), (400, 410))


def quirk_sums_beyond_doubles(report: ReportBuilder, t: Thread) -> None:
    """Averages come from sums in doubles, added in row order: over 2^53 ns they are coarse."""
    at = 0
    for extra in range(1, 20, 2):
        for i in range(20):
            took = 5 * 10**14 + (extra if i == 0 else 0)
            t.kernel(f"{extra}/20", None, (at, at + took))
            at += took + 1
