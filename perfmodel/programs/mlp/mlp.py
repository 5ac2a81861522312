"""The MLP of the CME 213 assignment: FLOPs and bytes per rank and batch, range by range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, get_args

from perfmodel.base.errors import WorkloadError
from perfmodel.programs import Counting
from perfmodel.programs.mlp.settings import (
    BATCH_RANGE,
    COPY,
    D2H,
    GEMM_LOOPS,
    GRAPH,
    H2D,
    HIDDEN_FLOPS,
    LINKS,
    NCCL,
    OUTPUT_FLOPS,
    PEER,
    REDUCE,
    SYNC,
    TRANSPORTS,
    Links,
)
from perfmodel.workloads.expression import Expression
from perfmodel.workloads.work import Symbol, Work, Workload

Parallel = Literal["data", "model"]
Fused = Literal["no", "products", "all"]
Rows = dict[str, dict[str, str]]
"""Formulas by range and key (`perfmodel.workloads.work.KEYS`)."""

SYMBOLS: Final = (
    Symbol("D", "input size", "elements per image"),
    Symbol("H", "hidden size", "units"),
    Symbol("C", "number of classes", "classes"),
    Symbol("B", "batch size of all ranks together", "images"),
    Symbol("p", "MPI ranks", "ranks"),
    Symbol("b", "bytes per element", "B"),
)
DOCUMENT_GEMMS: Final = ("forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 3")
"""The GEMMs whose FLOPs the assignment counts (Question 2.3): 4 B' H (D + C) together."""

PHASES: Final = {
    "document": ("forward", "backward", "step", PEER),
    "full": (COPY, "forward", "backward", "step", PEER),
}
"""By counting, the parts of a batch that its formulas cover, where the run has them."""

_DERIVED: Final[Mapping[Parallel, Mapping[str, tuple[str, str, str, str]]]] = {
    "data": {
        "Bp": ("B/p", "images of one rank", "images", "B'"),
        "n": ("H*D + H + C*H + C", "parameters", "elements", ""),
    },
    "model": {
        "Hp": ("H/p", "hidden units of one rank", "units", "H'"),
        "n": ("H/p*D + H/p + C*H/p + C", "parameters of one rank", "elements", ""),
        "m": ("C*B", "elements all-reduced: z2", "elements", ""),
    },
}
"""Derived symbols: formula, meaning, unit and label."""
_SOURCE: Final = "CME 213 final project, Questions 2.3 to 2.6; see docs/model.md"
_GEMM_WITH_SIGMOID: Final = "gemm"
"""The trainer's kernel that multiplies, adds the bias and applies the sigmoid."""
_NAMES: Final = {"nccl": ", NCCL", "peer": ", GPU to GPU"}


def mlp(
    counting: Counting = "full",
    parallel: Parallel = "data",
    *,
    transport: Links = "host",
    copies_images: bool = True,
    fused: Fused = "no",
    graph: bool = False,
) -> Workload:
    """Build the workload of z1 = W1 x + b1, a1 = sigmoid(z1), z2 = W2 a1 + b2, y = softmax(z2).

    Parameters
    ----------
    counting : {'full', 'document'}
        'full' counts everything. 'document' reproduces the assignment's Questions 2.3 to 2.6: the
        FLOPs of four GEMMs, no image copies, and the all-reduce's bytes in both directions. The
        two differ in FLOPs and the links' bytes; memory traffic and messages are the same.
    parallel : {'data', 'model'}
        'data' splits the batch, B' = B/p images per rank, and all-reduces the gradients. 'model'
        splits W1 by rows and W2 by columns, H' = H/p hidden units per rank, and all-reduces z2.
        b2 is held whole by every rank, and so is its gradient: all compute it alike from dz2.
        Where p does not divide H, H' is the mean over the ranks.
    transport : {'host', 'mpi', 'mpi-gpu', 'nccl', 'peer', 'none'}
        What the all-reduce takes: MPI between copies over PCIe; MPI alone (NumPy, or a CUDA-aware
        library); NCCL; one kernel that adds the other GPUs' gradients and takes the step; nothing.
    copies_images : bool
        Every batch is copied from the host; otherwise all images stay where they are computed.
    fused : {'no', 'products', 'all'}
        The two small GEMMs on either side of dz2 lie inside other kernels, so that ranges
        'forward GEMM 2' and 'backward GEMM 2' do not occur; with 'all' the sigmoid, too, is part
        of the first GEMM.
    graph : bool
        The batch is replayed as one CUDA graph: one range holds all the work.

    Notes
    -----
    All-reduce of m elements by a ring: every rank sends 2 (p-1)/p m b bytes and receives as many
    (P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 117-124, 2009). 'full' counts one
    direction, for links that carry both at once; 'document' counts both, 4 (p-1)/p m b, which is
    the assignment's 2 m b at p = 2. The 'peer' kernel sends its m b bytes to each of the p - 1
    others.

    Examples
    --------
    >>> values = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    >>> mlp("document").total().subs(values).flops
    2439168000
    >>> mlp("full", transport="nccl", copies_images=False).total().subs(values).peer_bytes
    1628200
    """
    for found, known in (
        (counting, get_args(Counting)),
        (parallel, get_args(Parallel)),
        (transport, get_args(Links)),
        (fused, get_args(Fused)),
    ):
        if found not in known:
            raise WorkloadError(f"expected one of {', '.join(known)}; got '{found}'; take one")
    if parallel == "model" and transport == "peer":
        raise WorkloadError(
            "expected data parallelism with transport 'peer', which sums gradients and takes the "
            "step; got model parallelism, which sums z2; take 'nccl'"
        )
    rows = _rows(counting, parallel, transport, fused)
    if not copies_images:
        del rows[COPY]
    phases = tuple(name for name in PHASES[counting] if name in rows)
    if graph:
        rows, phases = graph_of(rows), ()
    symbols = {symbol.name: symbol for symbol in SYMBOLS}
    derived = _DERIVED[parallel].items()
    definitions = {name: Expression.parse(formula, symbols) for name, (formula, *_) in derived}
    return Workload(
        name=f"MLP, {parallel} parallel{_NAMES.get(transport, '')}{', CUDA graph' * graph}",
        counting=counting,
        source=_SOURCE,
        batch_range=BATCH_RANGE,
        symbols=symbols,
        ranges={name: Work.parse(row, symbols, definitions) for name, row in rows.items()},
        derived={
            name: Symbol(name, meaning, unit, label=label, definition=definitions[name])
            for name, (_, meaning, unit, label) in derived
        },
        divisible=(("B", "p"),) if parallel == "data" else (),
        shared=(("H", "p"),) if parallel == "model" else (),
        phases=phases,
        replay=GRAPH if graph else "",
    )


def as_it_ran(workload: Workload, config: Mapping[str, Any]) -> Workload:
    """Give the MLP the ranges and links of the run that a configuration mark describes.

    Parameters
    ----------
    workload : Workload
        Any other than the MLP is returned as it is.
    config : mapping
        The mark's content; without one nothing changes.
    """
    if workload.source != _SOURCE or not config:
        return workload
    on_gpu = config.get("backend") != "numpy"
    row = TRANSPORTS.get(str(config.get("transport")))
    transport: Links = row.links if row is not None else "host"
    fused: Fused = "no"
    if on_gpu and config.get("gemm") == "fused":  # cuBLAS, which multiplies TF32, has no sigmoid
        fused = "products" if config.get("math") == "tf32" else "all"
    counting: Counting = "document" if workload.counting == "document" else "full"
    return mlp(
        counting,
        "model" if config.get("parallel") == "model" else "data",
        transport="mpi" if transport == "host" and not on_gpu else transport,
        copies_images=on_gpu and config.get("data_on") != "device",
        fused=fused,
        graph=config.get("graph") is True,
    )


def as_its_kernels(kernels: Mapping[str, Collection[str]]) -> Workload:
    """Return the MLP as a run computed it whose kernels are known by range, and nothing else.

    Where 'forward GEMM 2' is missing the trainer ran ``--gemm fused``, in which cuBLAS multiplies
    TF32 and has no sigmoid inside (docs/trainer.md).
    """
    first = kernels.get("forward GEMM 1")
    if first is None or "forward GEMM 2" in kernels or "forward" not in kernels:
        return mlp()
    return mlp(fused="all" if _GEMM_WITH_SIGMOID in first else "products")


def _rows(counting: Counting, parallel: Parallel, transport: Links, fused: Fused) -> Rows:
    """Formulas by range, as `counting` counts them."""
    hidden, batch = ("H", "Bp") if parallel == "data" else ("Hp", "B")
    message = "n" if parallel == "data" else "m"
    rows = all_rows(hidden, batch, message)
    if counting == "document":
        _as_the_document_counts(rows, message)
    if fused != "no":
        fuse(rows, hidden, batch, sigmoid=fused == "all")
    return reduced_by(rows, transport)


def _as_the_document_counts(rows: Rows, m: str) -> None:
    """Keep the FLOPs of four GEMMs, drop image copies, count all-reduces in both directions."""
    for name, row in rows.items():
        if name not in DOCUMENT_GEMMS:
            row.pop("flops", None)
    del rows[COPY]["pci"]
    rows[REDUCE]["mpi"] = rows[NCCL]["peer"] = f"4*(p - 1)/p*{m}*b"
    rows[PEER]["peer"] = f"2*(p - 1)*{m}*b"


def all_rows(h: str, k: str, m: str) -> Rows:
    """Count everything, for h hidden units and k images per rank and m elements all-reduced.

    Elementwise work as the trainer fuses it, in FLOPs per element: bias 1 and sigmoid 4 (negate,
    exp, add, divide) in one pass; bias 1, softmax 5 (maximum, subtract, exp, add, divide) and
    output gradient 2 (subtract, scale) in one pass; hidden gradient da1 a1 (1 - a1) 3; sums over
    the batch for b2 and b1 1 each; update W - rate (dW + lambda W) 4, without lambda for biases 2.
    The kernel of 'peer' adds the p parts of every element itself, and writes and reads the other
    ranks' p - 1 in its own memory.
    """
    step = f"2*n + 2*{h}*(D + C)"  # W - rate (dW + lambda W), b - rate db
    return {
        COPY: _copied(f"b*(D + C)*{k}"),  # pixels, one-hot labels
        "forward": {  # bias and sigmoid; bias, softmax and output gradient
            "flops": _elementwise("forward", h, k),
            "dram": f"b*(2*{h}*{k} + {h} + 3*C*{k} + C)",
        },
        "forward GEMM 1": _gemm("forward GEMM 1", h, k),
        "forward GEMM 2": _gemm("forward GEMM 2", h, k),
        "backward": {  # hidden gradient; sums for b2 and b1
            "flops": _elementwise("backward", h, k),
            "dram": f"b*(4*{h}*{k} + {h} + C*{k} + C)",
        },
        "backward GEMM 1": _gemm("backward GEMM 1", h, k),
        "backward GEMM 2": _gemm("backward GEMM 2", h, k),
        "backward GEMM 3": _gemm("backward GEMM 3", h, k),
        D2H: _copied(f"{m}*b"),
        SYNC: {},
        REDUCE: {  # a ring, one direction
            "flops": f"(p - 1)/p*{m}",
            "mpi": f"2*(p - 1)/p*{m}*b",
            "mpi_message": f"{m}*b",
        },
        H2D: _copied(f"{m}*b"),
        NCCL: {"flops": f"(p - 1)/p*{m}", "peer": f"2*(p - 1)/p*{m}*b", "peer_message": f"{m}*b"},
        "step": {"flops": step, "dram": "3*n*b"},
        PEER: {
            "flops": f"(p - 1)*{m} + {step}",
            "dram": f"3*n*b + 2*(p - 1)*{m}*b",
            "peer": f"(p - 1)*{m}*b",
            "peer_message": f"{m}*b",
        },
    }


def _gemm(name: str, h: str, k: str) -> dict[str, str]:
    """A product of two matrices, every one of the three read or written once."""
    size = {"D": "D", "H": h, "C": "C", "B": k}
    i, inner, j = (size[loop] for loop in GEMM_LOOPS[name])
    flops = "*".join(["2", *(s for loop, s in size.items() if loop in GEMM_LOOPS[name])])
    return {"flops": flops, "dram": f"b*({i}*{inner} + {inner}*{j} + {i}*{j})"}


def _elementwise(phase: str, h: str, k: str) -> str:
    return f"{HIDDEN_FLOPS[phase]}*{h}*{k} + {OUTPUT_FLOPS[phase]}*C*{k}"


def fuse(rows: Rows, h: str, k: str, *, sigmoid: bool) -> None:
    """Put the small GEMMs into the kernels beside them, as ``--gemm fused`` does.

    `forward` then holds the output layer (W2 a1, softmax, dz2), 'backward GEMM 1' all that reads
    dz2. Every matrix is read and written once per kernel. With `sigmoid` the first GEMM adds
    the bias and applies the sigmoid before it writes a1.
    """
    forward, first, backward = rows["forward"], rows["forward GEMM 1"], rows["backward GEMM 1"]
    forward["dram"] = f"b*({h}*C + {h}*{k} + 2*C*{k} + C)"
    if sigmoid:
        first["dram"] += f" + b*{h}"
    else:
        forward["dram"] += f" + b*(2*{h}*{k} + {h})"
    if sigmoid and "flops" in forward:
        forward["flops"] = f"8*C*{k}"
        first["flops"] += f" + 5*{h}*{k}"
    _add(forward, rows.pop("forward GEMM 2"), "flops")
    _add(backward, rows.pop("backward GEMM 2"), "flops")
    _add(backward, rows["backward"], "flops")
    backward["dram"] = f"b*(2*{h}*C + 2*{h}*{k} + C*{k} + {h} + C)"
    rows["backward"] = {}


def reduced_by(rows: Rows, links: Links) -> Rows:
    """Keep the ranges that a run with these links has, in their order."""
    gone = {name for names in LINKS.values() for name in names} - set(LINKS[links])
    return {name: row for name, row in rows.items() if name not in gone}


def graph_of(rows: Rows) -> Rows:
    """Add all ranges up in the one that replays them."""
    whole: dict[str, str] = {}
    for row in rows.values():
        for key in row:
            _add(whole, row, key)
    return {GRAPH: whole}


def _add(row: dict[str, str], other: dict[str, str], key: str) -> None:
    row[key] = " + ".join(d[key] for d in (row, other) if key in d)
    if not row[key]:
        del row[key]


def _copied(size: str) -> dict[str, str]:
    return {"pci": size, "pci_message": size}
