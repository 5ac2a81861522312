"""GPU, driver, CuPy, NCCL and NVML: are they there, do they work."""

from __future__ import annotations

import re
from typing import Final

from perfmodel.machines.doctor.check import Probe
from perfmodel.machines.doctor.place import Place
from perfmodel.machines.doctor.versions import Version, parse

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
    advice = "run: pip install nvidia-nccl-cu13 (or -cu12); only --transport nccl needs it"
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
