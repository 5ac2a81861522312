"""Writes the tables and the picture of docs/memory.md from benchmarks/results/memory.json.

python -m benchmarks.memory.report
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import percent, put, table
from benchmarks.common.results import called, read
from perfmodel.base.units import si
from perfmodel.render.plot import save
from perfmodel.render.plot.lines import Series, lines
from perfmodel.render.plot.style import Measure

RESULTS = folders.RESULTS / "memory.json"
PAGE = folders.DOCS / "memory.md"
SCRIPT = "benchmarks.memory.report"
QUANTITIES = {
    "held_bytes": "held after two batches and an evaluation (CuPy's pool)",
    "peak_bytes": "most at once (CuPy's pool)",
    "reserved_bytes": "taken from CUDA (CuPy's pool)",
    "nvml_bytes": "used on the GPU (NVML)",
}
SHOWN_BATCHES = (1, 8, 64, 256)
TERMS = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "buffers_bytes",
    "saved_constant_bytes",
)  # fmt: skip


def number(value: float | None, digits: int = 4) -> str:
    """Write bytes; of less than one there is nothing to say."""
    return "–" if value is None else si(round(value), "B", digits)


def errors(fit: dict[str, Any]) -> list[str]:
    """Write how a fit does on sizes it did not see."""
    found = fit["held_out"]
    if not found:
        return ["–"] * 3
    relative = [abs(t["relative_error"]) for t in found]
    covered = sum(t["covered"] for t in found)
    return [
        f"{100 * statistics.median(relative):.2f} %", f"{100 * max(relative):.2f} %",
        f"{covered} of {len(found)}",
    ]  # fmt: skip


def _error(row: dict[str, Any], what: str) -> str:
    return percent(row[f"theory_{what}_bytes"] / row[f"{what}_bytes"] - 1, 2, signed=True)


def name(row: dict[str, Any]) -> str:
    """Name a network with its precision."""
    word = "autocast (bfloat16)" if row["autocast"] else "float32"
    return f"{row['net'].replace('resnet', 'ResNet-')} {word}"


def theory_at(terms: dict[str, Any], batch: int) -> float:
    """Return parameters, gradients, momentum, buffers and what autograd keeps of a batch."""
    return sum(terms[t] for t in TERMS) + batch * terms["saved_per_sample_bytes"]


def mlp(results: dict[str, Any]) -> str:
    """Write the trainer's part."""
    rows = [r for r in results["mlp"] if r.get("held_bytes")][1:]
    said = "### The trainer: theory against CuPy's pool and NVML\n\n"
    said += table(
        ["H", "B", "images on", "theory, held", "measured", "error", "theory, reserved",
         "measured", "error", "NVML"],
        [
            [str(r["hidden_size"]), str(r["batch_size"]), r["data_on"],
             number(r["theory_held_bytes"]), number(r["held_bytes"]),
             _error(r, "held"),
             number(r["theory_reserved_bytes"]), number(r["reserved_bytes"]),
             _error(r, "reserved"),
             number(r["nvml_bytes"])]
            for r in rows
        ],
    )  # fmt: skip
    said += "\nmeasured = constant + slope x theory, 95 % intervals; errors on the other sizes:\n\n"
    said += table(
        ["what", "fitted on", "constant", "slope", "median error", "largest", "in the interval"],
        [
            [QUANTITIES[f["y"]], f"{f['fitted_on']} runs",
             f"{number(f['constant_bytes'])} ± {number(f['constant_half_bytes'], 2)}",
             f"{f['slope']:.4f} ± {f['slope_half']:.4f}", *errors(f)]
            for f in results["mlp_fits"]
        ],
    )  # fmt: skip
    context = next(r for r in results["mlp"] if r.get("nvml_context_bytes"))
    own = context["nvml_context_bytes"] - context["nvml_before_bytes"]
    return said + (
        f"\nOn the {results['gpu'].removeprefix('NVIDIA ')} of `benchmarks/results/memory.json` "
        f"the empty GPU shows {number(context['nvml_before_bytes'])} to NVML; making a CUDA "
        f"context adds {number(own)}. Libraries and kernels that are loaded later are the rest of "
        f"NVML's constant.\n"
    )


def resnet(results: dict[str, Any]) -> str:
    """Write the part on PyTorch."""
    lines = results["resnet"]
    counts = [r for r in lines if "saved_per_sample_bytes" in r]
    said = "### ResNet in PyTorch: counted memory\n\n" + table(
        ["net", "parameters", "gradients", "momentum", "buffers", "kept, constant",
         "kept, per sample"],
        [[name(r), *(number(r[t]) for t in TERMS), number(r["saved_per_sample_bytes"])]
         for r in counts],
    )  # fmt: skip
    measured = []
    for r in lines:
        if r.get("allocated_bytes") is None or r["batch"] not in SHOWN_BATCHES:
            continue
        terms = next(c for c in counts if (c["net"], c["autocast"]) == (r["net"], r["autocast"]))
        theory = theory_at(terms, r["batch"])
        measured.append(
            [name(r), str(r["batch"]), number(theory), number(r["allocated_bytes"]),
             percent(theory / r["allocated_bytes"] - 1, 2, signed=True),
             number(r["allocated_bytes"] - theory), number(r["reserved_bytes"]),
             number(r["nvml_bytes"])]
        )  # fmt: skip
    said += "\n### ResNet: counted against the allocator and NVML, batch by batch\n\n" + table(
        ["net", "batch", "counted", "peak allocated", "error", "unexplained", "peak reserved",
         "NVML"], measured
    )  # fmt: skip
    said += "\n### ResNet: bytes = constant + per sample x batch\n\n" + table(
        ["net", "what", "constant", "per sample", "counted per sample", "median error", "largest",
         "in the interval"],
        [
            [name(f), f["y"].removesuffix("_bytes"),
             f"{number(f['constant_bytes'])} ± {number(f['constant_half_bytes'], 2)}",
             f"{number(f['slope'])} ± {number(f['slope_half'], 2)}",
             number(next(c["saved_per_sample_bytes"] for c in counts
                         if (c["net"], c["autocast"]) == (f["net"], f["autocast"]))),
             *errors(f)]
            for f in results["resnet_fits"]
        ],
    )  # fmt: skip
    return said


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw measured peaks over the batch, with what is counted as lines."""
    measured = [r for r in results["resnet"] if r.get("allocated_bytes")]
    counts = [r for r in results["resnet"] if "saved_per_sample_bytes" in r]
    series = {}
    for terms in counts:
        key = terms["net"], terms["autocast"]
        mine = [r for r in measured if (r["net"], r["autocast"]) == key]
        at, said = [r["batch"] for r in mine], name(terms)
        series[said] = Series(at, [r["allocated_bytes"] for r in mine], dash="none")
        counted = [theory_at(terms, batch) for batch in at]
        series[f"{said}, counted"] = Series(
            at, counted, like=said, dash="-", marked=False, listed=False
        )
    peak = Measure("Peak allocated by PyTorch", "B", "log")
    batch = Measure("Batch", scale="log")
    ax = lines(series, batch, peak, legend="Points: measured. Lines: counted.", ticked=True,
               size_in=(6.0, 3.8))  # fmt: skip
    save(ax, folder, "memory", ("png",))


def text(results: dict[str, Any]) -> str:
    """Return what the page shows of the results."""
    return (
        f"Measured on one {results['gpu']}, {results['date']}: `{called(results['command'])}`.\n\n"
        f"{mlp(results)}\n![Peak memory of ResNets, counted and measured](images/memory.png)\n\n"
        f"{resnet(results)}"
    ).strip()


def main() -> None:
    report(__doc__)
    measured = read(RESULTS)
    draw(measured, folders.IMAGES)
    put(PAGE, SCRIPT, text(measured))


if __name__ == "__main__":
    main()
