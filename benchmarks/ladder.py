"""The optimization ladder: our rungs and PyTorch's best, timed in turns by one process group.

    mpirun --bind-to none -n 2 "$(command -v python)" benchmarks/ladder.py

A cell is a size, H and B, and a way to compute products (fp32 or TF32). In a cell all
implementations are made, their parameters after one epoch and a batch are compared with a float64
reference, and then every round visits each of them in another order: some untimed batches, a
barrier, enough batches to fill the visit, a device synchronization. A visit's time per batch is the
slowest rank's. Rows go to benchmarks/results/ladder.json, those of the same rung, H, B, p and dtype
replaced; `ladder_report.py` makes docs/ladder.md of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "ladder.json"
sys.path[:0] = [str(ROOT)]

MATHS: Final = {
    "fp32": "IEEE float32",
    "tf32": "float32 with factors of products rounded to TF32",
    "tf32x3": "float32 products as TF32 products of split factors",
}
SIZES: Final = {"512:3000": (512, 3000), "2048:12000": (2048, 12000), "64:3200": (64, 3200)}
"""H and B, D = 784 and C = 10; 60000 images."""


@dataclass(frozen=True)
class Rung:
    """One step up: a small change of the trainer's settings.

    Attributes
    ----------
    after : str or None
        The rung that this one changes.
    change, removes : str
        What is changed, and which term of the step's time that removes.
    settings : dict
        Fields of `trainer.config.Config`.
    hidden : tuple of int
        Only at these H; empty is all.
    ranks : (int, int)
        Fewest and most ranks it is for.
    """

    name: str
    after: str | None
    change: str
    removes: str
    settings: dict[str, Any]
    maths: tuple[str, ...] = ("fp32", "tf32")
    hidden: tuple[int, ...] = ()
    ranks: tuple[int, int] = (1, 1 << 20)


_PINNED = {"data_on": "pinned", "transport": "pinned"}
_RESIDENT = {"data_on": "device", "transport": "host-flat"}
_NCCL = {"data_on": "device", "transport": "nccl"}
_GRAPH = {**_NCCL, "graph": True}
_FUSED = {**_GRAPH, "gemm": "fused"}
_MODEL = {"data_on": "device", "parallel": "model"}
FP32: Final = ("fp32",)

RUNGS: Final = (
    Rung("document", None, "the document's program: pageable memory, one MPI all-reduce a tensor",
         "", {"data_on": "host", "transport": "host"}),
    Rung("pinned", "document", "images and gradients in page-locked memory",
         "the driver's staging copies", _PINNED, FP32),
    Rung("host-flat", "pinned", "one flat buffer: one copy each way and one all-reduce",
         "three of four copies, all-reduces and waits",
         {**_PINNED, "transport": "host-flat"}, FP32),
    Rung("prefetch", "host-flat", "the next batch's images are copied while this one is computed",
         "the copy of images from the step's chain",
         {"data_on": "prefetch", "transport": "host-flat"}, FP32),
    Rung("resident", "prefetch", "the training set stays on the GPU",
         "the copy of images: b D B' bytes a batch", _RESIDENT),
    Rung("chunked", "resident", "copies and all-reduces of chunks in a pipeline",
         "the sum of copy out, all-reduce and copy back: the largest remains",
         {**_RESIDENT, "transport": "chunked"}, FP32),
    Rung("chunked overlap", "chunked", "the gradients of W2, b2 are summed while W1's is computed",
         "the small tensors' part of the all-reduce",
         {**_RESIDENT, "transport": "chunked", "overlap": True}, FP32),
    Rung("cuda-aware", "resident", "MPI_Allreduce on GPU pointers",
         "the copies in our code", {**_RESIDENT, "transport": "cuda-aware"}, FP32),
    Rung("nccl", "resident", "NCCL sums the gradients over NVLink",
         "both copies over PCIe, MPI on the host, and the host's waits", _NCCL),
    Rung("nccl overlap", "nccl", "two all-reduces, the first beside W1's product",
         "the small tensors' part of the all-reduce", {**_NCCL, "overlap": True}),
    Rung("graph", "nccl", "the whole step is one CUDA graph",
         "the host's launches and the gaps between kernels", _GRAPH),
    Rung("graph overlap", "graph", "the same, the first all-reduce beside W1's product",
         "the small tensors' part of the all-reduce", {**_GRAPH, "overlap": True}),
    Rung("naive gemm", "graph", "products by a kernel of one thread per element",
         "nothing: it shows what cuBLAS is worth", {**_GRAPH, "gemm": "naive"}, FP32, (512,)),
    Rung("tiled gemm", "naive gemm", "tiles in shared memory",
         "most loads from L2", {**_GRAPH, "gemm": "tiled"}, FP32, (512,)),
    Rung("register gemm", "tiled gemm", "a tile of the product in each thread's registers",
         "most loads from shared memory", {**_GRAPH, "gemm": "register"}, FP32, (512,)),
    Rung("thin", "graph", "own kernels for the products of C columns",
         "cuBLAS's launch-bound thin products", {**_GRAPH, "gemm": "thin"}),
    Rung("hierarchical", "thin", "one own kernel for all products, large and thin",
         "nothing yet (thin products fit its tiles badly): fused is made of its tiles",
         {**_GRAPH, "gemm": "hierarchical"}),
    Rung("fused", "hierarchical", "bias, sigmoid, softmax and sums inside the products",
         "element-wise passes over memory and their launches", _FUSED),
    Rung("fused x3", "fused", "a float32 product as TF32 ones of split factors, on tensor cores",
         "the ordinary units' rate: float32's accuracy at a multiple of it",
         {**_FUSED, "math": "tf32x3"}, FP32),
    Rung("fused alone", "fused", "the same without an all-reduce",
         "NCCL's call on one rank", {**_FUSED, "transport": "none"}, ranks=(1, 1)),
    Rung("peer", "fused", "own all-reduce over NVLink, fused with the step",
         "NCCL's latency, and one pass over gradients and parameters",
         {**_FUSED, "transport": "peer"}, ranks=(2, 1 << 20)),
    Rung("peer x3", "fused x3", "the same on top of the split products",
         "NCCL's latency, and one pass over gradients and parameters",
         {**_FUSED, "transport": "peer", "math": "tf32x3"}, FP32, ranks=(2, 1 << 20)),
    Rung("model host", "resident", "ranks share the hidden neurons; z2 summed by MPI",
         "the all-reduce of the gradients: C B b bytes remain",
         {**_MODEL, "transport": "host-flat"}, FP32),
    Rung("model nccl", "model host", "z2 summed by NCCL",
         "copies over PCIe", {**_MODEL, "transport": "nccl"}),
    Rung("model graph", "model nccl",
         "as one CUDA graph, with own kernels for thin products, in IEEE float32 also in tf32: all "
         "five products where H / p is at most 32",
         "launches and gaps", {**_MODEL, "transport": "nccl", "graph": True, "gemm": "thin"}),
)  # fmt: skip
"""From the document's program up; `after` may go back: rungs branch."""

PEERS: Final = (
    "graph", "graph_manual", "graph_branches", "graph_compiled", "graph_overlap", "ddp_eager",
    "ddp_compiled",
)  # fmt: skip
"""Timed unless --peers says otherwise; `torch_peers.kinds` has them all."""


@dataclass(frozen=True)
class Cell:
    """A size and a way to compute products."""

    hidden: int
    batch: int
    math: str
    images: int = 60000
    inputs: int = 784
    classes: int = 10
    seed: int = 1

    def config(self, settings: dict[str, Any] | None = None) -> Any:
        """Return the trainer's Config of a rung."""
        from trainer.config import Config

        return Config(
            input_size=self.inputs, hidden_size=self.hidden, num_classes=self.classes,
            batch_size=self.batch, data="synthetic", train_size=self.images, seed=self.seed,
            **({"math": "tf32" if self.math == "tf32" else "ieee"} | (settings or {})),
        )  # fmt: skip

    @property
    def meaning(self) -> str:
        """Say what the way to compute products is."""
        return MATHS[self.math]

    @property
    def rungs(self) -> list[tuple[int, Rung]]:
        """Return the rungs that make sense here, with their places on the ladder."""
        return [
            (place, rung)
            for place, rung in enumerate(RUNGS)
            if self.math in rung.maths and (not rung.hidden or self.hidden in rung.hidden)
        ]

    def __str__(self) -> str:
        return f"H={self.hidden} B={self.batch} {self.math}"


@dataclass
class Options:
    """What the command line asks for, in units."""

    out: Path
    cells: list[Cell]
    rungs: list[str]
    peers: list[str]
    rounds: int
    budget_s: float
    visit_s: float
    least: int
    compile_budget_s: float
    patience_s: float
    run: dict[str, Any] = field(default_factory=dict)
    references: dict[Any, Any] = field(default_factory=dict)


def parse(words: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    names = [rung.name for rung in RUNGS]
    add("--out", type=Path, default=RESULTS)
    add("--sizes", nargs="+", default=list(SIZES), metavar="H:B")
    add("--maths", nargs="+", default=["fp32", "tf32"], choices=["fp32", "tf32"])
    add("--rungs", nargs="*", default=names, choices=names, metavar="RUNG", help=", ".join(names))
    add("--leave-out", nargs="*", default=[], metavar="NAME", help="rungs and peers to leave out")
    add("--peers", nargs="*", default=list(PEERS), metavar="PEER", help="or 'all'")
    add("--rounds", type=int, default=9, help="at most so many visits to each")
    add("--budget", type=float, default=12, help="seconds of rounds per cell; 5 rounds are made")
    add("--visit-ms", type=float, default=30)
    add("--least", type=int, default=20, help="batches of a visit, unless they take over 250 ms")
    add("--compile-budget", type=float, default=60, help="seconds for torch.compile, in all")
    add("--patience", type=float, default=120, help="seconds after which a phase is stuck")
    add("--images", type=int, default=60000)
    args = parser.parse_args(words)
    sizes = [tuple(int(n) for n in size.split(":")) for size in args.sizes]
    return Options(
        out=args.out,
        cells=[Cell(h, b, math, args.images) for h, b in sizes for math in args.maths],
        rungs=[name for name in args.rungs if name not in args.leave_out],
        peers=[p for p in args.peers if p not in args.leave_out],
        rounds=args.rounds, budget_s=args.budget, visit_s=args.visit_ms / 1e3, least=args.least,
        compile_budget_s=args.compile_budget, patience_s=args.patience,
    )  # fmt: skip


def versions(backend: Any) -> dict[str, Any]:
    """Name what the numbers depend on."""
    found = {"python": platform.python_version(), **backend.describe()}
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found["torch"] = torch.__version__
        if torch.cuda.is_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            found["gpu"] = torch.cuda.get_device_name()
    return found


def command(ranks: int, words: list[str]) -> str:
    """Return how to do this again; where results go is left out."""
    kept = list(words)
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return shlex.join(["mpirun", "-n", str(ranks), "python", "benchmarks/ladder.py", *kept])


def main() -> None:
    """Start the ranks' work; an error of one ends all."""
    options = parse()
    from trainer.mpi import connect

    comm = connect()
    try:
        run(options, comm)
    except Exception:
        traceback.print_exc()
        comm.abort(1)  # the other ranks would wait for this one


def run(options: Options, comm: Any) -> None:
    """Time every cell; write the rows after each (collective)."""
    from ladder_cell import Clock, time_cell
    from ladder_floor import Ceilings
    from ladder_rows import write

    from trainer.backends.choice import choose
    from trainer.data import distribute, synthetic
    from trainer.mpi import library_version

    clock = Clock(comm, options.patience_s)
    try:
        import torch_peers
    except ImportError as error:
        torch_peers, no_torch = None, f"wanted the package torch, found none ({error})"
        clock.say(no_torch)
    device = None
    if torch_peers is not None:
        device = torch_peers.join(comm)
        known = list(torch_peers.kinds())
        if options.peers == ["all"]:
            options.peers = known
        if unknown := sorted(set(options.peers) - set(known)):
            raise SystemExit(f"--peers: wanted some of {', '.join(known)}; found {unknown}")
    if len(os.sched_getaffinity(0)) == 1:
        clock.say("each rank is bound to one core: start mpirun with --bind-to none")
    clock.say(f"{comm.size} ranks, {len(options.cells)} cells, {len(options.rungs)} rungs")
    backend = choose(options.cells[0].config(), comm.local_rank)
    if options.out == RESULTS and not backend.on_device:
        raise SystemExit("wanted a GPU, found none: a rehearsal on the CPU writes where --out says")
    data = synthetic(options.cells[0].config({"test_size": 64})) if comm.rank == 0 else None
    data = distribute(comm, data)
    clock.say("data")
    ceilings = None if device is None else Ceilings.measure(device, comm)
    clock.say(f"ceilings: {ceilings}")
    options.run = {
        "command": command(comm.size, sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "ranks": comm.size,
        "cores": os.cpu_count(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
        "versions": {**versions(backend), "mpi": library_version()},
        "ceilings": None,
    }
    for cell in options.cells:
        rows = time_cell(cell, options, comm, clock, data, (torch_peers, device), ceilings)
        if ceilings is not None:  # a cell's all-reduces are among them now
            options.run["ceilings"] = ceilings.as_dict()
        if comm.rank == 0:
            write(options.out, options.run, rows)
    if torch_peers is not None:
        torch_peers.leave()
    clock.say("done")
    clock.close()


if __name__ == "__main__":
    main()
