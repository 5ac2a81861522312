"""Memory, theory against measurement, on one GPU: the trainer, ResNet-18 and ResNet-50.

    python -m benchmarks.memory

Three parts, each a process of its own, so that one that fails does not take the others along:

    report   the trainer under nsys --cuda-memory-usage=true, two settings -> profiles/memory/
    mlp      benchmarks.memory.mlp: CuPy's pool and NVML over H, B and where the images are
    resnet   benchmarks.memory.resnet: PyTorch's allocator and NVML over batches

Then fits constant + slope x on some of the sizes and predicts the others. Results go to
benchmarks/results/memory.json; benchmarks.memory.report writes docs/memory.md from it. `--device
cpu` rehearses without a GPU and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders, gpus, results
from benchmarks.common.processes import module
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.models.spread import t_quantile
from perfmodel.programs.mlp.memory import UNIT_BYTES

BUDGET_S = {"report": 20, "mlp": 14, "resnet": 24}
REPORTS = {
    "document": ["--transport", "host"],
    "prefetch": ["--transport", "pinned", "--data-on", "prefetch"],
}
FITTED_BATCHES = (2, 8, 32, 128)
FITTED_HIDDEN, FITTED_SIZES = (128, 2048), (1500, 24000)


def worker(part: str, device: str) -> list[dict[str, Any]]:
    """Run a worker; return its lines."""
    backend = {"mlp": {"cuda": "cupy", "cpu": "numpy"}}.get(part, {}).get(device, device)
    command = module(f"memory.{part}", BUDGET_S[part], backend)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=folders.ROOT, stdout=out, stderr=err)
        try:
            code: int | str = process.wait(BUDGET_S[part] + 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "out of time"
        out.seek(0)
        err.seek(0)
        lines, words = out.read().splitlines(), err.read()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if code:
        print(f"{part} ended with {code}:\n{words[-1500:]}", file=sys.stderr)
        found.append({"error": f"ended with {code}: {words.strip().splitlines()[-1:]}"})
    return found


def collect_reports(folder: Path, device: str) -> list[dict[str, Any]]:
    """Profile the trainer with memory events; return what was written."""
    from profiles.collect import keep, profile

    found: list[dict[str, Any]] = []
    trace = ("--trace=cuda,nvtx", "--cuda-memory-usage=true", "--sample=none", "--cpuctxsw=none")
    for name, flags in REPORTS.items():
        train = [sys.executable, "-m", "trainer", "--data", "synthetic", "--train-size", "24000",
                 "--test-size", "5000", "--evaluate-every", "0", "--epochs", "2", *flags,
                 "--backend", "cupy" if device == "cuda" else "numpy"]  # fmt: skip
        target = folder / f"{name}.sqlite.xz"
        with tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch) / "report"
            try:
                command = profile(trace, train, raw, timeout_s=60, attempts=1)
                folder.mkdir(parents=True, exist_ok=True)
                keep(raw, target)
            except (SystemExit, subprocess.SubprocessError, OSError) as error:
                found.append({"name": name, "error": str(error)[-300:]})
                continue
        found.append({"name": name, "file": target.name, "command": command})
    return found


# --- a line through measurements, with intervals and errors elsewhere


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """bytes = constant + slope x, by least squares.

    Attributes
    ----------
    constant_bytes, slope_bytes : float
        x is the samples of a batch, or the bytes that theory counts (then the slope is a ratio).
    constant_half, slope_half : float
        Half the 95 % intervals: Student's t times the standard error.
    residual_bytes : float
        Standard deviation of the residuals, n - 2 degrees of freedom.
    at : tuple of float
        The x of the fit.
    """

    constant_bytes: float
    slope_bytes: float
    constant_half: float
    slope_half: float
    residual_bytes: float
    at: tuple[float, ...]

    def predict(self, x: float) -> tuple[float, float, float]:
        """Return the prediction at `x` with its 95 % prediction interval.

        Source: N. R. Draper, H. Smith, Applied Regression Analysis (1998), eq. 3.1.7: the variance
        of a new observation is s^2 (1 + 1/n + (x - mean)^2 / Sxx).
        """
        n, mean = len(self.at), np.mean(self.at)
        share = (x - mean) ** 2 / np.sum((self.at - mean) ** 2)
        noise = self.residual_bytes * math.sqrt(1 + 1 / n + share)
        half = max(t_quantile(0.05, n - 2) * noise, UNIT_BYTES)  # nobody hands out less
        value = self.constant_bytes + self.slope_bytes * x
        return value, value - half, value + half


def fit_memory(x: Sequence[float], measured_bytes: Sequence[float]) -> MemoryModel:
    """Fit a constant and a slope to bytes at samples of a batch, or at bytes that theory counts.

    Raises
    ------
    ModelError
        If there are fewer than three measurements, or all at one x.
    """
    if len(x) != len(measured_bytes) or len(set(x)) < 2 or len(x) < 3:
        raise ModelError(
            f"expected three measurements of memory or more, at two sizes or more; got {len(x)} at "
            f"{len(set(x))}; measure more sizes"
        )
    at, size, n = np.array(x, float), np.array(measured_bytes, float), len(x)
    around, t = at - at.mean(), t_quantile(0.05, n - 2)
    squares = float(np.sum(around**2))
    slope = float(np.sum(around * (size - size.mean()))) / squares
    residual = math.sqrt(np.sum((size - size.mean() - slope * around) ** 2) / (n - 2))
    half = t * residual * math.sqrt(1 / n + at.mean() ** 2 / squares)
    found = (
        size.mean() - slope * at.mean(),
        slope,
        half,
        t * residual / math.sqrt(squares),
        residual,
    )
    return MemoryModel(*map(float, found), tuple(map(float, x)))


def held_out(
    model: MemoryModel, x: Sequence[float], measured_bytes: Sequence[float]
) -> list[dict[str, Any]]:
    """Predict sizes that the fit did not see; the error is relative to what was measured."""
    rows = []
    for at, measured in zip(x, measured_bytes, strict=True):
        value, low, high = model.predict(at)
        rows.append({
            "x": at, "measured_bytes": measured, "predicted_bytes": value,
            "low_bytes": low, "high_bytes": high, "relative_error": value / measured - 1.0,
            "covered": low <= measured <= high,
        })  # fmt: skip
    return rows


def fitted(
    rows: list[dict[str, Any]], x: str, y: str, chosen: Any, **labels: Any
) -> dict[str, Any] | None:
    """Fit y over x on the chosen rows and predict the others; None without measurements."""
    known = [r for r in rows if r.get(y) is not None and r.get(x) is not None]
    here, there = [r for r in known if chosen(r)], [r for r in known if not chosen(r)]
    try:
        model = fit_memory([r[x] for r in here], [r[y] for r in here])
    except PerfmodelError as error:
        print(f"no fit of {y} over {x} {labels}: {error}", file=sys.stderr)
        return None
    return {
        **labels, "x": x, "y": y, "fitted_on": len(here),
        "constant_bytes": model.constant_bytes, "constant_half_bytes": model.constant_half,
        "slope": model.slope_bytes, "slope_half": model.slope_half,
        "residual_bytes": model.residual_bytes,
        "held_out": held_out(model, [r[x] for r in there], [r[y] for r in there]),
    }  # fmt: skip


def fits_of_mlp(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fit what is held, reserved and used over what theory says."""

    def chosen(row: dict[str, Any]) -> bool:
        return row["hidden_size"] in FITTED_HIDDEN and row["batch_size"] in FITTED_SIZES

    found = [
        fitted(rows, f"theory_{x}_bytes", f"{y}_bytes", chosen)
        for x, y in (("held", "held"), ("peak", "peak"), ("reserved", "reserved"),
                     ("reserved", "nvml"))
    ]  # fmt: skip
    return [f for f in found if f]


def fits_of_resnet(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fit the allocator's peaks and NVML over the batch, by net and precision."""
    found = []
    for net, autocast in dict.fromkeys((r["net"], r["autocast"]) for r in lines if "net" in r):
        rows = [r for r in lines if (r.get("net"), r.get("autocast")) == (net, autocast)]
        for y in ("allocated_bytes", "reserved_bytes", "nvml_bytes"):
            found.append(fitted(rows, "batch", y, lambda r: r["batch"] in FITTED_BATCHES,
                                net=net, autocast=autocast))  # fmt: skip
    return [f for f in found if f]


def with_fits(found: dict[str, Any]) -> dict[str, Any]:
    """Return results with the fits made anew."""
    mlp = [r for r in found.get("mlp", []) if "hidden_size" in r]
    return {
        **found,
        "mlp_fits": fits_of_mlp(mlp[1:]),  # the first case comes twice: it loads libraries
        "resnet_fits": fits_of_resnet(found.get("resnet", [])),
    }


def gpu_name() -> str | None:
    """Name of the GPU, as NVML has it."""
    from perfmodel.machines.gpu_samples import NvmlSampler

    try:
        return NvmlSampler([0]).names()[0]
    except PerfmodelError as error:
        print(error, file=sys.stderr)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", nargs="*", choices=sorted(BUDGET_S), default=["mlp", "report", "resnet"],
        help="none: fit again")  # fmt: skip
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--out", type=Path, default=folders.RESULTS / "memory.json")
    add("--reports", type=Path, default=folders.PROFILES / "memory", help="where reports go")
    c = parser.parse_args()
    if c.parts and c.device == "cuda":
        gpus.require()
    found = results.read(c.out)
    began = time.perf_counter()
    for part in c.parts:
        print(f"[{time.perf_counter() - began:5.1f} s] {part} ...", flush=True)
        try:
            found[part] = (
                collect_reports(c.reports, c.device) if part == "report" else worker(part, c.device)
            )
        except Exception as error:  # what was measured so far is worth keeping
            print(f"{part}: {type(error).__name__}: {error}", file=sys.stderr)
        found |= {"date": results.today(), "gpu": gpu_name(),
                    "command": results.command("memory")}  # fmt: skip
        results.write(c.out, found)
    out = results.write(c.out, with_fits(found))
    print(f"[{time.perf_counter() - began:5.1f} s] {out}")


if __name__ == "__main__":
    main()
