"""Exports a figure as a write-up needs it: SVG, PDF, and a caption that stands alone."""

from __future__ import annotations

import base64
import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import write_text
from writeup.shipped import repository

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES_VARIABLE: Final = "PERFMODEL_FIGURES"
SHORTEST_CAPTION: Final = 60
"""Letters; less cannot say what is drawn, of what, and what is seen."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A figure that has been written; a notebook shows it above its caption.

    Attributes
    ----------
    name : str
        Of the files, without suffix; a write-up's label.
    caption : str
        Plain text, one paragraph, no markup.
    files : tuple of Path
        SVG, PDF, PNG and the JSON document with the caption.
    """

    name: str
    caption: str
    files: tuple[Path, ...]

    def _repr_html_(self) -> str:
        png = next(path for path in self.files if path.suffix == ".png")
        data = base64.b64encode(png.read_bytes()).decode("ascii")
        text = html.escape(self.caption)
        return (
            f'<figure><img alt="{text}" style="max-width: 100%" '
            f'src="data:image/png;base64,{data}"><figcaption><b>{html.escape(self.name)}.</b> '
            f"{text}</figcaption></figure>"
        )


def export(
    picture: Figure | Axes, name: str, caption: str, *, folder: Path | str | None = None
) -> Exported:
    """Write ``name.svg``, ``name.pdf``, ``name.png`` and ``name.json``, which holds the caption.

    Parameters
    ----------
    picture : Figure or Axes
        Of any function of `perfmodel.render.plot`; see `perfmodel.render.plot.panels` for the widths of a page.
    name : str
        Such as 'fig02_discrepancy'.
    caption : str
        What is drawn, of which report or run, and what is seen; its numbers computed from the
        data. Line breaks become blanks.
    folder : Path or str, optional
        $PERFMODEL_FIGURES by default, else out/figures of the repository.

    Raises
    ------
    PerfmodelError
        If the caption cannot stand alone, or the folder cannot be written.
    """
    from perfmodel.render import plot

    said = " ".join(caption.split())
    if len(said) < SHORTEST_CAPTION or not said.endswith("."):
        raise PerfmodelError(
            f"expected a caption of whole sentences, {SHORTEST_CAPTION} letters at least; got "
            f"{said!r}; say what is drawn, of which run, and what is seen"
        )
    into = figures_folder() if folder is None else Path(folder)
    files = plot.save(picture, into, name)
    width_in, height_in = (round(float(v), 2) for v in plot.figure_of(picture).get_size_inches())
    document = {"name": name, "caption": said, "width_in": width_in, "height_in": height_in}
    described = into / f"{name}.json"
    write_text(described, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return Exported(name, said, (*files, described))


def answer(name: str, text: str, *, folder: Path | str | None = None) -> str:
    r"""Write ``name.txt``: a paragraph of the report, shown there by ``\perfanswer{name}``.

    Parameters
    ----------
    name : str
        Such as 'q14', of Question 1.4.
    text : str
        Plain text whose numbers are computed from the data. Line breaks become blanks.

    Returns
    -------
    str
        The paragraph.
    """
    said = " ".join(text.split())
    into = figures_folder() if folder is None else Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    write_text(into / f"{name}.txt", said + "\n")
    return said


def figures_folder() -> Path:
    """Return where figures are written: $PERFMODEL_FIGURES, else out/figures of the repository."""
    chosen = os.environ.get(FIGURES_VARIABLE)
    return Path(chosen) if chosen else repository() / "out" / "figures"
