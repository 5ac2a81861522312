"""Pictures are drawn whatever backend of matplotlib the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.common.folders import BASE


def test_an_unknown_backend(tmp_path: Path) -> None:
    out = tmp_path / "timeline.png"
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "timeline", str(BASE), "-o", str(out)],
        capture_output=True, text=True, env={**os.environ, "MPLBACKEND": "nonsense"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 10_000
