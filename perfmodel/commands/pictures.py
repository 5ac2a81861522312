"""The option -o of commands that draw one picture, and the writing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

PICTURE = click.option(
    "--out", "-o", type=click.Path(path_type=Path), metavar="FILE.png",
    help="Draw to this file: .png, .svg or .pdf.",
)  # fmt: skip


def picture_bytes(figure: Any) -> bytes:
    """Return a figure as PNG, for standard output."""
    import tempfile

    from perfmodel.render.plot import save

    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        return save(figure, folder, "picture", ("png",))[0].read_bytes()


def write_picture(figure: Any, out: Path, *, option: str = "-o") -> None:
    """Write a figure to the file named, in the format that its name says."""
    from perfmodel.render.plot import save

    kind = out.suffix.removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise click.BadParameter(
            f"wanted a file that ends in .png, .svg or .pdf; found {out.name!r}", param_hint=option
        )
    for written in save(figure, out.parent, out.stem, (kind,)):
        click.echo(f"Written: {written}", err=True)
