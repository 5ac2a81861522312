"""The first screen, in 80 columns: a verdict, a bar for each rank or side, the first findings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

from perfmodel.base.escape import printable
from perfmodel.base.table import cut_cells, styled
from perfmodel.base.units import percent, si

if TYPE_CHECKING:
    from perfmodel.analysis.compare.compare import Comparison
    from perfmodel.analysis.compare.summary import ComparedSummary
    from perfmodel.analysis.result import RankRow, RunAnalysis
    from perfmodel.analysis.verdict import Fix, Summary
    from perfmodel.findings import Finding, Part
    from perfmodel.programs.facts import ServingRow

WIDTH: Final = 80
LINES: Final = 24
SECTIONS: Final = (
    "idle", "kernels", "operators", "serving", "ranges", "ranks", "findings", "levels", "warnings",
    "all",
)  # fmt: skip
COMPARED: Final = ("answer", "ranges", "links", "kernels", "idle", "warnings", "all")
"""Sections of a comparison."""
_BARS: Final = 4
"""Ranks with a bar; of more the slowest and the fastest ones."""
LETTERS: Final[dict[Part, str]] = {
    "compute": "=", "communication": "c", "waiting": "~", "copies": "o", "idle": ".",
}  # fmt: skip
_NAMES: Final[dict[Part, str]] = {
    "compute": "compute", "communication": "communication", "waiting": "waits",
    "copies": "copies", "idle": "GPU idle",
}  # fmt: skip
_SHORT: Final[dict[Part, str]] = {
    **_NAMES, "communication": "exposed", "idle": "idle",
}  # fmt: skip
"""Names of parts where there is little room."""
_PROGRAMS: Final = {
    "pytorch": "PyTorch", "jax": "JAX", "serving": "serving", "mlp": "MLP trainer",
    "unknown": "",
}  # fmt: skip
_BAR: Final = 52
_TITLE: Final = 41
"""Letters of a finding's title in a line."""
_VERDICT: Final = 5
"""Lines of a verdict."""
_TIGHTEST: Final = "->"
"""Between a share before and after, where there is little room."""
_GATE, _NOW = 3, 3
"""Lines of a gate's answer, and of what limits a step after a change."""
_LABEL: Final = 16
"""Letters of a report's name, at least."""
_PHASES: Final = 2
"""Phases of an engine with a line."""
_FASTER: Final = 1.05
"""A bound that is nearer to the step, or to the step with all fixes, says nothing."""
_NO_MORE: Final = 0.005
"""A fix that saves less of a step behind those before it saves no more than these."""
_WORD: Final = _TITLE - len("1 ") - len("2 ")
"""Letters of a word of a title."""
_PLACE: Final = 40
"""Letters of a rank and a range."""
_MORE: Final = " …"
_BEFORE_TOP: Final = len(" GPU time  ")
_TOP: Final = 3
"""Kinds of kernels that the line of the GPU's time names."""

_CLAUSE: Final = re.compile(r"; (?![^()]*\))")
"""Ends a clause, outside of parentheses."""

_Kind = Literal["", "title", "verdict", "bar", "legend", "head", "fix", "action", "caveat", "more"]
_Line = tuple[_Kind, str]
_STYLES: Final[dict[_Kind, str]] = {
    "title": "1", "head": "2", "fix": "1", "action": "32", "caveat": "33", "more": "2",
}  # fmt: skip
"""ANSI styles of whole lines."""
_COLORS: Final = {"=": "34", "c": "35", "~": "33", "o": "36", ".": "31"}
"""ANSI colours of a bar's letters: what a step loses is red and yellow."""


@dataclass(frozen=True, slots=True)
class _Room:
    """Lines that each finding's evidence and advice may take, and what else is shown.

    `top` is the line of the GPU's time, `gaps` are blank lines around the verdict,
    and a second line of further findings.
    """

    evidence: tuple[int, ...]
    action: tuple[int, ...]
    top: bool = False
    gaps: bool = True

    @property
    def fixes(self) -> int:
        """Number of findings."""
        return len(self.action)


_FULL: Final = (
    ((4, 2, 2), (5, 3, 3)), ((3, 1, 1), (5, 2, 2)), ((3, 1, 0), (4, 2, 1)), ((3, 0, 0), (3, 2, 1)),
)  # fmt: skip
_TIGHT: Final = (
    ((3, 0, 0), (5, 2, 1)), ((3, 0, 0), (5, 2, 0)), ((3, 0), (5, 2)), ((2, 0), (5, 2)),
    ((2, 0), (5, 0)), ((2, 0), (4, 0)), ((0, 0), (3, 2)), ((2,), (3,)), ((), (1,)), ((), ()),
)  # fmt: skip
_ROOMS: Final = (
    *(_Room(evidence, action, top=True) for evidence, action in _FULL),
    *(_Room(evidence, action, gaps=gaps) for evidence, action in _TIGHT for gaps in (True, False)),
)
"""What is tried in turn until the screen has room."""
_TWO_SIDED: Final = (
    *(_Room((most,), (action,)) for most, action in ((3, 5), (3, 3), (2, 3), (0, 5), (0, 3))),
    *(
        _Room((most,), (action,), gaps=False)
        for most, action in ((3, 5), (3, 3), (2, 3), (0, 5), (0, 3), (0, 2), (0, 0))
    ),
    _Room((), (), gaps=False),
)
"""The same of two sides, with one finding."""


def screen(
    run: RunAnalysis, sections: Sequence[str] = SECTIONS, *, color: bool = False
) -> list[str]:
    """Return the lines, at most `LINES` of `WIDTH` letters; long texts are cut.

    Parameters
    ----------
    run : RunAnalysis
    sections : sequence of str
        Those of `SECTIONS` that this run has.
    color : bool
        Whether lines may have ANSI styles.
    """
    said = run.summary
    return _fitting(lambda room: _lines(run, said, room, sections), _ROOMS, color=color)


def _fitting(
    draw: Callable[[_Room], Iterator[_Line]], rooms: Sequence[_Room], *, color: bool
) -> list[str]:
    """Draw with the first of these rooms that the screen has."""
    drawn = (list(draw(room)) for room in rooms)
    chosen = next((lines for lines in drawn if len(lines) <= LINES), [])
    plain = ((kind, cut_cells(printable(line), WIDTH)) for kind, line in chosen)
    return [_styled(kind, line) if color else line for kind, line in plain]


def compared_screen(
    c: Comparison,
    said: ComparedSummary,
    after: RunAnalysis | None,
    gate: str | None,
    sections: Sequence[str],
    *,
    color: bool = False,
) -> list[str]:
    """Return the lines on two sides, at most `LINES` of `WIDTH` letters; long texts are cut.

    Parameters
    ----------
    c : Comparison
    said : ComparedSummary
    after : RunAnalysis or None
        The run of which `said` names what limits a step now.
    gate : str or None
        The answer to a slowdown that is allowed.
    sections : sequence of str
    color : bool
        Whether lines may have ANSI styles.
    """
    return _fitting(
        lambda room: _compared(c, said, after, gate, room, sections), _TWO_SIDED, color=color
    )


def _compared(
    c: Comparison,
    said: ComparedSummary,
    after: RunAnalysis | None,
    gate: str | None,
    room: _Room,
    sections: Sequence[str],
) -> Iterator[_Line]:
    labels = [
        x[0].label + f" and {len(x) - 1} more" * (len(x) > 1)
        for x in (c.before.launches, c.after.launches)
    ]
    steps = [sum(x.batches for x in side.launches) for side in (c.before, c.after)]
    half = (WIDTH - len(" ->  · 1000 and 1000 steps")) // 2
    before, now = (cut_cells(printable(label), half) for label in labels)
    yield "title", f"{before} -> {now} · {steps[0]:,} and {steps[1]:,} steps"
    batch = c.batch
    times = f"step {si(batch.before_s, 's', 4)} before, {si(batch.after_s, 's', 4)} after"
    if batch.ratio is not None and batch.low is not None and batch.high is not None:
        times += f", ratio {batch.ratio:.3f} [{batch.low:.3f}, {batch.high:.3f}]"
    yield "", times
    gap: list[_Line] = [("", "")] * room.gaps
    yield from gap
    yield from _wrapped(" VERDICT  ", said.text)
    changed = "; ".join(str(one) for one in c.differences if not one.workload)
    if changed:
        yield from _wrapped(" CHANGED  ", printable(changed), 1 + room.gaps)
    if gate is not None:
        yield from _wrapped("Gate: ", gate, _GATE)
    bars = [one for one in (said.before, said.after) if one is not None]
    if len(bars) == 2:  # of both sides
        yield from gap
        longest = max(bar.whole_s for bar in bars)
        for name, bar in zip(("before", "after"), bars, strict=True):
            drawn = f"{_bar(bar, longest):<{_BAR}}"
            yield "bar", f" {name:<8} |{drawn}| {si(bar.whole_s, 's')}"
        yield "legend", _changed_parts(bars, None if after is None else after.summary)
        if after is not None and after.summary.recorder:
            yield "legend", f" bars are steps without {after.summary.recorder}"
    if said.gone or said.new:
        yield from gap
    most = 1 + room.gaps
    yield from _changed(" GONE     ", said.gone, most)
    yield from _changed(" NEW      ", said.new, most)
    if after is not None and said.limit is not None:
        yield from gap
        yield from _wrapped(" NOW      ", said.limit, _NOW)
        summary = after.summary
        if summary.recorder:
            yield "", f"          {step_line(summary)}"
        if said.fix is not None and room.fixes:
            yield (
                "head",
                f" {'NEXT':<{_TITLE}} {'saves':>8} {'share':>6} {'step then':>10}  certainty",
            )
            yield from _fix(summary, 0, said.fix, after.findings[0], room)
    yield from (("caveat", f" ! {one}") for one in said.caveats)
    yield "more", f"More: --section {'|'.join(sections)}"
    if c.warnings:
        count = len(c.warnings)
        yield "more", f"      {count} warning{'s' * (count != 1)}: --section warnings"


def _changed(head: str, found: Sequence[Finding], most: int) -> Iterator[_Line]:
    """A line for each finding that went away or appeared."""
    for i, one in enumerate(found[:most]):
        saves = f" (up to {si(one.saving_s, 's')})"
        title = cut_cells(printable(one.title), WIDTH - len(head) - len(saves))
        yield "", f"{head if i == 0 else ' ' * len(head)}{title}{saves}"


def _changed_parts(bars: Sequence[RankRow], said: Summary | None) -> str:
    """Letters, names and shares of the parts before and after."""
    names = _NAMES if said is None else names_of(said)
    longest = max(bar.whole_s for bar in bars)
    drawn = set("".join(_bar(bar, longest) for bar in bars))
    parts = [part for part, letter in LETTERS.items() if letter in drawn]
    shares = {p: [percent(bar.part_s(p) / bar.whole_s) for bar in bars] for p in parts}
    texts = [
        f"{LETTERS[p]} {{}} {one[0].removesuffix(' %')} -> {one[1]}" for p, one in shares.items()
    ]
    short = {**_SHORT, "communication": "comm."} if names is _NAMES else names
    for indent, to, named in ((11, " -> ", names), (1, " -> ", short), (1, _TIGHTEST, short)):
        shown = "  ".join(text.format(named[p]) for text, p in zip(texts, parts, strict=True))
        if to == _TIGHTEST:  # the unit once
            shown = f"{shown.replace(' %', '')} %"
        if len(line := " " * indent + shown.replace(" -> ", to)) <= WIDTH:
            break
    return line


def _served(row: ServingRow) -> str:
    """Say the time of an engine's step beside what the GPU alone and its floor allow."""
    whose, scale = "TTFT" if row.phase == "prefill" else "step", 1.0
    if row.phase == "decode" and row.tpot_s is not None:
        whose, scale = "TPOT", row.tpot_s / row.step_s
        if row.generation_tokens > row.generations:  # if all guessed tokens are accepted
            whose += " at least"
    parts = [
        f"{whose} {si(scale * row.step_s, 's')}",
        f"busy {si(scale * row.busy_s, 's')}",
        *([f"floor {si(scale * row.floor_s, 's')}"] if row.floor_s else []),
        f"{si(row.tokens_per_s, '')} tokens/s",
    ]
    return f" {row.phase:<8} {' · '.join(parts)}"


def brief(run: RunAnalysis) -> str:
    """Say the verdict in one line."""
    said = run.summary
    return f"{run.label}: {step_line(said)}: {said.verdict.text}"


def step_line(said: Summary) -> str:
    """Say what a step takes, recorded and without the profiler."""
    line = f"step {si(said.recorded_s, 's')}"
    if said.recorder and said.low_s is not None and said.high_s is not None:
        line += (
            f" recorded, about {si(said.step_s, 's', 2)} without {said.recorder} "
            f"({si(said.low_s, 's', 2)} to {si(said.high_s, 's', 2)})"
        )
    return line


def _lines(
    run: RunAnalysis, said: Summary, room: _Room, sections: Sequence[str]
) -> Iterator[_Line]:
    about = " · ".join(filter(None, where(run, said)))
    left = max(WIDTH - len(about) - len(" · "), _LABEL)
    yield "title", f"{cut_cells(printable(run.label), left)} · {about}"
    yield "", step_line(said)
    gap: list[_Line] = [("", "")] * room.gaps
    yield from gap
    yield from _wrapped(" VERDICT  ", said.verdict.text)
    if said.bars:
        yield from gap
        yield from _bars(said)
    if run.serving:
        from perfmodel.analysis.serving import usual_rows  # which takes long to import

        yield from (("", _served(row)) for row in usual_rows(run.serving)[:_PHASES])
    if room.top and (top := _top(run)):
        yield "", f" GPU time  {top}"
    if said.fixes:
        yield "", ""
        yield "head", _head("FIX")
        by_key = {one.key: one for one in run.findings}
        for i, fix in enumerate(said.fixes[: room.fixes]):
            yield from _fix(said, i, fix, by_key[fix.key], room)
    reached_s = min((fix.step_s for fix in said.fixes if fix.step_s), default=said.step_s)
    if said.bound_s is not None and reached_s > _FASTER * said.bound_s:
        limit = f"without idle time and waiting a step takes {si(said.bound_s, 's')}"
        yield "", f" Limit: {limit}, {said.step_s / said.bound_s:.1f}x faster"
    if said.mfu is not None and run.work is not None and run.work.mfu is not None:
        from perfmodel.render.operators import peak_of

        mfu = run.work.mfu
        busy = percent(mfu.of_busy, 1)
        yield "", f" MFU {percent(said.mfu, 1)} of {peak_of(mfu)}; {busy} while it computes"
    yield from (("caveat", f" ! {one}") for one in said.caveats)
    yield from _more(run, room, sections)


def where(run: RunAnalysis, said: Summary) -> Iterator[str]:
    """Program, place and number of steps."""
    model = next((row.model for row in run.serving if row.model), "")
    yield " ".join(filter(None, (_PROGRAMS.get(run.program.name, run.program.name), model)))
    ranks = f"{len(run.ranks)} rank{'s' * (len(run.ranks) != 1)}"
    used = {row.gpu for row in run.ranks if row.gpu is not None}
    names = sorted({gpu.name for gpu in run.gpus if gpu.id in used or len(run.gpus) == 1})
    yield f"{ranks}, {', '.join(names) or 'GPU'}" if used else f"{ranks}, no GPU"
    yield f"{said.steps} step{'s' * (said.steps != 1)}"


def _bars(said: Summary) -> Iterator[_Line]:
    shown = shown_bars(said, _BARS)
    longest = max(bar.whole_s for bar in shown)
    for bar in shown:
        yield "bar", f" rank {bar.rank:<3} |{_bar(bar, longest):<{_BAR}}| {step_of(said, bar)}"
    yield "legend", _legend(said, shown)
    if len(said.bars) > len(shown):
        yield "", f"          {len(said.bars) - len(shown)} more ranks: --section ranks"


def step_of(said: Summary, bar: RankRow) -> str:
    """Return a rank's step as text, in two digits where it is without the profiler."""
    return si(bar.whole_s, "s", 2 if said.recorder else 3)


def shown_bars(said: Summary, most: int) -> list[RankRow]:
    """Return the bars of all ranks, or of the slowest and the fastest ones, by rank."""
    if len(said.bars) <= most:
        return list(said.bars)
    by_time = sorted(said.bars, key=lambda bar: -bar.whole_s)
    kept = [*by_time[: most // 2], *by_time[-most // 2 :]]
    return sorted(kept, key=lambda bar: bar.rank)


def _legend(said: Summary, shown: Sequence[RankRow]) -> str:
    """Letters, names and shares of the parts; of several ranks the least and the largest share."""
    longest = max(bar.whole_s for bar in shown)
    drawn = set("".join(_bar(bar, longest) for bar in shown))
    parts = [part for part, letter in LETTERS.items() if letter in drawn]
    for indent, gap, names in ((11, 3, names_of(said)), (11, 2, names_of(said)), (1, 2, _SHORT)):
        texts = (f"{LETTERS[part]} {names[part]} {shares(said, part)}" for part in parts)
        if len(line := " " * indent + (" " * gap).join(texts)) <= WIDTH:
            return line
    return "           " + "   ".join(f"{LETTERS[p]} {names_of(said)[p]}" for p in parts)


def shares(said: Summary, part: Part) -> str:
    """Share of a part in a step, from the least of any rank to the largest."""
    shares = [bar.part_s(part) / bar.whole_s for bar in said.bars]
    low, high = (percent(share) for share in (min(shares), max(shares)))
    return high if low == high else f"{low.removesuffix(' %')}–{high}"


def names_of(said: Summary) -> dict[Part, str]:
    """Names of the parts of a step; without a GPU all but MPI is outside of it, or the CPU's."""
    if said.uses_gpu:
        return _NAMES
    host = "outside MPI" if said.uses_mpi else "CPU"
    return {**_NAMES, "compute": host, "communication": "MPI"}


def _bar(bar: RankRow, longest: float) -> str:
    """Letters of a bar: ends of parts are rounded, so that they add up."""
    letters, at, done = [], 0.0, 0
    for part, letter in LETTERS.items():
        at += bar.part_s(part)
        end = round(_BAR * at / longest)
        letters.append(letter * (end - done))
        done = max(end, done)
    return "".join(letters)


def _top(run: RunAnalysis) -> str:
    """What takes most of the GPU's time, and what share of their ceiling products reach."""
    kinds = run.steps.categories if run.steps else ()
    said = ", ".join(f"{kind.category} {percent(kind.share)}" for kind in kinds[:_TOP])
    rated = [
        (row.gpu_s, row.of_ceiling)
        for row in (run.work.operators if run.work else ())
        if row.flops and row.of_ceiling is not None
    ]
    if said and sum(seconds for seconds, _ in rated) > 0:
        reached = sum(s * share for s, share in rated) / sum(s for s, _ in rated)
        more = f"; products at {percent(reached)} of their ceiling"
        said += more if len(said) + len(more) + _BEFORE_TOP <= WIDTH else ""
    return said


def _head(first: str) -> str:
    """The line above findings."""
    return f" {first:<{_TITLE}} {'saves':>8} {'share':>6} {'step then':>10}  certainty"


def _fix(said: Summary, at: int, fix: Fix, one: Finding, room: _Room) -> Iterator[_Line]:
    saves = si(fix.saving_s, "s") if fix.saving_s is not None else "unknown"
    share = percent(fix.share) if fix.share is not None and fix.saving_s is not None else ""
    then = si(fix.step_s, "s") if fix.step_s is not None else ""
    if at and fix.after_previous_s is not None and fix.after_previous_s <= _NO_MORE * said.step_s:
        then = "no less"
    title = f"{at + 1} {fix.title}"
    first, *others = _titled(title)
    yield "fix", f" {first:<{_TITLE}} {saves:>8} {share:>6} {then:>10}  {fix.certainty}".rstrip()
    yield from (("fix", f" {line}") for line in others[:1])
    at_line = " · ".join(filter(None, (behind(at, fix), place(fix, one, WIDTH - 4))))
    known = f"{at_line} · {one.evidence}" if at_line else one.evidence
    most = room.evidence[at] if at < len(room.evidence) else 0
    evidence = _clauses(known, WIDTH - 4, most) if most else []
    if len(evidence) == 1 and evidence[0].endswith(_MORE):  # it says too little
        evidence = []
    if not evidence and at_line:
        evidence = [at_line]
    yield from (("", f"   {line}") for line in evidence)
    advice = _clauses(fix.action, WIDTH - 6, room.action[at])
    if len(advice) == 1 and advice[0].endswith(_MORE):
        advice = []
    for i, line in enumerate(advice):
        yield "action", f"   {'->' if i == 0 else '  '} {line}"


def behind(at: int, fix: Fix) -> str:
    """What a fix saves behind those before it, where that is more than it saves alone."""
    after_s, before = fix.after_previous_s, "1" if at == 1 else f"1 to {at}"
    if not at or not after_s or after_s <= (fix.saving_s or 0.0):
        return ""
    return f"after {before}: {si(after_s, 's')}"


def _titled(title: str) -> list[str]:
    """At most two lines of a title; a name that is too long ends in '…'."""
    words = (word if len(word) < _WORD else f"{word[: _WORD - 1]}…" for word in title.split())
    return textwrap.wrap(" ".join(words), _TITLE, subsequent_indent="  ", break_on_hyphens=False)


def place(fix: Fix, one: Finding, width: int | None = None) -> str:
    """Rank, range and line of a finding, in so many letters, but for what its title names."""
    rank = f"rank {one.rank}" if one.rank is not None else ""
    rank = rank if fix.range and rank not in fix.title else ""
    named = fix.range is None or f"{fix.range!r}" in fix.title
    inside = "" if named else f"in {fix.range!r}"
    found, line = " ".join(filter(None, (rank, inside))), fix.line or ""
    if width is not None:
        found = found[:_PLACE]
        left = width - len(found) - len(", ")
        if len(line) > left:  # the file's name is at the end
            line = f"…{line[len(line) - left + 1 :]}"
    return ", ".join(filter(None, (found, line)))


def _clauses(text: str, width: int, most: int) -> list[str]:
    """Wrap the beginning of a text: clauses between semicolons, as many as there is room for."""
    if most == 0:
        return []
    clauses = _CLAUSE.split(text)
    for count in range(len(clauses), 0, -1):
        lines = textwrap.wrap("; ".join(clauses[:count]), width, break_on_hyphens=False)
        if len(lines) <= most:
            return lines
    return textwrap.wrap(
        clauses[0], width, max_lines=most, placeholder=_MORE, break_on_hyphens=False
    )


def _more(run: RunAnalysis, room: _Room, sections: Sequence[str]) -> Iterator[_Line]:
    """The sections, the titles of further findings, and how many warnings there are."""
    offered = [name for name in SECTIONS if name in (*sections, "all") and name != "warnings"]
    yield "more", f"More: --section {'|'.join(offered)}"
    shown = {fix.key for fix in run.summary.fixes[: room.fixes]}
    others = [
        f"{one.title}{f' ({percent(one.share)})' if one.share and round(100 * one.share) else ''}"
        for one in run.findings
        if one.key not in shown
    ]
    also = textwrap.wrap(
        f"Also: {'; '.join(others)}", WIDTH, max_lines=1 + room.gaps, placeholder=_MORE,
        subsequent_indent="      ", break_on_hyphens=False,
    ) if others else []  # fmt: skip
    yield from (("more", line) for line in also)
    if warnings := len(run.warnings):
        yield "more", f"      {warnings} warning{'s' * (warnings != 1)}: --section warnings"


def _wrapped(head: str, text: str, most: int = _VERDICT) -> Iterator[_Line]:
    blank = " " * len(head)
    lines = textwrap.wrap(text, WIDTH - len(head), max_lines=most, placeholder=_MORE)
    yield from (("verdict", (head if i == 0 else blank) + line) for i, line in enumerate(lines))


def _styled(kind: _Kind, line: str) -> str:
    """A line with ANSI styles: letters of bars have the colour of their part."""
    if kind == "bar":
        head, bar, tail = line.split("|", 2)
        runs = ((letter, "".join(run)) for letter, run in groupby(bar))
        painted = "".join(styled(text, _COLORS.get(letter, "")) for letter, text in runs)
        return f"{head}|{painted}|{tail}"
    if kind == "legend":
        names = "|".join(map(re.escape, _COLORS))
        return re.sub(rf"(?<= )({names})(?= [a-zA-Z])", lambda m: styled(m[1], _COLORS[m[1]]), line)
    if kind == "verdict":
        return re.sub("^ (VERDICT|NOW)", lambda m: f" {styled(m[1], '1;31')}", line)
    return styled(line, _STYLES.get(kind, ""))
