"""Read first screens: does a reader of 24 lines know what is wrong, where, and what to do?

    python -m benchmarks.first_screens [FOLDER ...] [--answers]

Prints the first screen of every recording of first_screens.toml that is in the repository or in
one of the folders, such as copies of public repositories (by owner and name), for a reader who
answers three questions of each: what is wrong, where, and what would you do. `--answers` prints
the right ones, and whether a reader had them. Screens of more than 24 lines, or of lines of more
than 80 columns, are errors. Only a reader can score the answers: nothing here judges words.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len

from benchmarks.common.folders import ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.render.first_screen import LINES, WIDTH
from perfmodel.render.summary import result

LIST: Final = Path(__file__).with_suffix(".toml")


def cases() -> list[dict[str, Any]]:
    """Return the recordings with their right answers."""
    found: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["case"]
    return found


def score(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Count recordings of which a reader had all three answers.

    >>> score([{"before": True, "after": True}, {"before": False, "after": True}])
    {'before': '1 of 2', 'after': '2 of 2', 'kept': '0 of 0'}
    """
    seen = [case for case in found if not case.get("kept")]
    kept = [case for case in found if case.get("kept")]
    return {
        "before": f"{sum(case['before'] for case in seen)} of {len(seen)}",
        "after": f"{sum(case['after'] for case in seen)} of {len(seen)}",
        "kept": f"{sum(case['after'] for case in kept)} of {len(kept)}",
    }


def located(reports: Sequence[str], folders: Sequence[Path]) -> list[Path] | None:
    """Return the reports in the first folder that has all of them; None if none has."""
    for folder in (ROOT, *folders):
        paths = [folder / name for name in reports]
        if all(path.is_file() for path in paths):
            return paths
    return None


def screen(reports: Sequence[Path]) -> str:
    """Return the first screen of a run."""
    return result(analyze_reports(reports, Options())).render()


def main() -> int:
    """Print the screens; return 1 where one is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="*", type=Path)
    parser.add_argument("--answers", action="store_true", help="print the right answers, too")
    asked = parser.parse_args()
    wrong = 0
    for number, case in enumerate(cases(), 1):
        paths = located(case["reports"], asked.folder)
        if paths is None:
            print(f"\n=== {number}: {case['reports'][0]} is not here")
            continue
        text = screen(paths)
        lines = text.splitlines()
        large = len(lines) > LINES or max(map(cell_len, lines)) > WIDTH
        wrong += large
        print(f"\n=== {number}{': TOO LARGE' if large else ''}\n\n{text}")
        if asked.answers:
            had = "right" if case["after"] else "not right"
            print(f"wrong: {case['wrong']}\nwhere: {case['where']}\ndo: {case['do']}\nread: {had}")
    if asked.answers:
        print(*(f"{name}: {count}" for name, count in score(cases()).items()), sep="\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
