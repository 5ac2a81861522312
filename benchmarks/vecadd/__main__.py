"""Adds two vectors of K million floats on the host and on a GPU, with and without unified memory.

    python -m benchmarks.vecadd --part time          # one GPU, at most 75 s
    python -m benchmarks.vecadd --part profile       # the same under nsys, at most 25 s
    python -m benchmarks.vecadd --part time --device cpu --millions 0.1 1     # rehearse
    python -m benchmarks.vecadd --document           # the made part of docs/vecadd.md, its charts

Every part replaces only its own part of benchmarks/results/vecadd.json (a rehearsal does not). What
fails, or does not fit into the time, is named there with its reason. Every sum is held against
NumPy's.

    host       a loop in Python, one in C++ (g++ -O2), NumPy; one thread each
    explicit   cudaMalloc and cudaMemcpy: one thread, one block of 256, as many threads as floats
    unified    the same with cudaMallocManaged: first touched by the host
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders, gpus, results
from benchmarks.common.results import Keep
from benchmarks.vecadd.ways import (
    MILLIONS,
    Gpu,
    Seconds,
    Vector,
    explicit,
    latencies,
    managed,
    on_hosts,
)

RESULTS: Final = folders.RESULTS / "vecadd.json"
GRIDS: Final = ("grid", "block", "thread")
REPEATS: Final = 5
SHARE_S: Final = 0.6
"""How long repeats of one cell may take after the first."""
MOST_PYTHON_S: Final = 20.0
PROFILED: Final = 10.0
"""Millions of floats of the profile: every page fault is recorded there."""
PROFILE_S: Final = 30.0
NO_GPU: Final = "--device cpu: no GPU was asked for"
UM_FLAGS: Final = ("--cuda-um-cpu-page-faults=true", "--cuda-um-gpu-page-faults=true")

Way = Callable[[Vector, Vector, Vector], Seconds]


class Skip(Exception):
    """A cell is left out, and why."""


def numbers(n: int) -> tuple[Vector, Vector]:
    """Return the vectors to add."""
    made = np.random.default_rng(0)
    return made.random(n, dtype=np.float32), made.random(n, dtype=np.float32)


def measured(way: Way, x: Vector, y: Vector, repeats: int = REPEATS) -> dict[str, Any]:
    """Run a way once, and again while that is cheap; return medians, and whether it was right."""
    expected, out, runs = x + y, np.empty_like(x), []
    right, began = True, time.perf_counter()
    while True:
        out.fill(np.nan)
        runs.append(way(x, y, out))
        right = right and bool(np.array_equal(out, expected))
        each = (time.perf_counter() - began) / len(runs)
        if len(runs) >= repeats or each * len(runs) > SHARE_S:
            break
    seconds = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {"repeats": len(runs), "correct": right, "seconds": seconds}


def ways(device: Any, folder: Path) -> Iterator[tuple[str, str, Way]]:
    """Yield memory, name and way, the quickest of the GPU first; without one, ways that say so."""

    def absent(reason: str) -> Way:
        def run(*_: Any) -> Seconds:
            raise Skip(reason)

        return run

    for name, made in on_hosts(folder).items():
        try:
            yield "host", name, made()
        except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
            yield "host", name, absent(str(problem)[:200])
    for name in GRIDS:
        for memory, way in (("explicit", explicit), ("unified", managed)):
            yield memory, name, absent(NO_GPU) if device is None else using(device, way, name)


def using(device: Any, way: Callable[..., Seconds], name: str) -> Way:
    """Return a way on a device; unified memory only where half of what is free has room."""

    def run(x: Vector, y: Vector, out: Vector) -> Seconds:
        if way is managed and 3 * x.nbytes > device.free_bytes() / 2:
            free = device.free_bytes()
            raise Skip(f"3 x {x.nbytes} B are more than half of the {free} B that are free")
        return way(device, name, x, y, out)

    return run


def timed(args: argparse.Namespace, keep: Keep, about: dict[str, Any]) -> None:
    """Time every way at every size while there is time; `about` gets what the GPU is."""
    end = time.monotonic() + args.seconds
    device = opened(args.device, about)
    sizes = sorted(args.millions)
    x, y = numbers(int(1e6 * sizes[-1]))
    if device is not None:
        about["latency_s"] = attempt(lambda: latencies(device), keep, {"way": "chase"})
    with tempfile.TemporaryDirectory() as folder:
        for memory, name, way in ways(device, Path(folder)):
            last: tuple[float, float] | None = None  # a size, and how long one run of it takes
            for millions in sizes:
                cell = {"memory": memory, "way": name, "millions": millions}
                n = int(1e6 * millions)
                expect_s = last[1] * millions / last[0] if last else 0.0
                left_s = end - time.monotonic()
                if name == "python":
                    left_s = min(left_s, MOST_PYTHON_S)
                if expect_s > left_s:
                    keep({**cell, "skipped": f"about {expect_s:.1f} s, {left_s:.1f} s left"})
                    continue
                began = time.monotonic()
                found = attempt(lambda w=way, n=n: measured(w, x[:n], y[:n]), keep, cell)
                if found is None:
                    continue
                keep({**cell, **found})
                last = millions, (time.monotonic() - began) / found["repeats"]


def attempt(run: Callable[[], Any], keep: Keep, cell: dict[str, Any]) -> Any:
    """Run; a problem is kept, and None returned: the next one may still work."""
    try:
        return run()
    except Skip as reason:
        keep({**cell, "skipped": str(reason)})
    except Exception as problem:
        keep({**cell, "problem": repr(problem)[:300]})
    return None


def opened(device: str, about: dict[str, Any]) -> Gpu | None:
    """Return the GPU or, for 'cpu', None; `about` gets what it says of itself."""
    about |= {"host": platform.machine(), "numpy": np.__version__}
    if device == "cpu":
        return None
    try:
        gpu = Gpu()
    except Exception as problem:  # CuPy is absent, or finds no GPU
        raise SystemExit(
            f"expected a GPU and CuPy; got {repr(problem)[:200]}; rehearse with --device cpu"
        ) from problem
    about |= gpu.about()
    return gpu


def program(args: argparse.Namespace) -> None:
    """Add once with copies, then in unified memory: what the profile is of."""
    x, y = numbers(int(1e6 * args.millions[0]))
    out = np.empty_like(x)
    device = opened("cuda", {})
    said: dict[str, Any] = {}
    for name, way in (("explicit", explicit), ("unified", managed)):
        out.fill(np.nan)
        said[name] = using(device, way, "grid")(x, y, out)
        said[f"{name}_correct"] = bool(np.array_equal(out, x + y))
    print(json.dumps(said), flush=True)


def profiled(args: argparse.Namespace, keep: Keep, about: dict[str, Any]) -> None:
    """Profile the program; keep what the report says of pages."""
    from benchmarks.vecadd.unified import evidence

    nsys = shutil.which(os.environ.get("PERFMODEL_NSYS", "nsys"))
    if args.device == "cpu" or nsys is None:
        reason = NO_GPU if args.device == "cpu" else "no nsys on the PATH, nor in PERFMODEL_NSYS"
        keep({"way": "profile", "skipped": reason})
        return
    helped = subprocess.run([nsys, "profile", "--help"], capture_output=True, text=True)
    known = [flag for flag in UM_FLAGS if flag.partition("=")[0] in helped.stdout + helped.stderr]
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True).stdout
    args.report.parent.mkdir(parents=True, exist_ok=True)
    stem = args.report.resolve().with_suffix("")
    for flags in dict.fromkeys([tuple(known), ()]):  # a driver may refuse to record page faults
        words = ["nsys", "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", *flags]
        inner = ["-m", "benchmarks.vecadd", "--part", "program", "--millions", f"{PROFILED:g}"]
        output = ["--export=sqlite", "--force-overwrite=true", "-o", str(stem)]
        cell = {"way": "profile", "command": " ".join([*words, "python", *inner]),
                "nsys": version.strip().rpartition(" ")[2], "millions": PROFILED}  # fmt: skip
        command = [nsys, *words[1:], *output, sys.executable, *inner]
        printed = attempt(lambda command=command: ended(command, PROFILE_S), keep, cell)
        if printed is None:
            continue
        said = next((line for line in printed.splitlines() if line.startswith("{")), "{}")
        found = attempt(lambda: evidence(stem.with_suffix(".sqlite")), keep, cell)
        if found is not None:
            about["nsys"] = cell["nsys"]
            keep({**cell, "program": json.loads(said), **found})
            break


def ended(command: Sequence[str], timeout_s: float) -> str:
    """Run a command in the repository; return what it printed."""
    done = subprocess.run(
        command, cwd=folders.ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise RuntimeError(said[-1][-250:])
    return done.stdout


PARTS: Final = {"time": timed, "profile": profiled}


def part_of(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a part; return its rows, what was left out, and what it ran on."""
    return results.measure_part(
        "vecadd", part, ("memory", "way", "millions"),
        lambda keep, about: PARTS[part](args, keep, about), args.out,
        date=results.today(), device=args.device,
    )  # fmt: skip


def main() -> None:
    parser = results.parser(__doc__, "docs/vecadd.md", None)
    add = parser.add_argument
    add("--part", nargs="+", default=(), choices=(*PARTS, "program"))
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--millions", type=float, nargs="+", default=MILLIONS, help="floats in a vector, /1e6")
    add("--seconds", type=float, default=95.0, help="within which cells may begin")
    add("--report", type=Path, default=Path("build/vecadd.sqlite"), help="of the profile")
    args = parser.parse_args()
    if args.part and args.device == "cuda":
        gpus.require()
    shown = args.out or RESULTS
    if args.out is None:
        args.out = RESULTS if args.device == "cuda" else folders.ROOT / "build" / "vecadd_cpu.json"
    if "program" in args.part:
        program(args)
        return
    results.run_parts(args.part, args.out, lambda part: part_of(part, args))
    if args.document:
        from benchmarks.vecadd import report

        report.write(shown)


if __name__ == "__main__":
    main()
