"""Score the search for steps on generated programs.

``python -m tests.support.structured --seeds 0 8 --kinds epochs gan --wrong``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

_TESTS: Final = Path(__file__).parents[2]


def main() -> None:
    """Parse the command line and print tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.structured", description=__doc__)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 8), metavar=("FIRST", "END"))
    parser.add_argument("--kinds", nargs="+", help="kinds of programs, all by default")
    parser.add_argument("--code", type=Path, help="folder of another version of perfmodel")
    parser.add_argument("--wrong", action="store_true", help="list programs with a wrong count")
    options = parser.parse_args()
    # `perfmodel` is first imported below, from the folder that stands first here
    sys.path[:0] = [*([str(options.code.resolve())] if options.code else []), str(_TESTS)]
    from . import KINDS
    from .score import calibration, scored, table, wrong

    unknown = set(options.kinds or ()) - KINDS.keys()
    if unknown:
        parser.error(f"expected kinds of {', '.join(KINDS)}; got {', '.join(sorted(unknown))}")
    scores = list(scored(options.kinds or KINDS, range(*options.seeds)))
    print(table(scores))
    if any(one.found.score is not None for one in scores):
        print(f"\n{calibration(scores)}")
    if options.wrong:
        print(f"\n{wrong(scores)}")


if __name__ == "__main__":
    main()
