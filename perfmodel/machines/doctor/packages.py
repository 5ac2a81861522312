"""Python and what perfmodel needs of it: versions, packages that import, pictures that draw."""

from __future__ import annotations

import json
import re
from importlib import metadata
from typing import Final

from perfmodel.machines.doctor.check import Probe
from perfmodel.machines.doctor.place import Place
from perfmodel.machines.doctor.versions import Version, parse, shown

_LEAST_PYTHON: Final = (3, 11)
_WITHOUT_METADATA: Final = (
    "click>=8.1", "jinja2>=3.1", "matplotlib>=3.8", "numpy>=1.26", "pandas>=2.1", "rich>=13.7",
    "sqlite-utils>=3.36", "sympy>=1.12",
)  # fmt: skip
"""What a source tree needs that was never installed; a test compares it with pyproject.toml."""

_PYTHON: Final = """
import json, sqlite3, sys
print(json.dumps({"version": list(sys.version_info[:3]), "sqlite": sqlite3.sqlite_version}))
"""
_IMPORT: Final = """
import importlib, importlib.metadata, json
said = {}
for name in NAMES:
    try:
        importlib.import_module(name.replace("-", "_"))
        said[name] = importlib.metadata.version(name)
    except Exception as error:
        said[name] = f"! {type(error).__name__}: {error}"
print(json.dumps(said))
"""
_DRAW: Final = """
import io, json, os, warnings
warnings.simplefilter("error", UserWarning)
import matplotlib
matplotlib.use("Agg")
from matplotlib import font_manager, pyplot
figure, axes = pyplot.subplots()
axes.set_title("200 \\u00b5s \\u00d7 3 \\u03bb", fontfamily=matplotlib.rcParams["font.family"])
for kind in ("png", "svg", "pdf"):
    figure.savefig(io.BytesIO(), format=kind)
font = font_manager.findfont(font_manager.FontProperties())
cache = matplotlib.get_cachedir()
print(json.dumps({"version": matplotlib.__version__, "font": os.path.basename(font),
    "cache": cache, "kept": os.access(cache, os.W_OK) and "MPLCONFIGDIR" not in os.environ
    and not os.path.basename(cache).startswith("matplotlib-")}))
"""


def python(place: Place) -> Probe:
    """Ask the interpreter for its version."""
    answer = place.ask_python(_PYTHON)
    said = answer.json()
    if not (answer.ok and said):
        return Probe("broken", f"{place.python}: {answer.last_line}", "install Python again")
    found = f"Python {shown(tuple(said['version']))}, SQLite {said['sqlite']}, {place.python}"
    if tuple(said["version"]) < _LEAST_PYTHON:
        return Probe("broken", found, f"perfmodel needs Python {shown(_LEAST_PYTHON)} or later")
    return Probe("good", found)


def required() -> dict[str, Version]:
    """Packages that perfmodel needs, and the least version of each."""
    try:
        lines = [line for line in metadata.requires("perfmodel") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        lines = []
    found = {}
    for line in lines or _WITHOUT_METADATA:
        name = re.match(r"[\w.-]+", line)
        found[name[0] if name else line] = parse(line) or ()
    return found


def packages(place: Place) -> Probe:
    """Import every package that perfmodel needs."""
    wanted = required()
    code = _IMPORT.replace("NAMES", json.dumps(sorted(wanted)))
    answer = place.ask_python(code, seconds=40)
    said = answer.json()
    if not (answer.ok and said):
        return Probe("broken", f"importing them failed: {answer.last_line}", "install perfmodel")
    broken = [f"{name}: {found[2:]}" for name, found in said.items() if found.startswith("! ")]
    if broken:
        names = " ".join(line.partition(":")[0] for line in broken)
        return Probe("broken", "; ".join(broken), f"run: pip install --upgrade {names}")
    old = [
        f"{name} {found}, wanted {shown(wanted[name])}"
        for name, found in said.items()
        if (parse(found) or wanted[name]) < wanted[name]
    ]
    if old:
        return Probe("broken", "; ".join(old), "run: pip install --upgrade perfmodel")
    return Probe("good", ", ".join(f"{name} {found}" for name, found in sorted(said.items())))


def pictures(place: Place) -> Probe:
    """Draw a figure without a screen, in every format."""
    answer = place.ask_python(_DRAW, seconds=40)
    said = answer.json()
    if not (answer.ok and said):
        advice = "run: pip install --force-reinstall matplotlib; --no-plots does without"
        return Probe("broken", f"matplotlib: {answer.last_line}", advice)
    found = f"matplotlib {said['version']} draws PNG, SVG and PDF with {said['font']}"
    if not said["kept"] and "MPLCONFIGDIR" not in place.environment:
        advice = "export MPLCONFIGDIR=... to a folder of your own: else fonts are sought each time"
        return Probe("doubtful", f"{found}; its cache {said['cache']} does not last", advice)
    return Probe("good", found)
