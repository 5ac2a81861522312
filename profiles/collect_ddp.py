"""Collects reports of a PyTorch DDP program, one per size: python -m profiles.collect_ddp OUT.

Runs ddp.py once under Nsight Systems, cuts the report by part.py and compresses the parts to
OUT/ddp_pP_HH_BB.sqlite.xz with OUT/index.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from profiles.collect import ROOT, profile
from profiles.collect_launches import cut, shrink

TRACE = ("--trace=nvtx,cuda", "--sample=none", "--cpuctxsw=none")


def main() -> None:
    """Profile, cut, compress."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    c = parser.parse_args()
    c.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "ddp"
        program = [str(ROOT / "profiles" / "ddp.py"), "--batches", str(c.batches)]
        launch = ["mpirun", "--bind-to", "none", "-n", str(c.ranks), sys.executable, *program]
        said = profile(TRACE, launch, raw, timeout_s=120)
        index = []
        for name, report in cut(raw).items():
            target = c.out / f"{name}.sqlite.xz"
            checksum = shrink(report, target)
            index.append({"file": target.name, "sha256": checksum, "command": said,
                          "collected": datetime.now(UTC).date().isoformat()})  # fmt: skip
            print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB", flush=True)
    (c.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
