"""Builds reports with call chains, of calls and sampled, and with stacks of Python."""

from __future__ import annotations

import struct
from pathlib import Path

from perfmodel.readers.stacks import PYTHON_DOMAIN
from support.build_report import ReportBuilder
from support.build_thread import MARK


def launches(builder: ReportBuilder, chain: int | None = None) -> None:
    main = builder.thread()
    builder.gpu()
    for step in range(4):
        t = step * 1_000_000
        main.range("step", t, t + 900_000)
        main.kernel("gemm", (t + 1000, t + 5000), (t + 9000, t + 400_000))
    if chain is not None:
        for row in builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]:
            row["callchainId"] = chain


def chain(builder: ReportBuilder, table: str, number: int, *frames: tuple[str, str]) -> None:
    for depth, (symbol, module) in enumerate(frames):
        builder.insert(table, id=number, symbol=builder.string(symbol),
                       module=builder.string(module), stackDepth=depth)  # fmt: skip


def python_stack(*frames: tuple[int, int, int]) -> bytes:
    """A payload as Nsight Systems 2024.2 writes one: its padding holds what was there before."""
    data = struct.pack("<III4x", 1, 1, len(frames))
    for function, file, line in frames:
        data += struct.pack("<QQII", function, file, line, 32624)
    return struct.pack("<QQQQ", 1, 1 << 32, len(data), 32) + data


def stacks_report(path: Path) -> Path:
    """Write four steps whose calls have chains, with samples and stacks of Python between them."""
    builder = ReportBuilder("2025.3.2")
    launches(builder, chain=5)
    chain(builder, "CUDA_CALLCHAINS", 5, ("cuLaunchKernel", "/l/libcuda.so"), ("main", "/bin/own"))
    main = builder.threads[0]
    for number, start in ((1, 500), (2, 900_500)):
        builder.insert("COMPOSITE_EVENTS", id=number, start=start, globalTid=main.global_tid)
        chain(builder, "SAMPLING_CALLCHAINS", number, ("f()", "/bin/own"), ("main", "/bin/own"))
    domain = main.register_domain(PYTHON_DOMAIN)
    name, file = builder.string("step"), builder.string("/home/ada/train.py")
    stack = python_stack((name, file, 21))
    main.event(MARK, 1500, domainId=domain, binaryData=stack)
    return builder.write(path)
