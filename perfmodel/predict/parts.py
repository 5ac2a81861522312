"""The MLP's batch as parts: what each does, on whose clock, and how much of it a case has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from perfmodel.errors import ModelError
from perfmodel.predict.case import Case
from perfmodel.workloads.mlp_ranges import COPY, NCCL, PEER
from perfmodel.workloads.work import Workload

Clock = Literal["host", "gpu"]
Route = Literal["blocking", "queued", "replayed"]

D2H: Final = "cudaMemcpyDeviceToHost"
H2D: Final = "cudaMemcpyHostToDevice"
REDUCE: Final = "MPI_Allreduce"
BETWEEN: Final = "between ranges"

BOUNDS: Final[Mapping[str, str]] = {
    "batches": "host",
    "spilled": "host",
    "paged": "host",
    "launches": "host",
    "kernels": "launch latency",
    "copies": "link latency",
    "messages": "link latency",
    "bytes": "link bandwidth",
    "moved": "memory",
    "flops": "compute",
    "tail": "compute",
    "alone": "compute",
    "ramp": "link bandwidth",
    "NCCL sums": "link latency",
    "NCCL bytes": "link bandwidth",
    "peer bytes": "link bandwidth",
}
"""What a part is bound by when most of its time is this amount's."""

UNITS: Final[Mapping[str, str]] = {
    "batches": "s",
    "spilled": "s/B^0.5",
    "paged": "s",
    "launches": "s/launch",
    "kernels": "s/kernel",
    "copies": "s/copy",
    "messages": "s/message",
    "bytes": "s/B",
    "moved": "s/B",
    "flops": "s/FLOP",
    "tail": "s/FLOP^0.5",
    "alone": "s/s",
    "ramp": "s/B^0.5",
    "NCCL sums": "s/sum",
    "NCCL bytes": "s/B",
    "peer bytes": "s/B",
}
"""Unit of an amount's coefficient."""


@dataclass(frozen=True, slots=True)
class Part:
    """One term of a batch: seconds = sum of coefficients times amounts.

    Attributes
    ----------
    name : str
        What it does; parts of one name and `group` share their coefficients.
    group : str
        What it does it with: a kind of memory, a library, a transport.
    phase : str
        The NVTX range whose time it is part of.
    clock : {'host', 'gpu'}
    amounts : mapping of str to float
        Keys of `UNITS`.
    """

    name: str
    group: str
    phase: str
    clock: Clock
    amounts: Mapping[str, float]

    @property
    def key(self) -> str:
        """Name in a model's file."""
        return f"{self.name} [{self.group}]"


def route(case: Case) -> Route:
    """How the host and the GPU take turns: the host waits for the GPU, queues, or replays."""
    s = case.settings
    if case.workload is not None:
        return "queued"
    if s["graph"] == "yes":
        return "replayed"
    return "queued" if s["transport"] in ("nccl", "peer", "none") else "blocking"


def parts_of(case: Case) -> tuple[Part, ...]:
    """Return the parts of one rank's batch in the order in which they run; see `mlp_parts`."""
    return mlp_parts(case) if case.workload is None else own_parts(case.workload, case.sizes)


def own_parts(workload: Workload, sizes: Mapping[str, int]) -> tuple[Part, ...]:
    """Return the parts of a workload of the user's own: each range on the host and on the GPU.

    A range's time is a constant and what its FLOPs, its bytes over links and its memory traffic
    take; what only queues work is constant on the host.
    """
    found = []
    for name, counts in workload.evaluate(sizes).items():
        amounts = {
            "flops": float(counts.flops),
            "bytes": float(counts.moved_bytes),
            "moved": float(counts.dram_bytes),
        }
        work = {"batches": 1.0} | {key: value for key, value in amounts.items() if value > 0}
        found += [Part(name, clock, name, clock, work) for clock in get_args(Clock)]
    found.append(Part("between", "host", BETWEEN, "host", {"batches": 1.0}))
    return tuple(found)


def mlp_parts(case: Case) -> tuple[Part, ...]:
    """Return the parts of one rank's batch of the trainer's MLP, in the order in which they run.

    Raises
    ------
    ModelError
        If the trainer's run has no parts here: the structure of such a run is not modelled.
    """
    s = case.settings
    if s["backend"] != "cupy" or s["overlap"] == "yes" or s["transport"] in ("cuda-aware",):
        raise ModelError(
            f"wanted a run whose structure is modelled (CuPy, no --overlap, a transport other than "
            f"cuda-aware); found {case.label}; leave that out"
        )
    how = route(case)
    if how == "replayed" and s["gemm"] != "cublas":  # its kernels are no ranges of any report
        return (*_host(case), _replayed(case))
    parts = [*_images(case), *_products(case), *_host(case)]
    parts += _through_host(case) if how == "blocking" else _on_device(case)
    return tuple(parts)


def parameters(case: Case) -> int:
    """Return n = HD + H + CH + C, elements of the gradients of one rank."""
    z = case.sizes
    hidden = z["H"] / z["p"] if case.settings["parallel"] == "model" else z["H"]
    return round(hidden * z["D"] + hidden + z["C"] * hidden + z["C"])


def _images(case: Case) -> list[Part]:
    """Pixels and one-hot labels, from the host where they are there."""
    z, on = case.sizes, case.settings["data_on"]
    if on == "device":
        return []
    share = z["B"] if case.settings["parallel"] == "model" else -(-z["B"] // z["p"])
    moved = {"copies": 2.0, "bytes": z["b"] * (z["D"] + z["C"]) * share}
    if on == "prefetch":  # queued beside the products
        return [Part("queue images", on, COPY, "host", {"batches": 1.0})]
    return [Part("copy images", {"host": "pageable"}.get(on, on), COPY, "host", moved)]


def _products(case: Case) -> list[Part]:
    """Kernels on the GPU: wide products (2 D H B' FLOPs), thin ones, element-wise, the step."""
    z, s = case.sizes, case.settings
    d, h, c, width = z["D"], float(z["H"]), z["C"], z["b"]
    k = float(-(-z["B"] // z["p"]))  # the rank with the most images
    if s["parallel"] == "model":
        h, k = h / z["p"], float(z["B"])
    kind = f"{s['gemm']} {s['math']} {8 * width} bit"
    wide = 2 * 2 * d * h * k
    n = h * d + h + c * h + c
    found = [
        Part("wide products", kind, "products", "gpu",
             {"kernels": 2.0, "flops": wide, "tail": 2 * math.sqrt(wide / 2)}),
    ]  # fmt: skip
    if s["gemm"] == "fused":
        steps = {"kernels": 3.0, "moved": width * 5 * h * k}
        found.append(Part("fused steps", kind, "products", "gpu", steps))
    else:
        found += [
            Part("thin products", kind, "products", "gpu",
                 {"kernels": 3.0, "moved": width * (3 * h * k + 3 * c * k)}),
            Part("element-wise", f"{8 * width} bit", "products", "gpu",
                 {"kernels": 5.0, "moved": width * (6 * h * k + 4 * c * k)}),
        ]  # fmt: skip
    if s["transport"] != "peer":
        found.append(
            Part("step kernels", f"{8 * width} bit", "step", "gpu",
                 {"kernels": 4.0, "moved": 3 * width * n})
        )  # fmt: skip
    return found


def _replayed(case: Case) -> Part:
    """A batch as one CUDA graph of the trainer's own kernels: all its work in one part.

    Runs with and without an all-reduce, by NCCL or by the trainer's own, share what they compute.
    """
    z, s = case.sizes, case.settings
    size, p, width = float(parameters(case) * z["b"]), z["p"], z["b"]
    if s["parallel"] == "model":
        size = float(z["C"] * z["B"] * z["b"])
    rows = z["H"] * z["B"] / p
    wide = 4.0 * z["D"] * rows
    ring = 2 * (p - 1) / p * size
    nccl, peer = (p > 1 and s["transport"] == name for name in ("nccl", "peer"))
    amounts = {
        "batches": 1.0,
        "flops": wide,
        "tail": math.sqrt(wide),
        "moved": width * 5 * rows,
        "NCCL sums": float(nccl),
        "NCCL bytes": ring * nccl,
        "peer bytes": (p - 1) * size * peer,
    }
    kind = f"{s['gemm']} {s['math']} {8 * width} bit, {s['parallel']} parallel"
    return Part("replayed batch", kind, "GPU", "gpu", amounts)


def _host(case: Case) -> list[Part]:
    """What the host needs to launch the kernels of each phase, and between the phases."""
    s, how = case.settings, route(case)
    kind = f"{s['gemm']}, {how}" + (", synchronized" if s["sync"] == "yes" else "")
    if s["parallel"] == "model":
        kind += ", model parallel"
    if how == "replayed":
        return [Part("replay", s["transport"], "CUDA graph", "host", {"batches": 1.0})]
    sums = {} if how == "blocking" else {"NCCL sums": _nccl_sums(case)}
    return [
        Part("launch forward", kind, "forward", "host", _launches(case, images=True)),
        Part("launch backward", kind, "backward", "host", _launches(case, images=True) | sums),
        *(
            [Part("launch step", kind, "step", "host", _launches(case, images=False))]
            if s["transport"] != "peer"
            else []
        ),
        Part("between", kind, BETWEEN, "host", {"batches": 1.0}),
    ]


def _nccl_sums(case: Case) -> float:
    """All-reduces by NCCL in a batch: a launch on the host, a kernel more on the GPU."""
    return float(case.settings["transport"] == "nccl" and case.sizes["p"] > 1)


def _launches(case: Case, *, images: bool) -> dict[str, float]:
    """What makes launches slower: the host's caches hold gradients and images instead of code."""
    found = {"batches": 1.0}
    if route(case) != "blocking":
        return found
    s, p = case.settings, case.sizes["p"]
    handled = p > 1 or s["transport"] == "host"  # summed, or staged by the driver
    size = float(parameters(case) * case.sizes["b"]) if s["parallel"] == "data" else 0.0
    found["spilled"] = math.sqrt(size) if handled else 0.0
    if images:
        found["paged"] = float(s["data_on"] == "host")
    return found


def _through_host(case: Case) -> list[Part]:
    """Gradients through host memory: out, summed by MPI, back."""
    z, s = case.sizes, case.settings
    p, size = z["p"], float(parameters(case) * z["b"])
    messages = 1.0 if s["transport"] == "host-flat" else 4.0
    if s["parallel"] == "model":
        messages, size = 1.0, float(z["C"] * z["B"] * z["b"])
    memory = "pageable" if s["transport"] == "host" else "pinned"
    start = Part("first launch", f"{s['gemm']}, blocking", "products", "gpu", {"batches": 1.0})
    rounds = messages * math.ceil(math.log2(p)) if p > 1 else messages
    over = {"messages": rounds, "bytes": 2 * (p - 1) / p * size}
    if s["transport"] == "chunked":
        summed = Part("pipeline", "chunked", REDUCE, "host", {"messages": 1.0, "bytes": size})
        return [start, summed]
    # MPI's ranks read each other's buffers, and leave them in caches: copies out are slower then,
    # and copies back faster
    memory_of_copies = memory if p > 1 else f"{memory}, one rank"
    alone = Part("sum alone", "MPI", REDUCE, "host", {"messages": messages})
    return [
        start,
        Part("copy out", memory_of_copies, D2H, "host", {"copies": messages, "bytes": size}),
        Part("all-reduce", f"MPI, {memory}", REDUCE, "host", over) if p > 1 else alone,
        Part("copy back", memory_of_copies, H2D, "host", {"copies": messages, "bytes": size}),
    ]


def _on_device(case: Case) -> list[Part]:
    """Gradients summed from GPU to GPU, and what lies between kernels that follow one another."""
    z, s = case.sizes, case.settings
    p, size = z["p"], float(parameters(case) * z["b"])
    if s["parallel"] == "model":
        size = float(z["C"] * z["B"] * z["b"])
    between = {"batches": 1.0, "NCCL sums": _nccl_sums(case)}
    gaps = Part("gaps", f"{s['gemm']}, {route(case)}", BETWEEN, "gpu", between)
    if p == 1:
        return [gaps]
    ring = 2 * (p - 1) / p * size
    # NCCL's rate rises with the size, from protocol to protocol: a root lies between them
    over = {"messages": float(2 * (p - 1)), "ramp": math.sqrt(ring), "bytes": ring}
    if s["transport"] == "peer":
        fused = {"messages": 1.0, "bytes": ring}
        return [Part("peer all-reduce and step", s["transport"], PEER, "gpu", fused), gaps]
    return [Part("all-reduce", "NCCL", NCCL, "gpu", over), gaps]
