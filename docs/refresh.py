"""Refreshes what README.md shows of `make demo`: its text and its pictures.

    python docs/refresh.py

The test of the documentation fails when the text in README.md is not what the command prints.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = "profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"
BEGIN, END = "<!-- output of make demo -->\n```text\n", "```\n<!-- end of output -->"


def demo(out: Path) -> str:
    """Run the main job on the shipped report; return what it prints but for the written files."""
    command = [sys.executable, "-m", "perfmodel", "analyze", REPORT, "-o", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.partition("\nWritten: ")[0]


def shown(readme: str) -> str:
    """Return the text that a README shows as the output of `make demo`."""
    return readme.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the output into README.md and the pictures into docs/images."""
    readme = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        text = demo(out)
        for name in ("roofline.png", "breakdown.png"):
            shutil.copy(out / name, ROOT / "docs" / "images" / name)
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    readme.write_text(before + BEGIN + text + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
