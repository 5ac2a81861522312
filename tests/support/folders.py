"""Where the repository's folders and the files most read are; reports unpacked."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).resolve().parent
TESTS: Final = SUPPORT.parent
ROOT: Final = TESTS.parent
PROFILES: Final = ROOT / "profiles"
PROGRAMS: Final = PROFILES / "programs"
RESULTS: Final = ROOT / "benchmarks" / "results"
BASE: Final = PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
SHIPPED: Final = sorted(PROFILES.glob("*.sqlite"))
MACHINE: Final = RESULTS / "machine_h200x4.toml"


def unpacked(packed: Path, target: Path) -> Path:
    """Write a packed report to a file, or into a folder by its own name, and return that."""
    target = target / packed.stem if target.is_dir() else target
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target
