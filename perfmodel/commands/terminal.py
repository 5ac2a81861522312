"""What standard output and standard error are: terminal or pipe, width, colour, progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from perfmodel.base.table import Table

COMPLETING = "_PERFMODEL_COMPLETE"
"""What a shell's script sets to tell the program that it is asked to complete; click's name."""
_WIDTH_OF_PIPE = 120


def one_line(message: object) -> str:
    """Return a message as one line that a terminal shows as it is."""
    from perfmodel.base.escape import printable

    return printable(str(message))


def warn(message: object) -> None:
    """Print a warning on standard error, in one line."""
    click.echo(f"perfmodel: warning: {one_line(message)}", err=True)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def terminal() -> tuple[int | None, bool]:
    """Width and colour of standard output; a pipe gets a fixed width and no colour."""
    import shutil

    if not is_terminal():
        return _WIDTH_OF_PIPE, False
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return shutil.get_terminal_size().columns, not plain


def show(tables: Iterable[Table], sentences: Iterable[str] = (), fmt: Any = "text") -> None:
    """Print tables as text with what is to be said of them, or nothing but the tables."""
    from perfmodel.base.table import render

    width, color = terminal()
    if fmt == "text":
        for table in tables:
            click.echo(render(table, "table", width=width, color=color))
        for sentence in sentences:
            click.echo(sentence)
        return
    gap = ""
    for table in tables:
        said = gap + render(table, fmt)
        if fmt == "csv" and is_terminal():
            said = "\n".join(map(one_line, said.split("\n")))
        click.echo(said, nl=False)
        gap = "" if fmt == "jsonl" else "\n"


class Progress:
    """A progress bar on standard error, only where that is a terminal and takes a while."""

    def __init__(self, total: int, quiet: bool) -> None:
        seen = sys.stderr is not None and sys.stderr.isatty()
        self._total, self._shown = total, seen and not quiet
        self._bar: Any = None

    def __enter__(self) -> Callable[..., None]:
        if not self._shown:
            return lambda _, amount=1: None
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("", total=self._total)
        return lambda text, amount=1: self._bar.update(
            task, description=one_line(text), advance=amount
        )

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
