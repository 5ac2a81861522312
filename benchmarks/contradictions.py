"""Read every number that several commands, screens or pages show of one report, and compare them.

    python -m benchmarks.contradictions [-v] REPORT...

A report is measured and analyzed once, in this process. Read are the documents that the commands
print as JSON, the first screen of `analyze`, and what the page shows. Two values of a quantity
contradict each other where they differ by more than their last printed digits. What a command
shows and cannot be read is an error; a command that refuses a report is named. With -v all
shared quantities are printed. The exit code is 1 if there is a contradiction or an error.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from perfmodel.analysis.analyze import analyze_measured
from perfmodel.analysis.changes import changes_of
from perfmodel.analysis.compare.compare import CompareOptions, compare_timed
from perfmodel.analysis.events import events
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.runs import TimedReport, time_one
from perfmodel.analysis.utilization import idle_of
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import parse_si
from perfmodel.commands._operators import peak_of_report
from perfmodel.programs import steps_of_run
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render import compare as comparisons
from perfmodel.render import first_screen
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.html import lead
from perfmodel.render.html.blocks import Grid
from perfmodel.render.html.sections import what_if as what_if_section
from perfmodel.studies import page as studies
from perfmodel.studies.analysis.whatif import WhatIf, what_if_of
from perfmodel.studies.render.whatif import what_if_document

RECORDED: Final = "step as recorded"
WITHOUT: Final = "step without the recorder"
_TIME: Final = r"(\d[\d.]*) ([munµ]?s)\b"
_ROUNDING: Final = 1e-6
"""Relative error of a number of a document."""
_SUMMED: Final = 1e-3
"""Relative error of sums of medians: the largest that a part of a step is scaled by."""
_DRAWN_BAR: Final = 2e-3
"""Relative error of the longest bar without the recorder."""
_SHARE: Final = 0.0025
"""Error of a share: two that are printed in whole percent may differ by the half of one."""
_IN_ORDER: Final = (2, 3)
"""How many of the first fixes are applied together."""

_FIX_COLUMNS: Final = (("saves", -3), ("saves", 5), ("share", 5), ("step then", 9))
"""Heads of the table of fixes, and how far from the begin of each a column ends."""


class UnreadableError(Exception):
    """A place shows a number, and it is not where this benchmark looks for it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A quantity as one place shows it; no value where that says that it is unknown."""

    quantity: str
    place: str
    value: float | None
    error: float

    def contradicts(self, other: Reading) -> bool:
        """Whether both cannot be true."""
        if self.value is None or other.value is None:
            return self.value is not other.value
        rounding = 1e-9 * max(abs(self.value), abs(other.value))
        return abs(self.value - other.value) > self.error + other.error + rounding

    def __str__(self) -> str:
        return f"{self.place} {'unknown' if self.value is None else format(self.value, '.6g')}"


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings of a report by quantity, and the commands that refuse it, with their reasons."""

    by_quantity: dict[str, list[Reading]]
    refused: tuple[str, ...]

    @property
    def shared(self) -> dict[str, list[Reading]]:
        """Quantities that are shown more than once."""
        return {name: found for name, found in self.by_quantity.items() if len(found) > 1}

    @property
    def contradictions(self) -> dict[str, list[Reading]]:
        """Quantities of which two values are shown."""
        return {
            name: found
            for name, found in self.shared.items()
            if any(one.contradicts(other) for one, other in combinations(found, 2))
        }


@dataclass(frozen=True)
class Measured:
    """One report: measured, analyzed, and the document of that."""

    path: Path
    timed: TimedReport
    run: RunAnalysis
    document: dict[str, Any]
    screen: Sequence[str]

    @classmethod
    def of(cls, path: Path) -> Measured:
        """Measure a report with the usual options."""
        timed = time_one(read(path), Options())
        analysis = analyze_measured([timed], Options())
        document = analysis_document(analysis)
        return cls(path, timed, analysis.fitted, document, first_screen.screen(analysis.fitted))

    @property
    def step(self) -> str:
        """The quantity that savings are of."""
        return WITHOUT if self.run.summary.recorder else RECORDED

    @property
    def keys(self) -> list[str]:
        """Keys of the findings, as `analyze --evidence` takes them."""
        return [_key(finding.key) for finding in self.run.findings]


def readings_of(path: Path) -> Readings:
    """Read a report's quantities wherever they are shown."""
    measured = Measured.of(path)
    by_quantity: dict[str, list[Reading]] = defaultdict(list)
    refused = []
    for name, read_command in COMMANDS.items():
        try:
            for reading in read_command(measured):
                by_quantity[reading.quantity].append(reading)
        except (PerfmodelError, click.ClickException) as error:
            refused.append(f"{name}: {error}")
    return Readings(dict(by_quantity), tuple(refused))


def _key(name: str) -> str:
    return name.replace("_", "-")


def _alone(key: str) -> str:
    return f"{key} alone saves"


def _after(fixes: int) -> str:
    return f"step after fix{'es 1 to' if fixes > 1 else ''} {fixes}"


def _exact(
    quantity: str, place: str, value: float | None, share: float = _ROUNDING
) -> Iterator[Reading]:
    """A number of a document; nothing where that has none."""
    if value is not None:
        yield Reading(quantity, place, float(value), share * abs(value))


def _printed(quantity: str, place: str, text: str, digits: int = 3) -> Reading:
    """The first time in a text, which has so many digits."""
    match = re.search(_TIME, text)
    if match is None:
        raise UnreadableError(f"{place}: expected a time ({quantity}); got {text!r}")
    value = parse_si(f"{match[1].rstrip('.')} {match[2]}", "s")
    error = 0.51 * 10.0 ** (math.floor(math.log10(value)) + 1 - digits) if value else 0.0
    return Reading(quantity, place, value, error)


def _verdict(measured: Measured, place: str, text: str) -> Iterator[Reading]:
    """The times that a verdict names: the step, and what it takes after the first fix."""
    before, compared, now = text.partition("in place of")
    if compared and not text.endswith("…"):  # which a screen has no room for
        yield _printed(measured.step, place, now)
        if "a step takes at best" in before:
            yield _printed(_after(1), place, before.rpartition("at best")[2])


def _step_line(measured: Measured, place: str, text: str) -> Iterator[Reading]:
    """What stands above the verdict."""
    recorded, without, about = text.partition("recorded, about")
    yield _printed(RECORDED, place, recorded)
    if without:
        yield _printed(measured.step, place, about, digits=2)


def _of_analysis(measured: Measured) -> Iterator[Reading]:
    """The document of `analyze --json`."""
    document, summary = measured.document, measured.document["summary"]
    yield from _exact(RECORDED, "analyze: batch", document["batch"]["median_s"])
    yield from _exact(RECORDED, "analyze: summary.recorded_s", summary["recorded_s"])
    yield from _exact(measured.step, "analyze: summary.step_s", summary["step_s"])
    if recorder := document["recorder"]:
        yield from _exact(RECORDED, "analyze: recorder.step_s", recorder["step_s"])
        if measured.step == WITHOUT:
            yield from _exact(WITHOUT, "analyze: recorder.without_s", recorder["without_s"])
    bars = [bar["step_s"] for bar in summary["bars"]]
    if bars:
        yield from _exact(measured.step, "analyze: longest bar", max(bars), _DRAWN_BAR)
        yield _idle_share("analyze", max(summary["bars"], key=lambda bar: bar["step_s"]))
    yield from _exact("MFU", "analyze: summary.mfu", summary["mfu"])
    if summary["mfu"] is not None:
        yield from _exact("MFU", "analyze: mfu.of_step", document["mfu"]["of_step"])
    for key, finding in zip(measured.keys, document["findings"], strict=True):
        yield from _exact(_alone(key), "analyze: findings", finding["saving_s"])
    for fix in summary["fixes"]:
        yield from _exact(_alone(_key(fix["key"])), "analyze: summary.fixes", fix["saving_s"])
    for number, fix in _ordered(summary["fixes"]):
        yield from _exact(_after(number), "analyze: summary.fixes", fix["step_s"])
    yield from _of_ranks(document)


def _ordered(fixes: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Fixes whose step is that of all up to them, numbered from 1."""
    for number, fix in enumerate(fixes, 1):
        if fix["step_s"] is not None:
            yield number, fix


def _of_ranks(document: dict[str, Any]) -> Iterator[Reading]:
    """The parts of every rank's step: as a row, added up, and by cause."""
    for rank in document["ranks"]:
        whose = f"of rank {rank['rank']}"
        yield from _exact(f"GPU busy {whose}", "analyze: ranks", rank["gpu_busy_s"])
        yield from _exact(f"step {whose}", "analyze: ranks", rank["step_s"])
        recorded = rank["recorded_step_s"]
        yield from _exact(f"recorded step {whose}", "analyze: ranks", recorded)
        if rank["idle_s"] is not None and rank["step_s"]:
            parts = ("compute_s", "copies_s", "communication_s", "waiting_s", "idle_s")
            whole = sum(rank[part] or 0.0 for part in parts)
            yield from _exact(f"step {whose}", "analyze: ranks, parts", whole, _SUMMED)
            if rank["gpu_busy_s"] is not None:
                idle = max(rank["step_s"] - rank["gpu_busy_s"], 0.0)
                yield from _exact(f"GPU idle {whose}", "analyze: ranks", idle, _SUMMED)
    yield from _causes("analyze", document["idle"])
    busy = [rank["gpu_busy_s"] for rank in document["ranks"] if rank["gpu_busy_s"] is not None]
    categories = (document["kernels"] or {}).get("categories", ())
    if busy and categories:
        by_category = sum(row["seconds"] for row in categories)
        yield from _exact("GPU busy, mean", "analyze: ranks", sum(busy) / len(busy), _SUMMED)
        yield from _exact("GPU busy, mean", "analyze: categories", by_category, _SUMMED)


def _causes(place: str, causes: Iterable[dict[str, Any]]) -> Iterator[Reading]:
    """Idle time by rank and cause, and all causes of a rank together."""
    whole: dict[int, float] = defaultdict(float)
    for one in causes:
        whole[one["rank"]] += one["seconds"]
        name = f"idle of rank {one['rank']}: {one['cause']}"
        yield from _exact(name, f"{place}: causes", one["seconds"])
    for rank, seconds in whole.items():
        yield from _exact(f"GPU idle of rank {rank}", f"{place}: causes", seconds, _SUMMED)


def _idle_share(place: str, bar: dict[str, Any]) -> Reading:
    share = (bar["idle_s"] or 0.0) / bar["step_s"]
    return Reading("idle share of the slowest rank", place, share, _SHARE)


_MFU: Final = re.compile(r"\bMFU:? ([\d.]+) %")


def _mfu_printed(place: str, text: str) -> Iterator[Reading]:
    match = _MFU.search(text)
    if match is None:
        raise UnreadableError(f"{place}: expected MFU; got {text!r}")
    digits = len(match[1].partition(".")[2])
    yield Reading("MFU", place, float(match[1]) / 100, 0.0051 * 10**-digits)


def _of_screen(measured: Measured) -> Iterator[Reading]:
    """The first screen of `analyze`."""
    place, summary = "first screen", measured.run.summary
    yield from _step_line(measured, place, measured.screen[1])
    yield from _verdict(measured, place, _verdict_of(measured.screen))
    fixes = [*_fix_lines(measured.screen)] if summary.fixes else []
    if summary.fixes and not fixes:
        raise UnreadableError(f"{place}: expected fixes; got {measured.screen}")
    keys = [_key(fix.key) for fix in summary.fixes]
    for number, (key, (saves, then)) in enumerate(zip(keys, fixes, strict=False), 1):
        if saves == "unknown":
            yield Reading(_alone(key), place, None, 0.0)
        else:
            yield _printed(_alone(key), place, saves)
        if then not in ("", "no less"):
            yield _printed(_after(number), place, then)
    if summary.mfu is not None:
        yield from _mfu_printed(place, "\n".join(measured.screen))


def _line_of(screen: Sequence[str], head: str) -> int:
    """Number of the first line with a head."""
    for number, line in enumerate(screen):
        if line.startswith(head):
            return number
    raise UnreadableError(f"first screen: expected a line {head.strip()}; got {screen}")


def _verdict_of(screen: Sequence[str]) -> str:
    """The verdict of a screen, whose lines are as far to the right as its first words."""
    head = " VERDICT  "
    at = _line_of(screen, head)
    more = takewhile(lambda line: line.startswith(" " * len(head)), screen[at + 1 :])
    return " ".join([screen[at].removeprefix(head), *(line.strip() for line in more)])


def _fix_lines(screen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The columns 'saves' and 'step then' of the fixes of a screen."""
    at = _line_of(screen, " FIX ")
    columns = [(screen[at].find(word), more) for word, more in _FIX_COLUMNS]
    if min(begin for begin, _ in columns) < 0:
        raise UnreadableError(f"first screen: expected saves, share, step then; got {screen[at]!r}")
    titles, saves, share, then = (begin + more for begin, more in columns)
    for line in screen[at + 1 :]:
        if re.match(r" \d ", line):
            yield line[titles:saves].strip(), line[share:then].strip()


def _of_whatif(measured: Measured) -> Iterator[Reading]:
    """The document of `whatif --json`, that of `--apply`, and the table of the page."""
    asked: WhatIf | None = None
    with suppress(PerfmodelError):
        asked = what_if_of(measured.run.measured, None, Options(machine=measured.run.machine))
    if asked is not None:  # the trainer's changes are no findings
        document = what_if_document(asked)
        yield from _exact("batch of the trainer's model", "whatif", document["batch_s"])
    else:
        yield from _of_replay(measured)
    blocks = what_if_section(measured.run, None) if asked is None else studies.changes(asked)
    tables = [one for one in blocks if isinstance(one, Grid)]
    if not tables:
        return
    title = tables[0].caption.rpartition("a step of")[2]
    of_model = asked is not None
    step = "batch of the trainer's model" if of_model else measured.step
    yield _printed(step, "page: What if", title, digits=4)
    heads = [head.text for head in tables[0].heads]
    for row in tables[0].rows:
        if (key := _key(row[0].text)) in measured.keys:
            saves, then = (row[heads.index(name)].text for name in ("Saves", "Step then"))
            yield _printed(_alone(key), "page: What if", saves)
            if key == measured.keys[0]:
                yield _printed(_after(1), "page: What if", then, digits=4)


def _of_replay(measured: Measured) -> Iterator[Reading]:
    """What replays of the step say of its findings, alone and together."""
    found = changes_of(measured.run)
    names = {_key(change.name): change for change in found.changes}
    yield from _exact(measured.step, "whatif", found.step_s)
    for key in measured.keys:
        if key in names:
            yield from _exact(_alone(key), "whatif", names[key].saving_s)
    first = measured.keys[0] if measured.keys else ""
    if first in names:
        yield from _exact(_after(1), "whatif", names[first].step_s)
    fixes = measured.run.summary.fixes
    for many in _IN_ORDER:
        chosen = [_key(fix.key) for fix in fixes[:many]]
        ordered = len(chosen) == many and fixes[many - 1].step_s is not None
        if ordered and all(key in names for key in chosen):
            together = changes_of(measured.run, [names[key].name for key in chosen]).together
            if together is None:
                raise UnreadableError(f"whatif --apply: expected a saving of {chosen}; got none")
            yield from _exact(_after(many), "whatif --apply", together.step_s)


def _of_page(measured: Measured) -> Iterator[Reading]:
    """What stands above the sections of the page of `report`."""
    run, summary = measured.run, measured.run.summary
    shown = lead(run, None)
    yield from _step_line(measured, "page: first line", shown.ran.rpartition("· ")[2])
    yield from _verdict(measured, "page: verdict", shown.sentence)
    for key, card in zip([_key(fix.key) for fix in summary.fixes], shown.fixes, strict=False):
        if "unknown" in card.saving:
            yield Reading(_alone(key), "page: card", None, 0.0)
        else:
            yield _printed(_alone(key), "page: card", card.saving)
    for number, card in enumerate(shown.fixes, 1):
        if card.then.startswith("step then"):
            yield _printed(_after(number), "page: card", card.then)
    for tile in shown.tiles:
        if tile.name == "Median step":
            yield _printed(RECORDED, "page: tile", tile.value, digits=4)
        elif tile.note.startswith("MFU") and summary.mfu is not None:
            yield from _mfu_printed("page: tile", tile.note)


def _of_compare(measured: Measured) -> Iterator[Reading]:
    """The document of `compare --json` of the report with itself."""
    one = [measured.timed]
    document = comparisons.compare_document(
        compare_timed(one, one, CompareOptions(), lambda _: None)
    )
    summary = document["summary"]
    for side in ("before", "after"):
        yield from _exact(RECORDED, f"compare: {side}", document["batch"][f"{side}_s"])
        if summary[side] is not None:
            yield _idle_share(f"compare: {side}", summary[side])
    if summary["limit"] is not None:
        yield from _verdict(measured, "compare: NOW", summary["limit"])
    if summary["fix"] is not None:
        yield from _exact(_alone(measured.keys[0]), "compare: NEXT", summary["fix"]["saving_s"])
        yield from _exact(_after(1), "compare: NEXT", summary["fix"]["step_s"])
    for row in document["idle"]:
        rank, cause = row["path"]
        yield from _exact(f"recorded idle of {rank}: {cause}", "compare: idle", row["before_s"])


def _of_timeline(measured: Measured) -> Iterator[Reading]:
    """The step that `timeline` and the page draw: the median one of the slowest rank.

    Of an even number of steps the median is between the drawn one and the next longer one.
    """
    drawn = steps_of_run(measured.run.measured).drawn
    table = events(measured.run, "steps").columns
    known = table["counted"] & np.isfinite(table["step_s"])
    ranks = {
        (rank, gpu): dict(zip(table["step"][rows], table["step_s"][rows], strict=True))
        for rank, gpu in set(zip(table["rank"], table["gpu"], strict=True))
        if (rows := known & (table["rank"] == rank) & (table["gpu"] == gpu)).any()
    }
    if not ranks:
        return
    slowest = max(ranks.values(), key=lambda steps: statistics.median(steps.values()))
    if drawn not in slowest:
        raise UnreadableError(f"timeline: expected one of the steps {[*slowest]}; got {drawn}")
    seconds = slowest[drawn]
    longer = min((s for s in slowest.values() if s > seconds), default=seconds)
    error = (longer / seconds - 1 if len(slowest) % 2 == 0 else 0.0) + _ROUNDING
    yield from _exact(RECORDED, f"timeline: step {drawn}", seconds, error)


def _of_utilization(measured: Measured) -> Iterator[Reading]:
    """What `utilization --report` says of the GPUs."""
    idle = idle_of(measured.run)
    for rank in idle.ranks:
        yield from _exact(f"recorded step of rank {rank.rank}", "utilization", rank.recorded_step_s)
        yield from _exact(f"GPU busy of rank {rank.rank}", "utilization", rank.gpu_busy_s)
    causes = [{"rank": c.rank, "cause": c.cause, "seconds": c.seconds} for c in idle.causes]
    yield from _causes("utilization", causes)


def _of_prediction(measured: Measured) -> Iterator[Reading]:
    """What `predict` says without a change."""
    found = peak_of_report(measured.path)
    yield from _exact(measured.step, "predict as recorded", found.step.step_s, _SUMMED)
    yield from _exact("MFU", "predict as recorded", found.mfu, _SUMMED)


COMMANDS: Final[dict[str, Callable[[Measured], Iterator[Reading]]]] = {
    "analyze": _of_analysis, "analyze, first screen": _of_screen, "whatif": _of_whatif,
    "report": _of_page, "compare": _of_compare, "timeline": _of_timeline,
    "utilization": _of_utilization, "predict": _of_prediction,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the shared quantities and the contradictions of the reports in the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contradictions")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all shared quantities")
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    given = parser.parse_args(arguments)
    total = unread = 0
    for path in given.reports:
        try:
            found = readings_of(path)
        except (PerfmodelError, UnreadableError) as error:
            print(f"{path.name}: {error}")
            unread += 1
            continue
        contradictions = found.contradictions
        total += len(contradictions)
        print(f"{path.name}: {len(contradictions)} of {len(found.shared)} shared quantities "
              f"have two values")  # fmt: skip
        for name, values in (found.shared if given.verbose else contradictions).items():
            mark = "!" if name in contradictions else " "
            print(f" {mark} {name}: {', '.join(map(str, values))}")
        for reason in found.refused:
            print(f"   refused: {reason}")
    print(f"{total} contradictions in {len(given.reports) - unread} reports, {unread} not read")
    return int(total + unread > 0)


if __name__ == "__main__":
    raise SystemExit(main())
