"""Keeps results of single files in a folder, by what the files hold, for the next time."""

from __future__ import annotations

import hashlib
import io
import pickle
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import write_bytes

_SUFFIX: Final = ".perfmodel"
_BLOCK: Final = 1 << 20
_PLAIN: Final = {
    ("pathlib", "PosixPath"), ("pathlib", "WindowsPath"), ("pathlib._local", "PosixPath"),
    ("builtins", "frozenset"), ("builtins", "set"),
    ("numpy", "dtype"), ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"), ("numpy.core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"), ("numpy.core.numeric", "_frombuffer"),
}  # fmt: skip
"""What a result consists of besides perfmodel's own data classes."""


class Cache:
    """Results in a folder, each in a file of its own, named by a digest.

    A file that is damaged, or holds anything but perfmodel's data classes and arrays, counts as
    absent: nothing in it is executed.

    Parameters
    ----------
    folder : Path
        Made where it is absent.

    Raises
    ------
    PerfmodelError
        If it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise PerfmodelError(
                f"{folder}: expected a folder for results that can be made; got {error}; name "
                f"another one with --cache"
            ) from error
        self.folder = folder

    def key(self, path: Path, *asked: object) -> str:
        """Digest of a file's content, of what was asked of it, and of this version of perfmodel."""
        digest = hashlib.blake2b(_sources(), digest_size=20)
        digest.update(repr(asked).encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def get(self, key: str) -> Any:
        """Return what was put under a key; None if nothing was, or it cannot be read."""
        try:
            data = (self.folder / f"{key}{_SUFFIX}").read_bytes()
            return _Reader(io.BytesIO(data)).load()
        except Exception:  # whatever a damaged pickle raises
            return None

    def put(self, key: str, result: object) -> None:
        """Keep a result, where there is room; others see all of it or nothing."""
        data = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
        with suppress(PerfmodelError):
            write_bytes(self.folder / f"{key}{_SUFFIX}", data)


class _Reader(pickle.Unpickler):
    """Makes data classes of perfmodel, arrays, paths and plain values; refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module.startswith("perfmodel.") and "." not in name:
            found = getattr(import_module(module), name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        raise pickle.UnpicklingError(f"expected data; got {module}.{name}")


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
