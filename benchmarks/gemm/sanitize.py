"""Runs every kernel of the trainer under compute-sanitizer and counts what it finds.

    python -m benchmarks.gemm.sanitize    # on a GPU: memcheck, racecheck, initcheck, synccheck

Products of odd sizes and layouts by every GEMM of ours and some steps of the fused network, small
ones: the tools slow a kernel down a hundredfold. Writes benchmarks/results/sanitize.json.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.processes import module

RESULTS = folders.RESULTS / "sanitize.json"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PRODUCTS = ((64, 96, 80), (130, 67, 33), (10, 257, 129), (129, 65, 10), (10, 65, 515), (33, 1, 70))
OURS = ("naive", "tiled", "register", "hierarchical", "thin")


def launch() -> None:
    """Launch every kernel and compare with float64: what compute-sanitizer watches."""
    import cupy
    import numpy as np

    from trainer.kernels import MATHS, make_gemm

    rng = np.random.default_rng(0)
    for name in OURS:
        for math in MATHS[name]:
            gemm = make_gemm(name, math=math)
            for dtype in ("float32", "float64") if math == "ieee" else ("float32",):
                for m, n, k in PRODUCTS:
                    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
                    out = cupy.full((m, n), np.nan, dtype)
                    gemm(cupy.asarray(a.astype(dtype)), cupy.asarray(b.astype(dtype)).T, out)
                    worst = float(np.abs(out.get() - a @ b.T).max()) / k
                    assert worst < 1e-2, (name, math, dtype, m, n, k, worst)
                    print(name, math, dtype, m, n, k, f"{worst:.1e}")
    for math in MATHS["hierarchical"]:
        steps(math)


def steps(math: str) -> None:
    """Train a few steps of the fused network on one GPU."""
    from trainer.backends.choice import choose
    from trainer.config import Config
    from trainer.data import synthetic
    from trainer.mpi import Communicator
    from trainer.train import Session

    config = Config(
        input_size=36, hidden_size=70, batch_size=150, data="synthetic", train_size=400,
        test_size=10, backend="cupy", gemm="fused", math=math, data_on="device", transport="peer",
    )  # fmt: skip
    session = Session(config, Communicator(), synthetic(config), choose(config, 0))
    session.prepare()
    session.run_batches(3)
    session.synchronize()
    print("fused", math, float(abs(session.parameters()).max()))


def check(sanitizer: str, tool: str) -> dict[str, Any]:
    """Run one tool; return its summary."""
    command = [sanitizer, "--tool", tool, *module("gemm.sanitize", "--launch")]
    done = subprocess.run(command, cwd=folders.ROOT, capture_output=True, text=True)
    said = done.stdout + done.stderr
    found = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", said)
    lines = [line for line in said.splitlines() if "=====" in line]
    return {
        "tool": tool, "exit_code": done.returncode,
        "errors": int(found[1]) if found else None,
        "said": lines[-1] if lines else said[-300:],
        "first": [] if found and found[1] == "0" else lines[:12],
        "products": len(re.findall(r"^(?:naive|tiled|register|hierarchical|thin) ", said, re.M)),
        "steps": len(re.findall(r"^fused ", said, re.M)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"))
    parser.add_argument("--launch", action="store_true", help="what compute-sanitizer runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.launch:
        launch()
        return
    if not args.sanitizer:
        raise SystemExit("expected compute-sanitizer; got none; it comes with the CUDA toolkit")
    rows = []
    for tool in TOOLS:
        rows.append(check(args.sanitizer, tool))
        print(tool, rows[-1]["errors"], rows[-1]["said"], flush=True)
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        results.write(args.out, {
            "command": results.command("gemm.sanitize"), "date": results.now(), "device": device,
            "versions": {"cupy": cupy.__version__}, "rows": rows,
        })  # fmt: skip


if __name__ == "__main__":
    main()
