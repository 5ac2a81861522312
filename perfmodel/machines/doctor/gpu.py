"""GPU, driver, CuPy, NCCL, NVML and the Nsight tools: do they work, may they count."""

from __future__ import annotations

import os
import re
from typing import Final

from perfmodel.machines.doctor.check import (
    Place,
    Probe,
    Version,
    driver_with_nsys,
    nvtx_with_nsys,
    parse,
    shown,
)

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
    with_cuda = f" (CUDA {'.'.join(map(str, cuda))})" if cuda else ""
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
        shown = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
        return Probe("good", f"NCCL {shown}")
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
