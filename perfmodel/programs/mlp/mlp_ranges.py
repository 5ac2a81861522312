"""Formulas of the MLP's ranges: all that a run may have, and what changes them."""

from __future__ import annotations

from typing import Final

Rows = dict[str, dict[str, str]]
"""Formulas by range and key (`perfmodel.workloads.work.KEYS`)."""

COPY: Final = "copying images host -> device"
NCCL: Final = "ncclAllReduce"
PEER: Final = "peer all-reduce and step"
GRAPH: Final = "CUDA graph"
D2H: Final = "cudaMemcpyDeviceToHost"
H2D: Final = "cudaMemcpyHostToDevice"
REDUCE: Final = "MPI_Allreduce"

_TRANSPORTS: Final = {
    "host": (D2H, REDUCE, H2D, "step"),
    "mpi": (REDUCE, "step"),
    "nccl": (NCCL, "step"),
    "peer": (PEER,),
    "none": ("step",),
}
"""Ranges that differ by transport."""


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
            "flops": f"5*{h}*{k} + 8*C*{k}",
            "dram": f"b*(2*{h}*{k} + {h} + 3*C*{k} + C)",
        },
        "forward GEMM 1": {  # W1 x
            "flops": f"2*D*{h}*{k}",
            "dram": f"b*(D*{h} + D*{k} + {h}*{k})",
        },
        "forward GEMM 2": {  # W2 a1
            "flops": f"2*{h}*C*{k}",
            "dram": f"b*({h}*C + {h}*{k} + C*{k})",
        },
        "backward": {  # hidden gradient; sums for b2 and b1
            "flops": f"4*{h}*{k} + C*{k}",
            "dram": f"b*(4*{h}*{k} + {h} + C*{k} + C)",
        },
        "backward GEMM 1": {  # W2^T dz2
            "flops": f"2*{h}*C*{k}",
            "dram": f"b*({h}*C + C*{k} + {h}*{k})",
        },
        "backward GEMM 2": {  # dz2 a1^T
            "flops": f"2*{h}*C*{k}",
            "dram": f"b*(C*{k} + {h}*{k} + {h}*C)",
        },
        "backward GEMM 3": {  # dz1 x^T
            "flops": f"2*D*{h}*{k}",
            "dram": f"b*({h}*{k} + D*{k} + D*{h})",
        },
        D2H: _copied(f"{m}*b"),
        REDUCE: {  # a ring, one direction
            "flops": f"(p - 1)/p*{m}",
            "mpi": f"2*(p - 1)/p*{m}*b",
            "mpi_message": f"{m}*b",
        },
        H2D: _copied(f"{m}*b"),
        NCCL: {
            "flops": f"(p - 1)/p*{m}",
            "peer": f"2*(p - 1)/p*{m}*b",
            "peer_message": f"{m}*b",
        },
        "step": {"flops": step, "dram": "3*n*b"},
        PEER: {
            "flops": f"(p - 1)*{m} + {step}",
            "dram": f"3*n*b + 2*(p - 1)*{m}*b",
            "peer": f"(p - 1)*{m}*b",
            "peer_message": f"{m}*b",
        },
    }


def fuse(rows: Rows, h: str, k: str, *, sigmoid: bool) -> None:
    """Put the small products into the kernels beside them, as ``--gemm fused`` does.

    `forward` then holds the output layer (W2 a1, softmax, dz2), 'backward GEMM 1' all that reads
    dz2. Every matrix is read and written once per kernel. With `sigmoid` the first product adds
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


def reduced_by(rows: Rows, transport: str) -> Rows:
    """Keep the ranges that a run with this transport has, in their order."""
    optional = {name for names in _TRANSPORTS.values() for name in names}
    gone = optional - set(_TRANSPORTS[transport])
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
