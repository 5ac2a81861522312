"""Refuses, by name and first bytes, files that cannot be a whole SQLite report at rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from perfmodel.base.errors import PerfmodelError, ReportError
from perfmodel.base.files import check_path, open_input, read_whole

RAW: Final = (".nsys-rep", ".qdrep")

EXPORT: Final = "nsys export -q true -t sqlite REPORT.nsys-rep"
"""The command that makes what perfmodel reads."""

RECORD: Final = (
    "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
    "record_shapes=True) and its export_chrome_trace()"
)
"""Advice on making a trace of torch.profiler."""

_JSON: Final = ("{", "[")
_BLANKS: Final = 1 << 16
"""Bytes of blanks that may precede JSON."""

_LONGEST_PATH: Final = 504
"""Bytes of a path that SQLite opens (MAX_PATHNAME of its os_unix.c, less its own suffixes)."""

_MOST_SUM_BYTES: Final = 1 << 16
"""Of a line of ``sha256sum``: 66 bytes and a path."""

_MAGIC: Final = b"SQLite format 3\x00"


def stamp(file: Path) -> tuple[int, ...]:
    """Return what changes when somebody writes to a file or replaces it; empty if it is gone.

    The file is opened anew: NFS asks its server then.
    """
    try:
        with open_input(file) as stream:
            found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> ReportError:
    """Return what to say of a report whose `stamp` was another when reading began."""
    return ReportError(
        f"{path}: the file changed while it was read: the export is still running or another "
        f"process wrote to it; wait until it is finished, and run this again"
    )


@contextmanager
def unchanged(file: Path, path: Path, before: tuple[int, ...] | None = None) -> Iterator[None]:
    """Raise `ReportError` if a report, read in the block, was not the same all the time.

    `before` is its `stamp` where it was read before the block, too.
    """
    before = stamp(file) if before is None else before
    try:
        yield
    except PerfmodelError as error:
        if stamp(file) != before:
            raise changed(path) from error
        raise
    if stamp(file) != before:
        raise changed(path)


def _unreadable(path: Path, error: Exception) -> ReportError:
    reason = getattr(error, "strerror", None) or error
    return ReportError(f"{path}: cannot be read ({reason}); check the path")


def begins_as_json(stream: IO[bytes]) -> bool:
    """Whether what is read is JSON by its first character, in any encoding of Unicode."""
    head = stream.read(100)
    text = _text(head)
    if head and not text:
        text = _text(head + stream.read(_BLANKS))
    return text[:1] in _JSON


def _text(head: bytes) -> str:
    return head.decode(json.detect_encoding(head), "ignore").lstrip()


def check_file(file: Path, path: Path) -> None:
    """Refuse what cannot be a whole SQLite file, before SQLite sees it; errors call it `path`.

    SQLite has no checksums: where one lies beside the file, written by ``sha256sum``, it is
    checked.
    """
    check_path(file)
    length = len(os.fsencode(file.resolve()))
    if length > _LONGEST_PATH:
        raise ReportError(
            f"{path}: expected a path of at most {_LONGEST_PATH} bytes, as SQLite opens; "
            f"got {length}; move the report to a folder of a shorter name"
        )
    try:
        size = file.stat().st_size
        with open_input(file) as stream:
            header = stream.read(100)
    except OSError as error:
        raise _unreadable(path, error) from error
    named_json = ".json" in path.suffixes  # as torch.profiler names traces
    if size == 0:
        again = (
            f"record it again with {RECORD}" if named_json else f"export it again with: {EXPORT}"
        )
        raise ReportError(f"{path}: the file is empty; {again}")
    if not header.startswith(_MAGIC):
        suffix = ".json" if named_json else ".sqlite"
        expected, how = (
            ("a trace of torch.profiler", f"record one with {RECORD}") if named_json
            else ("an SQLite export of Nsight Systems", f"make one with: {EXPORT}")
        )  # fmt: skip
        raise ReportError(f"{path}: expected {expected}; got {_kind(header, suffix)}; {how}")
    stated = stated_bytes(header)
    if len(header) < 100 or size < stated:
        raise ReportError(
            f"{path}: the file is truncated: expected {max(stated, 100)} bytes; got {size}; "
            f"copy it again, or export it again with: {EXPORT}"
        )
    for suffix in ("-journal", "-wal"):
        beside = Path(f"{file.resolve()}{suffix}")
        if beside.exists() and beside.stat().st_size > 0:
            raise ReportError(
                f"{path}: it has an unfinished transaction ({beside.name}): the export is "
                f"still running or was interrupted; wait for it, or export it again with: {EXPORT}"
            )
    _check_sum(file, path)


def broken(path: Path, error: Exception) -> ReportError:
    """Return what to say of a file in which SQLite, or the reader of pages, found an error."""
    reason = " ".join(str(error).split())[:200]
    if "I/O error" in reason or "unable to get the page" in reason:
        return ReportError(
            f"{path}: cannot be read ({reason}): the disk or its server fails; copy the report to "
            f"another disk"
        )
    return ReportError(
        f"{path}: the SQLite file is damaged or half-written ({reason}); "
        f"export it again with: {EXPORT}"
    )


def stated_bytes(header: bytes) -> int:
    """Return how long a file is at least, as the first 100 bytes say; 0 if it is not SQLite."""
    if not header.startswith(_MAGIC):
        return 0
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    counted = header[24:28] == header[92:96]  # the page count is valid (file format 1.3.8)
    return page * int.from_bytes(header[28:32], "big") if counted else page


def _check_sum(file: Path, path: Path) -> None:
    """Compare the file with what `sha256sum` wrote beside it, if it did."""
    beside = Path(f"{file}.sha256")
    if not beside.is_file():
        return
    try:
        import hashlib  # brings OpenSSL, which few readings need

        said = read_whole(beside, _MOST_SUM_BYTES).decode("utf-8", "replace")
        expected = said.split(maxsplit=1)[:1]
        with open_input(file) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(beside, error) from error
    if expected != [found]:
        raise ReportError(
            f"{path}: expected the SHA-256 that {beside.name} has; got another, {found[:12]}...: "
            f"the report or its sum was changed or damaged; copy both again, or delete the sum"
        )


def _kind(header: bytes, suffix: str) -> str:
    """Say what a file is by its first bytes, and how to name it if it is packed."""
    for magic, name in (
        (b"\x1f\x8b", f"a gzip file (name it {suffix}.gz)"),
        (b"\xfd7zXZ", f"an xz file (name it {suffix}.xz)"),
        (b"\x28\xb5\x2f\xfd", f"a zstd file (name it {suffix}.zst, or unpack it with: zstd -d)"),
        (b"QdstrmVersion", "a .qdstrm stream (import it with QdstrmImporter first)"),
        (b"NVIDIA Tegra Profiler Report", "a raw report (name it .nsys-rep)"),
        (b"PAR1", "a Parquet file (name the folder that nsys export -t parquetdir made)"),
        (b"ARROW1", "an Arrow file (name the folder that nsys export -t arrowdir made)"),
        (b"\xff\xff\xff\xff", "a stream of Arrow (name the folder of nsys export -t arrowdir)"),
        (b"\x89HDF", "an HDF5 file"),
        (b"version https://git-lfs", "a pointer of Git LFS (fetch the file with: git lfs pull)"),
    ):
        if header.startswith(magic):
            return name
    if _text(header)[:1] in _JSON:
        return "JSON"
    return "something else"
