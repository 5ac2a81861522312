"""The first screen: a verdict, a bar for each rank, the first findings, in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from perfmodel.analysis.serving import usual_rows
from perfmodel.base.units import percent, si

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis
    from perfmodel.analysis.serving import ServingRow
    from perfmodel.analysis.verdict import Fix, Part, RankBar, Summary

WIDTH: Final = 80
LINES: Final = 24
_BARS: Final = 4
"""Ranks with a bar; of more the slowest and the fastest ones."""
_LETTERS: Final[dict[Part, str]] = {
    "compute": "=", "communication": "c", "waiting": "~", "copies": "o", "idle": ".",
}  # fmt: skip
_NAMES: Final[dict[Part, str]] = {
    "compute": "compute", "communication": "communication", "waiting": "waits",
    "copies": "copies", "idle": "GPU idle",
}  # fmt: skip
_BAR: Final = 52
_PLACE: Final = WIDTH - 6
"""Letters of a line of code, whose end says more than its beginning."""
_FASTER: Final = 1.05
"""A bound that is nearer to the step says nothing."""
_LESS: Final = ((3, 3), (3, 2), (3, 1), (2, 1), (1, 1), (0, 0))
"""Findings and lines of advice that are tried until the screen has room."""
SECTIONS: Final = (
    "idle", "kernels", "operators", "serving", "ranges", "ranks", "findings", "levels", "warnings",
    "all",
)  # fmt: skip


_VERDICT: Final = 5
"""Lines of a verdict."""
_PHASES: Final = 2
"""Phases of an engine with a line."""


def screen(run: RunAnalysis) -> list[str]:
    """Return the lines, at most `LINES` of `WIDTH` letters; long advice is cut."""
    said = run.summary
    drawn = (list(_lines(run, said, fixes, lines)) for fixes, lines in _LESS)
    return next((lines for lines in drawn if len(lines) <= LINES), [])


def _lines(run: RunAnalysis, said: Summary, fixes: int, of_action: int) -> Iterator[str]:
    program = f" · {run.program.name}" if run.program.name != "unknown" else ""
    model = next((row.model for row in run.serving if row.model), "")
    program += f" {model}" if model else ""
    yield _cut(f"{run.label}{program} · {_where(run)} · {_steps(said)}")
    yield _cut(step_line(said))
    yield ""
    yield from _wrapped(" VERDICT  ", said.verdict.text)
    if said.bars:
        yield ""
        yield from _bars(said)
    for row in usual_rows(run.serving)[:_PHASES]:
        yield _cut(_served(row))
    if said.fixes:
        yield ""
        after = any(fix.after_previous_s is not None for fix in said.fixes[1:fixes])
        yield f" {'FIX':<50} {'saves':>9}  {'step with all' if after else 'step then':>13}"
        for i, fix in enumerate(said.fixes[:fixes], 1):
            yield from _fix(i, fix, of_action)
    shared = any(fix.step_s and fix.step_s < (said.bound_s or 0.0) for fix in said.fixes)
    if said.bound_s is not None and said.step_s > _FASTER * said.bound_s and not shared:
        faster = said.step_s / said.bound_s
        yield _cut(
            f" Limit: without idle time and waiting a step takes {si(said.bound_s, 's')}, "
            f"{faster:.1f}x faster"
        )
    if said.mfu is not None:
        yield f" MFU {percent(said.mfu, 1)}"
    for one in said.caveats:
        yield _cut(f" ! {one}")
    left_out = ("ranges",) if run.serving else ("ranges", "serving")
    yield f"More: --section {'|'.join(name for name in SECTIONS if name not in left_out)}"
    if run.warnings or said.findings > len(said.fixes):
        counts = ((said.findings, "finding"), (len(run.warnings), "warning"))
        yield "      " + ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts if n)


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


def _where(run: RunAnalysis) -> str:
    ranks = f"{len(run.ranks)} rank{'s' * (len(run.ranks) != 1)}"
    used = {row.gpu for row in run.ranks if row.gpu is not None}
    names = sorted({gpu.name for gpu in run.gpus if gpu.id in used or len(run.gpus) == 1})
    if not used:
        return f"{ranks}, no GPU"
    return f"{ranks}, {', '.join(names) or 'GPU'}"


def _steps(said: Summary) -> str:
    return f"{said.steps} step{'s' * (said.steps != 1)}"


def _bars(said: Summary) -> Iterator[str]:
    shown = list(said.bars)
    if len(shown) > _BARS:
        by_time = sorted(shown, key=lambda bar: -bar.step_s)
        kept = [*by_time[: _BARS // 2], *by_time[-_BARS // 2 :]]
        shown = sorted(kept, key=lambda bar: bar.rank)
    longest = max(bar.step_s for bar in shown)
    for bar in shown:
        yield f" rank {bar.rank:<3} |{_bar(bar, longest):<{_BAR}}| {si(bar.step_s, 's')}"
    used = [part for part in _LETTERS if any(bar.part_s(part) > 0 for bar in shown)]
    legend = "   ".join(f"{_LETTERS[part]} {_name(said, part)}" for part in used)
    yield _cut(f"           {legend}")
    if len(said.bars) > len(shown):
        yield f"          {len(said.bars) - len(shown)} more ranks: --section ranks"


def _name(said: Summary, part: Part) -> str:
    if said.uses_gpu:
        return _NAMES[part]
    return {"compute": "outside MPI", "communication": "MPI"}.get(part, _NAMES[part])


def _bar(bar: RankBar, longest: float) -> str:
    """Letters of a bar: ends of parts are rounded, so that they add up."""
    letters, at, done = [], 0.0, 0
    for part, letter in _LETTERS.items():
        at += bar.part_s(part)
        end = round(_BAR * at / longest)
        letters.append(letter * (end - done))
        done = max(end, done)
    return "".join(letters)


def _fix(number: int, fix: Fix, of_action: int) -> Iterator[str]:
    saves = si(fix.saving_s, "s") if fix.saving_s is not None else "unknown"
    then = si(fix.step_s, "s") if fix.step_s is not None else ""
    first, *others = textwrap.wrap(f"{number} {fix.title}", 50, subsequent_indent="  ")
    yield f" {first:<50} {saves:>9}  {then:>13}".rstrip()
    yield from (f" {line}" for line in others[:1])
    if fix.line:
        yield f"   at {fix.line if len(fix.line) <= _PLACE else '…' + fix.line[1 - _PLACE :]}"
    advice = textwrap.wrap(
        fix.action, WIDTH - 6, max_lines=of_action, placeholder=" …", break_long_words=True
    )
    yield from (f"   {'->' if i == 0 else '  '} {line}" for i, line in enumerate(advice))


def _wrapped(head: str, text: str) -> Iterator[str]:
    blank = " " * len(head)
    lines = textwrap.wrap(text, WIDTH - len(head), max_lines=_VERDICT, placeholder=" …")
    yield from ((head if i == 0 else blank) + line for i, line in enumerate(lines))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
