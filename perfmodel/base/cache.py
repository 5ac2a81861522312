"""Keeps results of single files in a folder, by what the files hold, for the next time.

A kept result is trusted only if this user wrote it: it belongs to the user, is no link, and has a
digest that is keyed with a secret of the user.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module, resources
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import blocks, read_private, write_private

_SUFFIX: Final = ".perfmodel"
_ALIGNED: Final = 16
_MAGIC: Final = b"perfmod3"
_DIGEST_BYTES: Final = 32
_HEAD: Final = len(_MAGIC) + _DIGEST_BYTES
_SECRET_BYTES: Final = 64
"""The longest key of BLAKE2b (RFC 7693, section 2.1)."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_PLAIN: Final = (str, int, float, type(None))
_LETTERS: Final[dict[type, str]] = {tuple: "t", list: "l", frozenset: "s"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}


class Cache:
    """Results in a folder, each in a file of its own, named by a digest.

    A file that is damaged or forged, as its keyed digest says, is another user's or a link, or
    holds anything but perfmodel's data classes, arrays and plain values, counts as absent: nothing
    in it is executed. Several processes of one user may use one folder.

    Parameters
    ----------
    folder : Path
        Made where it is absent, for this user alone.

    Raises
    ------
    PerfmodelError
        If it cannot be made, is a link, or others can write to it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except (OSError, ValueError) as error:
            raise PerfmodelError(
                f"{folder}: expected a folder for results that can be made; got {error}; name "
                f"another one with --cache"
            ) from error
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.geteuid()
            or found.st_mode & _OTHERS
        ):
            raise PerfmodelError(
                f"{folder}: expected a folder to which only you can write; got a link, another "
                f"user's folder, or one to which others can write; name another one with --cache, "
                f"or run: chmod go-w FOLDER"
            )
        self.folder = folder

    def key(self, path: Path, *asked: object) -> str:
        """Digest of a file's content, of what was asked of it, and of this version of perfmodel.

        Of a folder: of the names and contents of its files.

        Raises
        ------
        OSError
            If a file cannot be read.
        """
        digest = hashlib.blake2b(_sources(), digest_size=20)
        digest.update(repr(asked).encode())
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file != path:
                digest.update(f"\0{file.name}\0{file.stat().st_size}\0".encode(errors="replace"))
            for block in blocks(file):
                digest.update(block)
        return digest.hexdigest()

    def get(self, key: str) -> Any:
        """Return what was put under a key; None if nothing was, or it cannot be read."""
        try:
            return _decoded(read_private(self.folder / f"{key}{_SUFFIX}"), secret())
        except Exception:  # whatever a damaged file raises
            return None

    def put(self, key: str, result: object) -> str:
        """Keep a result; others see all of it or nothing. Returns why it cannot be kept, or ''."""
        try:
            write_private(self.folder / f"{key}{_SUFFIX}", _encoded(result, secret()))
        except (PerfmodelError, TypeError) as error:
            return str(error)
        return ""


@cache
def secret() -> bytes:
    """Return the key of this user's digests, made where there is none; in no other file.

    Raises
    ------
    PerfmodelError
        If it cannot be kept.
    """
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    file = state / "perfmodel" / "cache.key"
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = file.with_name(f"{file.name}-{os.getpid()}")
            write_private(made, os.urandom(_SECRET_BYTES))
            with suppress(FileExistsError):  # another process may make it at the same time
                os.link(made, file)
            made.unlink()
        found = read_private(file)
    except (OSError, RuntimeError) as error:
        raise PerfmodelError(
            f"{file}: expected a file of yours that signs kept results; got {error}; set "
            f"XDG_STATE_HOME to a folder of yours"
        ) from error
    if len(found) != _SECRET_BYTES:
        raise PerfmodelError(f"{file}: expected {_SECRET_BYTES} bytes; got others; delete it")
    return found


def _digest(held: bytes | memoryview, key: bytes) -> bytes:
    return hashlib.blake2b(held, key=key, digest_size=_DIGEST_BYTES).digest()


def _encoded(result: object, key: bytes) -> bytes:
    """Return a keyed digest, a result as JSON, its length before it, and the arrays behind it.

    Raises
    ------
    TypeError
        If something in it is neither a data class nor an array nor a plain value.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    text = json.dumps(_plain(result, arrays)).encode()
    parts = [text, *(np.ascontiguousarray(array).tobytes() for array in arrays)]
    padded = (part.ljust(-len(part) % _ALIGNED + len(part), b"\0") for part in parts)
    held = b"".join([len(text).to_bytes(8, "little"), *padded])
    return _MAGIC + _digest(held, key) + held


def _plain(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Return a value in terms of JSON, each kind under a letter; arrays are numbered."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays.append(value)
        return {"a": [value.dtype.str, *value.shape]}
    if isinstance(value, Path):
        return {"p": str(value)}
    if letter := _LETTERS.get(type(value)):
        items = sorted(value) if letter == "s" else value
        if all(isinstance(item, _PLAIN) for item in items):
            return {letter: [*items]}
        return {letter.upper(): [_plain(item, arrays) for item in items]}
    if isinstance(value, dict):
        return {"d": [[_plain(k, arrays), _plain(v, arrays)] for k, v in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        held = {f.name: _plain(getattr(value, f.name), arrays) for f in fields(value)}
        return {"c": f"{kind.__module__}:{kind.__name__}", "f": held}
    raise TypeError(f"expected a plain value; got {type(value).__name__}")


def _decoded(data: bytes, key: bytes) -> Any:
    """Return the result that `_encoded` wrote, every array with memory of its own.

    Then memory is freed with what is dropped of a result.
    """
    held = memoryview(data)[_HEAD:]
    if not hmac.compare_digest(data[:_HEAD], _MAGIC + _digest(held, key)):
        raise ValueError("expected the digest of the content; got another")
    length = int.from_bytes(held[:8], "little")
    arrays = held[8 + -length % _ALIGNED + length :]
    at = 0

    def made(said: Any) -> Any:
        nonlocal at
        if isinstance(said, str):
            return sys.intern(said)  # many reports hold the same names
        if isinstance(said, _PLAIN):
            return said
        if "a" in said:
            kind, *shape = said["a"]
            array = np.frombuffer(arrays, kind, prod(shape), at).copy()
            at += -array.nbytes % _ALIGNED + array.nbytes
            return array.reshape(shape)
        if "c" in said:
            return _data_class(said["c"])(**{name: made(v) for name, v in said["f"].items()})
        if "d" in said:
            return {made(key): made(value) for key, value in said["d"]}
        if "p" in said:
            return Path(said["p"])
        ((letter, items),) = said.items()
        if letter in _KINDS:
            return _KINDS[letter](sys.intern(i) if isinstance(i, str) else i for i in items)
        return _KINDS[letter.lower()](made(item) for item in items)

    return made(json.loads(bytes(held[8 : 8 + length])))


@cache
def _data_class(named: str) -> Any:
    module, _, name = named.partition(":")
    found = getattr(import_module(module), name) if module.startswith("perfmodel.") else None
    if not (isinstance(found, type) and is_dataclass(found)):
        raise TypeError(f"expected a data class of perfmodel; got {named!r}")
    return found


@cache
def _sources() -> bytes:
    """Digest of perfmodel itself: what one version kept another one does not read."""
    digest = hashlib.blake2b(digest_size=20)
    folders = [resources.files("perfmodel")]
    while folders:
        for item in sorted(folders.pop().iterdir(), key=lambda item: item.name):
            if item.is_dir():
                folders.append(item)
            elif item.name.endswith(".py"):
                digest.update(item.read_bytes())
    return digest.digest()
