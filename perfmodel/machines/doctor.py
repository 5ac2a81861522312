"""Doctor: what works on this machine, and what to install where it does not.

A question is put to the machine, a probe says what was found, and a check what that means for the
purposes that were named. Python, its packages, MPI and Slurm; GPU, driver, CuPy, NCCL, NVML and
the Nsight tools.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

LONGEST_S: Final = 60.0
"""No answer is waited for longer, whatever is asked."""
_POLITE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a program.

    Attributes
    ----------
    code : int or None
        Exit status; None if it is not there, cannot be started or did not finish.
    text : str
        What it printed on both outputs; else why there is no status.
    """

    code: int | None
    text: str

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.code == 0

    @property
    def last_line(self) -> str:
        """The last line that says something, which is where programs put their error."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip(" -*=")]
        return lines[-1] if lines else "no output"

    @property
    def first_line(self) -> str:
        """The first line that says something."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip(" -*=")]
        return lines[0] if lines else "no output"

    def json(self) -> dict[str, Any]:
        """Return the JSON object on the last line that is one; empty where there is none."""
        for line in reversed(self.text.splitlines()):
            if line.startswith("{"):
                try:
                    return dict(json.loads(line))
                except ValueError:
                    continue
        return {}


@dataclass(frozen=True, slots=True)
class Place:
    """The machine that is asked.

    Parameters
    ----------
    environment : mapping of str to str
        Of the programs that are started; programs are found on its PATH.
    root : Path
        What stands for ``/``: ``proc`` is read below it.
    python : str
        The interpreter whose packages count.
    patience : float
        Times every timeout.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    python: str = sys.executable
    patience: float = 1.0

    def which(self, program: str) -> str | None:
        """Return where a program is on the PATH, None if nowhere."""
        return shutil.which(program, path=self.environment.get("PATH", ""))

    def read(self, path: str) -> str | None:
        """Return the text of a file of the kernel's, None if there is none to read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def ask(
        self, *command: str, seconds: float = 10.0, more: Mapping[str, str] | None = None
    ) -> Answer:
        """Run a program in an empty folder for so long at most; what it started ends with it.

        `more` is added to the environment.
        """
        limit = min(LONGEST_S, seconds * self.patience)
        with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
            return _run(command, folder, {**self.environment, **(more or {})}, limit)

    def ask_python(self, code: str, *, seconds: float = 20.0) -> Answer:
        """Run some lines of Python in a process of their own: a package may crash or hang."""
        return self.ask(self.python, "-c", code, seconds=seconds)


def _run(
    command: Sequence[str], folder: str, environment: Mapping[str, str], limit: float
) -> Answer:
    output = Path(folder) / ".said"  # a file: a grandchild that lives on would hold a pipe open
    with output.open("wb") as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Answer(None, f"cannot be started: {error.strerror or error}")
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    text = output.read_text(encoding="utf-8", errors="replace")
    return Answer(code, text if code is not None else f"{text}\nno answer within {limit:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, politely first so that mpirun ends its ranks, and all of its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLITE_S)
    if hasattr(os, "killpg"):  # not on Windows
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


Status = Literal["ok", "warning", "failed", "not needed"]
State = Literal["good", "doubtful", "broken", "absent"]

PURPOSES: Final = {
    "analyze": "read reports, print and draw",
    "collect": "profile a program with Nsight Systems",
    "mpi": "run several ranks",
    "gpu": "train or measure on a GPU",
    "count": "count with Nsight Compute",
}
"""Purposes of a machine."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer to a question.

    Attributes
    ----------
    state : {'good', 'doubtful', 'broken', 'absent'}
        ``absent``: there is no such thing here; ``broken``: there is, and it does not work.
    found : str
    advice : str
        What to do; empty where it is good.
    """

    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A check that can be made.

    Attributes
    ----------
    name : str
    needed_for : frozenset of str
        Of `PURPOSES`; empty: nobody needs it, and its absence is no news.
    ask : callable
        Must not be trusted: it may raise.
    """

    name: str
    needed_for: frozenset[str]
    ask: Callable[[Place], Probe]


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was made: what its question and its probe say, and what that means."""

    name: str
    status: Status
    found: str
    advice: str
    needed_for: tuple[str, ...]


def make(question: Question, place: Place) -> Probe:
    """Put a question; one that fails by itself says so, and the others go on."""
    try:
        return question.ask(place)
    except Exception as error:
        return Probe(
            "broken",
            f"the check itself failed: {type(error).__name__}: {error}",
            "report it as an error of perfmodel",
        )


def judge(question: Question, probe: Probe, purposes: Sequence[str]) -> Check:
    """Say what was found means for these purposes.

    Only what they need can fail. What nobody asked for is "not needed" if it is not there, and a
    warning if it is there and does not work.
    """
    needed = bool(question.needed_for & set(purposes))
    status: dict[State, Status] = {
        "good": "ok",
        "doubtful": "warning",
        "broken": "failed" if needed else "warning",
        "absent": "failed" if needed else "not needed",
    }
    order = tuple(name for name in PURPOSES if name in question.needed_for)
    return Check(question.name, status[probe.state], probe.found, probe.advice, order)


Version = tuple[int, ...]

SHIPPED_WITH: Final[tuple[tuple[Version, Version], ...]] = (
    ((2022, 4), (12, 0)),
    ((2023, 1), (12, 1)),
    ((2023, 2), (12, 2)),
    ((2023, 3), (12, 3)),
    ((2023, 4), (12, 4)),
    ((2024, 2), (12, 5)),
    ((2024, 4), (12, 6)),
    ((2024, 6), (12, 8)),
    ((2025, 1), (12, 9)),
    ((2025, 3), (13, 0)),
    ((2025, 6), (13, 1)),
)
"""Nsight Systems and the CUDA it came with. Source: CUDA Toolkit release notes, component versions;
the last by the release notes of Nsight Systems 2025.6."""

NVTX_ASKS: Final = (0, 2, 12)
"""From here on nvtx asks by its payload extension whether a tool listens (docs/trainer.md): Nsight
Systems 2024.2.3 recorded the ranges of 0.2.11, and none of 0.2.12, 0.2.13 and 0.2.15."""
NSYS_MISHEARS: Final = (2024, 2)
"""Up to here Nsight Systems knows another number for that extension, and says no."""
NSYS_HEARS: Final = (2025, 3)
"""From here on any nvtx was seen to be recorded."""


def parse(text: str) -> Version | None:
    """Return the first dotted number of a text as a tuple, None if there is none.

    >>> parse("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
    (2024, 2, 3, 38)
    """
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else None


def shown(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def newest_cuda(nsys: Version) -> Version | None:
    """Return the newest CUDA that this Nsight Systems came with; None for older than 2022.4."""
    return max((cuda for since, cuda in SHIPPED_WITH if nsys[:2] >= since), default=None)


def nvtx_with_nsys(nvtx: Version, nsys: Version) -> Probe:
    """Say whether this Nsight Systems records the ranges of this nvtx."""
    found = f"nvtx {shown(nvtx)} with Nsight Systems {shown(nsys[:3])}"
    if nvtx < NVTX_ASKS or nsys[:2] >= NSYS_HEARS:
        return Probe("good", found)
    advice = "run: pip install 'nvtx==0.2.11', or install Nsight Systems 2025.3 or later"
    if nsys[:2] <= NSYS_MISHEARS:
        return Probe("broken", f"{found}: no range is recorded, without a word", advice)
    return Probe("doubtful", f"{found}: not tried together, may record no range", advice)


def driver_with_nsys(cuda: Version, nsys: Version) -> Probe:
    """Say whether the driver is newer than what this Nsight Systems knows."""
    knows = newest_cuda(nsys)
    found = f"driver for CUDA {shown(cuda[:2])}, Nsight Systems {shown(nsys[:3])}"
    if knows is None or cuda[:2] > knows:
        since = next((s for s, with_cuda in SHIPPED_WITH if with_cuda >= cuda[:2]), None)
        wanted = f"{shown(since)} or later" if since else "one as new as the driver"
        made = f"for CUDA {shown(knows)}" if knows else "before CUDA 12"
        return Probe(
            "doubtful", f"{found}, which was made {made}: reports may hold no CUDA events",
            f"install Nsight Systems {wanted}",
        )  # fmt: skip
    return Probe("good", found)


_LEAST_PYTHON: Final = (3, 11)
_WITHOUT_METADATA: Final = (
    "click>=8.2", "jinja2>=3.1", "matplotlib>=3.8", "numpy>=1.26", "pandas>=2.1", "rich>=13.7",
    "scipy>=1.11.1", "sqlite-utils>=3.36", "sympy>=1.12",
    "zstandard>=0.22; python_version < '3.14'",
)  # fmt: skip
"""Packages that a source tree needs; a test compares them with pyproject.toml."""

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


_GET_MPI: Final = (
    "install one: apt install openmpi-bin libopenmpi-dev, or load the cluster's module"
)
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
        return Probe("absent", "no mpirun on the PATH", _GET_MPI)
    answer = place.ask(where, "--version")
    if not answer.ok:
        return Probe("broken", f"{where}: {answer.last_line}", _GET_MPI)
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
        return Probe("absent", "no mpirun on the PATH", _GET_MPI)
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


_NO_GPU: Final = "no nvidia-smi on the PATH"
_CUPY: Final = """
import json, cupy
said = {"version": cupy.__version__, "runtime": cupy.cuda.runtime.runtimeGetVersion()}
said["gpus"] = cupy.cuda.runtime.getDeviceCount()
if int((cupy.arange(4, dtype="f4") * 2).sum()) != 12:
    raise SystemExit("2 (0 + 1 + 2 + 3) is not 12 on this GPU")
print(json.dumps(said))
"""
_NCCL: Final = """
import json
from cupy.cuda import nccl
if not getattr(nccl, "available", True):
    raise ImportError("CuPy finds no NCCL library")
print(json.dumps({"version": nccl.get_version()}))
"""
_NVML: Final = """
import json, pynvml
pynvml.nvmlInit()
print(json.dumps({"gpus": pynvml.nvmlDeviceGetCount()}))
"""


def driver(place: Place) -> Probe:
    """Ask the driver for its GPUs."""
    where = place.which("nvidia-smi")
    if where is None:
        return Probe("absent", _NO_GPU, "install NVIDIA's driver, or go where the GPUs are")
    answer = place.ask(where, "--query-gpu=name,driver_version", "--format=csv,noheader")
    if not answer.ok:
        return Probe("broken", f"nvidia-smi: {answer.last_line}", "reload or reinstall the driver")
    lines = [line.rpartition(",") for line in answer.text.splitlines() if "," in line]
    if not lines:
        return Probe("broken", "nvidia-smi lists no GPU", "ask for one: srun --gres=gpu:1 ...")
    names = sorted({name.strip() for name, _, _ in lines})
    cuda = cuda_of_driver(place)
    with_cuda = f" (CUDA {shown(cuda)})" if cuda else ""
    return Probe(
        "good", f"{len(lines)} x {', '.join(names)}, driver {lines[0][2].strip()}{with_cuda}"
    )


def cuda_of_driver(place: Place) -> Version | None:
    """Return the newest CUDA that the driver runs, None where none answers."""
    where = place.which("nvidia-smi")
    answer = place.ask(where) if where else None
    said = re.search(r"CUDA[^:\n]*Version:\s*([\d.]+)", answer.text) if answer else None
    return parse(said[1]) if said else None


def cupy(place: Place) -> Probe:
    """Compute something with CuPy."""
    answer = place.ask_python(_CUPY, seconds=40)
    said = answer.json()
    if answer.ok and said:
        runtime = int(said["runtime"])
        version = f"CuPy {said['version']}, CUDA {runtime // 1000}.{runtime % 1000 // 10}"
        return Probe("good", f"{version}, computes on {said['gpus']} GPU(s)")
    if "No module named 'cupy'" in answer.text:
        advice = "run: pip install 'perfmodel[gpu]' (CUDA 13) or 'perfmodel[gpu-cuda12]'"
        return Probe("absent", "CuPy is not installed", advice)
    advice = "its CUDA must not be newer than the driver's: CUDA 12 is perfmodel[gpu-cuda12]"
    return Probe("broken", f"CuPy: {answer.last_line}", advice)


def nccl(place: Place) -> Probe:
    """Ask CuPy for its NCCL."""
    answer = place.ask_python(_NCCL, seconds=40)
    said = answer.json()
    if answer.ok and said:
        version = int(said["version"])
        parts = (version // 10000, version % 10000 // 100, version % 100)
        return Probe("good", f"NCCL {shown(parts)}")
    advice = "run: pip install nvidia-nccl-cu13 (or -cu12); only all-reduces by NCCL need it"
    absent = "No module named" in answer.text or "no NCCL" in answer.text
    return Probe("absent" if absent else "broken", f"NCCL: {answer.last_line}", advice)


def nvml(place: Place) -> Probe:
    """Ask NVML for its GPUs; perfmodel utilization samples them."""
    answer = place.ask_python(_NVML)
    said = answer.json()
    if answer.ok and said:
        return Probe("good", f"NVML sees {said['gpus']} GPU(s)")
    advice = "run: pip install 'perfmodel[nvml]'; only perfmodel utilization -- COMMAND needs it"
    absent = "No module named 'pynvml'" in answer.text or place.which("nvidia-smi") is None
    return Probe("absent" if absent else "broken", f"NVML: {answer.last_line}", advice)


_GET_NSYS: Final = (
    "install it: https://developer.nvidia.com/nsight-systems (a module on many clusters)"
)
_PARAMS: Final = "proc/driver/nvidia/params"
_PARANOID: Final = "proc/sys/kernel/perf_event_paranoid"
_EXPORT: Final = (
    "nsys profile --trace=none --sample=none --cpuctxsw=none -o report true >&2"
    " && nsys export -q true -t sqlite -o report.sqlite report.nsys-rep >&2"
    " && test -s report.sqlite"
)


def nsys(place: Place) -> Probe:
    """Find Nsight Systems."""
    where = place.which("nsys")
    if where is None:
        advice = f"{_GET_NSYS}; without it, export .nsys-rep files where it is"
        return Probe("absent", "no nsys on the PATH", advice)
    answer = place.ask(where, "--version")
    version = parse(answer.text) if answer.ok else None
    if version is None:
        return Probe("broken", f"{where}: {answer.last_line}", "install it again")
    found = f"{shown(version)}, {where}"
    if version < (2022, 4):
        return Probe("doubtful", found, "perfmodel is tested with 2022.4 and later: update")
    return Probe("good", found)


def nsys_exports(place: Place) -> Probe:
    """Record an empty program and export the report: both must work."""
    if place.which("nsys") is None:
        return Probe("absent", "no nsys on the PATH", _GET_NSYS)
    answer = place.ask("sh", "-c", _EXPORT, seconds=40)
    if answer.ok:
        return Probe("good", "recorded an empty program, exported its report as SQLite")
    return Probe(
        "broken", f"recording and exporting an empty program failed: {answer.last_line}",
        "try: nsys profile -t none true; nsys status -e says what the system forbids",
    )  # fmt: skip


def nvtx(place: Place) -> Probe:
    """Find the package nvtx, and ask whether this Nsight Systems hears it."""
    code = "import importlib.metadata as m, nvtx; print(m.version('nvtx'))"
    answer = place.ask_python(code)
    version = parse(answer.text) if answer.ok else None
    if version is None:
        absent = "No module named 'nvtx'" in answer.text
        advice = "run: pip install nvtx==0.2.11 (any Nsight Systems), or perfmodel[mpi]"
        return Probe("absent" if absent else "broken", f"nvtx: {answer.last_line}", advice)
    where = place.which("nsys")
    tool = parse(place.ask(where, "--version").text) if where else None
    if tool is None:
        return Probe("good", f"nvtx {shown(version)}; no nsys to go with it")
    return nvtx_with_nsys(version, tool)


def driver_known(place: Place) -> Probe:
    """Compare the driver's CUDA with the one Nsight Systems was made for."""
    where = place.which("nsys")
    tool = parse(place.ask(where, "--version").text) if where else None
    cuda = cuda_of_driver(place)
    if tool is None or cuda is None:
        missing = "no nsys on the PATH" if tool is None else "no CUDA driver answers"
        return Probe("absent", missing, "nothing to compare")
    return driver_with_nsys(cuda, tool)


def cpu_sampling(place: Place) -> Probe:
    """Read whether the kernel lets Nsight Systems sample CPUs; perfmodel does without."""
    said = (place.read(_PARANOID) or "").strip()
    if not re.fullmatch(r"-?\d+", said):
        return Probe("absent", f"no /{_PARANOID} here", "nothing to do")
    found = f"perf_event_paranoid is {said}"
    if int(said) > 2:
        advice = (
            "perfmodel needs no CPU samples: record with --sample=none --cpuctxsw=none, or let "
            "root run: sysctl kernel.perf_event_paranoid=2"
        )
        return Probe("doubtful", f"{found}: nsys takes no CPU samples", advice)
    return Probe("good", found)


def ncu(place: Place) -> Probe:
    """Find Nsight Compute."""
    where = place.which("ncu")
    if where is None:
        advice = "install it: https://developer.nvidia.com/nsight-compute, or load CUDA's module"
        return Probe("absent", "no ncu on the PATH", advice)
    answer = place.ask(where, "--version")
    version = parse(answer.text.partition("Version")[2] or answer.text) if answer.ok else None
    if version is None:
        return Probe("broken", f"{where}: {answer.last_line}", "install it again")
    return Probe("good", f"{shown(version)}, {where}")


def counters(place: Place) -> Probe:
    """Read whether the driver lets users count (ERR_NVGPUCTRPERM if not)."""
    params = place.read(_PARAMS)
    if params is None:
        return Probe("absent", "no NVIDIA driver here", "count where the GPU is")
    admin_only = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params, re.MULTILINE)
    if admin_only is None:
        return Probe("doubtful", f"/{_PARAMS} does not say who may count", "try ncu itself")
    if admin_only[1] == "0":
        return Probe("good", "the driver lets every user count (RmProfilingAdminOnly: 0)")
    if os.geteuid() == 0:
        return Probe("good", "the driver lets administrators count, and this is one")
    return Probe(
        "broken",
        "the driver lets only administrators count (RmProfilingAdminOnly: 1): ERR_NVGPUCTRPERM",
        "ask the administrator for: options nvidia NVreg_RestrictProfilingToAdminUsers=0 in "
        "/etc/modprobe.d, and a reboot; or run ncu as root",
    )


_EVERYTHING: Final = frozenset({"analyze", "collect", "mpi", "gpu", "count"})
QUESTIONS: Final = (
    Question("Python", _EVERYTHING, python),
    Question("packages", frozenset({"analyze"}), packages),
    Question("pictures", frozenset({"analyze"}), pictures),
    Question("Nsight Systems", frozenset({"collect"}), nsys),
    Question("nsys records and exports", frozenset({"collect"}), nsys_exports),
    Question("NVTX ranges", frozenset({"collect"}), nvtx),
    Question("driver known to nsys", frozenset(), driver_known),
    Question("CPU sampling", frozenset(), cpu_sampling),
    Question("mpirun", frozenset({"mpi"}), mpirun),
    Question("mpi4py", frozenset({"mpi"}), mpi4py),
    Question("two ranks", frozenset({"mpi"}), two_ranks),
    Question("CUDA-aware MPI", frozenset(), cuda_aware),
    Question("Slurm", frozenset(), slurm),
    Question("GPU and driver", frozenset({"gpu", "count"}), driver),
    Question("CuPy", frozenset({"gpu"}), cupy),
    Question("NCCL", frozenset(), nccl),
    Question("NVML", frozenset(), nvml),
    Question("Nsight Compute", frozenset({"count"}), ncu),
    Question("permission to count", frozenset({"count"}), counters),
)
_AT_ONCE: Final = 4


def diagnose(
    purposes: Sequence[str], place: Place | None = None, questions: Sequence[Question] = QUESTIONS
) -> tuple[Check, ...]:
    """Make all checks, some at a time, and say what they mean for these purposes.

    Parameters
    ----------
    purposes : sequence of str
        Of `perfmodel.machines.doctor.PURPOSES`.
    place : Place, optional
        This machine by default.
    """
    here = place or Place()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        probes = list(pool.map(lambda question: make(question, here), questions))
    return tuple(judge(q, probe, purposes) for q, probe in zip(questions, probes, strict=True))
