"""The page: an analysis -> one HTML text, every name in it escaped, always the same bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final

import perfmodel
from perfmodel.analysis import sweeps
from perfmodel.analysis.result import Analysis, RangeRow, RunAnalysis
from perfmodel.analysis.rows import machine_roof
from perfmodel.analysis.verdict import FIXES, Summary
from perfmodel.analysis.warnings import lacking
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render import first_screen, operators, tables
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.html import pictures, sections
from perfmodel.render.html.blocks import (
    CLOCKS,
    Block,
    Grid,
    Section,
    Step,
    Study,
    Words,
    cut,
    grid,
    percent,
)
from perfmodel.render.summary import what_ran

_MOST_PARTS: Final = 7
_BARS: Final = 16
"""Ranks with a bar in the summary."""
_REST: Final = 0.005
"""Parts below this share of a step are put together."""
_LEAST: Final = 0.001
"""Together they are left out below this share, which is less than a pixel."""

_LINKS: Final = {"P_pci": "pcie", "P_peer": "nvlink"}
_MEANS: Final = {
    "P_flops": "computing",
    "P_pci": "copies over PCIe",
    "P_mpi": "all-reduce by MPI",
    "P_peer": "from GPU to GPU",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One number in large letters; `share` fills a bar below it."""

    name: str
    value: str
    note: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a median batch; `begin` and `share` are of the whole.

    `what` is 'range', 'small' for several ranges put together, 'rest' for what is in none; in a
    rank's bar a part of `analysis.verdict`.
    """

    name: str
    seconds: float
    begin: float
    share: float
    what: str = "range"

    @property
    def shown(self) -> str:
        """Time and share as a reader sees them."""
        return f"{si(self.seconds, 's')}, {percent(self.share)}"


@dataclass(frozen=True, slots=True)
class RankParts:
    """The bar of a rank: its parts add up to its step, as wide as that is to the longest."""

    name: str
    time: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Lead:
    """Everything that stands above the sections, and `parts`, which begin the first one.

    `legend` has the class, the name and the share of every kind of part.
    """

    ran: str
    sentence: str
    bars: tuple[RankParts, ...]
    legend: tuple[tuple[str, str, str], ...]
    caveats: tuple[str, ...]
    fixes: tuple[Step, ...]
    tiles: tuple[Tile, ...]
    parts: tuple[Part, ...]
    parts_of: str
    rates: Grid | None


def lead(run: RunAnalysis, study: Study | None) -> Lead:
    """Sum one run up, with what a study of it says."""
    found, said = tuple(parts(run)), run.summary
    queued = run.batch.queued_s is not None
    fitted = [rate for rate in run.rates.values() if rate is not None]
    return Lead(
        ran=" · ".join((*first_screen.where(run, said), first_screen.step_line(said))),
        sentence=said.verdict.text,
        bars=tuple(_bars(said)),
        legend=tuple(
            (part, name, first_screen.shares(said, part))
            for part, name in first_screen.names_of(said).items()
            if any(bar.part_s(part) >= _REST * bar.whole_s for bar in said.bars)
        ),
        caveats=said.caveats,
        fixes=tuple(_fixes(run, said, study))[:FIXES],
        tiles=tuple(_tiles(run)),
        parts=found,
        parts_of="GPU busy time by range" if queued else "Host time by range",
        rates=_rates(run) if fitted else _phases(run),
    )


def _bars(said: Summary) -> Iterator[RankParts]:
    """The ranks' bars: of many ranks the slowest and the fastest ones."""
    shown = first_screen.shown_bars(said, _BARS)
    longest = max((bar.whole_s for bar in shown), default=0.0)
    for bar in shown:
        begin, drawn = 0.0, []
        for part, name in first_screen.names_of(said).items():
            seconds = bar.part_s(part)
            drawn.append(Part(name, seconds, begin / longest, seconds / longest, part))
            begin += seconds
        yield RankParts(f"rank {bar.rank}", first_screen.step_of(said, bar), tuple(drawn))


def head_of(run: RunAnalysis) -> RangeRow:
    """The row of the batch itself."""
    return next(row for row in run.ranges if row.label == run.batch.label)


def parts(run: RunAnalysis) -> Iterator[Part]:
    """Cut a median batch into the ranges directly inside it, and what is in none.

    Where the host only queues batches, its time says nothing: the GPU's is cut, and a range that is
    all there is into what is inside it, such as the kernels of a CUDA graph.
    """
    queued, head = run.batch.queued_s is not None, head_of(run)
    whole = run.batch.median.value
    children = _inside(run, head, queued=queued)
    if queued and len(children) == 1:
        children = _inside(run, children[0][0], queued=queued) or children
    if not children or whole <= 0:
        return
    found = [(row.label, s, "range") for row, s in children]
    shown = [p for p in found if p[1] >= _REST * whole][:_MOST_PARTS]
    small = sum(p[1] for p in found) - sum(p[1] for p in shown)
    rest = whole - sum(p[1] for p in found)
    scale = max(whole, whole - rest)
    if small >= _LEAST * whole and small > 0:
        left = len(found) - len(shown)
        shown.append((f"{left} smaller one{'s' * (left != 1)}", small, "small"))
    if rest > _REST * whole:
        idle = "the GPU is idle" if not lacking(run.unattributed) else "idle, or in no range"
        shown.append((idle if queued else "in no range", rest, "rest"))
    begin = 0.0
    for name, seconds, what in shown:
        yield Part(name, seconds, begin, seconds / scale, what)
        begin += seconds / scale


def _inside(run: RunAnalysis, row: RangeRow, *, queued: bool) -> list[tuple[RangeRow, float]]:
    inner = [r for r in run.ranges if r.path[:-1] == row.path]
    timed = [(r, r.gpu_busy_s if queued else r.host_s) for r in inner]
    return [(r, s) for r, s in timed if s]


def _tiles(run: RunAnalysis) -> Iterator[Tile]:
    batch, head = run.batch, head_of(run)
    seconds = batch.median
    yield Tile(
        "Median step",
        si(seconds.value, "s", 4),
        f"95 %, this run: {tables.interval_of_step(run)}; {batch.count} steps on {len(run.ranks)} "
        f"rank{'s' * (len(run.ranks) != 1)}; rerun: {tables.another(seconds)}",
    )
    said = run.summary
    slowest = max(said.bars, key=lambda bar: bar.whole_s, default=None)
    if said.uses_gpu and slowest is not None and head.gpu_busy_s is not None:
        share = slowest.part_s("compute") / slowest.whole_s
        note, lost = f"GPU busy with that, copies and communication: {si(head.gpu_busy_s, 's')}", 0
        lost = lacking(run.unattributed)
        if lost:
            note = f"at least, without {lost:,} operations in no range; {note}"
        yield Tile("The GPU computes", percent(share), note, share)
    if head.flops and head.rate and head.rate_unit == "FLOP/s":
        note, reached = "the peak is not known", head.of_ceiling
        if reached is not None and run.machine is not None:
            peak = run.machine.peak_flops_per_s[run.precision]
            note = f"{percent(reached)} of {si(peak, 'FLOP/s')}, {run.precision} peak"
        yield Tile("Achieved in a step", si(head.rate, "FLOP/s"), note, reached)
    elif run.work and run.work.flops and seconds.value > 0:
        note, used = "the peak is not known", run.work.mfu
        if used is not None:
            note = f"MFU: {percent(used.of_step)} of {operators.peak_of(used)}"
        achieved = si(run.work.flops / run.ledger.step_s, "FLOP/s")
        yield Tile("Achieved in a step", achieved, note, used.of_step if used else None)
    yield from _of_roof(run)


def _of_roof(run: RunAnalysis) -> Iterator[Tile]:
    """Return the distance of a batch, or of its operators, from the roof."""
    roof = run.roofline or machine_roof(run)
    name = "Of its effective roof" if run.roofline else "Of the machine's roof"
    if roof is not None and run.points:
        point = run.points[0]
        height = float(roof.smooth(point.intensity_flops_per_byte))
        share = point.flops_per_s / height
        yield Tile(name, percent(share), f"smooth: {si(height, 'FLOP/s')}", min(share, 1.0))
        return
    whole = (
        next((row for row in run.work.phases if row.phase == "step"), None) if run.work else None
    )
    if whole is not None and whole.of_ceiling is not None:
        share = whole.of_ceiling
        note = "least time of all operators by peak and bandwidth over the time they take"
        yield Tile("Of the operators' ceilings", percent(share), note, min(share, 1.0))


def _rates(run: RunAnalysis) -> Grid:
    """Effective throughputs with their intervals, and the machine's ceilings."""
    rows: list[tuple[object, ...]] = []
    fitted = [(name, rate) for name, rate in run.rates.items() if rate is not None]
    ceilings = [_ceiling(run, name) for name, _ in fitted]
    for (name, rate), (label, ceiling) in zip(fitted, ceilings, strict=True):
        others = tables.other_clocks(run, name, rate)
        rows.append(
            (name, _MEANS.get(name, ""), si(rate.value, rate.unit, 4), tables.interval(rate),
             tables.another(rate),
             rate.clock.removeprefix("gpu_") + (f" ({others})" if others else ""),
             f"{si(ceiling, rate.unit)}, {label}" if ceiling else None,
             rate.value / ceiling if ceiling else None)
        )  # fmt: skip
    columns = (
        Column("name", "Rate"),
        Column("means", "Of"),
        Column("value", "Effective", align="right"),
        Column("interval", "95 %, this run", align="right"),
        Column("another", "95 %, rerun", align="right"),
        Column("clock", "Clock (the others)"),
        Column("ceiling", "Ceiling", align="right"),
        Column("share", "Share of it", "percent", digits=0),
    )
    values = [rate.value for _, rate in fitted]
    title = "Effective throughputs and the machine's ceilings"
    return grid(
        Table(title, columns, rows, tables.rate_notes(run)),
        sort={
            "value": values,
            "interval": values,
            "another": values,
            "ceiling": [value for _, value in ceilings],
        },
        plain=("share",),
    )


def _phases(run: RunAnalysis) -> Grid | None:
    """Operators by phase against their ceilings; None where nothing counts them."""
    return grid(operators.phases(run.work)) if run.work and run.work.modelled else None


def _ceiling(run: RunAnalysis, name: str) -> tuple[str, float | None]:
    """Name and value of the machine's limit of a rate; None where it is not known.

    The datasheet's NVLink adds both directions up, and so does the assignment's count of bytes.
    """
    if run.machine is None:
        return "", None
    if name == "P_flops":
        return f"{run.precision} peak", run.machine.peak_flops_per_s.get(run.precision)
    link = _LINKS.get(name, "")
    rate = run.machine.bandwidth_bytes_per_s.get(link)
    if rate is None:
        return "", None
    one_way = link == "nvlink" and run.workload.counting != "document"
    return {"pcie": "PCIe", "nvlink": "NVLink"}[link], rate / 2 if one_way else rate


def _fixes(run: RunAnalysis, said: Summary, study: Study | None) -> Iterator[Step]:
    """What a study advises, then the first findings."""
    if study is not None:
        yield from study.fixes
    by_key = {finding.key: finding for finding in run.findings}
    for at, fix in enumerate(said.fixes):
        finding = by_key[fix.key]
        then = f"step then {si(fix.step_s, 's')}" if fix.step_s is not None else ""
        then = " ".join(filter(None, (then, fix.certainty and f"({fix.certainty})")))
        yield Step(
            fix.title,
            f"saves at most {finding.saving} of a step" if finding.saving else "saving unknown",
            finding.evidence,
            fix.action,
            "; ".join(filter(None, (then, first_screen.behind(at, fix)))),
            first_screen.place(fix, finding),
            sections.place_of(run, finding),
        )


_FLAG: Final = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
"""An option of a command, which no line breaks."""

_LONGEST: Final = 1000
"""Letters of a text that are shown."""
_NAMES: Final = 11
"""Letters that the lines of a summary leave for their names."""


def page(analysis: Analysis, study: Callable[[RunAnalysis], Study] | None = None) -> str:
    """Return the report of an analysis as one HTML text.

    Parameters
    ----------
    analysis : Analysis
        Of one run, or of several: details are those of the one that fits the roofline.
    study : callable, optional
        Says of a run what is no part of its analysis, such as `perfmodel.studies.page.study_of`.

    Raises
    ------
    PerfmodelError
        If jinja2 is not installed.
    """
    run = analysis.fitted
    asked = None if study is None else study(run)
    summary = lead(run, asked)
    style, script = _style(), _asset("sort.js") + _asset("timeline.js")
    text: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=run.label,
            facts=list(_facts(run)),
            lead=summary,
            warnings=sections.warnings(run),
            sections=[s for s in _sections(analysis, asked, summary.fixes) if s.blocks],
            clocks=CLOCKS,
            version=perfmodel.__version__,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )
    return text


def timeline(run: RunAnalysis) -> str:
    """Return the timeline of the median step as an HTML text that zooms, as on the page.

    Raises
    ------
    PerfmodelError
        If jinja2 is not installed.
    """
    style, script = _style(), _asset("timeline.js")
    text: str = (
        _environment()
        .get_template("timeline.html.j2")
        .render(
            title=run.label,
            blocks=[*pictures.timeline(run.measured, run.run_steps)],
            version=perfmodel.__version__,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )
    return text


def _facts(run: RunAnalysis) -> Iterator[tuple[str, str]]:
    """Return the configuration of the run as names and values."""
    first, *others = what_ran(run)
    yield "report", first
    for line in others:
        yield line[:_NAMES].strip(), line[_NAMES:].strip()


def _sections(
    analysis: Analysis, study: Study | None, fixes: tuple[Step, ...]
) -> Iterator[Section]:
    run = analysis.fitted
    measured = run.measured

    def section(key: str, title: str, intro: str, blocks: Iterator[Block]) -> Section:
        return Section(key, title, intro, tuple(blocks))

    if len(analysis.runs) > 1:
        yield section("runs", "All runs", f"Details below are of {run.label}.", _runs(analysis))
    yield section("time", "Time by range and kernel", _CLOCKS, sections.breakdown(run))
    if run.serving:
        yield section("serving", "Serving", _SERVING, sections.serving(run))
    yield section(
        "timeline", "Timeline of one step", "", pictures.timeline(measured, run.run_steps)
    )
    many = [one for one in analysis.runs if len(one.ranks) >= sections.MANY_RANKS]
    if many:
        every = (block for one in many for block in sections.ranks(one))
        yield section("ranks", "Ranks", _RANKS, every)
    if run.steps is not None and any(rank.gpu is not None for rank in run.steps.ranks):
        yield section("idle", "Why the GPU idles", _IDLE, pictures.idle(run))
    roof = _ROOF if run.roofline is not None else ""
    yield section("roofline", "Roofline", roof, _roofline(analysis))
    yield section("model", "Model", _MODEL, sections.model(run, study))
    yield section("whatif", "What if", _WHAT_IF, sections.what_if(run, study))
    document = analysis_document(analysis)
    first = next(iter(run.summary.fixes), None)
    summed = first.key if first and fixes and fixes[0].title == first.title else ""
    found = sections.findings(run, document, summed)
    yield section("findings", "Findings and warnings", _FINDINGS, found)
    yield section("machine", "Configuration and machine", "", sections.machine(run))
    yield section("provenance", "Provenance", "", sections.provenance(analysis.runs))


_CLOCKS: Final = (
    "Medians over ranks and steps after the warm-up, on three clocks: host time; GPU projection, "
    "from the first operation's start to the last one's end; GPU busy, the time in which any "
    "operation ran."
)
_SERVING: Final = (
    "Steps of the engine by phase: the time of a step beside its floor, the least time that "
    "memory, peaks and links allow."
)
_RANKS: Final = (
    "Every rank's time of a step without its waiting for other ranks, medians over steps. A rank "
    "is slower than the others if it takes 2 % longer and its modified z-score is one that chance "
    "gives a healthy job in 1 % of the cases."
)
_IDLE: Final = (
    "Gaps between the operations of a GPU, of all streams, by what the host did until it launched "
    "the operation that ends the gap; the seconds of a rank add up to its idle time."
)
_ROOF: Final = (
    "Effective throughputs of this run make the roof: what is below it loses to what the roof "
    "leaves out, such as launches, small kernels and waiting."
)
_MODEL: Final = (
    "FLOPs and bytes by formula, rates fitted to the median times, and what they predict together."
)
_WHAT_IF: Final = "Savings of each change. They overlap, and do not add up."
_FINDINGS: Final = "Ranked by potential saving per step. Savings overlap; they do not add up."


def _roofline(analysis: Analysis) -> Iterator[Block]:
    yield from pictures.roofline(analysis)
    if analysis.points:
        found = tables.points_text(analysis)
        left_out = ["predicted_s", "measured_s", "model_error"]  # the model section has them
        if analysis.fitted.roofline is None:
            left_out += ["roof_flops_per_s", "of_roof"]
        made = grid(found, caption="Measured points", drop=left_out)
        yield replace(made, notes=found.notes[:-1])


def _runs(analysis: Analysis) -> Iterator[Block]:
    yield grid(tables.sweep_text(analysis))
    trends = tuple(sweeps.trends(analysis.runs))
    if trends:
        yield Words("Trends", trends, listed=True)


def _environment() -> Any:
    """Templates that escape everything, and show control characters as such."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup, escape
    except ImportError as error:
        raise PerfmodelError(
            "expected jinja2 to write an HTML report; got no such package; pip install jinja2"
        ) from error

    def shown(value: Any) -> Any:
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return printable(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")

    made = Environment(
        loader=PackageLoader("perfmodel.render", "html"),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["made"] = Markup  # only for what no report has a say in, or svg.inline escaped
    made.filters["flags"] = lambda text: Markup(
        _FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(shown(text))))
    )
    made.filters["sentence"] = _sentence
    made.filters["found_as"] = lambda name: cut(printable(name))  # as live.pack names it
    made.filters["percent"] = lambda share: f"{100 * share:.6g}"
    return made


def _sentence(text: str) -> str:
    """Begin with a capital letter, unless the first word is code."""
    first = text.partition(" ")[0]
    return f"{text[:1].upper()}{text[1:]}" if first.strip(",:;").isalpha() else text


@cache
def _style() -> str:
    """The style sheet, with the colours of the timeline's kinds, which a dark page changes."""
    from perfmodel.render.plot.timeline import COLORS  # brings matplotlib

    colors = (f"--t-{kind}: var(--c-{c[1:].lower()}, {c.lower()});" for kind, c in COLORS.items())
    return f"{_asset('style.css')}:root {{ {' '.join(colors)} }}\n"


@cache
def _asset(name: str) -> str:
    return resources.files("perfmodel").joinpath("render", "html", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Hash of an inline style sheet or script as a content security policy names it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
