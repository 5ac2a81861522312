"""The MLP's batch as parts: what each does, on whose clock, and how much of it a case has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final, get_args

from perfmodel.base.errors import ModelError
from perfmodel.models.part import BETWEEN, D2H, H2D, REDUCE, Clock, Part, route
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.mlp_ranges import COPY, NCCL, PEER
from perfmodel.workloads.work import Workload

_PACKETS: Final = 4 << 20
"""Bytes to all peers together up to which the trainer sends packets, a quarter of them flags."""


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
    parts = [*_images(case), *_products(case), *_host(case)]
    parts += _through_host(case) if route(case) == "blocking" else _on_device(case, parts)
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
    product = {"kernels": 2.0, "flops": wide, "tail": 2 * math.sqrt(wide / 2)}
    if route(case) == "replayed" and s["gemm"] not in ("cublas", "fused"):
        # no name tells which kernel of the graph does what
        moved = width * (5 * h * k + 3 * n)
        whole = product | {"kernels": 14.0, "moved": moved}
        step = [_step_in_one(case)] if s["transport"] == "peer" else []
        return [Part("replayed kernels", kind, "products", "gpu", whole), *step]
    found = [Part("wide products", kind, "products", "gpu", product)]
    if s["gemm"] == "fused":
        steps = {"kernels": 2.0, "moved": width * 5 * h * k}
        found.append(Part("fused steps", f"{8 * width} bit", "products", "gpu", steps))
    else:
        found += [
            Part("thin products", kind, "products", "gpu",
                 {"kernels": 3.0, "moved": width * (3 * h * k + 3 * c * k)}),
            Part("element-wise", f"{8 * width} bit", "products", "gpu",
                 {"kernels": 5.0, "moved": width * (6 * h * k + 4 * c * k)}),
        ]  # fmt: skip
    if route(case) == "replayed" and (s["gemm"] == "fused" or s["transport"] == "peer"):
        found.append(_step_in_one(case))
    elif s["transport"] != "peer":
        found.append(
            Part("step kernels", f"{8 * width} bit", "step", "gpu",
                 {"kernels": 4.0, "moved": 3 * width * n})
        )  # fmt: skip
    return found


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


def _on_device(case: Case, before: Sequence[Part]) -> list[Part]:
    """Gradients summed from GPU to GPU, and what lies between kernels that follow one another."""
    z, s = case.sizes, case.settings
    p, size = z["p"], float(parameters(case) * z["b"])
    if s["parallel"] == "model":
        size = float(z["C"] * z["B"] * z["b"])
    kernels = sum(part.amounts.get("kernels", 0.0) for part in before)
    between = {"kernels": kernels, "NCCL sums": _nccl_sums(case)}
    gaps = Part("gaps", route(case), BETWEEN, "gpu", between)
    if p == 1:
        return [gaps]
    found = [*_exchange(case, size), gaps]
    if route(case) == "queued":  # all wait for the rank whose host is slowest
        found.append(Part("slowest rank", "queued", BETWEEN, "host", {"slower": slowest(p)}))
    return found


def _exchange(case: Case, size: float) -> list[Part]:
    """The sum of so many bytes over ranks: by NCCL, or by peers, which step as well."""
    p, s = case.sizes["p"], case.settings
    ring = 2 * (p - 1) / p * size
    if s["transport"] != "peer":
        # NCCL's rate rises with the size, from protocol to protocol: a root lies between them
        over = {"messages": float(2 * (p - 1)), "ramp": math.sqrt(ring), "bytes": ring}
        return [Part("all-reduce", "NCCL", NCCL, "gpu", over)]
    if route(case) == "replayed":
        return []  # with the step
    fused = {"messages": 1.0, "bytes": ring}
    return [Part("peer all-reduce and step", "peer", PEER, "gpu", fused)]


def _step_in_one(case: Case) -> Part:
    """One kernel over all parameters; with peers, gradients are sent to all of them before."""
    z, size = case.sizes, float(parameters(case) * case.sizes["b"])
    amounts = {"kernels": 1.0, "moved": 3 * size, "messages": 0.0, "bytes": 0.0}
    if case.settings["transport"] == "peer" and z["p"] > 1:
        sent = (z["p"] - 1) * size
        packets = sent <= _PACKETS  # which bring their flags along; others send them after the data
        amounts |= (
            {"messages": 1.0, "bytes": 4 / 3 * sent}
            if packets
            else {"messages": 2.0, "bytes": sent}
        )
    return Part("step in one kernel", f"{8 * z['b']} bit", "step", "gpu", amounts)


def slowest(ranks: int) -> float:
    """Return how many standard deviations the slowest of some ranks is above one of them.

    The median of the largest of p normal variables: the p-th root of 1/2 is its quantile.
    """
    return NormalDist().inv_cdf(0.5 ** (1 / ranks))
