"""The reports of a foreign trainer, which profiles/README.md describes; all but one lie packed."""

from __future__ import annotations

from typing import Final

from benchmarks.common.folders import BASE, PROFILES, plain

SHARED: Final = plain(PROFILES / "h200x1_2ranks_nsys2024.2.3.sqlite")
PINNED: Final = plain(PROFILES / "h200x2_2ranks_pinned_nsys2025.3.1.sqlite")
H2048: Final = plain(PROFILES / "h200x2_2ranks_h2048_nsys2025.3.1.sqlite")
SHIPPED: Final = [SHARED, BASE, H2048, PINNED]
