"""The size of the tool: processor time of its commands, what they import, wheel, dependencies.

    PERFMODEL_NSYS=/path/to/nsys python -m benchmarks.scale.size -o benchmarks/results/size.json
    python -m benchmarks.scale.size --page         # docs/size.md from the results

Times are of processor (user and system) of whole processes, medians of interleaved rounds: others
may use the machine. `nsys stats` prints its default reports of the same file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.pages import put

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
    timed = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import numpy": [sys.executable, "-c", "import numpy"],
        "import perfmodel": [sys.executable, "-c", "import perfmodel"],
        "perfmodel --version": [*perfmodel, "--version"],
        "perfmodel --help": [*perfmodel, "--help"],
        "perfmodel stats": [*perfmodel, "stats", REPORT],
        "perfmodel analyze": [*perfmodel, "analyze", REPORT],
        "perfmodel analyze -o, without pictures": [
            *perfmodel, "analyze", REPORT, "-o", str(out), "--no-plots",
        ],
        "perfmodel analyze -o": [*perfmodel, "analyze", REPORT, "-o", str(out)],
    }  # fmt: skip
    if nsys:
        timed["nsys stats"] = [nsys, "stats", "-q", REPORT]
    return timed


def processor_seconds(command: list[str]) -> float:
    """Return user and system time of a process and all that it waited for."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(folders.ROOT)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folders.ROOT, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed(rounds: int, nsys: str | None) -> dict[str, dict[str, float]]:
    """Time all commands in turns; the first round warms caches and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        asked = commands(Path(folder) / "out", nsys)
        found: dict[str, list[float]] = {name: [] for name in asked}
        for number in range(rounds + 1):
            for name, command in asked.items():
                seconds = processor_seconds(command)
                if number:
                    found[name].append(seconds)
    return {
        name: {"median_s": round(statistics.median(s), 4), "least_s": round(min(s), 4)}
        for name, s in found.items()
    }


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
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True) if nsys else None
    return {
        "python": platform.python_version(),
        "nsys": version.stdout.strip() if version else None,
        "report": REPORT,
        "rounds": rounds,
        "processor": timed(rounds, nsys),
        "imports": {
            "--version": imported("--version"),
            "--help": imported("--help"),
            "stats": imported("stats", REPORT),
            "analyze": imported("analyze", REPORT),
        },
        "wheel_bytes": wheel_bytes(),
        "dependencies": dependencies(),
    }


def table(found: dict[str, Any]) -> str:
    """Return the results as the page shows them."""
    nsys = found["processor"].get("nsys stats", {}).get("median_s")
    lines = ["| command | processor time | of `nsys stats` |", "|---|---|---|"]
    for name, times in found["processor"].items():
        ratio = f"{times['median_s'] / nsys:.1f}" if nsys else "–"
        lines.append(f"| `{name}` | {1e3 * times['median_s']:.0f} ms | {ratio} |")
    lines += ["", "| | modules | of these |", "|---|---|---|"]
    for name, said in found["imports"].items():
        lines.append(f"| `{name}` | {said['modules']} | {', '.join(said['heavy']) or 'none'} |")
    needs = found["dependencies"]
    largest = list(needs["bytes_of"].items())[:5]
    wheel = found["wheel_bytes"]
    lines += [
        "",
        f"The wheel has {wheel / 1e6:.2f} MB." if wheel else "The wheel was not built.",
        f"perfmodel needs {needs['direct']} packages, which with what they need are "
        f"{needs['all']}, {needs['bytes'] / 1e6:.0f} MB on disk: "
        + ", ".join(f"{name} {size / 1e6:.0f}" for name, size in largest)
        + " MB and smaller ones.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--page", action="store_true", help="write docs/size.md's tables")
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    if not asked.page:
        nsys = os.environ.get("PERFMODEL_NSYS") or shutil.which("nsys")
        found = measure(asked.rounds, nsys)
        print(table(found))
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    put(PAGE, "benchmarks.scale.size", table(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
