"""Where results, pages, pictures and profiles lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
BUILD: Final = ROOT / "build" / "results"
DOCS: Final = ROOT / "docs"
IMAGES: Final = DOCS / "images"
PROFILES: Final = ROOT / "profiles"
