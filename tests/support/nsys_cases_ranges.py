"""Cases of `nsys_cases` about ranges, the calls in them and the operations those launch."""

from __future__ import annotations

import itertools
import random
from typing import Any

from support.build_report import ReportBuilder
from support.build_thread import Thread


def _launch(thread: Thread, at: int, took: int = 5, **options: Any) -> int:
    """Launch a kernel with a call at [at, at + 2] that runs `took` from 100 later."""
    return thread.kernel("k", (at, at + 2), (at + 100, at + 100 + took), **options)


def null_end(report: ReportBuilder, t: Thread) -> None:
    t.range("whole", 0, 1000)
    t.range("open", 100, None)
    t.range("open start/end", 200, None, style="startend")
    t.range("open", 300, 400)
    _launch(t, 310)
    _launch(t, 500)
    _launch(t, 1500)


def open_range_that_starts_last(report: ReportBuilder, t: Thread) -> None:
    """Its start is the last timestamp: it ends where it starts."""
    t.range("closed", 200, 300)
    t.range("open", 400, None)
    t.kernel("k", (400, 400), (500, 510))


def start_end_ranges(report: ReportBuilder, t: Thread) -> None:
    other = report.thread(tid=101)
    t.range("same thread", 0, 100, style="startend")
    t.range("other thread", 0, 90, style="startend", ended_by=other)
    t.range("both", 10, 50, style="startend")
    t.range("both", 20, 60)
    t.range("text", 200, 300, style="text pushpop")
    t.range("text", 210, 320, style="text startend")
    for at in (5, 15, 25, 55, 220):
        _launch(t, at)
    _launch(other, 30)


def domains(report: ReportBuilder, t: Thread) -> None:
    """One name in many domains, registered and inline; an empty domain name; an unnamed domain."""
    for i, domain in enumerate((None, "net", "", "io", "net:io")):
        for registered in (True, False):
            at = 1000 * i + 500 * registered
            t.range("work", at, at + 100 + i, domain=domain, registered=registered)
            _launch(t, at + 10)
    t.range("work", 9000, 9100, domainId=77)
    _launch(t, 9010)
    other = report.thread(pid=200)
    other.range("work", 9000, 9100, domain="another process's name for 1")
    _launch(other, 9010)


def domain_renamed(report: ReportBuilder, t: Thread) -> None:
    """The earliest name of a domain counts."""
    t.event(75, 50, text="late", domainId=3)
    t.event(75, 10, text="early", domainId=3)
    t.range("work", 100, 200, domainId=3)
    _launch(t, 110)


def nested_same_name(report: ReportBuilder, t: Thread) -> None:
    for depth in range(6):
        t.range("f", 10 * depth, 1000 - 10 * depth)
        _launch(t, 10 * depth + 1, depth)
    t.range("f", 2000, 2100)


def siblings_that_touch(report: ReportBuilder, t: Thread) -> None:
    """An instantaneous call on the common border belongs to both."""
    t.range("parent", 0, 300)
    for i in range(3):
        t.range(f"child {i}", 100 * i, 100 * i + 100)
    _launch(t, 98)
    t.kernel("k", (100, 100), (400, 410))
    t.kernel("k", (200, 202), (420, 425))
    t.kernel("k", (300, 300), (430, 437))


def ranges_of_no_length(report: ReportBuilder, t: Thread) -> None:
    t.range("parent", 0, 100)
    t.range("at its start", 0, 0)
    t.range("inside", 50, 50)
    t.range("at its end", 100, 100)
    for at in (0, 50, 100):
        t.kernel("k", (at, at), (200 + at, 210 + at))
    _launch(t, 50)


def calls_that_straddle(report: ReportBuilder, t: Thread) -> None:
    t.range("parent", 0, 1000)
    t.range("child", 100, 200)
    t.kernel("k", (99, 110), (300, 310))
    t.kernel("k", (190, 201), (320, 330))
    t.kernel("k", (50, 250), (340, 350))
    t.kernel("k", (990, 1001), (360, 370))
    t.kernel("k", (150, 160), (380, 400))


def calls_as_long_as_the_range(report: ReportBuilder, t: Thread) -> None:
    t.range("parent", 0, 100)
    t.kernel("k", (0, 100), (200, 300))
    t.kernel("k", (10, 20), (150, 160), in_range="child")
    t.kernel("k", (30, 40), (170, 190), in_range="child")


def operations_without_calls(report: ReportBuilder, t: Thread) -> None:
    t.range("parent", 0, 1000)
    _launch(t, 10)
    t.kernel("no launch row", None, (20, 30))
    t.memcpy("h2d", 8, None, (30, 40), correlationId=None)
    t.memset(8, None, (40, 50), globalPid=None, correlation=1)


def graph_launches(report: ReportBuilder, t: Thread) -> None:
    """Several operations with one correlation id, and a graph traced as a whole."""
    t.range("step", 0, 100)
    t.graph_launch((10, 20), kernels=[("a", (30, 40)), ("b", (35, 60)), ("a", (70, 80))])
    t.range("step", 200, 300)
    t.graph_launch((210, 220), (230, 290))
    t.range("step", 400, 500)
    call = _launch(t, 410)
    t.memcpy("d2h", 8, None, (600, 610), correlation=call)
    t.memset(8, None, (500, 505), correlation=call)


def two_processes(report: ReportBuilder, t: Thread) -> None:
    """The same correlation ids, at the same time, in two processes."""
    for i, thread in enumerate((t, report.thread(pid=200), report.thread(pid=300))):
        thread.range("step", 0, 100 + i)
        for n in range(3):
            _launch(thread, 10 + 10 * n, 5 + i + n)


def threads_of_one_process(report: ReportBuilder, t: Thread) -> None:
    """A range holds the launches of its own thread only."""
    other = report.thread(tid=101)
    t.range("forward", 0, 1000)
    other.range("backward", 100, 900)
    other.range("forward", 200, 800)
    for at in (50, 250, 950):
        _launch(t, at)
        _launch(other, at + 5, 11)


def crossing_ranges(report: ReportBuilder, t: Thread) -> None:
    """Ranges that overlap without nesting; the tightest around a range is its parent."""
    t.range("whole", 0, 1000)
    t.range("a", 100, 500, style="startend")
    t.range("b", 300, 800, style="startend")
    t.range("in both", 350, 450)
    t.range("across", 450, 850, style="startend")
    for at in (50, 150, 310, 360, 460, 700, 810):
        _launch(t, at, at % 13)


def children_without_operations(report: ReportBuilder, t: Thread) -> None:
    """Levels count every range around; children only those that project."""
    for i in range(3):
        at = 1000 * i
        t.range("step", at, at + 900)
        t.range("idle", at + 10, at + 800)
        t.range("work", at + 20, at + 700)
        t.range("idle", at + 30, at + 40)
        if i != 1:
            t.range("idle", at - 20, at + 950)
        _launch(t, at + 50)


def streams_that_overlap(report: ReportBuilder, t: Thread) -> None:
    """Operations that end in another order than they were launched in, some before their call."""
    t.range("step", 0, 100)
    for i, gpu in enumerate(((500, 900), (200, 300), (150, 950), (5, 6), (960, 960))):
        t.kernel(f"k{i}", (10 * i, 10 * i + 5), gpu, stream=i)


def other_styles_around(report: ReportBuilder, t: Thread) -> None:
    """Start/end ranges count as levels of push/pop ranges, and the other way around."""
    t.range("outer", 0, 1000, style="startend")
    t.range("outer", 100, 900)
    t.range("inner", 200, 800, style="startend", domain="other")
    t.range("inner", 300, 700)
    t.range("not mine", 310, 690, style="startend", ended_by=report.thread(tid=101))
    t.range("leaf", 320, 680)
    _launch(t, 400)


def kernels_without_ranges(report: ReportBuilder, t: Thread) -> None:
    _launch(t, 10)


def ranges_without_calls(report: ReportBuilder, t: Thread) -> None:
    t.range("step", 0, 100)
    t.kernel("k", None, (10, 20))


def empty_tables(report: ReportBuilder, t: Thread) -> None:
    report.all_tables = True


def random_timelines(report: ReportBuilder, t: Thread) -> None:
    """Six threads of three processes, ranges nested at random; many calls on their borders."""
    rng = random.Random(20240203)
    for pid in (100, 200, 300):
        for tid in (pid, pid + 1):
            thread = t if tid == t.tid else report.thread(pid, tid)
            _random_ranges(thread, rng, rng.randrange(1000), rng.randrange(50_000, 90_000), 0)


def _random_ranges(t: Thread, rng: random.Random, start: int, end: int, depth: int) -> None:
    t.range(f"r{rng.randrange(4)}{depth}", start, end, domain=rng.choice((None, None, "net")))
    cuts = sorted(rng.randrange(start + 1, end) for _ in range(2 * rng.randrange(1, 5)))
    for left, right in zip(cuts[::2], cuts[1::2], strict=True):
        if right - left > 50 and depth < 6:
            _random_ranges(t, rng, left, right, depth + 1)
        elif right > left:
            gpu = left + rng.randrange(5000)
            t.kernel(f"k{rng.randrange(6)}", (left, right), (gpu, gpu + rng.randrange(3000)))


def random_borders(report: ReportBuilder, t: Thread) -> None:
    """Siblings that touch, children that share an end with their parent, calls on all borders."""
    rng = random.Random(20240204)
    for tid in (100, 101, 102):
        thread = t if tid == t.tid else report.thread(100, tid)
        times = _random_halves(thread, rng, 0, 4096, 0)
        for left, right in itertools.pairwise(times):
            for call in ((left, left), (left, right), (left - 1, left), (left, left + 1)):
                gpu = rng.randrange(10_000)
                thread.kernel("k", call, (gpu, gpu + rng.randrange(100)))


def _random_halves(t: Thread, rng: random.Random, start: int, end: int, depth: int) -> list[int]:
    """Cut a range into touching children; return all cuts, first and last included."""
    t.range(f"level {depth % 3}", start, end)
    cuts = sorted({rng.randrange(start, end) for _ in range(3)} | {start, end})
    if depth == 4 or end - start < 8 or len(cuts) == 2:
        return [start, end]
    children = [_random_halves(t, rng, a, b, depth + 1) for a, b in itertools.pairwise(cuts)]
    return sorted({time for child in children for time in child})


def random_crossings(report: ReportBuilder, t: Thread) -> None:
    """Start/end ranges that cross at random; no two around a third are as tight."""
    rng = random.Random(20240205)
    for i in range(60):
        start = rng.randrange(10**9)
        end = start + rng.randrange(10 ** rng.randrange(4, 10))
        t.range(f"r{i % 7}", start, end, style=("startend", "pushpop")[i % 2])
    for _ in range(200):
        _launch(t, rng.randrange(10**9), rng.randrange(10**6))
