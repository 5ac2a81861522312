"""Score perfmodel on public recordings: does it find the steps that the JSON itself declares?

    python -m benchmarks.public FOLDER [--only GLOB]

Every torch.profiler trace under FOLDER is a case, and so is every file of public.toml that is
there: the recordings of other people, with the repository and the path of each. The truth of a
trace is counted here from its JSON alone, by nothing of perfmodel: a step is an annotation that
its program declares (`ProfilerStep#6`, `execute_context_1(888)_generation_0(0)`, `step[DECODE
bs=32]`), and an operation belongs to the step in which the call that launched it begins (the same
correlation id). A step is busy in the union of its kernels and copies, and spans from the first
to the last of them. Where public.toml has numbers, too, they must agree with this count.

A case is right if its analysis has as many steps, its GPU busy time of the median step is within
2 % of the truth, and no busy time is longer than its step. Traces that declare no steps are only
read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.errors import PerfmodelError
from perfmodel.programs.program import Options

LIST: Final = Path(__file__).with_suffix(".toml")
TOLERANCE: Final = 0.02
"""Of busy time: how far from the truth is right."""
AGREED: Final = 0.005
"""How far a rounded number of public.toml may be from what is counted here."""

ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
CALLS: Final = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime", "privateuse1_runtime")
RENAMED: Final = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Categories of 2021, in lower case, by today's names."""
DECLARED: Final = (r"ProfilerStep#\d+", r"execute_.*context_\d+.*generation_.*", r"step\[.*\]")
"""Names that declare a step, the first that a trace has; others of it may lie inside."""


class Event(NamedTuple):
    """What counts of a complete event of a trace; times in microseconds."""

    category: str
    name: str
    start: float
    end: float
    correlation: int


class Trace(NamedTuple):
    """The events of one file that have a duration, and its rank."""

    events: list[Event]
    rank: int


class Step(NamedTuple):
    """What one declared step has on the GPU, in milliseconds; None without operations."""

    busy_ms: float | None
    span_ms: float | None


class Case(NamedTuple):
    """One recording, of one file or a file a rank, and what public.toml says of it."""

    name: str
    files: list[Path]
    listed: Mapping[str, Any]


Steps = dict[int, list[Step]]
"""Declared steps by rank."""


# The truth, from the JSON alone.


def read_trace(path: Path) -> Trace | None:
    """Read a trace of torch.profiler; None where the file is another JSON document."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        document = json.loads(data.decode("utf-8", "replace"), strict=False)
    except ValueError:
        return None
    raw = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(raw, list):
        return None
    events = [event(e) for e in raw if isinstance(e, dict) and e.get("ph") == "X"]
    info = document.get("distributedInfo") if isinstance(document, dict) else None
    return Trace(events, int((info or {}).get("rank", 0))) if events else None


def event(raw: Mapping[str, Any]) -> Event:
    """Read one event, with the names that categories have today."""
    category = str(raw.get("cat", "")).lower()
    arguments = raw.get("args") or {}
    start = float(raw.get("ts", 0))
    return Event(
        RENAMED.get(category, category),
        str(raw.get("name", "")),
        start,
        start + float(raw.get("dur", 0)),
        int(arguments.get("correlation") or 0),
    )


def declared(events: Iterable[Event], pattern: str = "", starts: str = "") -> list[Event]:
    """Find the annotations that are one step each, in the order of time.

    Parameters
    ----------
    pattern : str
        What their whole names match; by default the first of DECLARED that is there.
    starts : str
        Names of annotations at which a step begins; it lasts until the next one begins.

    """
    notes = [e for e in events if e.category in ("user_annotation", "operator")]
    notes.sort(key=lambda e: e.start)
    if starts:
        first = [e for e in notes if re.fullmatch(starts, e.name)]
        ends = [e.start for e in first[1:]] + [float("inf")]
        return [e._replace(end=end) for e, end in zip(first, ends, strict=False)]
    for one in (pattern,) if pattern else DECLARED:
        if found := [e for e in notes if re.fullmatch(one, e.name, re.DOTALL)]:
            return found
    return []


def count_steps(trace: Trace, pattern: str = "", starts: str = "") -> list[Step]:
    """Count what every declared step has on the GPU.

    Steps without operations are not steps where others have some: a profiler that is told of one
    more step than it records declares an empty one.
    """
    launched: dict[int, float] = {}
    for call in trace.events:
        if call.category in CALLS and call.correlation:
            first = launched.get(call.correlation, call.start)
            launched[call.correlation] = min(first, call.start)
    steps = declared(trace.events, pattern, starts)
    operations: list[list[Event]] = [[] for _ in steps]
    for one in trace.events:
        at = launched.get(one.correlation) if one.category in ON_GPU else None
        if at is not None:
            for step, held in zip(steps, operations, strict=True):
                if step.start <= at < step.end:
                    held.append(one)
                    break
    counted = [_step(held) for held in operations]
    busy = [step for step in counted if step.busy_ms is not None]
    return busy or counted


def _step(operations: Sequence[Event]) -> Step:
    if not operations:
        return Step(None, None)
    busy, reached = 0.0, float("-inf")
    for one in sorted(operations, key=lambda e: e.start):
        busy += max(one.end - max(one.start, reached), 0.0)
        reached = max(reached, one.end)
    return Step(busy / 1e3, (reached - min(one.start for one in operations)) / 1e3)


def count_case(case: Case) -> Steps:
    """Count the steps of every rank whose file is a trace of torch.profiler."""
    steps: Steps = {}
    for path in case.files:
        trace = read_trace(path) if path.name.endswith((".json", ".json.gz")) else None
        if trace is not None:
            rank = trace.rank if trace.rank not in steps else len(steps)
            names = (case.listed.get("pattern", ""), case.listed.get("starts", ""))
            steps[rank] = [] if case.listed.get("only_read") else count_steps(trace, *names)
    return steps


def disagreement(listed: Mapping[str, Any], steps: Steps) -> str:
    """Where the numbers of public.toml are not what was counted; empty where they agree."""
    first = steps[min(steps)]
    if "steps" in listed and len(first) != listed["steps"]:
        return f"public.toml has {listed['steps']} steps, the JSON {len(first)}"
    for key in ("busy_ms", "span_ms"):
        said = listed.get(key)
        for step, value in zip(first, said if isinstance(said, list) else [said], strict=False):
            counted = getattr(step, key)
            if value is not None and (counted is None or abs(counted - value) > AGREED * value):
                return f"public.toml has {key} {value}, the JSON {counted}"
    return ""


# What perfmodel says.


def steps_of(run: RunAnalysis) -> int:
    """Return how many steps an analysis has, its warm-up included."""
    levels = [one.count for one in (run.steps.levels if run.steps else ()) if one.level == "step"]
    return max(levels, default=run.batch.count + run.batch.warmup)


def busy_ms(steps: Steps, rank: int, warmup: int) -> float | None:
    """Return the true median busy time of a rank's steps after the warm-up."""
    found = steps.get(rank) or next(iter(steps.values()), [])
    busy = [step.busy_ms for step in found[warmup:] or found if step.busy_ms is not None]
    return statistics.median(busy) if busy else None


def wrong(steps: Steps, number: int, run: RunAnalysis) -> str:
    """Why a result is wrong; empty where it is right."""
    if steps_of(run) != number:
        return f"{steps_of(run)} steps, not {number}"
    busy_of = {row.rank: row.gpu_busy_s for row in run.ranks}
    for row in run.ranks:
        if row.gpu_busy_s is not None and row.gpu_busy_s > (row.recorded_step_s or 0.0) * (
            1 + 1e-9
        ):
            return f"rank {row.rank} is busy for longer than its step"
    for place, rank in enumerate(sorted(steps)):
        expected = busy_ms(steps, rank, run.batch.warmup)
        found = busy_of.get(rank, [*busy_of.values(), *[None] * len(steps)][place])
        if expected is not None and found is None:
            return f"no busy time of rank {rank}"
        if expected and found and abs(1e3 * found - expected) > TOLERANCE * expected:
            return f"busy {1e3 * found / expected - 1:+.1%} of rank {rank}"
    return ""


def score(case: Case) -> tuple[bool | None, str, str, str]:
    """Return whether a case is right, None without a truth; the truth, what was found, and why."""
    steps = count_case(case)
    counts = {len(found) for found in steps.values()}
    number = counts.pop() if len(counts) == 1 else 0  # else ranks differ
    run = analyzed(case)
    got = run if isinstance(run, str) else described(run)
    if not number:
        return None, "-", got, str(case.listed.get("note", "declares no steps"))
    warmup = 0 if isinstance(run, str) else run.batch.warmup
    truth = f"{number} steps, busy {busy_ms(steps, min(steps), warmup) or 0.0:.3f} ms"
    said = "error" if isinstance(run, str) else wrong(steps, number, run)
    reason = disagreement(case.listed, steps) or said
    return not reason, truth, got, reason


def analyzed(case: Case) -> RunAnalysis | str:
    """Analyze a case; the error in words where it cannot be."""
    try:
        return analyze_reports(case.files, Options()).fitted
    except PerfmodelError as error:
        return str(error)


def described(run: RunAnalysis) -> str:
    """Say what an analysis has found."""
    busy_s, step_s = next((row.gpu_busy_s for row in run.ranks), None), run.batch.median.value
    return (
        f"{steps_of(run)} steps, busy {1e3 * (busy_s or 0.0):.3f} of {1e3 * step_s:.3f} ms, "
        f"{run.batch.label!r} by {run.steps.found_by if run.steps else 'mark'}"
    )


# Cases and their table.


def find_cases(folder: Path, listed: Sequence[Mapping[str, Any]]) -> Iterator[Case]:
    """Find the listed recordings that lie under a folder, then the traces that are not listed.

    A listed path is the end of a file's path, and may have wildcards: then its files are the
    ranks of one run.
    """
    files = {path: path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.*"))}
    files = {path: name for path, name in files.items() if path.is_file()}
    known: set[Path] = set()
    for entry in listed:
        ends = f"*/{entry['path']}"
        there = [path for path, name in files.items() if fnmatchcase(f"/{name}", ends)]
        if there:
            yield Case(entry["path"], there, entry)
        known.update(there)
    for path, name in files.items():
        if path not in known and name.endswith((".json", ".json.gz")):
            case = Case(name, [path], {})
            if read_trace(path) is not None:
                yield case


def main() -> None:
    """Score every case of a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases by name")
    given = parser.parse_args()
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["case"]
    verdicts: list[bool | None] = []
    for case in find_cases(given.folder, listed):
        if fnmatchcase(case.name, given.only) and "same_as" not in case.listed:
            right, truth, got, reason = score(case)
            verdicts.append(right)
            print(f"{ {True: 'right', False: 'WRONG', None: '-'}[right]:6}{case.name}")
            print(f"      truth {truth}\n      got   {got}\n      {reason}".rstrip(), flush=True)
    judged = [one for one in verdicts if one is not None]
    print(f"{sum(judged)} of {len(judged)} right; {len(verdicts) - len(judged)} declare no steps")


if __name__ == "__main__":
    main()
