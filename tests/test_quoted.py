"""Numbers that the text of a page quotes are those of the results that it names.

`QUOTED` has a row for each sentence with measured numbers: the page, the sentence with places for
numbers, and what computes them from the raw file. Any other number with a unit in a page of
`WHOLE` must stand in `GIVEN`, which says what it is: a new number fails until it has a row here.
To check another page, add its sentences to `QUOTED` and its name to `WHOLE`. In the other pages a
number with a unit stands where its section names a raw file, the program that writes one or a test,
or is in `GIVEN`, too. What is generated between marks is compared with the results elsewhere.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from benchmarks.common import results
from benchmarks.common.folders import PROFILES, RESULTS, ROOT
from benchmarks.common.launches import LAUNCH_SD
from benchmarks.ladder.report import best, cells
from benchmarks.ladder.rows import coverage
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.compare.compare import compare_traces
from perfmodel.base import parallel
from perfmodel.programs.program import Options
from perfmodel.readers import read
from support import fuzz
from support.public_recordings import RECORDINGS

DOCS: Final = ROOT / "docs"
WHOLE: Final = ("compare", "ladder", "robustness", "scale", "size")
"""Pages of which every number with a unit is looked up."""


@cache
def result(name: str) -> Any:
    return results.read(RESULTS / f"{name}.json")


def kernel_noise() -> list[float]:
    """Standard deviation of the time in kernels between runs, in %: median and upper quartile."""
    computing = ("large GEMMs", "small GEMMs", "element-wise", "step kernels")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for name in ("launches", "fresh", "hosts", "scale"):
        for run in results.read(PROFILES / name / "launches.json")["launches"]:
            if run["recorded"] and run.get("parts") and run["settings"]["graph"] == "no":
                spent = sum(s for part, s in run["parts"].items() if part.startswith(computing))
                key = (name, run["machine"], run["name"])
                groups.setdefault(key, []).append(math.log(spent))
    found = sorted(100 * statistics.stdev(v) for v in groups.values() if len(v) > 2)
    return [found[len(found) // 2], found[3 * len(found) // 4]]


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


def stores() -> list[float]:
    """By how many µs stores past the caches are faster alone, and slower with a reader."""
    seconds = {
        r["kernel"]: 1e6 * r["median_s"] for r in result("thin_sweep")["rows"]
        if (r["what"], r["H"], r["B_per_rank"]) == ("backward GEMM 1", 2048, 6000)
    }  # fmt: skip
    best_of = {
        (stream, reader): min(
            s for kernel, s in seconds.items()
            if f"STREAM={stream}" in kernel and ("reader" in kernel) is reader
        )
        for stream in (0, 1) for reader in (False, True)
    }  # fmt: skip
    return [best_of[0, False] - best_of[1, False], best_of[1, True] - best_of[0, True]]


def outer_product() -> list[float]:
    """A factor of 2048 x 6000 float32, in MB, and µs at 4.8 TB/s."""
    written = 4 * 2048 * 6000
    return [written / 1e6, 1e6 * written / 4.8e12]


def graph() -> list[float]:
    """What a replayed batch takes the host and the GPU, in µs."""
    paths = [PROFILES / "ladder" / f"graph_{i}.sqlite.xz" for i in (1, 2, 3)]
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
    ("ladder", "Stores past the caches make it {:.2f} µs faster alone, but with a kernel that "
     "reads the result, as in the trainer, {:.2f} µs slower", stores),
    ("ladder", "(standard deviations of {:.1f} % for batches that are CUDA graphs, {:.2f} % with "
     "an all-reduce in them, {:.0f} % for others)",
     lambda: [100 * LAUNCH_SD[kind] for kind in ("replayed", "NCCL", "queued")]),
    ("ladder", "put it: {:.0f} of {:.0f} do ({:.0f} %)", held),
    ("ladder", "with a standard deviation of {:.1f} % for each GEMM",
     lambda: [100 * LAUNCH_SD["GEMMs"]]),
    ("commands", "takes {:.0f} µs (1.9 to 2.2 ms in three profiled launches), and {:.0f} µs with "
     "all optimizations, {:.0f} µs with TF32: {:.2f} and {:.2f} times the best whole-graph PyTorch",
     on_two_gpus),
    ("index", "{:.0f} to {:.0f} times faster than the assignment's program", headline),
    ("compare", "the ladder's `graph` batch takes it {:.0f} µs, and the GPU {:.0f} µs", graph),
    ("compare", "that the forward pass took {:.0f} % less, too", pinned_forward),
    ("compare", "(standard deviations of {:.2f} % in the median configuration, {:.2f} % in one of "
     "four)", kernel_noise),
    ("scale", "So 50 million rows take about {:.1f} GB",
     lambda: [large(50_000_000)["perfmodel"]["peak_mb"] / 1e3]),
    ("scale", "where the reports are worth it ({:.0f} MB together)",
     lambda: [parallel._WORTH_BYTES / 1e6]),
    ("size", "one of eight fields is made in {:.2f} ms, in {:.2f} without comparison and in {:.2f} "
     "where it is not frozen",
     lambda: list(result("size")["data_class_ms"].values())),
    ("robustness", "NaN in JSON, and more than {:.0f} s or {:.0f} GB",
     lambda: [fuzz._LONGEST_S, fuzz._MOST_BYTES / 1e9]),
    ("predict", "{:.0f} to {:.0f} % more or less from launch to launch",
     lambda: launch_noise("blocking", "queued")),
    ("predict", "(CUDA graphs) launches agree to {:.1f} %", lambda: launch_noise("replayed")),
    ("predict", "PyTorch's launches take {:.1f} to {:.1f} ms whatever the size", foreign),
)  # fmt: skip
GIVEN: Final = {
    "json": {
        "with its 95 % intervals": "a level",
    },
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
        "of one launch of each are wrong, hence the warning; with three launches of each it stays "
        "at 3 % even where they differ by 40 %": "tests/analysis/test_compare_noise.py",
        "one-sided ones of 95 %": "a level",
        "so that one run a side shows 3 %": "tests/analysis/test_compare_gate.py",
        "equal runs differ by 13 %": "tests/analysis/test_compare_gate.py",
        "leaves 1.5 % between runs": "perfmodel/models/reruns.toml",
        "what gained less than 1 % of the step": "a limit of the code",
        "Of equal steps 70, 79 and 83 % pass": "benchmarks/results/gate.json",
        "slower in one range passes in 4 to 6 %, in all ranges alike in 13 to 21 %; a fifth slower "
        "in all alike, in 1 to 2 %": "benchmarks/results/gate.json",
        "differ by up to 15 % as recorded and up to 4 %": "benchmarks/results/gate.json",
        "differ by 0.3 to 2.4 %, the others, which wait for MPI or NCCL, by up to 10 %":
            "benchmarks/results/gate.json",
        "with a limit of 5 %": "an example",
    },
    "ladder": {
        "batches for about 30 ms (at least 20, unless they take over 250 ms)": "how it is run",
        "the 95 % interval for the ratio of another launch": "a level",
        "Brackets are 95 % intervals for another launch": "a level",
    },
    "robustness": {},
    "scale": {
        "differ by up to 10 ms": "how reports are made",
        "a report of 32 MB or more once": "a limit of the code",
        "Of every 4 MB of a table": "a limit of the code",
        "from 0 to 20 ns": "worked by hand",
        "known to 18 ns": "worked by hand",
    },
    "size": {"Its target of 250 ms": "a target"},
    "analysis": {
        "a warning says so from 1 % on": "a limit of the code",
        "`waits 0–51 %` is 0 on one rank and 51 % on another": "an example",
    },
    "counters": {
        "whose unit does less than 90 % is": "a limit of the code",
        "132 x 128 x 1.98 GHz = 33.5 TB/s": "worked by hand",
    },
    "faq": {"UTC time of their start, to about 0.5 µs": "docs/schema.md"},
    "findings": {
        "save less than 1 % of T": "a limit of the code",
        "If it would save 1 % of T once": "a limit of the code",
        "From 95 % on it is more than": "a limit of the code",
        "larger than 100 kB), otherwise 80 % of": "a limit of the code",
        "single precision takes 188 MB": "worked by hand",
        "if it is 5 % of a step above": "a limit of the code",
    },
    "machines": {
        "NVIDIA A100-SXM4-40GB": "a name",
        "989 TFLOP/s of TF32": "a data sheet",
        "has 10 or 12 GB": "data sheets",
        "vector peaks within 3 %": "a test's bound",
        "at a lower clock on some, within 20 %": "a test's bound",
        "the small messages' 2 µs": "an example",
    },
    "model": {
        "one of the three small GEMMs: 0.63 % at D": "worked by hand",
        "at the assignment's sizes 33.1 MB instead of": "worked by hand",
        "t predicted, the 90 % interval": "a level",
    },
    "predict": {"it is believed to 30 %": "a limit of the code"},
    "pytorch": {"`41.0 % of 989 TFLOP/s, BF16 dense": "an example"},
    "scaling": {"Intervals (95 %)": "a level"},
    "schema": {"times outside +-2^62 ns": "a limit of the code"},
    "statistics": {"200 - 50 = 150 ns": "worked by hand"},
    "trainer": {"A rank that waits for 60 s traps": "a limit of the code"},
    "tta": {"Its 95 % interval": "a level"},
    "utilization": {
        "(1/6 s to 1 s, by product)": "NVIDIA's documentation",
        "fills them all. 100 % says": "a definition",
    },
    "vecadd": {"takes longer than 0.6 s": "how it is run"},
    "whatif": {"`low_s` to `high_s` is 90 % of that": "a level"},
    "workloads": {"100 symbols, 1 MB": "limits of the code"},
}  # fmt: skip
NUMBER: Final = re.compile(
    r"(?<![\w.])\d+(?:[.,]\d+)*\s?(?:%|(?:ns|µs|ms|s|[kMGT]?B|[kMGT]?B/s|[GT]?FLOP/s|W|J)\b)"
)


WHOLLY_GENERATED: Final = ("columns", "commands", "devices")
OTHERS: Final = sorted({p.stem for p in DOCS.glob("*.md")} - {*WHOLE, *WHOLLY_GENERATED})
RAW_FILE: Final = re.compile(
    r"(?<![\w/-])(?:benchmarks/results|profiles|notebooks/data|notebooks/studies|tests)/[\w./*-]*\w"
    r"|perfmodel/machines/devices/[\w-]+\.toml|\bbenchmarks\.\w+"
    r"|https://github\.com/[\w-]+/[\w-]+/(?:blob|tree)/[0-9a-f]{7}/[\w./-]*"
)
"""A raw file, what writes one, or a test that holds the number."""


def text_of(page: str) -> str:
    """Return a page with the names of what writes the generated parts in their place."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    generated = r"<!-- made by ([\w.]*).*?-->.*?<!-- end of .*?-->"
    return re.sub(generated, r" \1 ", text, flags=re.DOTALL)


def without_tables(text: str) -> str:
    """Return text without code and tables, on one line."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("|")]
    return re.sub(r"\s+", " ", " ".join(lines))


def prose(page: str) -> str:
    """Return a page's text without what is generated, code and tables, on one line."""
    return without_tables(text_of(page))


def exists(name: str) -> bool:
    """Whether there is such a file, folder, module or listed recording, by a pattern or whole."""
    if name.startswith("https:"):
        return any(f"{r['repository']}/" in name and name.endswith(r["path"]) for r in RECORDINGS)
    if name.startswith("benchmarks."):
        name = name.replace(".", "/") + "*"
    return bool(re.search("NAME|NN_", name)) or any(ROOT.glob(name + "*" * name.endswith("_")))


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


@pytest.mark.parametrize("page", OTHERS)
def test_every_section_with_numbers_names_where_they_are_from(page: str) -> None:
    given, left = GIVEN.get(page, {}), []
    whole = prose(page)
    assert [said for said in given if said not in whole] == [], "take it out of GIVEN"
    for section in re.split(r"^#+ ", text_of(page), flags=re.MULTILINE):
        if any(map(exists, RAW_FILE.findall(section))):
            continue
        text = without_tables(section)
        for said in given:
            text = text.replace(said, "")
        found = [m for m in NUMBER.finditer(text) if not re.search(r"\s[BWJ]$", m[0])]
        left += [text[max(0, m.start() - 60) : m.end() + 20] for m in found]
    assert left == [], "name the raw file in the section, or say in GIVEN what the number is"


def test_the_raw_files_that_pages_name_are_there() -> None:
    named = {name for page in (*WHOLE, *OTHERS) for name in RAW_FILE.findall(text_of(page))}
    assert sorted(name for name in named if not exists(name)) == []
