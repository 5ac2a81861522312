"""The pictures of a page: one batch as a timeline, and the roofline, as SVG that fits in a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from perfmodel.analysis.rates import amounts
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.analysis.rows import comparable, machine_roof
from perfmodel.analysis.window import only_window
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.units import si
from perfmodel.render import outputs, tables
from perfmodel.render.html.blocks import Block, Find, Notice, Picture, grid
from perfmodel.render.html.live import pack
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.range_times import ranks_of
from perfmodel.timing.run import Run
from perfmodel.timing.run_steps import RunSteps
from perfmodel.timing.timeline import (
    Lane,
    Window,
    clocks_differ,
    drawn_lanes,
    select,
    window_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS: Final = 100_000
"""More bars of a step are not on a page, which would be larger than a mail takes."""
_MOST_RANKS: Final = 8
_ALL_KINDS: Final = 8
"""So many points of a roofline are drawn of every kind; of more those of the first kind."""
_TRACE: Final = "perfmodel timeline -o FILE.json writes all of it as a trace"


def timeline(run: Run, steps: RunSteps) -> Iterator[Block]:
    """Draw the step of median time, with as many ranks as a page has room for."""
    batch = steps.drawn
    try:
        window = window_of(run, range(batch, batch + 1))
    except PerfmodelError as error:
        yield Notice("No step can be drawn.", str(error))
        return
    run = only_window(run, window)
    lanes, left_out = _room(select(run, window, around=False, places=True))
    left_out += sum(len(ranks_of(trace)) for trace in run.traces if not trace.whole)
    if not lanes:
        yield Notice(
            f"One step of one rank has more than {_MOST_BARS:,} bars, too many for a page.", _TRACE
        )
        return
    yield _timeline(lanes, window, f"Step {batch}, the median one, of {run.label}")
    if left_out:
        yield Notice(f"{left_out} more ranks are not drawn: a page has no room for them.", _TRACE)
    if clocks_differ(run):
        yield Notice(
            "A report has no UTC time: its rank may be shifted against the others.",
            "profile all ranks with one nsys, around mpirun",
        )


def _timeline(lanes: Sequence[Lane], window: Window, title: str) -> Picture:
    """Draw the main lanes, and pack all of them for the script."""
    from perfmodel.render.plot import quiet, svg_text
    from perfmodel.render.plot.timeline import WORDS
    from perfmodel.render.plot.timeline import timeline as draw

    still = drawn_lanes([lane for lane in lanes if lane.kind != "api"] or lanes)
    with quiet():
        svg = svg_text(draw(still, window.start_ns, window.end_ns))
    ranks = len({lane.rank for lane in lanes})
    bars = sum(len(lane.bars) for lane in lanes)
    length = si((window.end_ns - window.start_ns) * 1e-9, "s", 4)
    words = (
        f"{bars:,} operations in {len(lanes)} lanes of {ranks} rank{'s' * (ranks != 1)}, {length}"
    )
    caption = (
        f"{title}: {words}. Ranges, calls and GPU operations on one axis of time, and why the GPU "
        f"idles between them; what belongs to other steps is pale."
    )
    drawn = inline(svg, "timeline", printable(title), words)
    return Picture(drawn, caption, wide=True, packed=pack(lanes, window, WORDS))


def _room(lanes: Sequence[Lane]) -> tuple[list[Lane], int]:
    """Return the lanes of the first ranks that a page has room for, and how many ranks it lacks."""
    ranks = list(dict.fromkeys(lane.rank for lane in lanes))
    kept: list[Lane] = []
    for count, rank in enumerate(ranks):
        mine = [lane for lane in lanes if lane.rank == rank]
        bars = sum(len(lane.bars) for lane in (*kept, *mine))
        if count == _MOST_RANKS or bars > _MOST_BARS:
            return kept, len(ranks) - count
        kept += mine
    return kept, 0


def idle(run: RunAnalysis) -> Iterator[Block]:
    """Draw why every rank's GPU idles, and list the longest gaps of each cause."""
    from perfmodel.render.plot import svg_text

    axes = outputs.draw_idle(run)
    if run.steps is None or axes is None:
        yield Notice("No idle time of a GPU was recorded.", run.traces[0].how_to_record)
        return
    axes.set_title("", loc="left")  # the caption says it
    ranks = len({cause.rank for cause in run.steps.facts.idle})
    title = f"Idle time of the GPU{'s' * (ranks > 1)} in a median step, by cause"
    drawn = inline(svg_text(axes), "idle", title, "the table below has the numbers")
    yield Picture(drawn, f"{title}; colours as in the timeline.", wide=False)
    causes, gaps = tables.idle(run), tables.gaps(run)
    yield grid(causes, finds=[Find(CAUSE_NAMES[c.cause], c.rank) for c in run.steps.facts.idle])
    if gaps.rows:
        note = "a step is drawn by perfmodel timeline --batch STEP"
        places = [Find(CAUSE_NAMES[c.cause], c.rank) for c in run.steps.facts.idle for _ in c.gaps]
        yield grid(replace(gaps, notes=(*gaps.notes, note)), closed=True, finds=places)
    path = tables.path_text(run.steps)
    if path.rows:
        yield grid(path)


def roofline(analysis: Analysis) -> Iterator[Block]:
    """Draw the roofline, of a program with operators theirs, or say what it needs."""
    run = analysis.fitted
    if run.roofline is None and (pair := outputs.draw_operators(analysis)) is not None:
        yield _operators(run, pair)
        return
    if run.roofline is None and (machine_roof(run) is None or not run.points):
        if said := " ".join(_roofless(run)):
            yield Notice("No roofline can be drawn.", said)
        return
    from perfmodel.render.plot import quiet, svg_text
    from perfmodel.render.plot.roofline import FEW

    points = comparable(analysis) or run.points
    kinds = list(dict.fromkeys(p.kind for p in points))
    chosen = kinds if len(points) <= _ALL_KINDS else kinds[:1]
    with quiet():
        axes = outputs.draw_roofline(analysis, kinds=chosen)
        axes.set_title("", loc="left")  # the caption says it
        svg = svg_text(axes)
    title = f"Roofline of {run.label}" if run.roofline else f"{run.label} below the machine's peaks"
    title += "" if chosen == kinds else f", points of {chosen[0]}"
    listed = "; ".join(
        f"{p.label}: {si(p.flops_per_s, 'FLOP/s')} at {si(p.intensity_flops_per_byte, 'FLOP/B', 4)}"
        for p in points[:20]
    )
    caption = (
        f"{title}: solid, computing and moving one after the other; dashed, overlapping perfectly."
        f"{' Dotted is what is left to gain.' if len(points) <= FEW else ''}"
    )
    drawn = inline(svg, "roofline", printable(title), printable(listed))
    yield Picture(drawn, caption, wide=False)


def _operators(run: RunAnalysis, axes: Axes) -> Picture:
    """All operators whose bytes are known, below the roofs of their units and of the memory."""
    from perfmodel.render.plot import svg_text

    title = f"Operators of {run.label}"
    shown = run.work.by_sizes[:20] if run.work else ()
    listed = "; ".join(
        f"{row.name} ({row.phase}): {si(row.flops_per_s, 'FLOP/s')} at "
        f"{si(row.intensity, 'FLOP/B', 4)}"
        for row in shown
        if row.flops_per_s and row.intensity
    )
    caption = (
        f"{title}, a point each: its area is its share of the time, its distance below the slope "
        f"its share of the memory's bandwidth. Operators without FLOPs by formula stand on the "
        f"left; there the axis means nothing."
    )
    drawn = inline(svg_text(axes), "operators", printable(title), printable(listed))
    return Picture(drawn, caption, wide=False)


def _roofless(run: RunAnalysis) -> Iterator[str]:
    """Say what is missing for a roofline, and what to do; nothing of programs without formulas."""
    if not run.workload.ranges and not run.program.by_formulas:
        return
    if not run.workload.ranges:
        yield (
            "FLOPs and bytes are unknown: give D, H, C and B as flags, or describe the program in "
            "a TOML file and name it with --workload (docs/workloads.md)."
        )
    elif run.workload.replay:
        yield "Nothing inside a CUDA graph is timed: give a report of a run without one, too."
    elif run.rates.get("P_flops") is None:
        yield "P_flops is missing: no range with GEMMs was timed; the warnings say which."
    elif run.totals.moved_bytes <= 0:
        yield "No bytes go over PCIe, MPI or between GPUs: there is no arithmetic intensity."
        present = {row.label for row in run.ranges}
        if absent := [label for label in run.workload.ranges if label not in present]:
            yield f"The workload's {_listed(absent)} not in the steps: put NVTX ranges there."
    else:
        work = amounts(run.totals)
        lacking = [n for n, rate in run.rates.items() if rate is None and work.get(n, 0) > 0]
        untimed = [
            row.label for row in run.ranges
            if (row.pci_bytes or row.peer_bytes) and row.gpu_projection_s is None
        ]  # fmt: skip
        where = f": {_listed(untimed)} without a GPU operation" if untimed else ""
        yield (
            f"No link's throughput could be fitted: {', '.join(lacking)} cannot be, as a range "
            f"with that work is missing or untimed{where}. Put the workload's ranges around the "
            f"calls that move data, and {run.traces[0].how_to_record}."
        )


def _listed(labels: Sequence[str]) -> str:
    """Name ranges as the subject of a sentence."""
    names = ", ".join(repr(label) for label in labels)
    return f"{names} is" if len(labels) == 1 else f"{names} are"


_NAMESPACE: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_NO_CHARACTERS: Final = re.compile("[\ufffe\uffff]")
_COLOR: Final = re.compile(r"#[0-9a-f]{6}")
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_DROPPED: Final = ("metadata", "style")
_FONT: Final = "font-family"


def inline(svg: str, prefix: str, title: str, description: str) -> str:
    """Return the `<svg>` element of a picture, ready to stand in a page.

    What would be styles become attributes, which a policy that allows no inline styles lets pass.
    A colour ``#abcdef`` becomes ``var(--c-abcdef, #abcdef)``: the page's style sheet can give it
    another value in the dark. Groups that the figure named get that name as their class.

    Parameters
    ----------
    svg : str
        Of `perfmodel.render.plot.svg_text`.
    prefix : str
        Put before every id; one per picture of a page.
    title, description : str
        For who cannot see it.
    """
    root = ET.fromstring(_NO_CHARACTERS.sub("\ufffd", svg))
    for element in list(root.iter()):
        element.tag = element.tag.removeprefix(_NAMESPACE)
        for child in list(element):
            if child.tag.removeprefix(_NAMESPACE) in _DROPPED:
                element.remove(child)
    used = {target for e in root.iter() for target in _targets(e)}
    for element in root.iter():
        _rewrite(element, prefix, used)
        element.text = (element.text or "").strip() or None
        element.tail = None
    _drop_paper(root)
    _describe(root, prefix, title, description)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _targets(element: ET.Element) -> Iterator[str]:
    """Yield the ids that an element refers to."""
    if _LINK in element.attrib:
        yield element.attrib[_LINK].removeprefix("#")
    for value in (element.get("clip-path"), element.get("style")):
        yield from re.findall(r"url\(#([^)]+)\)", value or "")


def _rewrite(element: ET.Element, prefix: str, used: set[str]) -> None:
    """Turn styles into attributes, ids into classes or prefixed ones, links into prefixed ones."""
    attributes = dict(element.attrib)
    name = attributes.pop("id", None)
    for item in attributes.pop("style", "").split(";"):
        key, colon, value = (part.strip() for part in item.partition(":"))
        if colon and key != _FONT:
            attributes[key] = value
    if _LINK in attributes:
        attributes["href"] = f"#{prefix}-{attributes.pop(_LINK).removeprefix('#')}"
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if name in used:
        attributes["id"] = f"{prefix}-{name}"
    elif name and not re.search(r"_\d+$", name):
        attributes["class"] = " ".join(f"g-{word}" for word in re.findall(r"[a-z0-9]+", name))
    element.attrib.clear()
    for key, value in attributes.items():
        if key in ("fill", "stroke"):
            value = _COLOR.sub(lambda m: f"var(--c-{m[0][1:]},{m[0]})", value)
        elif key in ("d", "x", "y", "transform", "width", "height"):
            value = " ".join(_LONG_NUMBER.sub(_rounded, value).split())
        element.set(key, value.replace("url(#", f"url(#{prefix}-"))


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _drop_paper(root: ET.Element) -> None:
    """Remove the white rectangles behind the figure and its axes: the page is the paper."""
    white = "var(--c-ffffff,#ffffff)"
    for group in root.iter("g"):
        for child in list(group):
            shapes = list(child)
            if child.tag == "g" and len(shapes) == 1 and shapes[0].get("fill") == white:
                alone = "stroke" not in shapes[0].attrib and shapes[0].tag == "path"
                if alone and shapes[0].get("d", "").count("L") == 3:
                    group.remove(child)


def _describe(root: ET.Element, prefix: str, title: str, description: str) -> None:
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-labelledby": f"{prefix}-t {prefix}-d"}
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(tag, {"id": f"{prefix}-{tag[0]}"})
        element.text = text
        root.insert(at, element)
