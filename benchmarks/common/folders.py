"""Where the repository's folders lie, and the files that many studies and tests read."""

from __future__ import annotations

import lzma
import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
BUILD: Final = ROOT / "build" / "results"
DOCS: Final = ROOT / "docs"
IMAGES: Final = DOCS / "images"
PROFILES: Final = ROOT / "profiles"
PROGRAMS: Final = PROFILES / "programs"
TESTS: Final = ROOT / "tests"
SUPPORT: Final = TESTS / "support"
BASE: Final = PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
MACHINE: Final = RESULTS / "machine_h200x4.toml"


def packed(path: Path) -> Path:
    """Return where a file lies that is kept packed."""
    return path.with_name(f"{path.name}.xz")


def there(path: Path) -> bool:
    """Whether there is a file, plain or packed."""
    return path.exists() or packed(path).exists()


def each(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern, plain or packed, by the names that they have plain."""
    found = {*folder.glob(pattern), *(p.with_suffix("") for p in folder.glob(f"{pattern}.xz"))}
    return sorted(found)


def content(path: Path) -> str:
    """Return the text of a file, plain or packed."""
    if path.exists():
        return path.read_text("utf-8")
    return lzma.decompress(packed(path).read_bytes()).decode()


def put(path: Path, text: str) -> None:
    """Write a file, whole or not at all; packed where it is kept so."""
    _put(path, text.encode())


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed(path).exists() and not path.exists():
        path, data = packed(path), lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    temporary.write_bytes(data)
    temporary.replace(path)


def plain(path: Path) -> Path:
    """Return a file that may be kept packed, for those who open no packed ones."""
    if path.exists():
        return path
    target = ROOT / "build" / "unpacked" / path.relative_to(ROOT)
    data = lzma.decompress(packed(path).read_bytes())
    if not target.exists() or target.read_bytes() != data:  # others may read it
        _put(target, data)
    return target


def unpacked(packed: Path, target: Path) -> Path:
    """Write a packed report to a file, or into a folder by its own name, and return that."""
    target = target / packed.stem if target.is_dir() else target
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target
