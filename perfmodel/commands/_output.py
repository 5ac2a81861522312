"""Prints and writes results of commands: every format, files, pictures, progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from perfmodel.base.errors import ErrorDocument, ErrorText, ModelError
from perfmodel.base.escape import printable
from perfmodel.base.files import staged_folder, write_text
from perfmodel.commands._options import PICTURES, RESULTS, SILENT, kind_of

if TYPE_CHECKING:
    from perfmodel.readers.trace import Trace
    from perfmodel.render.result import Result

STDOUT: Final = Path("-")
_PIPE_COLUMNS: Final = 120
_SUFFIX_OF: Final = {fmt: suffix for suffix, fmt in RESULTS.items()}

Makers = Mapping[str, Callable[[Path], Path | Sequence[Path]]]


def emit(result: Result, fmt: str = "text", out: Path | None = None, **others: Any) -> None:
    """Print a result, and write what `-o` names.

    Parameters
    ----------
    result : Result
    fmt : str
        Of `FORMATS`.
    out : Path, optional
        The value of `-o`.
    makes : mapping of str to callable, optional
        What the command itself makes, by the suffix of its file ('-' is standard output, '' any
        other name): writes it there and returns what it wrote.
    picture : callable, optional
        Makes the figure that a file of `PICTURES`, or a folder, keeps.
    """
    for warning in result.warnings:
        warn(warning)
    if out is not None:
        result = replace(result, text=[*result.text])  # which may be read twice
    kept, written = _kept(result, fmt, out, **others)
    if not kept:
        _show(result, fmt, err=out == STDOUT)
    if written and out != STDOUT and not is_quiet():
        if fmt == "text":
            echo()
        report_written(written, err=fmt != "text")


def _kept(
    result: Result,
    fmt: str,
    out: Path | None,
    *,
    makes: Makers | None = None,
    picture: Callable[[], Any] | None = None,
) -> tuple[bool, list[Path]]:
    """Write what `-o` names; whether that is all that --format asks for, and the files."""
    if out is None:
        return False, []
    kind, makes = kind_of(out), makes or {}
    if kind in PICTURES and picture is not None:
        return False, write_picture(picture(), out)
    if kind not in (*makes, *RESULTS):
        kind = ""
    if kind in makes:
        made = makes[kind](out)
        in_files = kind == "" and fmt == "csv"
        return in_files, [made] if isinstance(made, Path) else [*made]
    if kind:
        write(out, _parts(result, RESULTS[kind]))
        return fmt != "text", [out]
    return fmt != "text", _write_folder(result, fmt, out, picture)


def _write_folder(
    result: Result, fmt: str, out: Path, picture: Callable[[], Any] | None
) -> list[Path]:
    """Write the tables, a file each, and the figure."""
    fmt = "csv" if fmt == "text" else fmt
    with staged_folder(out) as stage:
        for name, content in result.files(fmt):
            path = stage / f"{name}{_SUFFIX_OF[fmt]}"
            path = (
                path if not path.exists() else path.with_stem(f"{name}_{len([*stage.iterdir()])}")
            )
            with path.open("w", encoding="utf-8", newline="") as file:
                file.writelines(content)
        if picture is not None:
            try:
                write_picture(picture(), stage / f"{click.get_current_context().info_name}.png")
            except ModelError as error:  # nothing to draw
                warn(f"no figure: {error}")
        names = sorted(path.name for path in stage.iterdir())
    return [out / name for name in names]


def _parts(result: Result, fmt: str) -> Iterable[str]:
    """Return the result's parts; refuse several tables as one CSV."""
    if fmt != "csv":
        return result.parts(fmt, *terminal(), fold=is_terminal())
    tables = [*result.files(fmt)]
    if len(tables) > 1:
        names = ", ".join(name for name, _ in tables)
        raise click.UsageError(
            f"expected one table in CSV; got {len(tables)}: {names}; give -o FOLDER for a file "
            f"each, or --format jsonl for one stream"
        )
    return (part for _, content in tables for part in content)


def _show(result: Result, fmt: str, *, err: bool) -> None:
    """Print a result in one format."""
    if fmt == "text" and is_quiet():
        return
    for part in _parts(result, fmt):
        if fmt == "csv" and is_terminal():
            part = "\n".join(map(one_line, part.split("\n")))
        # whatever comes from outside is escaped or, as in CSV, meant as it is
        if not echo(part, nl=False, err=err):
            return


def echo(text: str | bytes = "", *, nl: bool = True, err: bool = False) -> bool:
    """Print; return whether somebody reads it.

    A closed pipe, as of ``perfmodel ... | head``, is no error: what follows is dropped, and the
    command ends with its own exit code.
    """
    try:
        click.echo(text, nl=nl, err=err, color=True)
    except BrokenPipeError:
        drop(sys.stderr if err else sys.stdout)
        return False
    return True


def drop(stream: IO[str]) -> None:
    """Drop what a stream could not take: Python would write it again when it ends."""
    with contextlib.suppress(OSError, ValueError):  # there is none, as in a test
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_quiet() -> bool:
    """Whether --quiet was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(SILENT))


def one_line(message: object) -> str:
    """Return a message as one line that a terminal shows as it is."""
    return printable(str(message))


def warn(message: object) -> None:
    """Print a warning on standard error, in one line."""
    if not is_quiet():
        echo(f"perfmodel: warning: {one_line(message)}", err=True)


def say_error(message: object) -> None:
    """Print an error on standard error, in one line."""
    echo(f"perfmodel: error: {one_line(message)}", err=True)


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, so that its errors are JSON, too."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    return any(
        word in ("--json", "--format=json") or (word, after) == ("--format", "json")
        for word, after in pairs
    )


def print_error(kind: str, message: object, exit_code: int) -> None:
    """Print an error on standard output as JSON, in place of the result."""
    from perfmodel.base.document import to_json

    echo(to_json(ErrorDocument(ErrorText(kind, one_line(message), exit_code))))


def report_written(paths: Path | Sequence[Path], *, err: bool = True) -> None:
    """Say which files were written."""
    several = [paths] if isinstance(paths, Path) else paths
    if not is_quiet():
        echo(f"Written: {'  '.join(map(one_line, several))}", err=err)


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


def write(out: Path, content: str | Iterable[str]) -> None:
    """Write a text, or its parts, to a file whole or not at all, or to `-`, standard output."""
    if out == STDOUT:
        for part in [content] if isinstance(content, str) else content:
            if not echo(part, nl=False):
                return
    else:
        write_text(out, content)


def writes(content: Callable[[], str]) -> Callable[[Path], Path]:
    """Return what writes a text where `emit` says, for its `makes`."""

    def make(path: Path) -> Path:
        write(path, content())
        return path

    return make


def emit_model(
    found: Result, content: Callable[[], str], fmt: str, out: Path | None, *, taken_by: str
) -> None:
    """Print what a model was calibrated from, and write its file; say so where none is asked."""
    if out is None and fmt == "text":
        warn(f"the model is not kept; give -o FILE.json, which {taken_by} as --model")
    emit(found, fmt, out, makes=dict.fromkeys((".json", "-", ""), writes(content)))


def write_picture(figure: Any, out: Path) -> list[Path]:
    """Write a figure to the file named, in the format that its name says."""
    from perfmodel.render.plot import save

    return save(figure, out.parent, out.stem, (out.suffix.lower().removeprefix("."),))


class Progress:
    """A progress bar on standard error, only where that is a terminal and takes a while."""

    def __init__(self, total: int, shown: bool = True) -> None:
        seen = sys.stderr is not None and sys.stderr.isatty()
        self._total, self._shown = total, shown and seen and not is_quiet()
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
