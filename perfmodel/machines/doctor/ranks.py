"""MPI: mpirun, mpi4py, two ranks that find each other, GPU pointers; and Slurm's launcher."""

from __future__ import annotations

from typing import Final

from perfmodel.machines.doctor.check import Probe
from perfmodel.machines.doctor.place import Answer, Place

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
    advice = "the trainer's --transport nccl needs none; cuda-aware is refused"
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
