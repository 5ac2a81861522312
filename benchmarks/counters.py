"""Counts what the trainer's kernels do in a few batches, with Nsight Compute on one GPU.

    python benchmarks/counters.py                        # four ways to multiply, below 90 s
    python benchmarks/counters.py --only cublas          # one of them

Writes tests/golden/ncu/h200_NAME.csv, as `ncu --csv --page raw` prints it, for every NAME that
ends in time; `perfmodel counters` reads these (docs/counters.md).
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from ncu_run import collect  # noqa: E402

from perfmodel.counters import DEVICE, METRICS  # noqa: E402
from perfmodel.counters.metrics import SECTORS  # noqa: E402
from perfmodel.readers.ncu import parse  # noqa: E402

CASES = {
    "cublas": [],
    "cublas_tf32": ["--math", "tf32"],
    "hierarchical": ["--gemm", "hierarchical"],
    "fused_tf32x3": ["--gemm", "fused", "--math", "tf32x3"],
}
RANGE = "batch iteration"
BATCH = 3000


def program(extra: list[str], batches: int, given: list[str]) -> list[str]:
    """The trainer: the document's network, one rank, all images on the GPU."""
    return [
        sys.executable, str(ROOT / "benchmarks" / "counters_trainer.py"), "--data", "synthetic",
        "--hidden-size", "512", "--batch-size", str(BATCH), "--train-size", str(batches * BATCH),
        "--test-size", "500", "--epochs", "1", "--evaluate-every", "0", "--data-on", "device",
        "--transport", "none", *extra, *given,
    ]  # fmt: skip


def words(ncu: str, log: Path) -> list[str]:
    """The command before its metrics and program; its table goes to a file of its own."""
    return [
        ncu, "--target-processes", "all", "--nvtx", "--nvtx-include", f"{RANGE}/",
        "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--force-overwrite", "--log-file", str(log),
    ]  # fmt: skip


def without_paths(text: str) -> str:
    """The table as it is, without the machine's paths in ncu's own lines."""
    return re.sub(r"(==PROF== .*process \d+) \(.*\)", r"\1 (python)", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ncu", default=shutil.which("ncu") or "ncu")
    add("--out", type=Path, default=ROOT / "tests" / "golden" / "ncu")
    add("--only", nargs="+", choices=CASES, default=list(CASES))
    add("--batches", type=int, default=3)
    add("--budget", type=float, default=85.0, help="seconds for all of it")
    add("--trainer", nargs=argparse.REMAINDER, default=[], help="more flags of the trainer, last")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began, batches, failures = time.monotonic(), args.batches, 0
    metrics = [*METRICS, *SECTORS, DEVICE]
    for i, name in enumerate(args.only):
        left = args.budget - (time.monotonic() - began)
        share = left / (len(args.only) - i)
        print(f"== {name}: {batches} batches, {left:.0f} s left", flush=True)
        if left < 5:
            print("no time left", file=sys.stderr)
            failures += 1
            continue
        log = args.out / f".{name}.log"
        start = time.monotonic()
        try:
            ran = program(CASES[name], batches, args.trainer)
            printed, metrics = collect(words(args.ncu, log), ran, metrics, left)
            table = without_paths(log.read_text() if log.exists() else printed)
            launches = parse(table, name).launches
            (args.out / f"h200_{name}.csv").write_text(table)
            ranges = sorted({one.ranges[-1] for one in launches if one.ranges})
            print(f"   {len(launches)} launches in {ranges or 'NO RANGES'}", flush=True)
        except Exception as error:  # the next part may work
            print(f"   failed: {error}", file=sys.stderr, flush=True)
            failures += 1
        log.unlink(missing_ok=True)
        took = time.monotonic() - start
        print(f"   {took:.1f} s", flush=True)
        if took > share:
            batches = 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
