"""Numbers that the text of a page quotes are those of the results that it names.

`QUOTED` has a row for each sentence with measured numbers: the page, the sentence with places for
numbers, and what computes them from the raw file. Any other number with a unit in a page of
`WHOLE` must stand in `GIVEN`, which says what it is: a new number fails until it has a row here.
To check another page, add its sentences to `QUOTED` and its name to `WHOLE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from benchmarks.ladder.report import best, cells
from benchmarks.ladder.rows import coverage
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.compare.compare import compare_traces
from perfmodel.base import parallel
from perfmodel.models.launches import LAUNCH_SD
from perfmodel.programs.program import Options
from perfmodel.readers import read
from support import fuzz
from support.folders import ROOT

DOCS: Final = ROOT / "docs"
WHOLE: Final = ("compare", "ladder", "robustness", "scale", "size")
"""Pages of which every number with a unit is looked up."""


@cache
def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def thin() -> list[float]:
    """Speed over cuBLAS's and time in µs of `thin`, what other tiles save, cuBLAS's half time."""
    rows = [r for r in result("thin_sweep")["rows"] if (r["H"], r["B_per_rank"]) == (2048, 6000)]
    found: list[float] = []
    least = []
    for what in ("forward GEMM 2", "backward GEMM 1", "backward GEMM 2"):
        of = {r["kernel"]: r["median_s"] for r in rows if r["what"] == what}
        found += [of["cublas"] / of["thin"], 1e6 * of["thin"]]
        alone = [s for kernel, s in of.items() if kernel != "cublas" and "reader" not in kernel]
        least.append(100 * (1 - min(alone) / of["thin"]))
    return [*found, max(least)]


def cublas_half() -> list[float]:
    rows = result("thin_sweep")["rows"]
    (row,) = [
        r for r in rows if (r["H"], r["B_per_rank"]) == (2048, 6000)
        and (r["what"], r["kernel"]) == ("backward GEMM 1", "cublas")
    ]  # fmt: skip
    return [1e6 * row["median_s"] / 2]


def outer_product() -> list[float]:
    """A factor of 2048 x 6000 float32, in MB, and µs at 4.8 TB/s."""
    written = 4 * 2048 * 6000
    return [written / 1e6, 1e6 * written / 4.8e12]


def graph() -> list[float]:
    """What a replayed batch takes the host and the GPU, in µs."""
    paths = [ROOT / "profiles" / "ladder" / f"graph_{i}.sqlite.xz" for i in (1, 2, 3)]
    batches = [analyze_reports([path], Options()).runs[0].batch for path in paths]
    return [
        1e6 * float(np.median([b.queued_s for b in batches if b.queued_s is not None])),
        1e6 * float(np.median([b.median.value for b in batches])),
    ]


def pinned_forward() -> list[float]:
    """By how much the forward pass of the page's two reports differs, in percent."""
    one, other = (
        ROOT / "profiles/campaign" / f"h200x2_p2_{how}_float32_H512_B3000.sqlite.xz"
        for how in ("host", "pinned")
    )
    found = compare_traces([read(one)], [read(other)])
    (ratio,) = [row.ratio for row in found.rows if row.name == "forward"]
    return [100 * (1 - ratio)]


def ladder_row(rung: str, ranks: int, hidden: int, batch: int, dtype: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = [
        row for row in result("ladder")["rows"]
        if (row["rung"], row["p"], row["H"], row["B"], row["dtype"])
        == (rung, ranks, hidden, batch, dtype)
    ]  # fmt: skip
    return row


def on_two_gpus() -> list[float]:
    """Batches in µs of the first and the last step at H = 512, and the last's over PyTorch's."""
    first, last, last_tf32 = (
        ladder_row(rung, 2, 512, 3000, dtype)
        for rung, dtype in (("document", "fp32"), ("peer x3", "fp32"), ("peer", "tf32"))
    )
    seconds = [1e6 * row["median_s"] for row in (first, last, last_tf32)]
    return [*seconds, last["ratio"], last_tf32["ratio"]]


def times_less() -> list[float]:
    """The last step's batch, and how many times it fits into the first's in the same launch."""
    first, last = (ladder_row(rung, 2, 512, 3000, "fp32") for rung in ("document", "peer x3"))
    of = {launch["run"]: launch["median_s"] for launch in last["launches"]}
    gains = [each["median_s"] / of[each["run"]] for each in first["launches"]]
    return [1e6 * last["median_s"], float(np.median(gains))]


def headline() -> list[float]:
    """Least and most of the first step's batch over the fastest step's, in the same cell."""
    gains = []
    for rows in cells(result("ladder")).values():
        fastest = best(rows)
        assert fastest is not None
        gains.append(rows["document"]["median_s"] / fastest["median_s"])
    return [min(gains), max(gains)]


def held() -> list[float]:
    """How many launches lie within the interval of the others of their row, of how many."""
    inside, among = coverage(result("ladder")["rows"])
    return [inside, among, 100 * inside / among]


def large(size: int) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = [row for row in result("large")["rows"] if row["size"] == size]
    return row


def foreign() -> list[float]:
    """Least and most of the batches of H up to 2048, in ms, and the one of H = 4096, B = 12000."""
    rows = result("predict")["foreign"]["leave_one_out"]
    seconds = sorted(1e3 * row["measured_s"] for row in rows if row["H"] <= 2048)
    return [seconds[0], seconds[-1]]


def launch_noise(*routes: str) -> list[float]:
    known = result("predict")["noise_floor"]["launch_sd"]
    return [100 * known[route] for route in routes]


QUOTED: Final[tuple[tuple[str, str, Callable[[], list[float]]], ...]] = (
    ("ladder", "cuBLAS's times {:.2f} on forward GEMM 2 ({:.1f} µs), {:.2f} on backward GEMM 1 "
     "({:.1f} µs), {:.2f} on backward GEMM 2 ({:.1f} µs); the best of 170 other tiles would save "
     "{:.0f} % of a GEMM's time at most", thin),
    ("ladder", "writes {:.0f} MB: {:.1f} µs at the memory's peak of 4.8 TB/s", outer_product),
    ("ladder", "twice cuBLAS's speed would be {:.1f} µs", cublas_half),
    ("ladder", "(standard deviations of {:.1f} % for batches that are CUDA graphs, {:.2f} % with "
     "an all-reduce in them, {:.0f} % for others)",
     lambda: [100 * LAUNCH_SD[kind] for kind in ("replayed", "NCCL", "queued")]),
    ("ladder", "put it: {:.0f} of {:.0f} do ({:.0f} %)", held),
    ("ladder", "with a standard deviation of {:.1f} % for each GEMM",
     lambda: [100 * LAUNCH_SD["GEMMs"]]),
    ("commands", "takes {:.0f} µs (1.9 to 2.2 ms in three profiled launches), and {:.0f} µs "
     "at the top, {:.0f} µs with TF32: {:.2f} and {:.2f} times the best whole-graph PyTorch",
     on_two_gpus),
    ("../README", "after the optimization steps {:.0f} µs, {:.0f} times less", times_less),
    ("index", "{:.0f} to {:.0f} times faster than the assignment's program", headline),
    ("compare", "the ladder's `graph` batch takes it {:.0f} µs, and the GPU {:.0f} µs", graph),
    ("compare", "that the forward pass took {:.0f} % less, too", pinned_forward),
    ("scale", "So 50 million rows take about {:.1f} GB",
     lambda: [large(50_000_000)["perfmodel"]["peak_mb"] / 1e3]),
    ("scale", "where the reports are worth it ({:.0f} MB together)",
     lambda: [parallel._WORTH_BYTES / 1e6]),
    ("robustness", "NaN in JSON, and what takes {:.0f} s or {:.0f} GB",
     lambda: [fuzz._LONGEST_S, fuzz._MOST_BYTES / 1e9]),
    ("predict", "{:.0f} to {:.0f} % more or less from launch to launch",
     lambda: launch_noise("blocking", "queued")),
    ("predict", "(CUDA graphs) launches agree to {:.1f} %", lambda: launch_noise("replayed")),
    ("predict", "PyTorch's launches take {:.1f} to {:.1f} ms whatever the size", foreign),
)  # fmt: skip
GIVEN: Final = {
    "compare": {
        "more than 2 % later than the host's": "a limit of the code",
        "within 0.1 % on H200s": "tests/timing/test_async_batches.py",
        "from -1 to +1 %": "a default",
        "a standard deviation of 10 %": "a default",
        "with 40 intervals of 95 %": "an example",
        "at 5 % (half": "a level",
        "wider than 95 % ones": "a level",
        "Measured, 5 % being allowed": "a level",
        "If launches differ by 20 % instead of the assumed 10 %, 32 % of the simulated comparisons "
        "of one launch a side are wrong, hence the warning; with three launches a side it stays at "
        "3 % even where they differ by 40 %": "tests/analysis/test_compare_noise.py",
        "one-sided ones of 95 %": "a level",
        "with a limit of 5 %": "an example",
    },
    "ladder": {
        "batches for about 30 ms (at least 20, unless they take over 250 ms)": "how it is run",
        "launch lies with 95 %": "a level",
        "where another launch's lies with 95 %": "a level",
        "Stores past the caches make it 1.03 µs faster alone, but with a kernel that reads the "
        "result, as in the trainer, 1.71 µs slower": "no raw file: kernels that are not kept",
    },
    "robustness": {},
    "scale": {
        "differ by up to 10 ms": "how reports are made",
        "from 0 to 20 ns": "worked by hand",
        "known to 18 ns": "worked by hand",
        "Ten million events of eight ranks take 12 s of CPU and 1.1 GB (15 s and 1.2 GB before":
            "no raw file: two commits in turns",
    },
    "size": {},
}  # fmt: skip
NUMBER: Final = re.compile(
    r"(?<![\w.])\d+(?:[.,]\d+)*\s?(?:%|(?:ns|µs|ms|s|[kMGT]?B|[kMGT]?B/s|[GT]?FLOP/s|W|J)\b)"
)


def prose(page: str) -> str:
    """Return a page's text without what is generated, code and tables, on one line."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for made in (r"<!-- made by .*?<!-- end of .*?-->", r"^```.*?^```$"):
        text = re.sub(made, "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("|")]
    return re.sub(r"\s+", " ", " ".join(lines))


@pytest.mark.parametrize(
    ("page", "sentence", "values"), QUOTED, ids=[f"{page}-{said[:40]}" for page, said, _ in QUOTED]
)
def test_a_quoted_number_is_the_result_s(
    page: str, sentence: str, values: Callable[[], list[float]]
) -> None:
    text = re.sub(r"\s+", " ", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert sentence.format(*values()) in text


@pytest.mark.parametrize("page", WHOLE)
def test_every_number_of_a_page_has_its_source(page: str) -> None:
    text = prose(page)
    for sentence in GIVEN[page]:
        assert sentence in text, "no longer on the page: take it out of GIVEN"
        text = text.replace(sentence, "")
    for name, sentence, values in QUOTED:
        if name == page:
            text = text.replace(sentence.format(*values()), "")
    left = [text[max(0, m.start() - 60) : m.end() + 20] for m in NUMBER.finditer(text)]
    assert left == [], "add the sentence to QUOTED, with what computes it from a raw file"
