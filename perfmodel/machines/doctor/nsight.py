"""Nsight Systems and Nsight Compute: are they there, do they work, may they count."""

from __future__ import annotations

import os
import re
from typing import Final

from perfmodel.machines.doctor.check import Probe
from perfmodel.machines.doctor.gpu import cuda_of_driver
from perfmodel.machines.doctor.place import Place
from perfmodel.machines.doctor.versions import driver_with_nsys, nvtx_with_nsys, parse, shown

_GET: Final = "install it: https://developer.nvidia.com/nsight-systems (a module on many clusters)"
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
        advice = f"{_GET}; without it, export .nsys-rep files where it is"
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
        return Probe("absent", "no nsys on the PATH", _GET)
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
