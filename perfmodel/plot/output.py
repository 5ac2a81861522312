"""Save figures: PNG, SVG and PDF together, the same bytes for the same figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfmodel.errors import PerfmodelError
from perfmodel.files import staged_folder

DPI: Final = 200
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_SETTINGS: Final[Any] = {"svg.hashsalt": "perfmodel", "pdf.fonttype": 42, "path.simplify": True}


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
    unknown = [f for f in formats if f not in _METADATA]
    if unknown:
        raise PerfmodelError(f"wanted figures as {', '.join(_METADATA)}; found {unknown[0]!r}")
    if Path(stem).name != stem:
        raise PerfmodelError(f"wanted a file name without folders; found {stem!r}")
    figure = picture.figure.canvas.figure if isinstance(picture, Axes) else picture
    folder = Path(folder)
    names = [f"{stem}.{fmt}" for fmt in formats]
    with staged_folder(folder) as stage:
        for name, fmt in zip(names, formats, strict=True):
            (stage / name).write_bytes(_encode(figure, fmt))
    return [folder / name for name in names]


def _encode(figure: Figure, fmt: str) -> bytes:
    stream = io.BytesIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(stream, format=fmt, dpi=DPI, metadata=_METADATA[fmt])
    return stream.getvalue()
