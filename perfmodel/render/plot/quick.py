"""Spares commands what matplotlib and fontTools do for others; nothing of it is in a picture.

Imported before matplotlib. In a process that no command runs in, such as a notebook's, matplotlib
is imported as it is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

_LAYOUT_TABLES: Final = ["GDEF", "GPOS", "GSUB", "MATH", "kern"]
"""Of a font: how a text becomes glyphs, which in a PDF it is already."""


def import_matplotlib() -> None:
    """Import matplotlib without the docstrings that it writes for its artists meanwhile."""
    artist: Any = import_module("matplotlib.artist")
    of_artist = artist.kwdoc
    artist.kwdoc = lambda _: ""
    try:
        import_module("matplotlib.figure")
    finally:
        artist.kwdoc = of_artist


@contextlib.contextmanager
def small_fonts() -> Iterator[None]:
    """Leave the tables for setting text out of the fonts that are embedded."""
    options: Any = import_module("fontTools.subset").Options
    usual = getattr(options, "_drop_tables_default", [])
    options._drop_tables_default = [*usual, *_LAYOUT_TABLES]
    try:
        yield
    finally:
        options._drop_tables_default = usual


if "perfmodel.cli" in sys.modules and "matplotlib.artist" not in sys.modules:
    import_matplotlib()
