"""Joins launches of benchmarks.gemm: medians over launches, with the interval of another one.

    python -m benchmarks.gemm.join FILE ...      # writes benchmarks/results/gemm.json

Each FILE was written by `python -m benchmarks.gemm --out FILE`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.launches import LAUNCH_SD, ratio_over

Row = dict[str, Any]
KEY: Final = ("kernel", "what", "m", "n", "k", "transposes", "dtype", "H", "B_per_rank")
OF_LAUNCH: Final = ("median_s", "round_s", "peer_median_s", "share_of_cublas", "error")
"""What is kept of every launch."""
DROPPED: Final = ("round_s", "spread", "repeats")
_SD: Final = 2**0.5 * LAUNCH_SD["GEMMs"]
"""Of the logarithm of two GEMMs' ratio between launches, as assumed of one or two launches."""


def join(launches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return launches on one kind of GPU as one result, the last one's but for times.

    Raises
    ------
    ValueError
        If they ran on different GPUs.
    """
    if len(devices := {launch["device"] for launch in launches}) > 1:
        raise ValueError(f"expected launches on one GPU; got {' and '.join(sorted(devices))}")
    rows: dict[tuple[Any, ...], list[Row]] = {}
    for launch in launches:
        for row in launch["rows"]:
            rows.setdefault(tuple(row[key] for key in KEY), []).append(row)
    about = ("command", "date", "measured", "versions")
    return {
        **launches[-1], "launches": [{key: one[key] for key in about} for one in launches],
        "rows": [_joined(same) for same in rows.values()],
    }  # fmt: skip


def _joined(rows: Sequence[Row]) -> Row:
    """Return one kernel's launches on one problem: medians, and the share's interval."""
    row = {key: value for key, value in rows[-1].items() if key not in DROPPED}
    median = statistics.median(r["median_s"] for r in rows)
    share = ratio_over([r["share_of_cublas"] for r in rows], _SD)
    return row | {
        "median_s": median, "peer_median_s": statistics.median(r["peer_median_s"] for r in rows),
        "share_of_cublas": share["ratio"], "share_low": share["ratio_low"],
        "share_high": share["ratio_high"], "share_of_floor": row["floor_s"] / median,
        "flops_per_s": 2 * row["m"] * row["n"] * row["k"] / median,
        "error": max(r["error"] for r in rows),
        "launches": [{key: r[key] for key in OF_LAUNCH} for r in rows],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "gemm.json")
    args = parser.parse_args()
    joined = join([results.read(file) for file in args.files])
    results.write(args.out, joined, digits=6)
    print(f"{args.out}: {len(joined['launches'])} launches, {len(joined['rows'])} rows")


if __name__ == "__main__":
    main()
