"""Python, its packages, MPI and Slurm: are they there, do they work."""

from __future__ import annotations

import json
import re
from importlib import metadata
from typing import Final

from perfmodel.machines.doctor.check import Answer, Place, Probe, Version, parse, shown

_LEAST_PYTHON: Final = (3, 11)
_WITHOUT_METADATA: Final = (
    "click>=8.1", "jinja2>=3.1", "matplotlib>=3.8", "numpy>=1.26", "pandas>=2.1", "rich>=13.7",
    "scipy>=1.11", "sqlite-utils>=3.36", "sympy>=1.12",
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
        f"{name} {found}, expected {shown(wanted[name])}"
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


_GET: Final = "install one: apt install openmpi-bin libopenmpi-dev, or load the cluster's module"
_GET_MPI4PY: Final = "run: pip install mpi4py, with the MPI of this mpirun on the PATH"
_MPI4PY: Final = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\\0 ")
print(json.dumps({"version": mpi4py.__version__, "library": library}))
"""
_HELLO: Final = """
import ctypes, json, os, sys
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
from mpi4py import MPI
import array
mine = array.array("i", [MPI.COMM_WORLD.Get_rank() + 1])
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, mine)
library, aware = ctypes.CDLL(None), None
if hasattr(library, "MPIX_Query_cuda_support"):
    aware = bool(library.MPIX_Query_cuda_support())
elif hasattr(library, "MPIX_GPU_query_support"):
    answer = ctypes.c_int(0)
    library.MPIX_GPU_query_support(0, ctypes.byref(answer))
    aware = bool(answer.value)
said = {"size": MPI.COMM_WORLD.Get_size(), "sum": mine[0], "cuda_aware": aware}
if MPI.COMM_WORLD.Get_rank() == 0:
    print("\\n" + json.dumps(said), flush=True)
"""
"""Open MPI answers MPIX_Query_cuda_support, MPICH and its kin MPIX_GPU_query_support."""

_OVERSUBSCRIBED: Final = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""So that two ranks start where one core is allowed: of Open MPI 4 and of Open MPI 5."""


def mpirun(place: Place) -> Probe:
    """Find mpirun."""
    where = place.which("mpirun")
    if where is None:
        return Probe("absent", "no mpirun on the PATH", _GET)
    answer = place.ask(where, "--version")
    if not answer.ok:
        return Probe("broken", f"{where}: {answer.last_line}", _GET)
    return Probe("good", f"{answer.first_line}, {where}")


def mpi4py(place: Place) -> Probe:
    """Import mpi4py, which loads its MPI library."""
    answer = place.ask_python(_MPI4PY)
    said = answer.json()
    if answer.ok and said:
        return Probe("good", f"mpi4py {said['version']} on {said['library']}")
    absent = "No module named 'mpi4py'" in answer.text
    return Probe("absent" if absent else "broken", f"mpi4py: {answer.last_line}", _GET_MPI4PY)


def _hello(place: Place) -> Answer | Probe:
    where = place.which("mpirun")
    if where is None:
        return Probe("absent", "no mpirun on the PATH", _GET)
    # mpirun of Debian puts /usr/bin first in the PATH of ranks: this python is named absolutely
    command = (where, "-n", "2", place.python, "-c", _HELLO)
    return place.ask(*command, seconds=30, more=_OVERSUBSCRIBED)


def two_ranks(place: Place) -> Probe:
    """Let two ranks add their numbers."""
    answer = _hello(place)
    if isinstance(answer, Probe):
        return answer
    said = answer.json()
    if answer.ok and said.get("size") == 2 and said.get("sum") == 3:
        return Probe("good", "two ranks found each other and added their numbers")
    if said.get("size") == 1:
        return Probe(
            "broken", "mpirun started two processes, and each believes that it is alone",
            "mpi4py was built for another MPI than this mpirun's: " + _GET_MPI4PY
            + " and --no-binary mpi4py --force-reinstall",
        )  # fmt: skip
    if "No module named 'mpi4py'" in answer.text:
        return Probe("absent", "mpi4py is not installed", _GET_MPI4PY)
    if "run as root" in answer.text or "--allow-run-as-root" in answer.text:
        return Probe(
            "broken", "Open MPI does not start ranks for root",
            "be another user, or: export OMPI_ALLOW_RUN_AS_ROOT=1 "
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        )  # fmt: skip
    return Probe(
        "broken", f"two ranks did not start: {answer.last_line}",
        "try: mpirun -n 2 python -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.rank)'",
    )  # fmt: skip


def cuda_aware(place: Place) -> Probe:
    """Ask the MPI library whether it takes GPU pointers."""
    answer = _hello(place)
    said = {} if isinstance(answer, Probe) else answer.json()
    if "cuda_aware" not in said:
        return Probe("absent", "no MPI that can be asked", "see the check of two ranks")
    if said["cuda_aware"]:
        return Probe("good", "MPI says that it takes GPU pointers")
    why = "has no CUDA support" if said["cuda_aware"] is False else "offers no way to be asked"
    advice = "sum by NCCL, or through host memory: neither needs it"
    return Probe("absent", f"MPI {why}", advice)


def slurm(place: Place) -> Probe:
    """Ask srun for its kinds of MPI."""
    where = place.which("srun")
    if where is None:
        return Probe("absent", "no srun on the PATH", "nothing, unless this is a Slurm cluster")
    answer = place.ask(where, "--mpi=list")
    if not answer.ok:
        advice = "go to a login node, or see slurm.conf; mpirun works without"
        return Probe("doubtful", f"srun: {answer.last_line.removeprefix('srun: ')}", advice)
    if "pmix" not in answer.text:
        kinds = ", ".join(answer.text.split()[-4:])
        return Probe(
            "doubtful", f"srun offers no PMIx ({kinds}): ranks cannot find each other",
            "install libpmix (Debian: libpmix-dev) where slurmd runs, or start with mpirun",
        )  # fmt: skip
    return Probe("good", "srun --mpi=pmix starts ranks")
