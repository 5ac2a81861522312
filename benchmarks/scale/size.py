"""The size of the tool: processor time of its commands, what they import, wheel, dependencies.

    PERFMODEL_NSYS=/path/to/nsys python -m benchmarks.scale.size -o benchmarks/results/size.json
    python -m benchmarks.scale.size --page         # docs/size.md from the results
    python -m benchmarks.scale.size --before DIR [-o FILE]   # this checkout and another in turns

Times are of processor (user and system) of whole processes, medians of interleaved rounds: others
may use the machine. `nsys stats` prints its default reports of the same file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.pages import put, table
from benchmarks.common.processes import ENVIRONMENT, in_turn, timed, version_of

RESULTS: Final = folders.RESULTS / "size.json"
PAGE: Final = folders.DOCS / "size.md"
REPORT: Final = "profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"
HEAVY: Final = ("numpy", "pandas", "matplotlib", "sympy", "rich", "sqlite_utils", "sqlite3")

_LIST: Final = """
import sys
from perfmodel.cli import main
try:
    main(sys.argv[1:], prog_name="perfmodel")
except SystemExit:
    pass
print("\\n" + " ".join(sys.modules), file=sys.stderr)
"""


def commands(out: Path, nsys: str | None) -> dict[str, list[str]]:
    """Return what is timed, by name."""
    perfmodel = [sys.executable, "-m", "perfmodel"]
    written = [*perfmodel, "analyze", REPORT, "-o", str(out)]
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import numpy": [sys.executable, "-c", "import numpy"],
        "import numpy, numpy.ma": [sys.executable, "-c", "import numpy, numpy.ma"],
        "import matplotlib.figure": [sys.executable, "-c", "import matplotlib.figure"],
        "import sympy": [sys.executable, "-c", "import sympy"],
        "import perfmodel": [sys.executable, "-c", "import perfmodel"],
        "perfmodel --version": [*perfmodel, "--version"],
        "perfmodel --help": [*perfmodel, "--help"],
        "perfmodel stats": [*perfmodel, "stats", REPORT],
        "perfmodel analyze": [*perfmodel, "analyze", REPORT],
        "perfmodel analyze -o, without pictures": [*written, "--no-plots"],
        "perfmodel analyze -o": written,
        "perfmodel report": [*perfmodel, "report", REPORT, "-o", f"{out}.html"],
    }
    if nsys:
        found["nsys stats"] = [nsys, "stats", "-q", REPORT]
    return found


def processor_times(rounds: int, nsys: str | None) -> dict[str, dict[str, float]]:
    """Time all commands in turns; the first round warms caches and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        asked = commands(Path(folder) / "out", nsys)
        runs = in_turn(
            {name: lambda c=c: timed(c)[0]["cpu_s"] for name, c in asked.items()}, rounds, untimed=1
        )
    return {
        name: {"median_s": round(statistics.median(s), 4), "least_s": round(min(s), 4)}
        for name, s in runs.items()
    }


def data_classes() -> dict[str, float]:
    """Least milliseconds that one data class of eight fields takes to make, by how it is made."""
    found: dict[str, float] = {}
    options = {"frozen": {"frozen": True}, "without ==": {"frozen": True, "eq": False}, "": {}}
    for name, chosen in options.items():
        times = []
        for _ in range(200):
            annotations = {f"field_{i}": float for i in range(8)}
            made = type("Made", (), {"__annotations__": annotations, "__doc__": "Made."})
            begin = time.process_time()
            dataclass(slots=True, **chosen)(made)
            times.append(time.process_time() - begin)
        found[name or "not frozen"] = round(1e3 * min(times), 3)
    return found


def against(before: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Time the commands of another checkout and of this one in turns, with one Python."""
    sides = {"before": before.resolve(), "now": folders.ROOT}
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            name: [words[0], "-P", *words[1:]]  # the folder that it runs in has a perfmodel, too
            for name, words in commands(Path(folder) / "out", None).items()
            if "perfmodel" in name and "import" not in name
        }
        runs = in_turn(
            {
                f"{name} {side}": lambda c=words, f=checkout: timed(
                    c, environment={**ENVIRONMENT, "PYTHONPATH": str(f)}
                )[0]["cpu_s"]
                for name, words in asked.items()
                for side, checkout in sides.items()
            },
            rounds,
            untimed=1,
        )
    return {
        name: {side: round(statistics.median(runs[f"{name} {side}"]), 4) for side in sides}
        for name in asked
    }


def against_table(found: dict[str, dict[str, float]]) -> str:
    """Return what `against` found as a table."""
    lines = [
        (f"`{name}`", f"{1e3 * one['before']:.0f} ms", f"{1e3 * one['now']:.0f} ms",
         f"{one['now'] / one['before']:.2f}")
        for name, one in found.items()
    ]  # fmt: skip
    return table(("command", "before", "now", "ratio"), lines)


def imported(*arguments: str) -> dict[str, Any]:
    """Return how many modules a command imports, and which heavy ones."""
    words = [sys.executable, "-c", _LIST, *arguments]
    done = subprocess.run(words, cwd=folders.ROOT, capture_output=True, text=True, check=True)
    names = set(done.stderr.splitlines()[-1].split())
    return {"modules": len(names), "heavy": [name for name in HEAVY if name in names]}


def dependencies() -> dict[str, Any]:
    """Return what perfmodel needs, and what that needs, with the bytes that it takes."""
    project = (folders.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    direct = re.findall(r'"([\w-]+)', listed[1] if listed else "")
    sizes: dict[str, int] = {}
    waiting = list(direct)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in sizes:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or an older Python
        files = [Path(str(package.locate_file(file))) for file in package.files or ()]
        sizes[name] = sum(path.stat().st_size for path in files if path.is_file())
        needs = (line for line in package.requires or () if "extra ==" not in line)
        waiting += [match[0] for line in needs if (match := re.match(r"[\w.-]+", line))]
    by_size = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    return {
        "direct": len(direct), "all": len(sizes), "bytes": sum(sizes.values()),
        "bytes_of": by_size,
    }  # fmt: skip


def wheel_bytes() -> int | None:
    """Build the wheel and return its size; None where hatchling is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        if subprocess.run(words, cwd=folders.ROOT, capture_output=True).returncode:
            return None
        return next(Path(folder).iterdir()).stat().st_size


def measure(rounds: int, nsys: str | None) -> dict[str, Any]:
    """Return all results."""
    return {
        "python": platform.python_version(),
        "nsys": version_of(nsys) if nsys else None,
        "report": REPORT,
        "rounds": rounds,
        "processor": processor_times(rounds, nsys),
        "data_class_ms": data_classes(),
        "imports": {
            **{flag: imported(flag) for flag in ("--version", "--help")},
            **{name: imported(name, REPORT) for name in ("stats", "analyze")},
        },
        "wheel_bytes": wheel_bytes(),
        "dependencies": dependencies(),
    }


def tables(found: dict[str, Any]) -> str:
    """Return the results as the page shows them."""
    nsys = found["processor"].get("nsys stats", {}).get("median_s")
    times = [
        (f"`{name}`", f"{1e3 * one['median_s']:.0f} ms",
         f"{one['median_s'] / nsys:.1f}" if nsys else "–")
        for name, one in found["processor"].items()
    ]  # fmt: skip
    modules = [
        (f"`{name}`", str(said["modules"]), ", ".join(said["heavy"]) or "none")
        for name, said in found["imports"].items()
    ]
    needs, wheel = found["dependencies"], found["wheel_bytes"]
    largest = [f"{name} {size / 1e6:.0f}" for name, size in list(needs["bytes_of"].items())[:5]]
    said = f"The wheel has {wheel / 1e6:.2f} MB." if wheel else "The wheel was not built."
    turns = against_table(found["against"]) if "against" in found else ""
    return (
        f"{table(('command', 'processor time', 'of `nsys stats`'), times)}\n"
        f"{turns}\n"
        f"{table(('', 'modules', 'of these'), modules)}\n{said}\n"
        f"perfmodel needs {needs['direct']} packages, which with what they need are "
        f"{needs['all']}, {needs['bytes'] / 1e6:.0f} MB on disk: {', '.join(largest)} MB and "
        f"smaller ones.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page", action="store_true", help="write docs/size.md's tables")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    if asked.before:
        found = against(asked.before, asked.rounds)
        print(against_table(found))
        if asked.out:
            results.write(asked.out, {**results.read(asked.out), "against": found})
        return
    if not asked.page:
        nsys = os.environ.get("PERFMODEL_NSYS") or shutil.which("nsys")
        measured = measure(asked.rounds, nsys)
        print(tables(measured))
        if asked.out:
            results.write(asked.out, measured)
        return
    put(PAGE, "benchmarks.scale.size", tables(results.read(RESULTS)))


if __name__ == "__main__":
    main()
