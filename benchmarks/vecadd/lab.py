"""Builds and runs the lab's programs: programs/host.cpp, explicit.cu and unified.cu (HPML 5A, 3).

    python -m benchmarks.vecadd.lab                  # one GPU, about 4 minutes
    python -m benchmarks.vecadd.lab --ways host      # without one

Every program is a process of its own, K and the way its arguments; it is run at least --runs times
for each K, the ways in turn, so that what disturbs the machine disturbs all alike. What a program
prints (seconds of its parts) goes to benchmarks/results/vecadd_lab.json, run by run, with the time
of the whole process. Then nsys profiles one run of each way at --profiled million, for the time of
its kernel and of its copies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, gpus, results
from benchmarks.common.arguments import count, not_negative, positive
from benchmarks.vecadd.ways import MILLIONS

PROGRAMS: Final = Path(__file__).with_name("programs")
RESULTS: Final = folders.RESULTS / "vecadd_lab.json"
LEAST_RUNS: Final = 5
LIMIT_S: Final = 60.0
WAYS: Final = {
    "host": ("host", ()),
    **{f"{memory} {way}": (memory, (way,))
       for way in ("grid", "block", "thread") for memory in ("explicit", "unified")},
}  # fmt: skip
"""Program and its words behind K, by the name of the way; the quickest first."""
COMPILERS: Final = {
    ".cpp": ("g++", "-O2", "-std=c++17"),
    ".cu": ("nvcc", "-O2", "-std=c++17", "-arch=native"),
}


def build(folder: Path, ways: list[str]) -> dict[str, dict[str, Any]]:
    """Compile what the ways need; return command and path, or the reason, by program."""
    made: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(WAYS[way][0] for way in ways):
        source = next(PROGRAMS.glob(f"{name}.c*"))
        command = [*COMPILERS[source.suffix], "-o", str(folder / name), str(source)]
        said = f"{' '.join(command[:-3])} {source.name}"
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made[name] = {"command": said, "path": str(folder / name)}
        if done.returncode:
            made[name] |= {"problem": done.stderr[-400:]}
    return made


def ran(path: str, millions: float, words: tuple[str, ...]) -> dict[str, Any]:
    """Run a program; return what it printed, and the time of its process."""
    began = time.perf_counter()
    done = subprocess.run(
        [path, f"{millions:g}", *words], capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    spent = time.perf_counter() - began
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"rc {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}")
    return {**json.loads(done.stdout), "process_s": round(spent, 6)}


def profiled(path: str, millions: float, words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Profile a program by nsys; return the time of kernels and copies, by its statistics."""
    stem = folder / "report"
    flags = ["--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
    subprocess.run(
        ["nsys", "profile", *flags, "-o", str(stem), path, f"{millions:g}", *words],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    found = {}
    for report in ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum"):
        done = subprocess.run(
            ["nsys", "stats", "-q", "--force-export=true", "--format", "csv", "--report", report,
             str(stem) + ".nsys-rep"],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        found[report] = [line for line in done.stdout.splitlines() if "," in line][:12]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    add("--millions", type=positive, nargs="+", default=MILLIONS)
    add("--runs", type=count, default=LEAST_RUNS)
    add("--profiled", type=not_negative, default=10.0, help="million; 0: profile nothing")
    add("--out", type=Path, default=RESULTS)
    c = parser.parse_args()
    require(c.ways)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = build(folder, c.ways)
        found: dict[str, Any] = {
            **results.about(), "command": results.command("vecadd.lab", sys.argv[1:]),
            "gpu": gpu_name(), "build": programs, "rows": [], "problems": [], "profiles": {},
        }  # fmt: skip
        for built in programs.values():
            if "problem" in built:
                raise SystemExit(f"{built['command']}: {built['problem']}")
        for millions in c.millions:
            for number in range(c.runs):
                for way in c.ways:
                    run_cell(found, programs, way, millions, number)
            if found["rows"]:
                results.write(c.out, found)
            print(f"{time.perf_counter() - began:6.1f} s  K = {millions:g}", flush=True)
        if not found["rows"]:
            raise SystemExit(f"no program ran: {found['problems'][0]}")
        for way in c.ways if c.profiled and shutil.which("nsys") else ():
            program, words = WAYS[way]
            if program == "host":
                continue
            try:
                found["profiles"][way] = profiled(
                    programs[program]["path"], c.profiled, words, folder
                )
            except (subprocess.SubprocessError, OSError) as problem:
                found["problems"].append(f"nsys, {way}: {problem!r}"[:300])
            results.write(c.out, found)
    for program in programs.values():
        program.pop("path", None)
    out = results.write(c.out, found)
    print(f"{time.perf_counter() - began:6.1f} s  {len(found['rows'])} runs -> {out}, "
          f"problems: {found['problems']}")  # fmt: skip


def require(ways: list[str]) -> None:
    """End the program where the compilers or the GPU of these ways are missing.

    Raises
    ------
    SystemExit
        If they are; with what to do.
    """
    programs = {WAYS[way][0] for way in ways}
    if "host" in programs:
        gpus.require_tool("g++", "the GNU C++ compiler")
    if programs - {"host"}:
        gpus.require()
        gpus.require_tool("nvcc", "the CUDA toolkit, or choose --ways host")


def run_cell(
    found: dict[str, Any], programs: dict[str, Any], way: str, millions: float, number: int
) -> None:
    """Run a cell once; keep its row, or the problem."""
    program, words = WAYS[way]
    cell = {"way": way, "millions": millions, "run": number}
    try:
        found["rows"].append({**cell, **ran(programs[program]["path"], millions, words)})
    except (RuntimeError, subprocess.SubprocessError, ValueError) as problem:
        found["problems"].append(f"{way}, K = {millions:g}: {problem}"[:300])


def gpu_name() -> str | None:
    """Return the GPU's name, as nvidia-smi has it."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None


if __name__ == "__main__":
    main()
