"""Readers: each turns one kind of profiler output into a `Trace` or a table of counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perfmodel.base.files import COMPRESSED, open_input
from perfmodel.readers.checks import RAW, begins_as_json, check_file
from perfmodel.readers.nsys import ALL_PARTS, read_sqlite
from perfmodel.readers.trace import Trace

__all__ = ["RAW", "check_at_rest", "opened", "read"]

_CONVERTED: Final = (*RAW, *COMPRESSED)


def read(path: str | Path, *, parts: Iterable[str] = ALL_PARTS) -> Trace:
    """Read a report of Nsight Systems or a trace of torch.profiler.

    Parameters
    ----------
    path : str or Path
        `.sqlite`, a folder of `nsys export -t arrowdir` or `parquetdir` (needs pyarrow), `.json`
        of torch.profiler; `.gz`, `.xz`, `.zst` of the files; `.nsys-rep`, `.qdrep` (need nsys).
    parts : iterable of str
        Event tables and columns to read, of `perfmodel.readers.nsys.ALL_PARTS`; all by default.

    Raises
    ------
    ReportError
        If the file cannot be read whole, or cannot be exported here.
    SchemaError
        If it is neither an export nor a trace.
    """
    source = Path(path)
    with opened(source) as sqlite:
        return read_sqlite(sqlite, parts=parts, source=source)


@contextmanager
def opened(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield the path of an SQLite file with the report's content, temporary where it must be.

    In a `folder`, a temporary one stays as long as this.

    Raises
    ------
    ReportError
        If the report cannot be unpacked, or cannot be exported here.
    """
    if is_sqlite(path):
        yield path
        return
    from perfmodel.readers.rep import as_sqlite  # brings modules that few readings need

    with as_sqlite(path, folder) as sqlite:
        yield sqlite


def check_at_rest(path: Path, source: Path) -> None:
    """Refuse SQLite that is being written, or whose checksum beside it is another's.

    Raises
    ------
    ReportError
        It calls the report `source`.
    """
    if is_sqlite(path):
        check_file(path, source)


def is_sqlite(path: Path) -> bool:
    """Whether a report is read as it is, not from a temporary file that is made of it."""
    return path.suffix not in _CONVERTED and not path.is_dir() and not _is_json(path)


def _is_json(path: Path) -> bool:
    """Whether a file begins as JSON does; not whether there is such a file."""
    try:
        with open_input(path) as stream:
            return begins_as_json(stream)
    except (OSError, ValueError):
        return False
