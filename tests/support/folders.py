"""Where the repository's folders are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUPPORT: Final = Path(__file__).resolve().parent
TESTS: Final = SUPPORT.parent
ROOT: Final = TESTS.parent
