"""Draws a figure once, in several formats: what its artists draw goes to a renderer of each."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, TransformedPath
from PIL import Image

from perfmodel.base.errors import ModelError

_SAME: Final = Affine2D()
POINTS: Final = 72
"""Per inch: the unit of the vector formats, in which the figure is drawn."""
_PNG_LEVEL: Final = 3
"""Of compression: figures are not larger than at 6, which takes half as long again."""
_LAYOUT_TABLES: Final = ["GDEF", "GPOS", "GSUB", "MATH", "kern"]
"""Of a font: how a text becomes glyphs, which in a PDF it is already."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure in one format while it is drawn: its renderer, and what makes its bytes then."""

    renderer: Any
    dpi: int
    finish: Callable[[], bytes]


def _backend(name: str) -> Any:
    """Import one of matplotlib's, none of which has types."""
    return import_module(f"matplotlib.backends.backend_{name}")


@contextlib.contextmanager
def _small_fonts() -> Iterator[None]:
    """Leave the tables for setting text out of the fonts that are embedded."""
    options: Any = import_module("fontTools.subset").Options
    usual = getattr(options, "_drop_tables_default", [])
    options._drop_tables_default = [*usual, *_LAYOUT_TABLES]
    try:
        yield
    finally:
        options._drop_tables_default = usual


def png(figure: Figure, dpi: int) -> Sheet:
    """Make a picture of pixels, without transparency."""
    width, height = (int(inches * dpi + 1e-8) for inches in figure.get_size_inches())
    renderer = _backend("agg").RendererAgg(width, height, dpi)

    def finish() -> bytes:
        stream = io.BytesIO()
        size = (width, height)
        image = Image.frombuffer("RGBA", size, renderer.buffer_rgba(), "raw", "RGBA", 0, 1)
        image = image.convert("RGB")
        image.save(stream, "png", dpi=(dpi, dpi), compress_level=_PNG_LEVEL)
        return stream.getvalue()

    return Sheet(renderer, dpi, finish)


def svg(figure: Figure, dpi: int) -> Sheet:
    """Make a picture of paths, without a date."""
    stream = io.StringIO()
    width, height = (POINTS * inches for inches in figure.get_size_inches())
    nothing = {"Date": None, "Creator": None}
    renderer = _backend("svg").RendererSVG(width, height, stream, image_dpi=dpi, metadata=nothing)

    def finish() -> bytes:
        renderer.finalize()
        return stream.getvalue().encode("utf-8")

    return Sheet(renderer, POINTS, finish)


def pdf(figure: Figure, dpi: int) -> Sheet:
    """Make one page, without a date."""
    stream = io.BytesIO()
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    backend = _backend("pdf")
    file = backend.PdfFile(stream, metadata=nothing)
    width, height = figure.get_size_inches()
    file.newPage(width, height)
    renderer = backend.RendererPdf(file, dpi, height, width)

    def finish() -> bytes:
        renderer.finalize()
        with _small_fonts():
            file.finalize()
        file.close()
        return stream.getvalue()

    return Sheet(renderer, POINTS, finish)


class Copies(RendererBase):
    """Passes everything that is drawn, in points, on to the renderer of every sheet.

    Texts are measured once, in the vector formats' letters.
    """

    def __init__(self, width: float, height: float, sheets: Sequence[Sheet]) -> None:
        super().__init__()
        self.width, self.height = width, height
        self._sheets = [(one.renderer, Affine2D().scale(one.dpi / POINTS)) for one in sheets]

    def flipy(self) -> bool:
        """Whether vertical places of texts count from the top."""
        return False

    def get_canvas_width_height(self) -> tuple[float, float]:
        """Width and height in points."""
        return self.width, self.height

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        """Measure a line of text."""
        return text_to_path.get_text_width_height_descent(s, prop, ismath)

    def open_group(self, s: str, gid: str | None = None) -> None:
        """Begin a group, which some formats name."""
        for renderer, _ in self._sheets:
            renderer.open_group(s, gid)

    def close_group(self, s: str) -> None:
        """End a group."""
        for renderer, _ in self._sheets:
            renderer.close_group(s)

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:  # noqa: N803
        """Draw a line or an area."""
        for renderer, own, larger in self._each(gc):
            renderer.draw_path(own, path, transform + larger, rgbFace)

    def draw_markers(
        self, gc: Any, marker_path: Any, marker_trans: Any, path: Any, trans: Any,
        rgbFace: Any = None,  # noqa: N803
    ) -> None:  # fmt: skip
        """Draw a marker at every point of a path."""
        for renderer, own, larger in self._each(gc):
            shape, place = marker_trans + larger, trans + larger
            renderer.draw_markers(own, marker_path, shape, path, place, rgbFace)

    def draw_path_collection(
        self, gc: Any, master_transform: Any, paths: Any, all_transforms: Any, offsets: Any,
        offset_trans: Any, *more: Any, **named: Any,
    ) -> None:  # fmt: skip
        """Draw many paths that share their looks."""
        for renderer, own, larger in self._each(gc):
            shape, place = (master_transform + larger).frozen(), (offset_trans + larger).frozen()
            renderer.draw_path_collection(
                own, shape, paths, all_transforms, offsets, place, *more, **named
            )

    def draw_image(self, *_: Any, **__: Any) -> None:
        """Refuse an image, which has pixels of its own."""
        raise ModelError(
            "expected a figure of lines, areas and texts; got one with an image; write it with "
            "its own savefig"
        )

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float,
        ismath: Any = False, mtext: Any = None,
    ) -> None:  # fmt: skip
        """Write a line of text."""
        for renderer, own, larger in self._each(gc):
            up = self.height - y if renderer.flipy() else y
            place = larger.transform((x, up))
            renderer.draw_text(own, *place, s, prop, angle, ismath, mtext)

    def _each(self, gc: Any) -> Iterator[tuple[Any, Any, Affine2D]]:
        """Yield every renderer, its context with the picture's clipping, and its pixels a point."""
        for renderer, larger in self._sheets:
            own = renderer.new_gc()
            own.copy_properties(gc)
            frame, (path, transform) = gc.get_clip_rectangle(), gc.get_clip_path()
            if frame is not None and larger != _SAME:  # an equal frame is another one for a PDF
                own.set_clip_rectangle(frame.transformed(larger))
            if path is not None and larger != _SAME:
                own.set_clip_path(TransformedPath(path, transform + larger))
            yield renderer, own, larger
            own.restore()


FORMATS: Final[Mapping[str, Callable[[Figure, int], Sheet]]] = {"png": png, "svg": svg, "pdf": pdf}


def draw(figure: Figure, formats: Sequence[str], dpi: int) -> list[bytes]:
    """Draw a figure, placed as it is, and return it in every one of `FORMATS` that is asked for.

    Raises
    ------
    ModelError
        If it holds an image.
    """
    sheets = [FORMATS[fmt](figure, dpi) for fmt in formats]
    width, height = (POINTS * inches for inches in figure.get_size_inches())
    before = figure.dpi
    figure.dpi = POINTS
    try:
        figure.draw(Copies(width, height, sheets))
    finally:
        figure.dpi = before
    return [one.finish() for one in sheets]
