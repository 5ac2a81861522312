"""Where the repository's folders are, and reports of them unpacked."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).resolve().parent
TESTS: Final = SUPPORT.parent
ROOT: Final = TESTS.parent


def unpacked(packed: Path, target: Path) -> Path:
    """Write a packed report to a file, or into a folder by its own name, and return that."""
    target = target / packed.stem if target.is_dir() else target
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target
