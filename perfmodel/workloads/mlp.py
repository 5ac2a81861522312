"""The two-layer MLP of the document: FLOPs and bytes per rank and batch, range by range."""

from __future__ import annotations

from typing import Final, Literal, get_args

from perfmodel.errors import WorkloadError
from perfmodel.workloads.expression import Expression
from perfmodel.workloads.work import Symbol, Work, Workload

Counting = Literal["document", "full"]
Parallel = Literal["data", "model"]

BATCH_RANGE: Final = "batch iteration"
SYMBOLS: Final = (
    Symbol("D", "input size", "elements per image"),
    Symbol("H", "hidden size", "units"),
    Symbol("C", "number of classes", "classes"),
    Symbol("B", "batch size of all ranks together", "images"),
    Symbol("p", "MPI ranks", "ranks"),
    Symbol("b", "bytes per element", "B"),
)
DOCUMENT_GEMMS: Final = ("forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 3")
"""The GEMMs whose FLOPs the document counts (Question 2.3): 4 B' H (D + C) together."""

PHASES: Final = {
    "document": ("forward", "backward", "step"),
    "full": ("copying images host -> device", "forward", "backward", "step"),
}
"""By counting, the parts of a batch that its formulas cover."""


def mlp(counting: Counting = "full", parallel: Parallel = "data") -> Workload:
    """Build the workload of z1 = W1 x + b1, a1 = sigmoid(z1), z2 = W2 a1 + b2, y = softmax(z2).

    Parameters
    ----------
    counting : {'full', 'document'}
        'full' counts everything. 'document' reproduces the document's Questions 2.3 to 2.6: the
        FLOPs of four GEMMs, no image copies, and MPI bytes in both directions. The two differ in
        FLOPs, PCIe and MPI bytes; memory traffic and messages are the same.
    parallel : {'data', 'model'}
        'data' splits the batch, B' = B/p images per rank, and all-reduces the gradients. 'model'
        splits W1 by rows and W2 by columns, H' = H/p hidden units per rank, and all-reduces z2
        (and the gradient of b2, which every rank holds whole).

    Notes
    -----
    All-reduce of m elements by a ring: every rank sends 2 (p-1)/p m b bytes and receives as many
    (P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 117-124, 2009). 'full' counts one
    direction, for links that carry both at once; 'document' counts both, 4 (p-1)/p m b, which is
    the document's 2 m b at p = 2.

    Examples
    --------
    >>> values = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    >>> mlp("document").total().subs(values).flops
    2439168000
    """
    for found, known in ((counting, get_args(Counting)), (parallel, get_args(Parallel))):
        if found not in known:
            raise WorkloadError(f"wanted one of {', '.join(known)}; found '{found}'; take one")
    symbols = {symbol.name: symbol for symbol in SYMBOLS}
    derived = _data_parallel() if parallel == "data" else _model_parallel()
    hidden, batch = ("H", "Bp") if parallel == "data" else ("Hp", "B")
    message = "n" if parallel == "data" else "m"
    rows = _rows(hidden, batch, message)
    if counting == "document":
        rows = _as_the_document_counts(rows, message)
    definitions = {s.name: s.definition for s in derived if s.definition}
    return Workload(
        name=f"MLP, {parallel} parallel",
        counting=counting,
        source="CME 213 final project, Questions 2.3 to 2.6; see docs/model.md",
        batch_range=BATCH_RANGE,
        symbols=symbols,
        ranges={name: Work.parse(row, symbols, definitions) for name, row in rows.items()},
        derived={symbol.name: symbol for symbol in derived},
        divisible=(("B", "p"),) if parallel == "data" else (("H", "p"),),
        phases=PHASES[counting],
    )


def _rows(h: str, k: str, m: str) -> dict[str, dict[str, str]]:
    """Count everything, for h hidden units and k images per rank and m elements all-reduced.

    Elementwise work as the trainer fuses it, in FLOPs per element: bias 1 and sigmoid 4 (negate,
    exp, add, divide) in one pass; bias 1, softmax 5 (maximum, subtract, exp, add, divide) and
    output gradient 2 (subtract, scale) in one pass; hidden gradient da1 a1 (1 - a1) 3; sums over
    the batch for b2 and b1 1 each; update W - rate (dW + lambda W) 4, without lambda for biases 2.
    """
    return {
        "copying images host -> device": _copied(f"b*(D + C)*{k}"),  # pixels, one-hot labels
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
        "cudaMemcpyDeviceToHost": _copied(f"{m}*b"),
        "MPI_Allreduce": {  # a ring, one direction
            "flops": f"(p - 1)/p*{m}",
            "mpi": f"2*(p - 1)/p*{m}*b",
            "mpi_message": f"{m}*b",
        },
        "cudaMemcpyHostToDevice": _copied(f"{m}*b"),
        "step": {  # W - rate (dW + lambda W), b - rate db
            "flops": f"2*n + 2*{h}*(D + C)",
            "dram": "3*n*b",
        },
    }


def _copied(size: str) -> dict[str, str]:
    return {"pci": size, "pci_message": size}


def _as_the_document_counts(rows: dict[str, dict[str, str]], m: str) -> dict[str, dict[str, str]]:
    """Keep the FLOPs of four GEMMs, drop the image copies, count MPI in both directions."""
    for name, row in rows.items():
        if name not in DOCUMENT_GEMMS:
            row.pop("flops", None)
    del rows["copying images host -> device"]["pci"]
    rows["MPI_Allreduce"]["mpi"] = f"4*(p - 1)/p*{m}*b"
    return rows


def _data_parallel() -> tuple[Symbol, ...]:
    return (
        _derive("Bp", "B/p", "images of one rank", "images", "B'"),
        _derive("n", "H*D + H + C*H + C", "parameters", "elements"),
    )


def _model_parallel() -> tuple[Symbol, ...]:
    return (
        _derive("Hp", "H/p", "hidden units of one rank", "units", "H'"),
        _derive("n", "H/p*D + H/p + C*H/p + C", "parameters of one rank", "elements"),
        _derive("m", "C*B + C", "elements all-reduced: z2 and the gradient of b2", "elements"),
    )


def _derive(name: str, formula: str, meaning: str, unit: str, label: str = "") -> Symbol:
    definition = Expression.parse(formula, [symbol.name for symbol in SYMBOLS])
    return Symbol(name, meaning, unit, label=label, definition=definition)
