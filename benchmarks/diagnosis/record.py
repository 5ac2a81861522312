"""Makes the recordings of plan.toml: `python -m benchmarks.diagnosis.record [NAME ...]`.

    python -m benchmarks.diagnosis.record --sealed COUNT TRUTH.toml

draws COUNT cases that nobody knows, one in four without a fault, and records them as sealed_1 and
so on. Their truth goes to TRUTH.toml, which stays outside the repository; whoever has it scores
them by `--cases TRUTH.toml --unseen`.

Needs mpirun (Open MPI) and nsys, but no GPU. Each program is timed three times without the
profiler, with its fault and without, and then recorded; the shortest of three times counts, since
other work on the machine only makes them longer. Writes profiles/diagnosis/NAME.sqlite.xz and
recorded.toml, which is scored.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common.folders import PROFILES, ROOT
from profiles.pack import pack
from profiles.trim import trim

PLAN: Final = Path(__file__).parent / "plan.toml"
RECORDED: Final = Path(__file__).parent / "recorded.toml"
REPORTS: Final = PROFILES / "diagnosis"
_TIMES: Final = 3
_NSYS: Final = ["--trace=nvtx,mpi", "--mpi-impl=openmpi", "--sample=none", "--cpuctxsw=none"]
_HEALTHY: Final = ("healthy", "unnamed")
PROGRAMS: Final = ("heat", "regression", "conjugate", "fourier", "farm", "particles", "sort", "pi")


_QUIET_S: Final = 0.006
"""A healthy step is paced at 4 ms: on a machine that takes longer, times say nothing."""
WAYS: Final = {
    "polling": "heat conjugate particles fourier sort regression pi",
    "small_messages": "heat conjugate particles fourier sort",
    "large_messages": "heat conjugate particles fourier sort",
    "many_collectives": "heat regression conjugate pi",
    "serial_root": "heat regression conjugate farm pi",
    "in_order": "heat conjugate particles",
    "slow_link": "heat conjugate particles fourier sort",
}
"""Programs that can exchange in these ways; in all others any program can."""
RARE_S, OFTEN_S = (0.010, 0.020), (0.0012, 0.0030)
"""Seconds of a fault that only some steps have, and of one that all steps have."""


def drawn(count: int, faults: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Draw cases that nobody has chosen: every fault at most once, and every fourth without one."""
    chance = np.random.default_rng()
    kinds = list(chance.permutation([*faults]))
    cases = []
    for number in range(count):
        fault = "healthy" if number % 4 == 3 else str(kinds.pop())
        programs = WAYS.get(fault, " ".join(PROGRAMS)).split()
        ranks = int(chance.choice((4, 6)))
        rare = fault in ("checkpoint_root", "checkpoint", "validation", "pauses")
        cases.append({
            "program": str(chance.choice(programs)), "fault": fault, "ranks": ranks,
            "at": int(chance.integers(ranks)), "unseen": True,
            "seconds": round(float(chance.uniform(*(RARE_S if rare else OFTEN_S))), 4),
        })  # fmt: skip
    return cases


def name_of(case: Mapping[str, Any]) -> str:
    """Name a case by its program, fault and number of ranks."""
    return f"{case['program']}_{case['fault']}_{case['ranks']}"


def command(program: str, fault: str, at: int, seconds: float, ranks: int) -> list[str]:
    """Return the command line that runs a program."""
    allowed = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        "mpirun", *allowed, "--oversubscribe", "-n", str(ranks), sys.executable,
        "-m", "benchmarks.diagnosis.programs", program, fault, str(at), str(seconds),
    ]  # fmt: skip


@cache
def timed_s(*run: Any) -> float:
    """Return the shortest mean step of some runs without the profiler."""
    printed = (
        subprocess.run(command(*run), cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for _ in range(_TIMES)
    )
    return min(float(text) for text in printed)


def record(run: tuple[Any, ...], target: Path) -> None:
    """Record a run, and keep what perfmodel reads of it."""
    nsys = os.environ.get("PERFMODEL_NSYS") or shutil.which("nsys") or "nsys"
    with tempfile.TemporaryDirectory() as folder:
        raw, whole, small = (Path(folder) / f"r.{end}" for end in ("nsys-rep", "sqlite", "db"))
        for words in (
            [nsys, "profile", *_NSYS, "-o", str(raw.with_suffix("")), *command(*run)],
            [nsys, "export", "--type", "sqlite", "-o", str(whole), str(raw)],
        ):
            subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
        trim(whole, small)
        pack(small, target)


def truth(
    case: Mapping[str, Any], faults: Mapping[str, Mapping[str, Any]], name: str
) -> dict[str, Any]:
    """Return what is right to say of a case, as `python -m benchmarks.diagnosis` reads it."""
    ranks = case["ranks"]
    known = {"reports": [f"diagnosis/{name}.sqlite.xz"], "tuned": not case["unseen"]}
    if case["fault"] in _HEALTHY:
        return {"name": f"{case['program']}, {ranks} ranks, {case['fault']}", **known}
    fault = faults[case["fault"]]
    rank = fault.get("rank")
    rank = {"at": case["at"], "last": ranks - 1}[rank] if isinstance(rank, str) else rank
    run = (case["program"], case["fault"], case["at"], case["seconds"], ranks)
    without = (run[0], "healthy", *run[2:])
    times = {"step_s": round(timed_s(*run), 6), "without_s": round(timed_s(*without), 6)}
    return {
        "name": f"{case['program']}: {fault['said']}",
        **known,
        "kind": fault["kind"],
        **({} if rank is None else {"rank": rank}),
        **({"range": fault["range"]} if "range" in fault else {}),
        **(times if times["without_s"] < _QUIET_S else {}),
    }


def _toml(case: Mapping[str, Any]) -> str:
    words = {True: "true", False: "false"}
    return "\n[[case]]\n" + "".join(
        f"{key} = {words[v] if isinstance(v, bool) else repr(v).replace(chr(39), chr(34))}\n"
        for key, v in case.items()
    )


def seal(count: int, target: Path, faults: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw and record cases, and write their truth to a file."""
    known = []
    for number, case in enumerate(drawn(count, faults), 1):
        run = tuple(case[key] for key in ("program", "fault", "at", "seconds", "ranks"))
        record(run, REPORTS / f"sealed_{number}.sqlite.xz")
        known.append(truth(case, faults, f"sealed_{number}"))
        target.write_text("".join(map(_toml, known)))


def main() -> None:
    """Record the named cases, or all, and write the truth of all that are there."""
    plan = tomllib.loads(PLAN.read_text())
    if sys.argv[1:2] == ["--sealed"]:
        seal(int(sys.argv[2]), Path(sys.argv[3]), plan["fault"])
        return
    old = tomllib.loads(RECORDED.read_text())["case"] if RECORDED.exists() else []
    known = {case["reports"][0]: case for case in old}
    REPORTS.mkdir(exist_ok=True)
    for case in plan["case"]:
        name = name_of(case)
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        target = REPORTS / f"{name}.sqlite.xz"
        run = (case["program"], case["fault"], case.get("at", 0), case.get("seconds", 0))
        record((*run, case["ranks"]), target)
        found = truth(case, plan["fault"], name)
        known[found["reports"][0]] = found
        print(name, flush=True)
        first = "# Made by record.py. Paths are below profiles/; times are without the profiler.\n"
        RECORDED.write_text(first + "".join(map(_toml, known.values())))


if __name__ == "__main__":
    main()
