"""Turns what is not yet SQLite into SQLite: raw reports, compressed ones, folders, traces.

A `.nsys-rep` goes through `nsys export`.
"""

from __future__ import annotations

import errno
import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from perfmodel.base.errors import PerfmodelError, ReportError
from perfmodel.base.files import check_path, opened_unpacked, read_at_most
from perfmodel.readers import columnar, kineto, rocpd, xplane
from perfmodel.readers.checks import RAW, begins_as_json, stated_bytes

_EXPORT_SECONDS: Final = 3600
_LARGEST_PLANES: Final = 1 << 31
"""Bytes of the largest protobuf."""
_MORE: Final = 1 << 26
"""Bytes that may lie behind those that an SQLite header states."""


@contextmanager
def as_sqlite(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield the path of a temporary SQLite file with the content of another kind of report.

    In a `folder`, it stays as long as this.

    Raises
    ------
    ReportError
        If a raw report cannot be exported here, or one is damaged.
    SchemaError
        If JSON is no trace, or a folder no export.
    """
    make = _export if path.suffix in RAW else _unpack
    if xplane.SUFFIX in path.suffixes[-2:]:
        make = _planes
    elif rocpd.is_rocpd(path):
        make = rocpd.to_sqlite
    if columnar.is_folder(path):
        make = columnar.to_sqlite
    else:
        check_path(path)
    with (
        tempfile.TemporaryDirectory(prefix="perfmodel-")
        if folder is None
        else nullcontext(tempfile.mkdtemp(dir=folder))
    ) as place:
        target = Path(place) / "report.sqlite"
        make(path, target)
        yield target


def converted(
    path: Path, command: Sequence[str], instead: str, *more: str, made: Path | None = None
) -> str:
    """Let nsys or ncu convert a raw report; return what it prints.

    Parameters
    ----------
    path : Path
    command : sequence of str
        The program, what it does, and its other arguments, as errors name it.
    instead : str
        The command for another machine, and what to do with its output.
    *more : str
        Further arguments.
    made : Path, optional
        The file that must be there then.
    """
    tool, what, *_ = command
    if shutil.which(tool) is None:
        raise ReportError(
            f"{path}: a raw report needs {tool} to be exported, and {tool} is not on the PATH; "
            f"where {tool} is, run: {instead}"
        )
    try:
        done = _run([*command, *more])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReportError(f"{path}: {' '.join(command)} did not finish: {error}") from error
    if done.returncode or not (made is None or made.is_file()):
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise ReportError(
            f"{path}: {tool} {what} failed ({lines[-1].strip()}); an {tool} at least as new as the "
            f"one that made the report is needed"
        )
    return done.stdout


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
        timeout=_EXPORT_SECONDS, check=False,
    )  # fmt: skip


def _export(path: Path, target: Path) -> None:
    """Export a report with its NVTX payloads, which hold the sizes of NCCL's messages."""
    raw = str(path.resolve())  # a name that starts with '-' is no option
    instead = (
        f"nsys export -q true -t sqlite {path.name}  and analyze "
        f"{path.with_suffix('.sqlite').name} here"
    )
    # 2024.2 lacks the flags
    known = shutil.which("nsys") and "--include-json" in _run(["nsys", "export", "--help"]).stdout
    payloads = ("--include-json", "true", "--include-blobs", "true") if known else ()
    command = ["nsys", "export", "-q", "true", "-t", "sqlite", "-o", str(target), raw]
    converted(path, command, instead, *payloads, made=target)


def _planes(path: Path, target: Path) -> None:
    try:
        with opened_unpacked(path) as source:
            data = read_at_most(source, _LARGEST_PLANES)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ReportError(f"{path}: cannot be read ({error}); copy it again") from error
    if len(data) > _LARGEST_PLANES:
        raise ReportError(
            f"{path}: expected at most {_LARGEST_PLANES} bytes; got more; record fewer steps"
        )
    xplane.to_sqlite(data, path, target)


def _unpack(path: Path, target: Path) -> None:
    """Unpack an SQLite file, to its end for the checksum; of anything else, the first bytes."""
    try:
        with opened_unpacked(path) as source:
            is_trace = begins_as_json(source)
        if is_trace:
            with opened_unpacked(path) as source:
                kineto.to_sqlite(source, path, target)
            return
        with opened_unpacked(path) as source, target.open("wb") as out:
            header = source.read(100)
            out.write(header)
            expected = stated_bytes(header)
            free = shutil.disk_usage(target.parent).free
            if expected > free:
                raise ReportError(
                    f"{path}: unpacking needs {expected} bytes in {target.parent.parent}; got "
                    f"{free}; free some space, or set TMPDIR to a folder on another disk"
                )
            left = expected + _MORE
            while expected and (block := source.read(1 << 20)):
                left -= len(block)
                if left < 0:
                    raise ReportError(
                        f"{path}: expected {expected} bytes, as its SQLite header says; got many "
                        f"more: it is damaged or made to fill disks; copy it again"
                    )
                out.write(block)
    except PerfmodelError:
        raise
    except Exception as error:  # every library has errors of its own
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ReportError(
                f"{path}: there is no space to unpack it in {target.parent.parent} "
                f"({error.strerror}); free some, or set TMPDIR to a folder on another disk"
            ) from error
        raise ReportError(f"{path}: cannot be unpacked ({error}); copy it again") from error
