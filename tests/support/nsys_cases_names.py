"""Cases of `nsys_cases` about names: of ranges, kernels, calls, copies and MPI."""

from __future__ import annotations

from support.build_report import ReportBuilder
from support.build_thread import COPIES, Thread

_ODD = (
    "a,b", ",", "tab\tbed", " padded ", "'single'", "back\\slash", "100 %", "%s %d {0}", "#1",
    "=1+1", "-1", "1", "1.50", "None", "NULL", "größer", "Größer", "日本語", "e\u0301 and \u00e9",
    "\U0001f680", "\u200b", "x" * 300, "void f<int, 3>(const T1 *, T2)", "a:b", ":a", "a:",
)  # fmt: skip


def odd_names(report: ReportBuilder, t: Thread) -> None:
    for i, name in enumerate(_ODD):
        at, took = 1000 * i, 100 - i
        t.range(name, at, at + took, registered=i % 2 == 0)
        t.kernel(name, (at + 1, at + 3), (at + 10, at + 10 + took), api_name=f"cu{name}")
        t.mpi(name, at, at + took)


def names_that_differ_by_case(report: ReportBuilder, t: Thread) -> None:
    for i, name in enumerate(("gemm", "GEMM", "Gemm", "gemm ", "gemm")):
        at = 1000 * i
        t.range(name, at, at + 100)
        t.kernel(name, (at + 1, at + 3), (at + 10, at + 30), api_name=f"cuda{name}")
        t.mpi(f"mpi_{name}", at, at + 7)


def empty_names(report: ReportBuilder, t: Thread) -> None:
    t.range("", 0, 100)
    t.range("", 200, 300, registered=False)
    t.range("", 400, 500, domain="net")
    t.range("named", 600, 700)
    for at in (10, 210, 410, 610):
        t.kernel("", (at, at + 2), (at + 10, at + 20), api_name="")
    t.mpi("", 0, 10)


def ranges_without_names(report: ReportBuilder, t: Thread) -> None:
    """Ranges without text, and text ids that StringIds does not have."""
    t.range(None, 0, 100)
    t.range(None, 200, 310, domain="net")
    t.range(None, 400, 520, textId=999)
    t.range("inline", 600, 730, textId=999, registered=False)
    t.range("named", 800, 940)
    for at in (10, 210, 410, 610, 810):
        t.kernel("k", (at, at + 2), (at + 10, at + 20))


def text_and_string(report: ReportBuilder, t: Thread) -> None:
    """Registered and inline spellings of one name are one range; a registered one wins."""
    t.range("step", 0, 100)
    t.range("step", 200, 300, registered=False)
    t.range("step", 400, 500, text="inline")
    for at in (10, 210, 410):
        t.kernel("k", (at, at + 2), (at + 10, at + 20))


def every_copy_kind(report: ReportBuilder, t: Thread) -> None:
    for i, kind in enumerate(COPIES):
        for n in range(i % 3 + 1):
            at = 1000 * i + 100 * n
            t.memcpy(kind, 1_000_000 * (i + 1) + n, (at, at + 1), (at + 2, at + 12 + i - n))
    t.memset(4096, None, (90_000, 90_001))
    t.memset(0, None, (90_002, 90_003))


def api_version_suffixes(report: ReportBuilder, t: Thread) -> None:
    """Only `_v` and four characters are taken off; calls of two versions stay apart."""
    names = (
        "cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cuGetProcAddress_v2", "cuInit",
        "cudaMemcpy_v3020", "cudaMemcpy_v4000", "cudaMemcpy", "cudaFree_vabcd", "_v3020", "v3020",
        "cudaStreamIsCapturing_v10000_ptsz", "cudaMemcpyAsync_ptsz_v7000", "cudaÄ_v3020",
    )  # fmt: skip
    for i, name in enumerate(names):
        t.api(name, 100 * i, 100 * i + 50 - i)


def mpi_without_end(report: ReportBuilder, t: Thread) -> None:
    """An open call is an instance without time; of one name, of some of its calls, of all."""
    t.mpi("MPI_Barrier", 0, 100)
    t.mpi("MPI_Barrier", 200, None)
    t.mpi("MPI_Barrier", 300, 431)
    t.mpi("MPI_Wait", 500, None, source="start-wait")
    t.mpi("MPI_Wait", 510, None, source="start-wait")
    t.mpi("MPI_Finalize", 600, None, source="other")
    t.mpi("MPI_Finalize", 610, 620, source="other")


def mpi_all_open(report: ReportBuilder, t: Thread) -> None:
    t.mpi("MPI_Barrier", 0, None)


def mpi_sources(report: ReportBuilder, t: Thread) -> None:
    """One name in several tables, of two ranks."""
    for rank in range(2):
        thread = report.thread(pid=1000 + rank, rank=rank)
        for i, source in enumerate(("p2p", "start-wait", "other", "collectives")):
            thread.mpi("MPI_Common", 100 * i, 100 * i + 30 + rank, source=source)
            thread.mpi(f"MPI_{source}", 100 * i + 50, 100 * i + 80 + i, source=source)
    t.mpi("MPI_Send", 1000, 1001, 8, source="p2p", tag=1, remoteRank=1)
