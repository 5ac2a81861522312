"""Times networks layer by layer, beside the whole: where a sum of layers is not the network.

    python -m benchmarks.layers --part time       # one GPU, at most 90 s
    python -m benchmarks.layers --part theory     # torch, no GPU
    python -m benchmarks.layers --document        # made parts of docs/layers.md, layers_timed.md

Every part replaces only its own part of benchmarks/results/layers.json; one network that fails, or
does not fit into the time, is named there and leaves the others. Networks are perfmodel's lists of
layers as torch modules (`common.torch_nets`), NCHW, cudnn.benchmark off, synthetic images.

    theory     parameters and FLOPs as torch counts them, on the meta device
    time       medians of repeats without a profiler:
      whole         the forward pass between two events
      events        with an event between every two layers, nothing waits
      synchronized  the host's clock around every layer, and the host waits for each
      alone         every layer many times by itself between two events, over their number
      graph         the forward pass as a CUDA graph: no launches by the host
      training      forward, backward and update of a training step (SGD with momentum)
    gemms      the GEMMs of a network by themselves, beside the forward pass
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.common import folders, gpus, results
from benchmarks.common.results import Keep
from perfmodel.workloads.networks import CNNS, network

RESULTS: Final = folders.RESULTS / "layers.json"
TIMED: Final = ("alexnet", "vgg16", "googlenet", "resnet50", "vgg19", "resnet18")
FORWARD: Final = ("whole", "events", "synchronized", "alone", "graph")


def theory(args: argparse.Namespace, keep: Keep) -> None:
    """Count every network."""
    from benchmarks.common.torch_nets import counted

    for name in CNNS:
        keep({"net": name, **counted(network(name))})


def cells(tiny: bool) -> Iterator[tuple[str, int, str, tuple[str, ...]]]:
    """Yield network, images, math and what is timed, the most wanted first."""
    if tiny:
        yield "resnet18", 2, "fp32", ("training",)
        yield "alexnet-caffe", 1, "fp32", FORWARD
        return
    for batch in (1, 32):
        for name in TIMED:
            yield name, batch, "fp32", FORWARD
    for math in ("fp32", "tf32"):
        for name in TIMED:
            for batch in (128, 32):
                yield name, batch, math, ("training",)
    for name in TIMED:
        yield name, 32, "tf32", FORWARD


def timed(args: argparse.Namespace, keep: Keep) -> None:
    """Time every cell that begins within the seconds given."""
    from benchmarks.layers.timing import Bench

    end = time.monotonic() + args.seconds
    bench: Any = None
    for name, batch, math, modes in cells(args.tiny):
        cell = {"net": name, "batch": batch, "math": math}
        if time.monotonic() > end:
            keep({**cell, "problem": f"not begun within {args.seconds:g} s"})
            continue
        if bench is None or bench.net.name != name:
            bench = None  # give its memory back first
            bench = Bench(network(name))
        for mode in modes:
            try:
                keep({**cell, "mode": mode, **bench.time(mode, batch, math, 3 if args.tiny else 9)})
            except Exception as problem:  # the next one may still work
                keep({**cell, "mode": mode, "problem": repr(problem)[:300]})


def gemm_times(args: argparse.Namespace, keep: Keep) -> None:
    """Time the GEMMs of every network, and its forward pass in the same process."""
    from benchmarks.layers.gemms import timed as timed_gemms
    from benchmarks.layers.timing import Bench

    nets, batches = (("alexnet-caffe",), (1,)) if args.tiny else (TIMED, (1, 32))
    for name in nets:
        bench = Bench(network(name))
        for batch in batches:
            row: dict[str, Any] = {"net": name, "batch": batch, "math": "fp32", "mode": "gemms"}
            try:
                for mode in ("synchronized", "whole", "graph"):
                    row[f"forward_{mode}_s"] = bench.time(mode, batch, "fp32", 9)["total_s"]
                keep({**row, **timed_gemms(bench.net, batch, bench, 9)})
            except Exception as problem:  # the next one may still work
                keep({**row, "problem": repr(problem)[:300]})


PARTS: Final = {"theory": theory, "time": timed, "gemms": gemm_times}


def part_of(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a part; return its rows, what went wrong, and what it ran with."""
    from benchmarks.common.torch_device import Device

    def run(keep: Keep, about: dict[str, Any]) -> None:
        about |= Device().about(cudnn_benchmark=False, channels_last=False)
        PARTS[part](args, keep)

    return results.measure_part("layers", part, ("net", "batch", "math", "mode"), run)


def main() -> None:
    parser = results.parser(__doc__, "docs/layers.md", RESULTS)
    add = parser.add_argument
    add("--part", nargs="+", default=(), choices=tuple(PARTS))
    add("--tiny", action="store_true", help="rehearse on any machine")
    add("--seconds", type=float, default=75.0, help="within which cells may begin")
    args = parser.parse_args()
    if not args.tiny and set(args.part) - {"theory"}:
        gpus.require()
    results.run_parts(args.part, args.out, lambda part: part_of(part, args))
    if args.document:
        from benchmarks.layers import report

        report.write(args.out)


if __name__ == "__main__":
    main()
