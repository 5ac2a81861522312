"""The optimization ladder: our configurations and PyTorch's best, timed in turns.

    mpirun --bind-to none -n 2 "$(command -v python)" -m benchmarks.ladder

A cell is a size, H and B, and a way to compute products (fp32 or TF32). In a cell all
implementations are made, their parameters after one epoch and a batch are compared with a float64
reference, and then every round visits each of them in another order: some untimed batches, a
barrier, enough batches to fill the visit, a device synchronization. A visit's time per batch is the
slowest rank's. Rows go to benchmarks/results/ladder.json with the times of all rounds: another
launch of this script is added to the rows of the same rung, H, B, p and dtype, or takes their place
with --replace. `benchmarks.ladder.report` makes docs/ladder.md of them; `python -m
benchmarks.ladder.join FILE ...` adds the launches of other files.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.ladder.configurations import PEERS, RUNGS, SIZES, Cell

RESULTS = folders.RESULTS / "ladder.json"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; `cells`, `run` and `references` are put beside it."""
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
    add("--budget", type=float, default=12, dest="budget_s", metavar="SECONDS",
        help="of rounds per cell; 5 rounds are made")  # fmt: skip
    add("--visit-ms", type=float, default=30)
    add("--least", type=int, default=20, help="batches of a visit, unless they take over 250 ms")
    add("--compile-budget", type=float, default=60, dest="compile_budget_s", metavar="SECONDS",
        help="for torch.compile, in all")  # fmt: skip
    add("--patience", type=float, default=120, dest="patience_s", metavar="SECONDS",
        help="after which a phase is stuck")  # fmt: skip
    add("--images", type=int, default=60000)
    add("--replace", action="store_true", help="drop the earlier launches of what is timed")
    args = parser.parse_args(words)
    sizes = [tuple(int(n) for n in size.split(":")) for size in args.sizes]
    args.cells = [Cell(h, b, math, args.images) for h, b in sizes for math in args.maths]
    args.rungs = [name for name in args.rungs if name not in args.leave_out]
    args.peers = [name for name in args.peers if name not in args.leave_out]
    args.visit_s, args.run, args.references = args.visit_ms / 1e3, {}, {}
    return args


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
    called = results.command("ladder", words)
    return f"mpirun -n {ranks} {called}"


def main() -> None:
    options = parse()
    from trainer.mpi import connect

    comm = connect()
    try:
        run(options, comm)
    except Exception:
        traceback.print_exc()
        comm.abort(1)  # the other ranks would wait for this one


def run(options: argparse.Namespace, comm: Any) -> None:
    """Time every cell; write the rows after each (collective)."""
    from benchmarks.ladder.cell import Clock, time_cell
    from benchmarks.ladder.floor import Ceilings
    from benchmarks.ladder.rows import write
    from trainer.backends.choice import choose
    from trainer.data import distribute, synthetic
    from trainer.mpi import library_version

    clock = Clock(comm, options.patience_s)
    try:
        from benchmarks.ladder import torch_graphs, torch_peers
    except ImportError as error:
        torch_peers, no_torch = None, f"expected the package torch; got none ({error})"
        clock.say(no_torch)
    device = None
    if torch_peers is not None:
        device = torch_peers.join(comm)
        known = list(torch_graphs.kinds())
        if options.peers == ["all"]:
            options.peers = known
        if unknown := sorted(set(options.peers) - set(known)):
            raise SystemExit(f"--peers: expected some of {', '.join(known)}; got {unknown}")
    if len(os.sched_getaffinity(0)) == 1:
        clock.say("each rank is bound to one core: start mpirun with --bind-to none")
    clock.say(f"{comm.size} ranks, {len(options.cells)} cells, {len(options.rungs)} rungs")
    backend = choose(options.cells[0].config(), comm.local_rank)
    if folders.RESULTS in options.out.resolve().parents and not backend.on_device:
        raise SystemExit("expected a GPU; got none: a rehearsal on the CPU writes where --out says")
    data = synthetic(options.cells[0].config({"test_size": 64})) if comm.rank == 0 else None
    data = distribute(comm, data)
    clock.say("data")
    ceilings = None if device is None else Ceilings.measure(device, comm)
    clock.say(f"ceilings: {ceilings}")
    options.run = {
        "command": command(comm.size, sys.argv[1:]), "date": results.now(), "ranks": comm.size,
        "cores": os.cpu_count(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
        "versions": {**versions(backend), "mpi": library_version()}, "ceilings": None,
    }  # fmt: skip
    for cell in options.cells:
        rows = time_cell(cell, options, comm, clock, data, (torch_peers, device), ceilings)
        if ceilings is not None:  # a cell's all-reduces are among them now
            options.run["ceilings"] = ceilings.as_dict()
        if comm.rank == 0:
            write(options.out, options.run, rows, replace=options.replace)
    if torch_peers is not None:
        torch_peers.leave()
    clock.say("done")
    clock.close()


if __name__ == "__main__":
    main()
