"""Builds recordings of ranks that compute, and sum their gradients with NCCL, with a late one."""

from __future__ import annotations

from collections.abc import Sequence

from support.build_report import ReportBuilder
from support.build_thread import Thread

US, MS = 1_000, 1_000_000
_LAUNCH, _PAUSE, _KERNEL, _REDUCE = 5 * US, 10 * US, 60 * US, 200 * US
"""Time of a launch on the host, of the pause behind it, of a kernel and of an all-reduce."""
SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def training(
    builder: ReportBuilder,
    stalls_ns: Sequence[int],
    *,
    steps: int = 6,
    kernels: int = 40,
    launch_ns: Sequence[int] = (),
    kernel_ns: Sequence[int] = (),
    sleeps: bool = False,
    call: str = "",
    where: str = "forward",
) -> None:
    """Add a process for each rank, whose host stalls in every step.

    The host of a rank launches `kernels` kernels in range `where`, does nothing for its stall, and
    launches an all-reduce, which ends on all GPUs after the last rank has come to it.

    Parameters
    ----------
    builder : ReportBuilder
        Of a version that has the tables of what is asked for.
    stalls_ns : sequence of int
        By rank.
    launch_ns, kernel_ns : sequence of int, optional
        Time of a launch and of a kernel by rank.
    sleeps : bool
        The scheduler's events are there, and a stalled thread runs on no processor.
    call : str, optional
        The system's call that a stalled thread is in.
    where : str
    """
    ranks = range(len(stalls_ns))
    threads = [builder.thread(pid=100 + rank) for rank in ranks]
    for rank in ranks:
        builder.gpu(rank)
    host, gpu = [MS] * len(ranks), [0] * len(ranks)
    launch = list(launch_ns) or [_LAUNCH] * len(ranks)
    work = list(kernel_ns) or [_KERNEL] * len(ranks)
    for step in range(steps):
        arrived = []
        for rank, thread in enumerate(threads):
            begin = at = host[rank]
            for _ in range(kernels):
                start = max(at + launch[rank], gpu[rank])
                span = start, start + work[rank]
                thread.kernel("gemm", (at, at + launch[rank]), span, device=rank)
                gpu[rank], at = span[1], at + launch[rank] + _PAUSE
            if stalls_ns[rank]:
                _stall(builder, thread, (at, at + stalls_ns[rank]), sleeps=sleeps, call=call)
            host[rank] = at + stalls_ns[rank] + launch[rank] + _PAUSE
            thread.range(where, begin, host[rank])
            thread.range(f"step {step}", begin, host[rank] + 10)
            arrived.append(max(host[rank] - _PAUSE, gpu[rank]))
        end = max(arrived) + _REDUCE
        for rank, thread in enumerate(threads):
            called = host[rank] - _PAUSE - launch[rank]
            span = arrived[rank], end
            thread.kernel(SUM, (called, called + launch[rank]), span, device=rank, stream=9)
            gpu[rank], host[rank] = end, host[rank] + _PAUSE


def _stall(
    builder: ReportBuilder, thread: Thread, span: tuple[int, int], *, sleeps: bool, call: str
) -> None:
    start, end = span
    if sleeps:
        for at, into in ((start + US, 0), (end - US, 1)):
            builder.insert("SCHED_EVENTS", start=at, isSchedIn=into, globalTid=thread.global_tid)
    if call:
        builder.insert(
            "OSRT_API", start=start, end=end, globalTid=thread.global_tid,
            nameId=builder.string(call),
        )  # fmt: skip
