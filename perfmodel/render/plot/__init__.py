"""Figures for print and screen: the only package that imports matplotlib.

PNG, SVG and PDF files, the same bytes for the same figure, as wide as a page.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final


def _import_matplotlib() -> None:
    """Import matplotlib without the docstrings that it writes for its artists meanwhile.

    Commands write files, whatever backend the environment names; matplotlib refuses to be imported
    where it names none that there is. Where its own folder cannot be written, it takes a temporary
    one, which it need not say on the terminal.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    named = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    try:
        import_module("matplotlib")
    finally:
        if named is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = named
    artist: Any = import_module("matplotlib.artist")
    of_artist = artist.kwdoc
    artist.kwdoc = lambda _: ""
    try:
        import_module("matplotlib.figure")
    finally:
        artist.kwdoc = of_artist


# A notebook's process, in which no command runs, shows these docstrings.
if "perfmodel.cli" in sys.modules and "matplotlib.artist" not in sys.modules:
    _import_matplotlib()

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.base.files import staged_folder
from perfmodel.render.plot.bars import breakdown
from perfmodel.render.plot.lines import sweep
from perfmodel.render.plot.roofline import roofline
from perfmodel.render.plot.style import DOUBLE_IN, INK, LABEL_PT, SINGLE_IN, lay_out, new_figure

__all__ = ["breakdown", "figure_of", "panels", "quiet", "roofline", "save", "svg_text", "sweep"]

DPI: Final = 200
WIDTHS_IN: Final = {"single": SINGLE_IN, "double": DOUBLE_IN}

_SETTINGS: Final[Any] = {
    "svg.hashsalt": "perfmodel",
    "pdf.fonttype": 42,
    "path.simplify": True,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
_IN_A_PAGE: Final[Any] = {"svg.fonttype": "none"}
FORMATS: Final[dict[str, dict[str, None]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What each format leaves out, so that equal figures give equal files."""


def panels(
    width: str = "single",
    height_in: float = 2.8,
    *,
    columns: int = 1,
    rows: int = 1,
    letters: bool = True,
) -> tuple[Axes, ...]:
    """Give empty axes of one figure, row by row, to draw in with `ax=`.

    Parameters
    ----------
    width : {'single', 'double'}
        3.5 or 7.2 inches.
    height_in : float
        Height of the whole figure in inches.
    columns, rows : int
    letters : bool
        Whether several panels are marked (a), (b), ..., which captions refer to.

    Returns
    -------
    tuple of Axes
        All have one figure, ``axes[0].figure``.

    Raises
    ------
    ModelError
        If there is no such width, or no panel.
    """
    if width not in WIDTHS_IN:
        raise ModelError(f"expected a width of {' or '.join(WIDTHS_IN)}; got {width!r}")
    if columns < 1 or rows < 1:
        raise ModelError(f"expected at least one panel; got {rows} x {columns}")
    figure = new_figure(WIDTHS_IN[width], height_in)
    axes = tuple(figure.subplots(rows, columns, squeeze=False).ravel())
    if letters and len(axes) > 1:
        for i, ax in enumerate(axes):
            ax.set_title(f"({chr(ord('a') + i)})", loc="right", fontsize=LABEL_PT, color=INK)
    return axes


def save(
    picture: Figure | Axes,
    folder: Path | str,
    stem: str,
    formats: Sequence[str] = ("png", "svg", "pdf"),
) -> list[Path]:
    """Write a figure (or that of some axes) as ``folder/stem.format``, all `formats` or none.

    Nothing in a file tells when it was written, and identifiers in SVG do not change from run to
    run, so equal figures give equal files. PNG has 200 pixels per inch.

    Raises
    ------
    PerfmodelError
        If a format is unknown, `stem` is no file name, or the folder cannot be written.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise PerfmodelError(f"expected figures as {', '.join(FORMATS)}; got {unknown[0]!r}")
    if Path(stem).name != stem:
        raise PerfmodelError(f"expected a file name without folders; got {stem!r}")
    figure = figure_of(picture)
    folder = Path(folder)
    names = [f"{stem}.{fmt}" for fmt in formats]
    with staged_folder(folder) as stage, mpl.rc_context(_SETTINGS), _frozen(figure):
        for name, fmt in zip(names, formats, strict=True):
            (stage / name).write_bytes(_drawn(figure, fmt, DPI))
    return [folder / name for name in names]


def svg_text(picture: Figure | Axes) -> str:
    """Return a figure (or that of some axes) as SVG for a page: its text stays text.

    Letters are measured in DejaVu Sans, which is wider than the fonts of most pages: labels have
    room in these. Equal figures give equal text.
    """
    figure = figure_of(picture)
    with mpl.rc_context(_SETTINGS | _IN_A_PAGE), _frozen(figure):
        return _drawn(figure, "svg", DPI).decode("utf-8")


def png_bytes(picture: Figure | Axes, dpi: int = DPI) -> bytes:
    """Return a figure (or that of some axes) as PNG, with so many pixels per inch."""
    figure = figure_of(picture)
    with mpl.rc_context(_SETTINGS), _frozen(figure):
        return _drawn(figure, "png", dpi)


def _drawn(figure: Figure, fmt: str, dpi: int) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=fmt, dpi=dpi, metadata=FORMATS[fmt])
    return stream.getvalue()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop warnings of names from reports: of scripts that the font lacks, or too long."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from (current )?font", UserWarning)
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
        yield


def figure_of(picture: Figure | Axes) -> Figure:
    """Return the whole figure that some axes lie in."""
    return picture.figure.canvas.figure if isinstance(picture, Axes) else picture


@contextlib.contextmanager
def _frozen(figure: Figure) -> Iterator[None]:
    """Lay out once and round: layouts differ by format, and in the last digit from run to run."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    placed = {ax: ax.get_position() for ax in figure.get_axes() if ax.get_in_layout()}
    lay_out(figure)
    figure.set_layout_engine(None)  # "none" would draw twice for every file
    for ax in placed:
        x, y, width, height = (round(v, 6) for v in ax.get_position().bounds)
        ax.set_position((x, y, width, height))
    try:
        yield
    finally:
        for ax, place in placed.items():
            ax.set_position(place)  # the next layout begins where this one did
            ax.set_in_layout(True)
        figure.set_layout_engine(engine)
