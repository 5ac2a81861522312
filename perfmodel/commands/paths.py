"""Files on the command line: `-` for standard input and output, and what a shell completes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

STDOUT: Final = Path("-")
_TAKEN: Final = "perfmodel.commands.paths"
_BLOCK: Final = 1 << 20
_KINDS: Final = (
    (b"SQLite format 3\x00", ".sqlite"),
    (b"\x1f\x8b", ".sqlite.gz"),
    (b"\xfd7zXZ", ".sqlite.xz"),
    (b"\x28\xb5\x2f\xfd", ".sqlite.zst"),
    (b"NVIDIA Tegra Profiler Report", ".nsys-rep"),
    (b"{", ".json"),
)
"""First bytes of what may come through a pipe, and how such a file is called."""


class Input(click.Path):
    """A file to read, or `-`: standard input, which is copied to a temporary file first.

    A report is read at many places at once, which a pipe does not allow. The temporary file is
    called ``stdin`` with the suffix that its content asks for, and goes when the command ends.

    Parameters
    ----------
    suffixes : tuple of str
        Files that a shell offers, the usual one first; the user may name any.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path to read."""
        if value == "-" and ctx is not None and not ctx.resilient_parsing:
            return self._spooled(ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Offer files with the suffixes; where there is none, leave it to the shell."""
        from perfmodel.commands.candidates import files

        return files(incomplete, self._suffixes)

    def _spooled(self, context: click.Context) -> Path:
        """Copy standard input to a temporary file that lives as long as the command."""
        from tempfile import TemporaryDirectory

        if _TAKEN in context.meta:
            raise click.BadParameter("wanted - once, found it again: a pipe is read once")
        if sys.stdin is None or sys.stdin.isatty():
            raise click.BadParameter(
                "wanted a file through a pipe, found none; as in: "
                "xz -dc run.sqlite.xz | perfmodel analyze -"
            )
        context.meta[_TAKEN] = True
        folder: str = context.with_resource(TemporaryDirectory(prefix="perfmodel-"))
        return _copied(sys.stdin.buffer, Path(folder), self._suffixes[0])


def _copied(stream: IO[bytes], folder: Path, usual: str) -> Path:
    import shutil

    first = stream.read(_BLOCK)
    if not first:
        raise click.BadParameter(
            "wanted a file through the pipe, found nothing; the command before it wrote nothing"
        )
    known = (suffix for magic, suffix in _KINDS if first.lstrip().startswith(magic))
    path = folder / f"stdin{next(known, usual)}"
    with path.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(stream, file, _BLOCK)
    return path


class Folder(click.Path):
    """A folder to write into; `-` is refused, for a folder does not fit into a pipe."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path to write to."""
        if value == "-":
            self.fail("wanted a folder, found -; for standard output take --json", param, ctx)
        return super().convert(value, param, ctx)


REPORT: Final = Input(".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep", ".qdrep")
RUN: Final = Input(".json", ".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst", ".nsys-rep")
JSON: Final = Input(".json")
TOML: Final = Input(".toml")
COUNTERS: Final = Input(".csv", ".ncu-rep")
SERIES: Final = Input(".csv")
FOLDER: Final = Folder()


def write(out: Path, content: str) -> None:
    """Write a text to a file, whole or not at all, or to standard output if `out` is `-`."""
    if out == STDOUT:
        click.echo(content, nl=False)
    else:
        from perfmodel.base.files import write_text

        write_text(out, content)
