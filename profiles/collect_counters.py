"""Counts what the trainer's kernels do in a few batches, with Nsight Compute on one GPU.

    python -m profiles.collect_counters                  # four ways to multiply, below 90 s
    python -m profiles.collect_counters --only cublas    # one of them

Writes tests/golden/ncu/h200_NAME.csv, as `ncu --csv --page raw` prints it, for every NAME that
ends in time; `perfmodel counters` reads these (docs/counters.md).
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.common.ncu import Failed, collect
from perfmodel.analysis.counters import METRICS, SECTORS
from perfmodel.base.errors import PerfmodelError
from perfmodel.readers.ncu import DEVICE, parse

CASES = {
    "cublas": [],
    "cublas_tf32": ["--math", "tf32"],
    "hierarchical": ["--gemm", "hierarchical"],
    "fused_tf32x3": ["--gemm", "fused", "--math", "tf32x3"],
}
RANGE = "batch iteration"
BATCH = 3000
WAYS = (("nvtx", True), ("cupy", True), ("cupy", False))
"""Whose ranges, and whether only kernels inside batches are counted: tried in this order."""


def program(extra: list[str], ranges: str, batches: int, given: list[str]) -> list[str]:
    """The trainer: the document's network, one rank, all images on the GPU."""
    return [
        sys.executable, "-m", "profiles.collect_counters", "--trainer-with", ranges,
        "--data", "synthetic", "--hidden-size", "512", "--batch-size", str(BATCH),
        "--train-size", str(batches * BATCH), "--test-size", "500", "--epochs", "1",
        "--evaluate-every", "0", "--data-on", "device", "--transport", "none", *extra, *given,
    ]  # fmt: skip


def words(ncu: str, filtered: bool, log: Path) -> list[str]:
    """The command before its metrics and program; its table goes to a file of its own."""
    return [
        ncu, "--target-processes", "all", "--nvtx", "--clock-control", "none", "--csv",
        *(["--nvtx-include", f"{RANGE}/"] if filtered else []),
        "--page", "raw", "--print-units", "base", "--force-overwrite", "--log-file", str(log),
    ]  # fmt: skip


def without_paths(text: str) -> str:
    """The table as it is, without the machine's paths in ncu's own lines."""
    return re.sub(r"(==PROF== .*process \d+) \(.*\)", r"\1 (python)", text)


class Session:
    """What is learned from one case for the next: known metrics, and the way that sees ranges."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.metrics, self.way, self.batches = [*METRICS, *SECTORS, DEVICE], 0, args.batches

    def left_s(self) -> float:
        return self.args.budget - (time.monotonic() - self.began)

    def count(self, name: str) -> None:
        """Write the table of one case; try ways until one sees kernels inside ranges."""
        log = self.args.out / f".{name}.log"
        while True:
            ranges, filtered = WAYS[self.way]
            ran = program(CASES[name], ranges, self.batches, self.args.trainer)
            before = words(self.args.ncu, filtered, log)
            _, self.metrics = collect(before, ran, self.metrics, max(1.0, self.left_s()))
            table = without_paths(log.read_text())
            log.unlink()
            try:
                launches = parse(table, name).launches
            except PerfmodelError as error:
                launches = ()
                print(f"   {error}", file=sys.stderr, flush=True)
            if any(one.ranges for one in launches) or self.way == len(WAYS) - 1:
                break
            self.way += 1
            print(f"   no kernels inside ranges; now: {WAYS[self.way]}", flush=True)
        if not launches:
            raise Failed("no kernels were counted")
        (self.args.out / f"h200_{name}.csv").write_text(table)
        seen = sorted({one.ranges[-1] for one in launches if one.ranges})
        print(f"   {len(launches)} launches in {seen or 'NO RANGES'}", flush=True)


def train(chosen: str) -> None:
    """Run the trainer as it is profiled: with ranges that Nsight Compute sees.

    nvtx >= 0.2.13 asks whether a tool listens, and records nothing for one that does not answer
    (trainer/ranges.py); then CuPy's ranges, which do not ask, take the place of nvtx's.
    """
    import nvtx

    from trainer import ranges
    from trainer.__main__ import main

    if chosen == "cupy" or type(nvtx.get_domain(None)).__name__ == "DummyDomain":
        print("ranges are CuPy's", flush=True)
        ranges.make_ranges = cupy_ranges
    sys.exit(main())


def cupy_ranges(synchronize: Callable[[], None] | None = None) -> dict[str, Any]:
    """Return all ranges of the trainer, pushed and popped by CuPy."""
    from cupy.cuda.nvtx import RangePop, RangePush

    from trainer import ranges

    return {
        name: ranges._Range(
            RangePush, (name,), RangePop, (), synchronize if name in ranges.SYNCHRONIZED else None
        )
        for name in ranges.PARENT
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ncu", default=shutil.which("ncu") or "ncu")
    add("--out", type=Path, default=folders.ROOT / "tests" / "golden" / "ncu")
    add("--only", nargs="+", choices=CASES, default=list(CASES))
    add("--batches", type=int, default=3)
    add("--budget", type=float, default=85.0, help="seconds for all of it")
    add("--trainer", nargs=argparse.REMAINDER, default=[], help="more flags of the trainer, last")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    session, failures = Session(args), 0
    for i, name in enumerate(args.only):
        share = session.left_s() / (len(args.only) - i)
        print(f"== {name}: {session.batches} batches, {session.left_s():.0f} s left", flush=True)
        start = time.monotonic()
        try:
            if session.left_s() < 5:
                raise Failed("no time left")
            session.count(name)
        except Exception as error:  # the next part may work
            print(f"   failed: {error}", file=sys.stderr, flush=True)
            failures += 1
        took = time.monotonic() - start
        print(f"   {took:.1f} s", flush=True)
        if took > share:
            session.batches = 1
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainer-with"]:
        _, chosen = sys.argv.pop(1), sys.argv.pop(1)
        train(chosen)
    sys.exit(main())
