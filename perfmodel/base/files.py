"""Open inputs, compressed or not; write outputs whole or not at all, in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, cast

from perfmodel.base.errors import PerfmodelError, ReportError

if TYPE_CHECKING:
    from io import BufferedReader

COMPRESSED: Final = (".gz", ".xz", ".zst")
"""Suffixes of compressed files."""

_BLOCK = 1 << 20
_MOST_RATIO: Final = 200
"""Bytes for a packed one: of 251 recorded files from 1 to 90."""
_FEW_BYTES: Final = 1 << 24
"""So many may come of any file."""
_ADVICE = {
    errno.EACCES: "change its permissions or write elsewhere",
    errno.EPERM: "change its permissions or write elsewhere",
    errno.EROFS: "write to a file system that is not mounted read-only",
    errno.ENOSPC: "free some space or write elsewhere",
    errno.EDQUOT: "free some of your quota or write elsewhere",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f) or write elsewhere",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "end programs that hold many files open",
    errno.ENOMEM: "free some memory, or give fewer reports",
    errno.EIO: "the disk or its server fails: write elsewhere",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EISDIR: "give the name of a file, not of a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the link or write elsewhere",
}


OF_THE_PROCESS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are of no one file."""


def advice(error: OSError) -> str:
    """Return what to do about an error of the system."""
    return _ADVICE.get(error.errno or 0, "choose another path")


def write_text(path: Path | str, text: str | Iterable[str]) -> None:
    """Write a text, or its parts, as UTF-8, line ends as they are, atomically; see `write_bytes`.

    What UTF-8 cannot hold (lone surrogates of a damaged name) is written as an escape.
    """
    parts = [text] if isinstance(text, str) else text
    write_bytes(path, (part.encode("utf-8", "backslashreplace") for part in parts))


def write_bytes(path: Path | str, data: bytes | Iterable[bytes]) -> None:
    """Write `data`, or its parts, so that readers see the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder that then replaces `path`; on any
    failure, an interrupt included, it is removed. A symbolic link is followed; an existing
    file keeps its mode; what is no regular file, such as ``/dev/stdout``, is written to directly.

    Raises
    ------
    PerfmodelError
        If the folder is missing or read-only, `path` is a folder or protected, or the disk full.
    """
    path, data = Path(path), [data] if isinstance(data, bytes) else data
    with _explained(path):
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if mode is not None and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "the existing file is write-protected")
        if mode is not None and not stat.S_ISREG(mode):
            with path.open("wb") as stream:
                for part in data:
                    stream.write(part)
            return
        _replace(Path(os.path.realpath(path)), data, mode)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its user can read, atomically; a link in its place is replaced.

    Raises
    ------
    PerfmodelError
        If the folder is missing or read-only, or the disk full.
    """
    with _explained(path):
        _replace(path, [data], 0o600)


def read_private(path: Path) -> bytes:
    """Read a file that belongs to this user, and is no link.

    Raises
    ------
    OSError
        If there is none, or the file is a link, or another user's.
    """
    with open_input(path, os.O_NOFOLLOW) as stream:
        if os.fstat(stream.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user's file")
        return stream.read()


@contextlib.contextmanager
def staged_folder(out: Path | str) -> Iterator[Path]:
    r"""Give a temporary folder to write into; its files appear in `out` together or not at all.

    When the block ends well, every file below the temporary folder moves to the same place
    below `out`, which is created if needed; other files in `out` stay as they are. A folder below
    `out` that is a symbolic link is refused: it leads elsewhere. When the block
    or a move fails, an interrupt included, `out` is left or put back as it was. The temporary
    folder lies inside `out` where that exists (it may be a mount point, and its parent
    read-only), beside it otherwise.

    Raises
    ------
    PerfmodelError
        If `out` is a file or cannot be written, or the disk is full.

    Examples
    --------
    >>> with staged_folder("out/2025-06-01") as folder:  # doctest: +SKIP
    ...     (folder / "table.csv").write_text("a,b\n")
    """
    out = Path(os.path.realpath(out))
    with contextlib.ExitStack() as undo:
        with _explained(out):
            if out.exists() and not out.is_dir():
                raise FileExistsError(errno.EEXIST, "a file of that name")
            _make_folders(out.parent, undo)
            stage = (out if out.is_dir() else out.parent) / _temporary_name()
            undo.callback(shutil.rmtree, stage, ignore_errors=True)
            stage.mkdir()
        try:
            yield stage
        except OSError as error:
            if not _concerns(error, stage):
                raise
            with _explained(out):
                raise
        with _explained(out):
            _publish(stage, out)
        undo.pop_all()


def _publish(stage: Path, out: Path) -> None:
    """Move everything below `stage` to `out`; undo all of it on a failure."""
    if not out.exists():
        stage.rename(out)
        return
    aside = stage.parent / _temporary_name()
    try:
        with contextlib.ExitStack() as undo:
            aside.mkdir()
            for i, source in enumerate(sorted(p for p in stage.rglob("*") if not p.is_dir())):
                target = out / source.relative_to(stage)
                for folder in target.relative_to(out).parents:
                    if (out / folder).is_symlink():
                        raise OSError(errno.ELOOP, f"{folder.name!r} in it is a symbolic link")
                if target.is_dir():
                    raise IsADirectoryError(errno.EISDIR, f"a folder {target.name!r} in its place")
                _make_folders(target.parent, undo)
                if os.path.lexists(target):
                    old = aside / str(i)
                    undo.callback(_put_back, old, target)
                    _keep(target, old)
                else:
                    undo.callback(target.unlink, missing_ok=True)
                source.replace(target)
            undo.pop_all()
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(stage, ignore_errors=True)


def _put_back(old: Path, target: Path) -> None:
    if os.path.lexists(old):
        old.replace(target)


def _keep(target: Path, old: Path) -> None:
    try:
        os.link(target, old, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(target, old, follow_symlinks=False)


def _replace(path: Path, data: Iterable[bytes], mode: int | None) -> None:
    temporary = path.parent / _temporary_name()
    try:
        with temporary.open("xb") as stream:
            for part in data:
                stream.write(part)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an OSError into one line: what was expected, what it got, what to do."""
    try:
        yield
    except OSError as error:
        found = error.strerror or str(error)
        what = advice(error)
        if error.errno == errno.ENOENT and path.parent.is_dir():  # /proc takes no new file
            found, what = f"no file can be made in {str(path.parent)!r}", "choose another folder"
        elif error.errno == errno.ENOENT:
            found = f"there is no folder {str(path.parent)!r}"
        message = f"expected to write {str(path)!r}; got: {found}; {what}"
        raise PerfmodelError(message) from error


def _concerns(error: OSError, stage: Path) -> bool:
    """Whether the error of a block is about writing to `stage`, and not about anything else."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    if error.errno == errno.EIO and error.filename is None:  # of a write, not of an open
        return True
    if error.errno == errno.ENOENT:
        return False  # the block's own mistake
    names = [n for n in (error.filename, error.filename2) if isinstance(n, (str, os.PathLike))]
    return any(Path(n).is_relative_to(stage) for n in names)


def _make_folders(folder: Path, undo: contextlib.ExitStack) -> None:
    for path in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        path.mkdir(exist_ok=True)
        undo.callback(_remove, path)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _temporary_name() -> str:
    return f".perfmodel-{os.urandom(6).hex()}.tmp"


def open_input(path: Path, flags: int = 0, *, buffering: int = -1) -> BufferedReader:
    """Open a regular file to read its bytes. Every file that perfmodel reads is opened here.

    A FIFO may wait forever for its writer, and a device may have no end.

    Parameters
    ----------
    path : Path
    flags : int
        Further flags of ``open(2)``, such as ``os.O_NOFOLLOW``.
    buffering : int
        As of Python's `open`.

    Raises
    ------
    OSError
        If the file cannot be opened, or is a folder, a FIFO, a socket or a device.
    """

    def regular(name: str, wanted: int) -> int:
        _refuse(Path(name).stat().st_mode)  # opening a device may already change it
        # if a FIFO takes the file's place meanwhile, opening it does not wait
        return os.open(name, wanted | flags | os.O_NONBLOCK)

    stream = cast("BufferedReader", open(path, "rb", buffering, opener=regular))  # noqa: SIM115
    try:
        _refuse(os.fstat(stream.fileno()).st_mode)
    except OSError:
        stream.close()
        raise
    return stream


def read_whole(path: Path, most: int) -> bytes:
    """Read a file of at most `most` bytes.

    Raises
    ------
    OSError
        As `open_input` does; if the file has more bytes.
    """
    with open_input(path) as stream:
        stated = os.fstat(stream.fileno()).st_size
        data = read_at_most(stream, most) if stated <= most else b""
    if max(len(data), stated) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return data


def _refuse(mode: int) -> None:
    """Raise an OSError if a file of this mode is not a regular one."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe or device; copy it to a file first")


@contextlib.contextmanager
def opened_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes, unpacked where its name ends as a compressed file's does.

    The stream raises the errors of the library that unpacks: gzip, lzma or zstd.

    Raises
    ------
    OSError
        If the file cannot be opened; see `open_input`.
    ReportError
        If it is `.zst`, and this Python has nothing to unpack it with; by the stream, if it
        unpacks to far more than profilers' files do.
    """
    with open_input(path) as packed:
        if path.suffix not in COMPRESSED:
            yield packed
            return
        most = max(os.fstat(packed.fileno()).st_size * _MOST_RATIO, _FEW_BYTES)
        with _unpacked(packed, path) as stream:
            yield cast("IO[bytes]", _Limited(stream, path, most))


class _Limited:
    """A stream that ends with an error where it is much longer than its file lets expect."""

    def __init__(self, stream: IO[bytes], path: Path, most: int) -> None:
        self._stream, self._path, self._left = stream, path, most

    def read(self, size: int = -1) -> bytes:
        """Read at most so many bytes."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ReportError(
                f"{self._path}: expected at most {_MOST_RATIO} bytes for a packed one, as of what "
                f"profilers write; got more: it is made to fill memory, or unpack it and give that"
            )
        return data


def _unpacked(packed: BinaryIO, path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        import gzip  # few inputs need these modules, which take time to import

        return cast("IO[bytes]", gzip.open(packed, "rb"))
    if path.suffix == ".xz":
        import lzma

        return cast("IO[bytes]", lzma.open(packed, "rb", format=lzma.FORMAT_XZ))
    return _unpacked_zstd(packed, path)


def _unpacked_zstd(packed: BinaryIO, path: Path) -> IO[bytes]:
    """Unpack zstd with Python's module, new in 3.14, or else with the package zstandard.

    Both read every frame of a file: `pzstd` and `cat` make files of several.
    """
    try:
        from compression import zstd
    except ImportError:
        pass
    else:
        return cast("IO[bytes]", zstd.open(packed, "rb"))
    try:
        import zstandard
    except ImportError:
        raise ReportError(
            f"{path}: unpacking .zst needs the package zstandard; install it, or unpack the file "
            f"with: zstd -d {path.name}"
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(
        packed, read_across_frames=True, closefd=False
    )
    return cast("IO[bytes]", reader)


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, or of all files of a folder by name, some at a time.

    Raises
    ------
    OSError
        If one cannot be read.
    """
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with open_input(file) as stream:
            while block := stream.read(_BLOCK):
                yield block


def read_at_most(stream: IO[bytes], most: int) -> bytes:
    """Read a stream to its end, or one byte more than `most`.

    In blocks: room for all that it may hold, asked for at once and given back but for a little,
    would leave the heap in pieces.
    """
    data = bytearray()
    while len(data) <= most and (block := stream.read(min(_BLOCK, most + 1 - len(data)))):
        data += block
    return bytes(data)


def check_path(path: Path) -> None:
    """Refuse what is not there or is no file.

    Raises
    ------
    ReportError
        If `path` is missing, a folder, a pipe or a device.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{path}: cannot be read ({reason}); check the path") from error
    try:
        _refuse(mode)
    except IsADirectoryError:
        raise ReportError(
            f"{path}: expected a file; got a folder; name the files inside it"
        ) from None
    except OSError as error:
        raise ReportError(f"{path}: expected a file; got {error.strerror}") from None
