"""Where the repository's folders lie, and the files that many studies and tests read."""

from __future__ import annotations

import lzma
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
SHIPPED: Final = sorted(PROFILES.glob("*.sqlite"))
MACHINE: Final = RESULTS / "machine_h200x4.toml"


def unpacked(packed: Path, target: Path) -> Path:
    """Write a packed report to a file, or into a folder by its own name, and return that."""
    target = target / packed.stem if target.is_dir() else target
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target
