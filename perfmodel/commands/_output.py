"""What a command prints and writes: results in every format, files, pictures, progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from perfmodel.readers.trace import Trace
    from perfmodel.render.result import Result

STDOUT: Final = Path("-")
_PIPE_COLUMNS: Final = 120


def emit(result: Result, fmt: str = "text", *, err: bool = False) -> None:
    """Print a result in one format, and its warnings on standard error."""
    for warning in result.warnings:
        warn(warning)
    for part in result.parts(fmt, *terminal()):
        if fmt == "csv" and is_terminal():
            part = "\n".join(map(one_line, part.split("\n")))
        # whatever comes from outside is escaped or, as in CSV, meant as it is
        click.echo(part, nl=False, color=True, err=err)


def one_line(message: object) -> str:
    """Return a message as one line that a terminal shows as it is."""
    from perfmodel.base.escape import printable

    return printable(str(message))


def warn(message: object) -> None:
    """Print a warning on standard error, in one line."""
    click.echo(f"perfmodel: warning: {one_line(message)}", err=True)


def say_error(message: object) -> None:
    """Print an error on standard error, in one line."""
    click.echo(f"perfmodel: error: {one_line(message)}", err=True)


def report_written(paths: Path | Sequence[Path], *, err: bool = True) -> None:
    """Say which files were written."""
    several = [paths] if isinstance(paths, Path) else paths
    click.echo(f"Written: {'  '.join(map(one_line, several))}", err=err)


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def terminal() -> tuple[int | None, bool]:
    """Width and colour of standard output; a pipe gets a fixed width and no colour."""
    import shutil

    if not is_terminal():
        return _PIPE_COLUMNS, False
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return shutil.get_terminal_size().columns, not plain


def write(out: Path, content: str) -> None:
    """Write a text to a file, whole or not at all, or to standard output if `out` is `-`."""
    if out == STDOUT:
        click.echo(content, nl=False)
    else:
        from perfmodel.base.files import write_text

        write_text(out, content)


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
            f"expected a file that ends in .png, .svg or .pdf; got {out.name!r}", param_hint=option
        )
    for written in save(figure, out.parent, out.stem, (kind,)):
        report_written(written)


class Progress:
    """A progress bar on standard error, only where that is a terminal and takes a while."""

    def __init__(self, total: int, quiet: bool = False) -> None:
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


def distinct(reports: Sequence[Path]) -> tuple[Path, ...]:
    """Leave out reports that were given before: what they hold would count twice."""
    first: dict[str, Path] = {}
    for path in reports:
        first.setdefault(os.path.realpath(path), path)
    if repeated := len(reports) - len(first):
        warn(f"{repeated} of the reports were given before and are left out")
    return tuple(first.values())


def read_reports(paths: Sequence[Path], advance: Callable[[str], None]) -> list[Trace]:
    """Read reports, and say which one is being read."""
    from perfmodel.readers import read

    traces = []
    for path in paths:
        advance(f"reading {path.name}")
        traces.append(read(path))
    return traces
