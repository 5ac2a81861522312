"""Cases of `nsys_cases` about counting, averaging, rounding and ordering."""

from __future__ import annotations

from support.build_report import ReportBuilder
from support.build_thread import COPIES, Thread


def ties_in_totals(report: ReportBuilder, t: Thread) -> None:
    for i, name in enumerate(("b", "c", "a", "B", "d")):
        t.range(name, 1000 * i, 1000 * i + 100)
        t.kernel(
            name, (1000 * i, 1000 * i + 10), (1000 * i + 200, 1000 * i + 230), api_name=f"cu{name}"
        )
        t.mpi(f"MPI_{name}", 1000 * i + 300, 1000 * i + 350)
        t.memcpy(("d2d", "p2p", "h2d", "d2h", "h2h")[i], 64, None, (1000 * i, 1000 * i + 7))
    for i in range(2):
        t.kernel("two halves", None, (9000 + 100 * i, 9015 + 100 * i))
        t.mpi("MPI_halves", 9000 + 100 * i, 9025 + 100 * i, source="p2p")
    t.memset(64, None, (9000, 9007))


def counts(report: ReportBuilder, t: Thread) -> None:
    """One, two, three and four instances, whose medians lie on and between them."""
    for n in range(1, 5):
        for i in range(n):
            at = 10_000 * n + 1000 * i
            t.kernel(f"{n}", (at, at + 2), (at + 100, at + 110 + i**3), in_range=f"{n} instances")
            t.memcpy(
                COPIES[n], 3 + 10 ** (2 * i), (at + 10, at + 15 + i), (at + 20, at + 23 + 2 * i)
            )
            t.mpi(f"MPI_{n}", at + 200, at + 201 + i * i)


def rounding_of_averages(report: ReportBuilder, t: Thread) -> None:
    """Averages that end in exactly .x5, small and large."""
    at = 0
    bases = (0, 7, 1000, 123_456, 99_999_999, 4_503_599_627, 4 * 10**12, 5 * 10**12)
    for base in bases:
        for extra in range(1, 20, 2):
            for i in range(20):
                took = base + (extra if i == 0 else 0)
                t.range(f"{base} + {extra}/20", at, at + took)
                t.kernel(f"{base} + {extra}/20", None, (at, at + took))
                at += took + 1


def rounding_of_shares(report: ReportBuilder, t: Thread) -> None:
    """Totals out of 2000: shares that end in exactly .x5 %."""
    at = 0
    for took in (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 99, 101, 499, 501, 679):
        t.range(f"{took} of 2000", at, at + took)
        t.kernel(f"{took} of 2000", None, (at, at + took))
        t.mpi(f"MPI_{took}", at, at + took)
        at += took + 1


def rounding_of_sizes(report: ReportBuilder, t: Thread) -> None:
    """Sizes that end in half a kilobyte, and averages of odd ones."""
    for i, size in enumerate((500, 1500, 2500, 10_500, 1_234_500, 999_499_500, 2**40 + 500)):
        t.memcpy(COPIES[i], size, None, (100 * i, 100 * i + 10))
    for i, size in enumerate((1, 2, 1000, 1001)):
        t.memcpy("p2p", size, None, (1000 + 100 * i, 1000 + 100 * i + 10))
        t.memset(size * 500, None, (2000 + 100 * i, 2000 + 100 * i + 10))


def huge_times(report: ReportBuilder, t: Thread) -> None:
    start = 10**15
    for i in range(5):
        at = start + i * 3 * 10**14
        t.range("outer", at, at + 2 * 10**14 + i)
        t.range("inner", at + 1, at + 10**14 + 3 * i)
        t.kernel("k", (at + 2, at + 3), (at + 10**13, at + 2 * 10**13 + i))
        t.memcpy("h2d", 10**15 + i, (at + 4, at + 10**14 + 3 * i), (at + 5, at + 10**14 + i))


def spread_of_large_values(report: ReportBuilder, t: Thread) -> None:
    """Standard deviations of values that differ by little on a large offset."""
    at = 0
    for offset in (10**6, 10**9, 10**12, 10**15):
        for i, extra in enumerate((0, 1, 2, 4, 8, 16, 1)):
            at += 10**15 * 2
            t.kernel(f"{offset}", None, (at, at + offset + extra))
            t.memcpy(COPIES[len(str(offset)) % 8], offset + extra, None, (at, at + extra * i))


def no_time_at_all(report: ReportBuilder, t: Thread) -> None:
    """Every total is zero: no shares."""
    t.range("instant", 10, 10)
    t.kernel("k", (10, 10), (20, 20))
    t.memset(0, None, (30, 30))
    t.mpi("MPI_Test", 40, 40, source="start-wait")
