"""Score perfmodel on public recordings: does it find the steps that the JSON itself declares?

    python -m benchmarks.public FOLDER [--code PATH] [--out FILE]

Every torch.profiler trace under FOLDER is a case, and so is every file of public.toml that is
there: the recordings of other people, with the repository and the path of each. The truth of a
trace is counted here from its JSON alone, by nothing of perfmodel: a step is an annotation that
its program declares (`ProfilerStep#6`, `execute_context_1(888)_generation_0(0)`, `step[DECODE
bs=32]`), and an operation belongs to the step in which the call that launched it begins (the same
correlation id). A step is busy in the union of its kernels and copies, and spans from the first
to the last of them. Where public.toml has numbers, too, they must agree with this count.

A case is right if `perfmodel analyze` finds as many steps, its GPU busy time of the median step
is within 2 % of the truth, and no busy time is longer than its step. Traces that declare no steps
are only read. PATH is the checkout of perfmodel to score; by default this one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.common.folders import ROOT

LIST: Final = Path(__file__).with_suffix(".toml")
TOLERANCE: Final = 0.02
"""Of busy time: how far from the truth is right."""
AGREED: Final = 0.005
"""How far a rounded number of public.toml may be from what is counted here."""
TIMEOUT_S: Final = 300

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


class Truth(NamedTuple):
    """The steps of a case by rank; `said` is where the count and public.toml do not agree."""

    steps: dict[int, list[Step]]
    said: str = ""

    @property
    def number(self) -> int | None:
        """Steps of a rank, or None where the ranks have different numbers or none is declared."""
        counts = {len(steps) for steps in self.steps.values()}
        return counts.pop() if len(counts) == 1 and counts != {0} else None

    def busy_ms(self, rank: int, warmup: int) -> float | None:
        """The median busy time of a rank's steps after the warm-up."""
        found = self.steps.get(rank) or next(iter(self.steps.values()), [])
        busy = [step.busy_ms for step in found[warmup:] or found if step.busy_ms is not None]
        return statistics.median(busy) if busy else None


class Found(NamedTuple):
    """What `perfmodel analyze` says of a case; `error` instead where it fails."""

    steps: int | None = None
    warmup: int = 0
    median_ms: float | None = None
    label: str = ""
    found_by: str = ""
    ranks: tuple[tuple[int, float, float | None], ...] = ()  # rank, step and busy in ms
    error: str = ""


class Score(NamedTuple):
    """The verdict on a case; `right` is None where it has no truth to compare with."""

    case: str
    truth: str
    found: str
    right: bool | None
    reason: str


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


def count_case(case: Case) -> Truth | None:
    """Count the steps of every rank; None where no file is a trace of torch.profiler."""
    steps: dict[int, list[Step]] = {}
    for path in case.files:
        trace = read_trace(path) if path.name.endswith((".json", ".json.gz")) else None
        if trace is not None:
            rank = trace.rank if trace.rank not in steps else len(steps)
            names = (case.listed.get("pattern", ""), case.listed.get("starts", ""))
            steps[rank] = [] if case.listed.get("only_read") else count_steps(trace, *names)
    return Truth(steps, _disagreement(case.listed, steps)) if steps else None


def _disagreement(listed: Mapping[str, Any], steps: Mapping[int, list[Step]]) -> str:
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


def analyze(case: Case, code: Path) -> Found:
    """Run `perfmodel analyze` of a checkout on the files of a case."""
    files = [str(path.resolve()) for path in case.files]
    command = [sys.executable, "-m", "perfmodel", "analyze", *files]
    command += ["--json", "--quiet", "--no-plots", "--jobs", "1"]
    try:
        done = subprocess.run(
            command, cwd=code, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Found(error=f"took more than {TIMEOUT_S} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Found(error=lines[-1])
    return read_analysis(json.loads(done.stdout))


def read_analysis(document: Mapping[str, Any]) -> Found:
    """Take the steps from the analysis as JSON."""
    batch = document.get("batch") or {}
    median_s = batch.get("median_s")
    levels = document.get("levels") or ()
    recorded = [int(one["count"]) for one in levels if one["level"] == "step"]
    if not batch.get("count") or median_s is None:
        return Found(error="no steps")
    return Found(
        steps=max(recorded, default=int(batch["count"]) + int(batch.get("warmup") or 0)),
        warmup=int(batch.get("warmup") or 0),
        median_ms=1e3 * median_s,
        label=str(batch.get("range") or ""),
        found_by=str(batch.get("found_by") or ""),
        ranks=tuple(
            (
                int(row["rank"]),
                1e3 * (row["batch_s"] or 0.0),
                None if row["gpu_busy_s"] is None else 1e3 * row["gpu_busy_s"],
            )
            for row in document.get("ranks") or ()
        ),
    )


def score(case: Case, truth: Truth | None, found: Found) -> Score:
    """Compare what perfmodel says with the truth."""
    got = found.error or ", ".join(filter(None, _found_texts(found)))
    if truth is None or not truth.number:
        note = str(case.listed.get("note", "declares no steps"))
        return Score(case.name, "-", got, None, note)
    busy = truth.busy_ms(min(truth.steps), found.warmup)
    said = _steps(truth.number) + ("" if busy is None else f", busy {busy:.3f} ms")
    reason = truth.said or _wrong(truth, found)
    return Score(case.name, said, got, not reason, reason)


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _found_texts(found: Found) -> Iterator[str]:
    yield _steps(found.steps or 0)
    for _, _, busy in found.ranks[:1]:
        yield "" if busy is None else f"busy {busy:.3f} ms"
    yield f"of {found.median_ms:.3f} ms"
    yield f"{found.label!r} by {found.found_by}"


def _wrong(truth: Truth, found: Found) -> str:
    """Why a result is wrong; empty where it is right."""
    if found.error:
        return "error"
    if found.steps != truth.number:
        return f"{_steps(found.steps or 0)}, not {truth.number}"
    for rank, step_ms, busy in found.ranks:
        if busy is not None and busy > step_ms * (1 + 1e-9):
            return f"rank {rank} is busy for {busy:.3f} ms of {step_ms:.3f}"
    of_rank = {rank: busy for rank, _, busy in found.ranks}
    for place, rank in enumerate(sorted(truth.steps)):
        expected = truth.busy_ms(rank, found.warmup)
        rows = list(of_rank.values())
        busy = of_rank.get(rank, rows[place] if place < len(rows) else None)
        if expected is None:
            continue
        if busy is None:
            return f"no busy time of rank {rank}"
        if abs(busy - expected) > TOLERANCE * expected:
            return f"busy {busy / expected - 1:+.1%} of rank {rank}"
    return ""


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


def table(scores: Sequence[Score]) -> str:
    """A line a case, then the total."""
    lines = []
    for one in scores:
        verdict = {True: "right", False: "WRONG", None: "-"}[one.right]
        lines += [f"{verdict:6}{one.case}", f"      truth {one.truth}", f"      got   {one.found}"]
        if one.reason:
            lines.append(f"      {one.reason}")
    judged = [one for one in scores if one.right is not None]
    right = sum(bool(one.right) for one in judged)
    unread = sum(one.right is None for one in scores)
    lines.append(f"{right} of {len(judged)} right; {unread} more declare no steps")
    return "\n".join(lines)


def main() -> None:
    """Score every case of a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--code", type=Path, default=ROOT, metavar="PATH")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases by name")
    arguments = parser.parse_args()
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["case"]
    scores = []
    for case in find_cases(arguments.folder, listed):
        if fnmatchcase(case.name, arguments.only) and "same_as" not in case.listed:
            found = analyze(case, arguments.code.resolve())
            scores.append(score(case, count_case(case), found))
            print(table(scores[-1:]).rsplit("\n", 1)[0], flush=True)
    text = table(scores)
    print(text.rsplit("\n", 1)[-1])
    if arguments.out:
        arguments.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
