from __future__ import annotations

import functools
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

from benchmarks.common.folders import ROOT
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.models.roofline import Point, Roofline
from perfmodel.programs.facts import OperatorRow
from perfmodel.render.plot import breakdown, roofline, save, sweep
from perfmodel.render.plot.bars import CLOCKS, pairs
from perfmodel.render.plot.labels import ordered_colors
from perfmodel.render.plot.operators import operators
from perfmodel.render.plot.style import wrap


class BreakdownRow(NamedTuple):
    path: tuple[str, ...]
    host_s: float | None
    gpu_projection_s: float | None = None
    gpu_busy_s: float | None = None


HALVES = {"pci": 0.5, "mpi": 0.5}
DOCUMENT = Roofline("report1", 1.63e12, {"pci": 1.272e10, "mpi": 7.95e9}, HALVES)
FASTER = Roofline("h200x2_base", 3.1e13, {"pci": 2.1e10, "mpi": 4.2e9}, HALVES)
FLOPS = 4 * 1500 * 512 * 794
INTENSITY = FLOPS / 6_512_800  # 374.5 FLOP/byte
BATCH, STEP = "batch iteration", "forward + backward + step"
KINDS = ((BATCH, 4.958e-3), (STEP, 2.910e-3))


def run(group: str, speedup: float = 1.0, shift: float = 1.0) -> list[Point]:
    return [
        Point(f"{group}: {kind}", kind, group, INTENSITY * shift, FLOPS / seconds * speedup)
        for kind, seconds in KINDS
    ]


def swept(kinds: int = 1) -> list[Point]:
    points = []
    for h in (64, 128, 256, 512, 1024, 2048):
        for b in (1000, 3000, 6000, 12000):
            flops, moved = 2.0 * b * h * 794, 16.0 * (h * 794 + h + 10)
            for kind, loss_s in ((BATCH, 1.2e-3), (STEP, 2e-4))[:kinds]:
                seconds = flops / 1.63e12 * (512 / h) ** 0.25 + moved / 9.785e9 + loss_s
                name = f"H{h}B{b}"
                values = {"D": 784, "H": h, "C": 10, "B": b, "p": 2}
                rate = flops / seconds
                points.append(
                    Point(f"{name}: {kind}", kind, name, flops / moved, rate, symbols=values)
                )
    return points


SPREAD = [
    Point(name, BATCH, "r", x, y)
    for name, x, y in (
        ("H=64, B=1000", 20, 1.2e11),
        ("H=512, B=3000", 375, 4.9e11),
        ("H=2048, B=12000", 4000, 1.2e12),
        ("H=128, B=3000", 370, 1.5e11),
        ("H=64, B=12000", 1490, 6e10),
    )
]
ERRORS = [
    Point("with bars", BATCH, "report1", INTENSITY, 4.9e11, 3.5e11, 7e11),
    Point("without", BATCH, "report1", 60.0, 1e11),
]
CASES = {
    "no points": ([DOCUMENT], []),
    "document": ([DOCUMENT], run("report1")),
    "error bars": ([DOCUMENT], ERRORS),
    "four crowded": ([FASTER], run("h200x2_base", 2.6) + run("h200x2_pinned", 3.2)),
    "two roofs": ([DOCUMENT, FASTER], run("report1") + run("h200x2_base", 2.6, 4.0)),
    "six crowded": (
        [DOCUMENT, FASTER],
        run("h200x2_base", 2.6) + run("h200x2_pinned", 3.2) + run("h200x2_h2048", 5.5, 1.02),
    ),
    "spread": ([DOCUMENT], SPREAD),
    "sweep": ([DOCUMENT], swept()),
    "sweep of two kinds": ([DOCUMENT], swept(2)),
}
B = (BATCH,)
ROWS = [
    BreakdownRow(B, 4.958e-3, 3.571e-3, 3.1e-3),
    BreakdownRow((*B, "copying images host -> device"), 2.002e-3, 574.8e-6, 570e-6),
    BreakdownRow((*B, "forward"), 698.6e-6, 682.1e-6, 671e-6),
    BreakdownRow((*B, "forward", "forward GEMM 1"), 6.166e-6, 470.879e-6, 470.879e-6),
    BreakdownRow((*B, "backward", "MPI_Allreduce"), 409.6e-6, None, None),
    BreakdownRow((*B, "lost"), None, None, None),
    BreakdownRow((*B, "step"), 55.3e-6, 44.6e-6, 40e-6),
]


def draw(ax: Axes) -> None:
    ax.figure.canvas.figure.draw_without_rendering()


def panel(width: float, height: float) -> Axes:
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def boxes(ax: Axes) -> dict[str, np.ndarray]:
    """Extents in pixels of every text that is seen, by the text and a running number."""
    draw(ax)
    return extents(ax)


def extents(ax: Axes) -> dict[str, np.ndarray]:
    texts = [*ax.texts, ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
    texts += [t for c in ax.get_children() if isinstance(c, Legend) for t in c.get_texts()]
    texts += [t for c in ax.get_children() if isinstance(c, Text) for t in [c]]
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    seen = {id(t): t for t in texts if t.get_text().strip() and t.get_visible()}
    return {
        f"{i} {t.get_text()!r}": np.array(t.get_window_extent().extents)
        for i, t in enumerate(seen.values())
    }


def overlap(a: np.ndarray, b: np.ndarray, slack: float = 0.5) -> Any:
    """Whether boxes lie over each other: two, or two arrays of them."""
    return (a[..., :2] < b[..., 2:] - slack).all(-1) & (b[..., :2] < a[..., 2:] - slack).all(-1)


def collisions(found: dict[str, np.ndarray]) -> list[tuple[str, str]]:
    names, extents = [*found], np.array([*found.values()])
    over = np.triu(overlap(extents[:, None], extents[None, :]), 1)
    return [(names[i], names[j]) for i, j in np.argwhere(over).tolist()]


def clipped(ax: Axes, found: dict[str, np.ndarray]) -> list[str]:
    canvas = ax.figure.canvas.figure.bbox.extents
    return [
        n
        for n, e in found.items()
        if (e[:2] < canvas[:2] - 1).any() or (e[2:] > canvas[2:] + 1).any()
    ]


def points_of(ax: Axes) -> list[Line2D]:
    """Markers without a line, without the rings around some."""
    return [li for li in ax.lines if li.get_ls() == "None" and li.get_markerfacecolor() != "none"]


def legend_texts(ax: Axes) -> list[str]:
    legends = [c for c in ax.get_children() if isinstance(c, Legend)]
    return [t.get_text().replace("\n", " ") for one in legends for t in one.get_texts()]


@functools.cache
def picture(name: str, width: float | None = None) -> Axes:
    """A case's figure as it is drawn, of its own size or `width` inches wide."""
    roofs, points = CASES[name]
    listed = width is not None and width <= 5.0 and len(points) > 2  # legends below need height
    ax = None if width is None else panel(width, 6.0 if listed else 3.7)
    ax = roofline(roofs, points, ax=ax, title=name)
    draw(ax)
    return ax


@pytest.mark.parametrize("name", CASES)
def test_roofline_is_logarithmic_and_shows_everything(name: str) -> None:
    roofs, points = CASES[name]
    ax = picture(name)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlabel() == "Arithmetic intensity (FLOP per byte over PCIe and MPI)"
    assert ax.get_ylabel() == "Performance per GPU (FLOP/s)"
    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    for point in points:
        low = point.low_flops_per_s or point.flops_per_s
        high = point.high_flops_per_s or point.flops_per_s
        assert x0 * 2 < point.intensity_flops_per_byte < x1 / 2
        assert y0 * 2 < low <= high < y1 / 1.5
    for roof in roofs:
        assert x0 * 10 < roof.ridge_flops_per_byte < x1 / 10
        assert y0 * 5 < roof.flops_per_s < y1 / 2
    assert len({t.label1.get_text() for t in ax.yaxis.get_major_ticks()} - {""}) >= 2


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *((name, None) for name in CASES),
        *((name, 3.5) for name in ("document", "error bars", "six crowded", "sweep")),
        ("sweep of two kinds", 5.0),
    ],
)
def test_no_text_of_a_roofline_touches_another_or_a_marker(name: str, width: float | None) -> None:
    ax = picture(name, width)
    found = extents(ax)
    assert collisions(found) == []
    assert clipped(ax, found) == []


def test_document_figure_says_how_far_below_the_roof_the_points_are() -> None:
    """Smooth roof at 374.5 FLOP/byte: 374.5 / (374.5/1.63e12 + 1.0221e-10) = 1.1280e12 FLOP/s."""
    ax = picture("document")
    assert legend_texts(ax)[-3:] == [
        "ridge 167 FLOP/byte, 1.63 TFLOP/s",
        "batch iteration 44 % of the model",
        "forward + backward + step 74 % of the model",
    ]
    lines = {round(line.get_xdata()[0]): line for line in ax.lines if line.get_ls() == ":"}
    assert set(lines) == {375}
    assert lines[375].get_ydata()[1] == pytest.approx(1.1280e12, rel=1e-3)


def test_second_kind_is_hollow() -> None:
    ax = picture("document")
    faces = [li.get_markerfacecolor() for li in ax.lines if li.get_ls() == "None"][-2:]
    assert faces[0] != "white"
    assert faces[1] == "white"


def test_points_of_several_runs_differ_without_colour() -> None:
    ax = picture("six crowded")
    marks = points_of(ax)
    looks = {(li.get_marker(), li.get_markerfacecolor() == "white") for li in marks[-6:]}
    assert len(looks) == 6
    told = legend_texts(ax)  # a report's marker and colour once, and what hollow ones are
    assert [t for t in told if "pinned" in t] == ["h200x2_pinned"]
    assert told[-2:] == ["batch iteration", "forward + backward + step"]


def test_points_of_one_place_stand_there_and_none_hides_another() -> None:
    near = [Point(f"n{i}", BATCH, f"r{i}", 100.0, 1e10 * (1 + i / 500)) for i in range(4)]
    for width in (None, 3.5):
        ax = roofline(DOCUMENT, near, ax=None if width is None else panel(width, 6.0))
        draw(ax)
        drawn = points_of(ax)[-4:]
        assert [(li.get_xdata()[0], li.get_ydata()[0]) for li in drawn] == [
            (p.intensity_flops_per_byte, p.flops_per_s) for p in near
        ]
        assert all(li.get_transform() == ax.transData for li in drawn)
        sizes = [li.get_markersize() for li in drawn]
        assert min(-np.diff(sizes)) > 2, "the first is below the others, and larger"


def test_points_above_the_model_have_a_ring_that_the_legend_explains() -> None:
    smooth = float(DOCUMENT.smooth(100.0))
    points = [Point(f"n{i}", BATCH, "r", 100.0, smooth * f) for i, f in enumerate((0.5, 1.1))]
    ax = roofline(DOCUMENT, points)
    rings = [li for li in ax.lines if li.get_markerfacecolor() == "none"]
    assert [li.get_ydata()[0] for li in rings] == [smooth * 1.1]
    assert "above the model" in legend_texts(ax)
    assert "above the model" not in legend_texts(roofline(DOCUMENT, points[:1]))


def test_many_points_are_keyed_by_their_symbols() -> None:
    ax = picture("sweep of two kinds")
    texts = legend_texts(ax)
    assert [t for t in texts if t.replace(",", "").isdigit()] == [
        "64", "128", "256", "512", "1,024", "2,048", "1,000", "3,000", "6,000", "12,000",
    ]  # fmt: skip
    assert texts[-2:] == [BATCH, STEP]
    marks = points_of(ax)[-48:]
    looks = {(li.get_marker(), li.get_color(), li.get_markerfacecolor() == "white")
             for li in marks}  # fmt: skip
    assert len(looks) == 48


def test_many_points_without_symbols_are_listed() -> None:
    points = [Point(f"n{i}", BATCH, "r", 100.0, 1e10 * (i + 1)) for i in range(12)]
    ax = roofline(DOCUMENT, points)
    assert legend_texts(ax)[-12:] == [p.label for p in points]
    marks = [li for li in ax.lines if li.get_ls() == "None"][-12:]
    assert len({(li.get_marker(), li.get_color()) for li in marks}) == 12


def test_roof_of_the_same_name_is_the_one_compared_with() -> None:
    ax = roofline([DOCUMENT, FASTER], run("h200x2_base", 1.0))
    roof = float(FASTER.smooth(INTENSITY))
    share = f"{100 * FLOPS / 4.958e-3 / roof:.0f} % of the model"
    assert share in " ".join(legend_texts(ax))


def test_ceiling() -> None:
    ax = roofline(
        DOCUMENT, run("report1"), ceiling_flops_per_s=6.7e13, ceiling_label="H200 fp32 peak"
    )
    assert ax.get_ylim()[1] > 6.7e13
    assert "H200 fp32 peak, 67.0 TFLOP/s" in legend_texts(ax)
    assert collisions(boxes(ax)) == []
    assert {"100 GFLOP/s", "1 TFLOP/s"} <= {t.label1.get_text() for t in ax.yaxis.get_major_ticks()}


def test_a_long_name_of_the_machine_is_cut_to_the_axes() -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition " + 99 * "W" + " float32 peak"
    ax = roofline(
        DOCUMENT, run("report1"), ax=panel(3.0, 3.0), ceiling_flops_per_s=1.1e14,
        ceiling_label=name,
    )  # fmt: skip
    draw(ax)
    (text,) = [t for t in legend_texts(ax) if "110 TFLOP/s" in t]
    assert text.startswith("NVIDIA")
    assert "…" in text


def test_bad_input_is_refused() -> None:
    with pytest.raises(ModelError, match="at least one roofline"):
        roofline([], [])
    for x, y in ((0.0, 1e12), (10.0, float("nan")), (float("inf"), 1e12)):
        with pytest.raises(ModelError, match="positive, finite points; got 'bad'"):
            roofline(DOCUMENT, [Point("bad", BATCH, "g", x, y)])
    with pytest.raises(ModelError, match="ceiling must be positive"):
        roofline(DOCUMENT, ceiling_flops_per_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_hidden", "$x^{$ \\$", "a\nb\x1b[31m", ""])
def test_any_name_can_be_drawn(name: str) -> None:
    points = [Point(name, name, name, 100.0 * (i + 1), 1e11 * (i + 1)) for i in range(10)]
    roofs = [DOCUMENT, Roofline(name, 1e13, {"pci": 1e10}, {"pci": 1.0})]
    ax = roofline(roofs, points, title=name, ceiling_flops_per_s=1e14, ceiling_label=name)
    draw(ax)
    assert any(t.strip() == "_hidden" for t in legend_texts(ax)) == (name == "_hidden")
    draw(roofline(DOCUMENT, points[:2], title=name))
    draw(breakdown([BreakdownRow((name,), 1.0)], title=name))


@pytest.mark.parametrize("width", [None, 3.5, 5.0])
def test_breakdown_texts_do_not_touch(width: float | None) -> None:
    ax = breakdown(ROWS, ax=None if width is None else panel(width, 4.0), title="Batch")
    found = boxes(ax)
    assert collisions(found) == []
    assert clipped(ax, found) == []


def test_breakdown_shows_values_shares_and_the_tree() -> None:
    ax = breakdown(ROWS)
    texts = [t.get_text() for t in ax.texts]
    assert texts[:3] == ["4.96 ms  100 %", "3.57 ms  72 %", "3.10 ms  63 %"]
    assert "410 µs  8.3 %" in texts
    assert len(ax.patches) == len(texts) == 3 * 5 + 1, "what is missing has no bar and no value"
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert names[0] == BATCH
    assert names[3] == "\u2003\u2003forward GEMM 1"
    assert ax.get_ylim()[0] > ax.get_ylim()[1], "the batch is at the top"
    assert legend_texts(ax) == ["host time", "GPU projection", "GPU busy"]
    assert ax.figure.get_figwidth() == 7.2


def test_breakdown_of_a_host_that_queues_says_what_its_bars_are() -> None:
    ax = breakdown(ROWS, queued=True)
    assert legend_texts(ax)[0] == "step: until done; ranges: host, queueing"
    assert legend_texts(ax)[1:] == ["GPU projection", "GPU busy"]


def test_breakdown_without_a_gpu_has_one_bar_a_row() -> None:
    ax = breakdown([BreakdownRow(r.path, r.host_s) for r in ROWS])
    assert legend_texts(ax) == ["host time"]
    assert len(ax.patches) == 6


def test_breakdown_refuses_a_batch_without_time() -> None:
    for rows in ([], [BreakdownRow(B, None)], [BreakdownRow(B, 0.0)]):
        with pytest.raises(ModelError, match="time of the step"):
            breakdown(rows)


def test_long_names_are_shortened_in_the_middle() -> None:
    name = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>(Params)"
    ax = breakdown([BreakdownRow((name,), 1.0)])
    shown = ax.get_yticklabels()[0].get_text()
    assert len(shown) <= 40
    head, tail = shown.split("…")
    assert name.startswith(head)
    assert name.endswith(tail)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 3.5])
def test_long_names_of_reports_fit(width: float | None) -> None:
    name = "h200x2_2ranks_pinned_nsys2025.3.1_of_a_long_and_careful_series"
    title = f"Roofline of {name}"
    for draw_into in (
        lambda ax: roofline(DOCUMENT, run(name) + run(name.upper(), 1.3), ax=ax, title=title),
        lambda ax: breakdown(ROWS, ax=ax, title=title),
        lambda ax: sweep(swept(), ax=ax, title=title),
    ):
        ax = draw_into(None if width is None else panel(width, 7.0))
        found = boxes(ax)
        assert collisions(found) == []
        assert clipped(ax, found) == []


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("forward + backward + step", ["forward + backward", "+ step"]),
        ("h200x2_2ranks_pinned", ["h200x2_2ranks_", "pinned"]),
        ("a" * 20, ["a" * 18, "aa"]),
        ("", [""]),
    ],
)
def test_names_break_where_words_end(name: str, lines: list[str]) -> None:
    assert wrap(name, 18).split("\n") == lines


def luminance(color: str) -> float:
    return float(np.dot(to_rgb(color), (0.2126, 0.7152, 0.0722)))


def test_colours_differ_in_grey() -> None:
    for colors in ([c for _, _, c in CLOCKS], ordered_colors(4)):
        greys = sorted(map(luminance, colors))
        assert min(np.diff(greys)) > 0.1


@pytest.mark.parametrize(("kinds", "width"), [(1, None), (2, 3.5)])
def test_sweep(width: float | None, kinds: int) -> None:
    ax = None if width is None else panel(width, 3.6)
    ax = sweep(swept(kinds), DOCUMENT, ax=ax, title="Sweep")
    assert len(ax.lines) == 6 * kinds + 6, "a line and a prediction for every H"
    assert legend_texts(ax)[:6] == [f"H = {h:,}" for h in (64, 128, 256, 512, 1024, 2048)]
    found = boxes(ax)
    assert collisions(found) == []
    assert clipped(ax, found) == []
    assert legend_texts(ax)[-1] == "model: no overlap"


def test_sweep_needs_symbols() -> None:
    with pytest.raises(ModelError, match="values of B and H"):
        sweep(run("report1"))
    with pytest.raises(ModelError, match="values of B and H"):
        sweep([])


def test_sweep_of_one_point() -> None:
    draw(sweep(swept()[:1]))


@pytest.mark.slow
def test_saved_files_are_the_same_every_time(tmp_path: Path) -> None:
    ax = roofline(*CASES["document"], title="t")
    first = save(ax.figure, tmp_path / "a", "roof")
    assert [p.name for p in first] == ["roof.png", "roof.svg", "roof.pdf"]
    second = save(ax, tmp_path / "b", "roof")
    rebuilt = save(roofline(*CASES["document"], title="t"), tmp_path / "c", "roof")
    for one, two, three in zip(first, second, rebuilt, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes()
    assert b"date" not in (tmp_path / "a" / "roof.svg").read_bytes().lower()
    assert b"CreationDate" not in (tmp_path / "a" / "roof.pdf").read_bytes()
    header = (tmp_path / "a" / "roof.png").read_bytes()
    assert int.from_bytes(header[16:20], "big") == 1440, "7.2 inches at 200 dpi"


def test_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ax = roofline(DOCUMENT)
    (tmp_path / "roof.png").write_bytes(b"old")

    def interrupted(_: Figure, stream: io.BytesIO, **how: object) -> None:
        if how["format"] == "pdf":
            raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(ax, tmp_path, "roof")
    assert [p.name for p in tmp_path.iterdir()] == ["roof.png"]
    assert (tmp_path / "roof.png").read_bytes() == b"old"


def test_save_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    figure = Figure()
    with pytest.raises(PerfmodelError, match="png, svg, pdf; got 'gif'"):
        save(figure, tmp_path, "a", ("png", "gif"))
    with pytest.raises(PerfmodelError, match="without folders"):
        save(figure, tmp_path, "../a")
    (tmp_path / "file").write_text("")
    with pytest.raises(PerfmodelError, match="expected to write"):
        save(figure, tmp_path / "file", "a")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


_PICTURE = (
    "{first}from perfmodel.render.plot import roofline, save; "
    "from perfmodel.models.roofline import Roofline;"
    "ax = roofline(Roofline('r', 1e12, {{'pci': 1e10}}, {{'pci': 1.0}}));"
    "save(ax, {folder!r}, 'r')"
)


@pytest.mark.slow
def test_a_commands_pictures_are_those_of_a_notebook(tmp_path: Path) -> None:
    """What commands spare of matplotlib's import is in no picture."""
    for name, first in (("command", "import perfmodel.cli; "), ("notebook", "")):
        code = _PICTURE.format(first=first, folder=str(tmp_path / name))
        code += "; from matplotlib.lines import Line2D; print(len(Line2D.set.__doc__))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert (int(done.stdout) > 1000) is (name == "notebook")
    for fmt in ("png", "svg", "pdf"):
        one, other = (
            (tmp_path / name / f"r.{fmt}").read_bytes() for name in ("command", "notebook")
        )
        assert one == other


def test_pairs_stand_below_each_other_with_their_verdicts() -> None:
    some = [
        SimpleNamespace(name="step", before_s=2e-3, after_s=1e-3, verdict="faster"),
        SimpleNamespace(name="copy", before_s=5e-4, after_s=None, verdict="only before"),
    ]
    ax = pairs(some, ("before: a", "after: b"), title="t")
    assert legend_texts(ax) == ["before: a", "after: b"]
    assert [t.get_text() for t in ax.texts] == [
        "2.00 ms → 1.00 ms, faster", "500 µs → none, only before",
    ]  # fmt: skip
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [2e-3, 1e-3, 5e-4, 0.0]
    assert clipped(ax, boxes(ax)) == []
    with pytest.raises(ModelError, match="times to draw"):
        pairs([SimpleNamespace(before_s=None, after_s=None)], ("a", "b"))


def test_an_operator_without_flops_keeps_its_distance_from_the_slope() -> None:
    """Half of 1 TB/s stands at half of the slope's height, wherever in the strip."""
    product = operator("aten::mm", flops=1e12, moved=1e10, seconds=0.02)
    others = [operator(f"aten::o{i}", flops=None, moved=1e10, seconds=0.02) for i in range(3)]
    ax = operators([product], [product, *others], {"TC": 1e14}, 1e12)
    points = [made.get_offsets()[0] for made in ax.collections]
    assert len(points) == 4
    (x, y), *rest = sorted(points, key=lambda at: -at[0])
    assert (x, y) == pytest.approx((100.0, 5e13))
    assert [y / (1e12 * x) for x, y in rest] == pytest.approx([0.5] * 3)
    assert max(x for x, _ in rest) < 50
    assert {"TC, 100 TFLOP/s", "DRAM, 1.00 TB/s"} <= set(legend_texts(ax))
    assert "no FLOPs by formula" in [t.get_text() for t in ax.texts]
    assert [t for t in legend_texts(ax) if "area" in t] == [
        "area: 10 % of the time", "area: 1 % of the time",
    ]  # fmt: skip


def operator(name: str, *, flops: float | None, moved: float, seconds: float) -> OperatorRow:
    return OperatorRow(
        name=name, phase="forward", dtype="float16", dtype_from="", unit="TC", sizes="",
        count=1.0, kernels=1.0, flops=flops, read_bytes=moved, write_bytes=0.0, bytes=moved,
        gpu_s=seconds, share=0.25, intensity=flops / moved if flops else None,
        flops_per_s=flops / seconds if flops else None, bytes_per_s=moved / seconds, bound=None,
        of_ceiling=None,
    )  # fmt: skip
