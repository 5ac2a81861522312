"""All checks: which there are, who needs them; made side by side, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from perfmodel.machines.doctor import gpu, host
from perfmodel.machines.doctor.check import Check, Place, Question, judge, make

_EVERYTHING: Final = frozenset({"analyze", "collect", "mpi", "gpu", "count"})
QUESTIONS: Final = (
    Question("Python", _EVERYTHING, host.python),
    Question("packages", frozenset({"analyze"}), host.packages),
    Question("pictures", frozenset({"analyze"}), host.pictures),
    Question("Nsight Systems", frozenset({"collect"}), gpu.nsys),
    Question("nsys records and exports", frozenset({"collect"}), gpu.nsys_exports),
    Question("NVTX ranges", frozenset({"collect"}), gpu.nvtx),
    Question("driver known to nsys", frozenset(), gpu.driver_known),
    Question("CPU sampling", frozenset(), gpu.cpu_sampling),
    Question("mpirun", frozenset({"mpi"}), host.mpirun),
    Question("mpi4py", frozenset({"mpi"}), host.mpi4py),
    Question("two ranks", frozenset({"mpi"}), host.two_ranks),
    Question("CUDA-aware MPI", frozenset(), host.cuda_aware),
    Question("Slurm", frozenset(), host.slurm),
    Question("GPU and driver", frozenset({"gpu", "count"}), gpu.driver),
    Question("CuPy", frozenset({"gpu"}), gpu.cupy),
    Question("NCCL", frozenset(), gpu.nccl),
    Question("NVML", frozenset(), gpu.nvml),
    Question("Nsight Compute", frozenset({"count"}), gpu.ncu),
    Question("permission to count", frozenset({"count"}), gpu.counters),
)
_AT_ONCE: Final = 4


def diagnose(
    purposes: Sequence[str], place: Place | None = None, questions: Sequence[Question] = QUESTIONS
) -> tuple[Check, ...]:
    """Make all checks, some at a time, and say what they mean for these purposes.

    Parameters
    ----------
    purposes : sequence of str
        Of `perfmodel.machines.doctor.check.PURPOSES`.
    place : Place, optional
        This machine by default.
    """
    here = place or Place()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        probes = list(pool.map(lambda question: make(question, here), questions))
    return tuple(judge(q, probe, purposes) for q, probe in zip(questions, probes, strict=True))
