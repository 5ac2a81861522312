"""The MLP's batch as parts: what each does, on whose clock, and how much; measured alone, too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Final

from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import MachineMeasurement, Series
from perfmodel.programs.mlp.settings import (
    COPY,
    D2H,
    DATA_ON,
    GEMMS,
    GRAPH,
    H2D,
    LAYER_1,
    NCCL,
    PEER,
    REDUCE,
    gemm_flops,
    parameters,
)
from perfmodel.studies.mlp.case import Case
from perfmodel.studies.models.terms import BETWEEN, Alone, Microbenchmark, Part, interpolate

GROUPS: Final = ("copies", "MPI", "NCCL", "latency")
"""Parts of a machine's measurement that are evidence: each may be left out."""
_LARGEST: Final = 16 << 20
"""Bytes: gradients and images of a batch are smaller; larger messages leave the host's caches."""
_LEAST_NCCL: Final = 128 << 10
"""Below it NCCL's time does not depend on the size, which no gradient's is."""
_KERNELS: Final = 14.0
"""Of a batch with cuBLAS."""
INPUTS, CLASSES = 784, 10
LARGE: Final = ("forward 1", "backward 3")
"""GEMMs of D inputs."""
SMALL: Final = ("forward 2", "backward 1", "backward 2")
"""GEMMs of C classes."""
FUSED_LARGE: Final = ("fused forward 1", "fused backward 3")
FUSED_SMALL: Final = ("fused output", "fused backward")
"""The fused network's own kernels, as trainer/microbenchmarks.py calls them."""
_FUSED: Final = "tf32x3"
"""Math of the fused network in these."""
STEP: Final = "step"


def microbenchmarks(
    found: MachineMeasurement, source: str, use: Sequence[str] = GROUPS
) -> tuple[Microbenchmark, ...]:
    """Return what a machine's measurement says of the parts of a batch.

    Parameters
    ----------
    found : MachineMeasurement
        Of `perfmodel machine measure`.
    source : str
        The file's name.
    use : sequence of str
        Which of `GROUPS`.
    """
    every: list[Microbenchmark] = []
    for series in found.series:
        every += _of_series(series, source, use)
    empty = found.machine.latency_s.get("empty_kernel")
    if empty is not None and "latency" in use:
        row = ({"kernels": _KERNELS, "NCCL sums": 0.0}, _KERNELS * float(empty))
        every += [
            Microbenchmark(f"{source}: empty kernels behind one another", f"gaps [{how}]", (row,))
            for how in ("queued", "replayed")
        ]
    return tuple(every)


def _of_series(series: Series, source: str, use: Sequence[str]) -> Iterator[Microbenchmark]:
    """Yield the parts of one series: copies by direction and memory, sums by library."""
    p = series.ranks
    name = f"{source}: {series.kind}, {series.memory}, {series.direction}, {p} rank{'s' * (p > 1)}"
    sizes = [
        (n, t) for n, t in zip(series.bytes, series.median_s, strict=True) if n <= _LARGEST
    ]  # fmt: skip
    if series.kind == "copy" and series.clock == "host" and "copies" in use:
        rows = tuple(({"copies": 1.0, "bytes": float(n)}, t) for n, t in sizes)
        group = series.memory + (", one rank" if p == 1 else "")
        parts = {"d2h": ("copy out",), "h2d": ("copy back", "copy images")}[series.direction]
        for part in parts:
            if part != "copy images" or p > 1:  # images are copied alike on any number of ranks
                of = series.memory if part == "copy images" else group
                yield Microbenchmark(name, f"{part} [{of}]", rows)
    if series.kind == "mpi_allreduce" and "MPI" in use and p > 1:
        rounds = float(math.ceil(math.log2(p)))
        rows = tuple(({"messages": rounds, "bytes": 2 * (p - 1) / p * n}, t) for n, t in sizes)
        for memory in ("pageable", "pinned"):
            yield Microbenchmark(name, f"all-reduce [MPI, {memory}]", rows)
    if (series.kind, series.clock) == ("nccl_allreduce", "device") and "NCCL" in use and p > 1:
        rows = tuple(
            ({"messages": 2.0 * (p - 1), "ramp": math.sqrt(ring), "bytes": ring}, t)
            for n, t in sizes
            if n >= _LEAST_NCCL and (ring := 2 * (p - 1) / p * n)
        )
        yield Microbenchmark(name, "all-reduce [NCCL]", rows)


def gemms_alone(found: MachineMeasurement, source: str) -> Alone | None:
    """Return what a machine's measurement says of the trainer's kernels; None if nothing.

    Raises
    ------
    ModelError
        If a GEMM's shapes are those of another network, or no grid of h and k.
    """
    rows: dict[tuple[str, str], tuple[tuple[int, int, float], ...]] = {}
    for p in found.products:
        if p.name not in (*LARGE, *SMALL, *FUSED_LARGE, *FUSED_SMALL):
            continue
        sizes = [_sizes(p.name, shape) for shape in zip(p.m, p.n, p.k, strict=True)]
        across = INPUTS if p.name in (*LARGE, *FUSED_LARGE) else CLASSES
        grid = {(h, k) for h, k, _ in sizes}
        full = len({h for h, _ in grid}) * len({k for _, k in grid})
        widths = {other for *_, other in sizes}
        if widths != {across} or not len(sizes) == len(grid) == full:
            raise ModelError(
                f"{source}: expected GEMMs {p.name!r} ({p.dtype}) of width {across} and every h "
                f"with every k, once; got {len(sizes)} shapes for a grid of {full}, of width "
                f"{', '.join(map(str, sorted(widths)))}; measure again: the file was changed or "
                "damaged"
            )
        rows[p.name, p.dtype] = tuple(
            (h, k, seconds) for (h, k, _), seconds in zip(sizes, p.median_s, strict=True)
        )
    for series in found.series:
        if series.kind == STEP:
            sizes_s = zip(series.bytes, series.median_s, strict=True)
            rows[STEP, f"{series.ranks} ranks"] = tuple((n, 1, t) for n, t in sizes_s)
    kernel = found.machine.latency_s.get("empty_kernel")
    if not rows or kernel is None:
        return None
    return Alone(source, rows, kernel)


def _sizes(name: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return hidden units, images and the other width (D or C) of a GEMM's (m, n, k)."""
    m, n, k = shape
    return {
        "forward 1": (m, n, k), "forward 2": (k, n, m), "backward 1": (m, n, k),
        "backward 2": (n, k, m), "backward 3": (m, k, n), "output": (k, n, m),
        "backward": (m, n, k),
    }[name.removeprefix("fused ")]  # fmt: skip


_DTYPES: Final = {("ieee", 4): "float32", ("tf32", 4): "tf32", ("ieee", 8): "float64"}
_GEMMS_OF: Final = {"large GEMMs": LARGE, "small GEMMs": SMALL}
_FUSED_OF: Final = {"large GEMMs": FUSED_LARGE, "fused steps": FUSED_SMALL}
_PACKETS: Final = 4 << 20
"""Bytes to all peers together up to which the trainer sends packets, a quarter of them flags."""

_SEPARATING_SIZES: Final = {
    "copy images": "B", "copy out": "H", "copy back": "H", "pipeline": "H", "step kernels": "H",
    "all-reduce": "H and number of ranks", PEER: "H",
}  # fmt: skip
"""Sizes that change the amounts of a term: another such value separates them; else H and B."""
_SEPARATING_RUNS: Final = {
    "NCCL sums": "on one rank or without NCCL",
    "paged": "with images that are not pageable (--data-on pinned)",
    "spilled": "at another H",
}
"""Runs that separate these amounts from a constant."""


def mlp_parts(case: Case, alone: Alone | None = None) -> tuple[Part, ...]:
    """Return the parts of one rank's batch of the trainer's MLP, in the order in which they run.

    GEMMs that were measured alone have those seconds as their amounts.

    Raises
    ------
    ModelError
        If the trainer's run has no parts here: the structure of such a run is not modelled.
    """
    s = case.settings
    if s["backend"] != "cupy" or s["overlap"] == "yes":
        raise ModelError(
            f"expected a run whose structure is modelled (CuPy, no --overlap); got {case.label}; "
            "leave that out"
        )
    parts = [*_images(case), *_gemms(case), *_host(case)]
    if case.route == "blocking":
        parts += _through_host(case)
    else:
        parts += _on_device(case, parts)
    return tuple(parts if alone is None else (part_alone(part, case, alone) for part in parts))


def knows(alone: Alone, case: Case, part: str = "small GEMMs") -> bool:
    """Whether a part's GEMMs are cuBLAS's, of shapes and a data type that were measured alone."""
    z, s = case.sizes, case.settings
    if s["backend"] != "cupy":
        return False
    large = part == "large GEMMs" and s["math"] in GEMMS[s["gemm"]].cublas
    if s["gemm"] != "cublas" and not large:
        return False
    dtype = _DTYPES.get((s["math"], z["b"]))
    names = all((name, dtype) in alone.seconds for name in (*LARGE, *SMALL))
    return names and (z["D"], z["C"]) == (INPUTS, CLASSES)


def part_alone(part: Part, case: Case, alone: Alone) -> Part:
    """Return a part with the seconds of its kernels alone for its work, where known.

    Kernels that start while others run hide a little of what an empty one takes, so that is taken
    off here, and how many there are is an amount of its own.
    """
    found = _kernels_alone(part, case, alone)
    if found is None:
        return part
    group, keys, at = found
    seconds = 0.0
    for key in keys:
        taken = interpolate(alone.seconds[key], *at)
        seconds += max(taken - alone.kernel_s, 0.2 * taken)
    amounts = {"alone": seconds, "kernels": float(len(keys))}
    return replace(part, group=f"{group}, as alone", amounts=amounts)


_Kernels = tuple[str, list[tuple[str, str]], tuple[float, float]]


def _kernels_alone(part: Part, case: Case, alone: Alone) -> _Kernels | None:
    """Return a part's kernels that were measured alone: whose, their keys, and at which sizes."""
    z, s = case.sizes, case.settings
    cublas = _GEMMS_OF.get(part.name)
    if cublas is not None and knows(alone, case, part.name):
        dtype = _DTYPES[s["math"], z["b"]]
        return "cublas", [(name, dtype) for name in cublas], case.shares
    if (z["D"], z["C"], z["b"], s["backend"]) != (INPUTS, CLASSES, 4, "cupy"):
        return None
    keys, group, at = [], "fused", case.shares
    if (s["gemm"], s["math"]) == ("fused", _FUSED):
        keys = [(name, _FUSED) for name in _FUSED_OF.get(part.name, ())]
    if part.name == "step in one kernel":
        peers = s["transport"] == "peer" and z["p"] > 1
        keys = [(STEP, f"{z['p'] if peers else 1} ranks")]
        group, at = "peer" if peers else "32 bit", (4.0 * case.parameters, 1.0)
    known = bool(keys) and all(key in alone.seconds for key in keys)
    return (group, keys, at) if known else None


def _images(case: Case) -> list[Part]:
    """Pixels and one-hot labels, from the host where they are there."""
    z, on = case.sizes, case.settings["data_on"]
    if on == "device":
        return []
    moved = {"copies": 2.0, "bytes": z["b"] * (z["D"] + z["C"]) * case.shares[1]}
    if on == "prefetch":  # queued beside the GEMMs
        return [Part("queue images", on, COPY, "host", {"batches": 1.0})]
    return [Part("copy images", DATA_ON[on], COPY, "host", moved)]


def _gemms(case: Case) -> list[Part]:
    """Kernels on the GPU: large GEMMs (2 D H B' FLOPs), small ones, element-wise, the step."""
    z, s = case.sizes, case.settings
    d, (h, k), c, width = z["D"], case.shares, z["C"], z["b"]
    kind = f"{s['gemm']} {s['math']} {8 * width} bit"
    wide = len(LAYER_1) * gemm_flops(d, h, k)
    n = parameters(d, h, c)
    product = {"kernels": 2.0, "flops": wide, "tail": 2 * math.sqrt(wide / 2)}
    if case.route == "replayed" and s["gemm"] not in ("cublas", "fused"):
        # no name says which kernel of the graph does what
        moved = width * (5 * h * k + 3 * n)
        whole = product | {"kernels": 14.0, "moved": moved}
        step = [_step_in_one(case)] if s["transport"] == "peer" else []
        return [Part("replayed kernels", kind, "GEMMs", "gpu", whole, "computes"), *step]
    found = [Part("large GEMMs", kind, "GEMMs", "gpu", product, "computes")]
    if s["gemm"] == "fused":
        steps = {"kernels": 2.0, "moved": width * 5 * h * k}
        found.append(Part("fused steps", f"{8 * width} bit", "GEMMs", "gpu", steps, "computes"))
    else:
        found += [
            Part("small GEMMs", kind, "GEMMs", "gpu",
                 {"kernels": 3.0, "moved": width * (3 * h * k + 3 * c * k)}, "computes"),
            Part("element-wise", f"{8 * width} bit", "GEMMs", "gpu",
                 {"kernels": 5.0, "moved": width * (6 * h * k + 4 * c * k)}, "computes"),
        ]  # fmt: skip
    if case.route == "replayed" and (s["gemm"] == "fused" or s["transport"] == "peer"):
        found.append(_step_in_one(case))
    elif s["transport"] != "peer":
        found.append(
            Part("step kernels", f"{8 * width} bit", "step", "gpu",
                 {"kernels": 4.0, "moved": 3 * width * n})
        )  # fmt: skip
    return found


def _host(case: Case) -> list[Part]:
    """Return the host's time to launch the kernels of each phase, and between the phases."""
    s, how = case.settings, case.route
    kind = f"{s['gemm']}, {how}" + (", synchronized" if s["sync"] == "yes" else "")
    if s["parallel"] == "model":
        kind += ", model parallel"
    if how == "replayed":
        return [Part("replay", s["transport"], GRAPH, "host", {"batches": 1.0})]
    sums = {} if how == "blocking" else {"NCCL sums": _nccl_sums(case)}
    work = _launches(case, images=True)
    return [
        Part("launch forward", kind, "forward", "host", work, "launches"),
        Part("launch backward", kind, "backward", "host", work | sums, "launches"),
        *(
            [Part("launch step", kind, "step", "host", _launches(case, images=False), "follows")]
            if s["transport"] != "peer"
            else []
        ),
        Part("between", kind, BETWEEN, "host", {"batches": 1.0}, "follows"),
    ]


def _nccl_sums(case: Case) -> float:
    """All-reduces by NCCL in a batch: a launch on the host, a kernel more on the GPU."""
    return float(case.settings["transport"] == "nccl" and case.sizes["p"] > 1)


def _launches(case: Case, *, images: bool) -> dict[str, float]:
    """Return the amounts that slow launches: gradients and images in the host's caches."""
    found = {"batches": 1.0}
    if case.route != "blocking":
        return found
    s, p = case.settings, case.sizes["p"]
    summed = p > 1 and s["transport"] != "ring"
    handled = summed or case.transport.buffers == "pageable"  # or staged by the driver
    size = case.message_bytes if s["parallel"] == "data" else 0.0
    found["spilled"] = math.sqrt(size) if handled else 0.0
    if images:
        found["paged"] = float(s["data_on"] == "host")
    return found


def _through_host(case: Case) -> list[Part]:
    """Gradients through host memory: out, summed by MPI, back."""
    p, s, size, memory = case.sizes["p"], case.settings, case.message_bytes, case.transport.buffers
    messages = 1.0 if s["parallel"] == "model" else float(case.transport.messages)
    group = f"{s['gemm']}, blocking"
    start = Part("first launch", group, "GEMMs", "gpu", {"batches": 1.0}, "computes")
    rounds = messages * math.ceil(math.log2(p)) if p > 1 else messages
    over = {"messages": rounds, "bytes": 2 * (p - 1) / p * size}
    if case.transport.links == "mpi-gpu":
        return [start, *_on_gpu_memory(case, over, messages)]
    copied = {"copies": messages, "bytes": size}
    if s["transport"] == "chunked":
        work = {"messages": 1.0, "bytes": size}
        return [start, Part("pipeline", "chunked", REDUCE, "host", work, "waits")]
    # MPI's ranks read each other's buffers, and leave them in caches: copies out are slower then,
    # and copies back faster
    memory_of_copies = memory if p > 1 else f"{memory}, one rank"
    alone = Part("sum alone", "MPI", REDUCE, "host", {"messages": messages})
    return [
        start,
        Part("copy out", memory_of_copies, D2H, "host", copied, "waits"),
        Part("all-reduce", f"MPI, {memory}", REDUCE, "host", over) if p > 1 else alone,
        Part("copy back", memory_of_copies, H2D, "host", copied),
    ]


def _on_gpu_memory(case: Case, over: dict[str, float], messages: float) -> list[Part]:
    """MPI takes GPU pointers: Open MPI sums them on the host, the ring exchanges and adds them."""
    p, transport = case.sizes["p"], case.settings["transport"]
    if transport == "ring":
        over = {**over, "messages": 2.0 * (p - 1) * messages}
    elif p == 1:  # copied out and back all the same, but not summed: a time of its own
        alone = {"messages": messages, "bytes": case.message_bytes}
        return [Part("sum alone", "MPI, GPU memory", REDUCE, "host", alone, "waits")]
    group = "MPI, GPU memory" if transport == "cuda-aware" else "MPI_Sendrecv, GPU memory"
    return [Part("all-reduce", group, REDUCE, "host", over, "waits")]


def _on_device(case: Case, before: Sequence[Part]) -> list[Part]:
    """Gradients summed from GPU to GPU, and what lies between kernels that follow one another."""
    p = case.sizes["p"]
    kernels = sum(part.amounts.get("kernels", 0.0) for part in before)
    between = {"kernels": kernels, "NCCL sums": _nccl_sums(case)}
    gaps = Part("gaps", case.route, BETWEEN, "gpu", between)
    if p == 1:
        return [gaps]
    found = [*_exchange(case), gaps]
    if case.route == "queued":  # all wait for the rank whose host is slowest
        found.append(Part("slowest rank", "queued", BETWEEN, "host", {"slower": slowest(p)}))
    return found


def _exchange(case: Case) -> list[Part]:
    """The sum over ranks: by NCCL, or by peers, which step as well."""
    p, s = case.sizes["p"], case.settings
    ring = 2 * (p - 1) / p * case.message_bytes
    if s["transport"] != "peer":
        # NCCL's rate rises with the size, from protocol to protocol: a root lies between them
        over = {"messages": float(2 * (p - 1)), "ramp": math.sqrt(ring), "bytes": ring}
        return [Part("all-reduce", "NCCL", NCCL, "gpu", over)]
    if case.route == "replayed":
        return []  # with the step
    fused = {"messages": 1.0, "bytes": ring}
    return [Part("peer all-reduce and step", "peer", PEER, "gpu", fused)]


def _step_in_one(case: Case) -> Part:
    """One kernel over all parameters; with peers, gradients are sent to all of them before."""
    z, size = case.sizes, float(case.parameters * case.sizes["b"])
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


def separating(term: str, amounts: Sequence[str], missing: int) -> str:
    """Say how many reports, and of which runs, separate the amounts of a term from each other."""
    ways = [way for name, way in _SEPARATING_RUNS.items() if name in amounts]
    if len(ways) < missing and not set(amounts) <= {"batches", *_SEPARATING_RUNS}:
        ways.append(f"at another {_SEPARATING_SIZES.get(term.partition(' [')[0], 'H and B')}")
    reports = "a report" if missing == 1 else f"{missing} reports"
    return f"{reports} of such a run {', and '.join(ways)} would separate them"
