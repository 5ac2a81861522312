"""A thread of a built report: adds the ranges, calls and GPU operations of one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from support.build_report import ReportBuilder

COPIES: Final = (
    "unknown", "h2d", "d2h", "h2a", "a2h", "a2a", "a2d", "d2a", "d2d", "h2h", "p2p",
    "unified h2d", "unified d2h", "unified d2d",
)  # fmt: skip
"""Our names for the rows of `ENUM_CUDA_MEMCPY_OPER`, by id."""

MEMORY: Final = (
    "pageable", "pinned", "device", "array", "managed", "device static", "managed static",
    "unknown",
)  # fmt: skip
"""Our names for the rows of `ENUM_CUDA_MEM_KIND`, by id."""

STYLES: Final = {"pushpop": 59, "startend": 60, "text pushpop": 70, "text startend": 71}
MPI_TABLES: Final = {
    "p2p": "MPI_P2P_EVENTS",
    "start-wait": "MPI_START_WAIT_EVENTS",
    "other": "MPI_OTHER_EVENTS",
    "collectives": "MPI_COLLECTIVES_EVENTS",
}

Span = tuple[int, int]
Row = dict[str, Any]

MARK, NAME_THREAD, NEW_DOMAIN = 34, 39, 75
VM: Final = 1 << 48


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a report; its methods add what the thread did. Times are in ns.

    `columns` of any method are stored as they are, over what the method would store.
    """

    report: ReportBuilder
    pid: int
    tid: int

    @property
    def global_pid(self) -> int:
        """Serialized process id."""
        return VM | self.pid << 24

    @property
    def global_tid(self) -> int:
        """Serialized thread id."""
        return self.global_pid | self.tid

    @property
    def world(self) -> int:
        """Handle of MPI_COMM_WORLD in the thread's process."""
        return 0x7F00_0000_0000 + 16 * self.pid

    def event(self, kind: int, start: int, **columns: Any) -> None:
        """Add a row of NVTX_EVENTS."""
        row = {"eventType": kind, "start": start, "globalTid": self.global_tid, **columns}
        self.report.insert("NVTX_EVENTS", **row)

    def register_domain(self, name: str, at: int = 0) -> int:
        """Add the event that names an NVTX domain and return the domain's id in this process."""
        ids = self.report.domains.setdefault(self.pid, {})
        self.event(NEW_DOMAIN, at, text=name, domainId=ids.setdefault(name, len(ids) + 1))
        return ids[name]

    def range(
        self,
        name: str | None,
        start: int,
        end: int | None,
        *,
        domain: str | None = None,
        style: str = "pushpop",
        registered: bool = True,
        ended_by: Thread | None = None,
        **columns: Any,
    ) -> None:
        """Add an NVTX range; `domain` None is the default one, registered at its first range."""
        ids = {None: 0} | self.report.domains.get(self.pid, {})
        domain_id = ids[domain] if domain in ids else self.register_domain(domain, start)
        other = None if ended_by in (None, self) else ended_by.global_tid
        row = {
            "end": end,
            "domainId": domain_id,
            "endGlobalTid": other,
            **self._text(name, registered),
        }
        self.event(STYLES[style], start, **row | columns)

    def mark(self, text: str, at: int, *, registered: bool = True, **columns: Any) -> None:
        """Add an NVTX mark."""
        self.event(MARK, at, **{"domainId": 0, **self._text(text, registered)} | columns)

    def mpi(
        self,
        name: str,
        start: int,
        end: int | None,
        size: int | None = None,
        source: str = "collectives",
        **columns: Any,
    ) -> None:
        """Add an MPI call; exports of 2022 keep it as a range in the domain 'MPI', without size."""
        table = MPI_TABLES[source]
        if table not in self.report.tables:
            self.range(name, start, end, domain="MPI")
            return
        row = {
            "start": start, "end": end, "globalTid": self.global_tid,
            "textId": self.report.string(name), "commHandle": self.world, "size": size,
            "recvSize": size,
        }  # fmt: skip
        row = {k: v for k, v in row.items() if k in self.report.tables[table]}
        self.report.insert(table, **row | columns)

    def api(self, name: str, start: int, end: int, correlation: int | None = None) -> int:
        """Add a CUDA runtime (`cuda...`) or driver (`cu...`) call; return its correlation id."""
        if correlation is None:
            correlation = self.report.correlation(self.pid)
        self.report.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=self.global_tid,
            correlationId=correlation, nameId=self.report.string(name),
            eventClass=0 if name.startswith("cuda") else 1,
        )  # fmt: skip
        return correlation

    def synchronize(self, start: int, end: int, name: str = "cudaDeviceSynchronize_v3020") -> int:
        """Add a call that waits for the GPU, and the wait itself."""
        correlation = self.api(name, start, end)
        row = self._on_gpu((start, end), 0, 0xFFFFFFFF, correlation)
        self.report.insert("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **row, syncType=3)
        return correlation

    def kernel(
        self,
        name: str,
        api: Span | None,
        gpu: Span,
        *,
        device: int = 0,
        stream: int = 7,
        api_name: str = "cudaLaunchKernel_v7000",
        in_range: str | None = None,
        correlation: int | None = None,
        **columns: Any,
    ) -> int:
        """Add a kernel and its launch; `api` None leaves the launch out.

        `in_range` also adds a range just around the launch. `correlation` launches another
        operation with a call that is already there. Returns the correlation id.
        """
        correlation = self._launch(api_name, api, in_range, correlation)
        named = self.report.string(name)
        row = self._on_gpu(gpu, device, stream, correlation) | {
            "demangledName": named, "shortName": named, "gridX": 132, "gridY": 1, "gridZ": 1,
            "blockX": 128, "blockY": 1, "blockZ": 1,
        }  # fmt: skip
        self.report.insert("CUPTI_ACTIVITY_KIND_KERNEL", **row | columns)
        return correlation

    def memcpy(
        self,
        kind: str,
        size: int,
        api: Span | None,
        gpu: Span,
        *,
        src: str | None = None,
        dst: str | None = None,
        device: int = 0,
        stream: int = 7,
        api_name: str = "cudaMemcpyAsync_v3020",
        in_range: str | None = None,
        correlation: int | None = None,
        **columns: Any,
    ) -> int:
        """Add a copy of a kind in `COPIES`; host memory is pageable unless `src` or `dst` say."""
        correlation = self._launch(api_name, api, in_range, correlation)
        src = src or ("pageable" if kind.endswith(("h2d", "h2h", "h2a")) else "device")
        dst = dst or ("pageable" if kind.endswith(("d2h", "h2h", "a2h")) else "device")
        row = self._on_gpu(gpu, device, stream, correlation) | {
            "bytes": size, "copyKind": COPIES.index(kind), "srcKind": MEMORY.index(src),
            "dstKind": MEMORY.index(dst),
        }  # fmt: skip
        self.report.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **row | columns)
        return correlation

    def memset(
        self,
        size: int,
        api: Span | None,
        gpu: Span,
        *,
        device: int = 0,
        stream: int = 7,
        api_name: str = "cudaMemsetAsync_v3020",
        in_range: str | None = None,
        correlation: int | None = None,
        **columns: Any,
    ) -> int:
        """Set `size` bytes of device memory to 0."""
        correlation = self._launch(api_name, api, in_range, correlation)
        row = self._on_gpu(gpu, device, stream, correlation)
        row |= {"bytes": size, "memKind": MEMORY.index("device")}
        self.report.insert("CUPTI_ACTIVITY_KIND_MEMSET", **row | columns)
        return correlation

    def graph_launch(
        self,
        api: Span,
        gpu: Span | None = None,
        *,
        kernels: Sequence[tuple[str, Span]] = (),
        graph: int = 1,
        device: int = 0,
        stream: int = 7,
        in_range: str | None = None,
    ) -> int:
        """Launch a CUDA graph, traced as a whole (`gpu`) or node by node (`kernels`)."""
        correlation = self._launch("cudaGraphLaunch_v10000", api, in_range, None)
        if gpu is not None:
            row = self._on_gpu(gpu, device, stream, correlation)
            row |= {"graphId": graph, "graphExecId": graph + 1}
            self.report.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **row)
        for node, (name, span) in enumerate(kernels, start=graph << 32):
            self.kernel(
                name, None, span, device=device, stream=stream, correlation=correlation,
                graphNodeId=node,
            )  # fmt: skip
        return correlation

    def _launch(
        self, name: str, api: Span | None, in_range: str | None, correlation: int | None
    ) -> int:
        if api is not None and in_range is not None:
            self.range(in_range, *api)
        if api is not None:
            return self.api(name, *api, correlation=correlation)
        return self.report.correlation(self.pid) if correlation is None else correlation

    def _on_gpu(self, gpu: Span, device: int, stream: int, correlation: int) -> Row:
        start, end = gpu
        return {
            "start": start, "end": end, "deviceId": device, "contextId": 1, "streamId": stream,
            "correlationId": correlation, "globalPid": self.global_pid,
        }  # fmt: skip

    def _text(self, text: str | None, registered: bool) -> Row:
        if text is None or not registered:
            return {"text": text}
        return {"textId": self.report.string(text)}
