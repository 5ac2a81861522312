"""Predicts steps on a host from reports of that host, before they are timed, and scores them.

    python -m profiles.programs.record profiles/two_hosts/NAME hosts     # on a host with a GPU
    python -m benchmarks.predict.two_hosts predict profiles/two_hosts/NAME [OTHER FOLDER]
    python -m benchmarks.predict.one_runs --host profiles/two_hosts/NAME  # there again
    python -m benchmarks.predict.two_hosts                           # prints the scores
    python -m benchmarks.predict.two_hosts --today                   # those of today's code

The first records a report or two of each program, which times itself. The second writes what they
predict of `HOST_CASES` (predictions.json in that folder, which a commit freezes), by one report, by
two where there are two, and by those of another host. The third times these without a profiler,
in some passes minutes apart (measured*.json): a step's time is their median, and they say how far
a step differs from pass to pass on one host.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.predict.one import HEAD, baseline, line, memory
from benchmarks.predict.one_runs import HOST_CASES
from perfmodel.models.one_report import Changes, Report, predict_report
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import PyTorchOperators
from perfmodel.readers import read

HOSTS: Final = folders.PROFILES / "two_hosts"
PAIRS: Final = {"gpt_small": "gpt_large", "llama_small": "llama_large"}
"""Reports of one program."""
OPERATORS: Final = PyTorchOperators()


@cache
def report(folder: Path, name: str) -> Report:
    """A step of a report, and the roles of its sizes."""
    step = OPERATORS.recorded_step(read(folder / f"{name}.sqlite.xz"), Options())
    return step, OPERATORS.roles(step, {})


def predicted(folder: Path, other: Path | None, only: str = "") -> Iterator[dict[str, Any]]:
    """Predict all cases in every way that there is, or in one alone."""
    other_of = PAIRS | {large: small for small, large in PAIRS.items()}
    recorded = {path.name.split(".")[0] for path in folder.glob("*.sqlite.xz")}
    for name, sizes, options in HOST_CASES:
        if name not in recorded:
            continue
        own = report(folder, name)
        untimed = replace(own[0], bare_s=None), own[1]
        ways: dict[str, tuple[Sequence[Report], bool]] = {"one report": ([own], False)}
        ways["one report that did not time itself"] = ([untimed], False)
        if other_of.get(name) in recorded:
            ways["two reports"] = ([own, report(folder, other_of[name])], False)
        if other is not None:
            ways["a report of another host"] = ([report(other, name)], True)
        for way, (reports, elsewhere) in ways.items():
            if only not in ("", way):
                continue
            gpu = own[0].gpu
            there = reports[0][0].gpu
            found = predict_report(
                reports, sizes, baseline(there), OPERATORS.call_at,
                Changes(
                    baseline(gpu) if gpu != there else None, other_host=elsewhere,
                    micro_batches=options.get("accumulate", 1), shards=options.get("fsdp", False),
                    float32_shards="fsdp" in options and "policy" not in options,
                ),
            )  # fmt: skip
            yield {
                "group": way, "report": name, "changed": sizes, "options": options, "gpu": gpu,
                "step_s": found.step.step_s, "low_s": found.step.low_s,
                "high_s": found.step.high_s, "bound": found.step.bound,
                "peak_bytes": found.peak and found.peak.bytes,
            }  # fmt: skip


def scored(*, today: bool = False, only: str = "") -> list[dict[str, Any]]:
    """Return the predictions of all hosts that were timed, with what was measured.

    With `today` by today's code, in place of those that were frozen.
    """
    rows = []
    files = sorted(HOSTS.glob("*/predictions.json"))
    for file in files:
        measured: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(file.parent.glob("measured*.json")):
            for row in json.loads(path.read_text(encoding="utf-8")):
                measured.setdefault(_case(row), []).append(row)
        other = next(each.parent for each in files[::-1] if each != file)
        kept = predicted(file.parent, other, only) if today else json.loads(file.read_text("utf-8"))
        for row in kept:
            if found := measured.get(_case(row)):
                rows.append(row | {
                    "host": file.parent.name, "measured_s": median(f["step_s"] for f in found),
                    "passes_s": [f["step_s"] for f in found],
                    "measured_bytes": found[-1]["peak_bytes"],
                })  # fmt: skip
    return rows


def repeats(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines that say how far passes over a step on one host differ."""
    yield "set by | pairs of passes | mean difference | standard deviation of one"
    for bound in ("GPU", "host"):
        pairs = [
            math.log(a / b)
            for row in rows
            if row["bound"] == bound
            for a, b in combinations(row["passes_s"], 2)
        ]
        far, one = mean(map(abs, pairs)), math.sqrt(mean(x * x for x in pairs) / 2)
        yield f"{bound} | {len(pairs)} | {far:.1%} | {one:.1%}"


def _case(row: dict[str, Any]) -> str:
    return json.dumps([row["report"], row["changed"], row["options"]], sort_keys=True)


def text(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table: errors by way of predicting, and by what sets the step and how it runs."""
    yield HEAD
    for way in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == way]
        for bound in ("GPU", "host", "communication"):
            yield from _lines(way, bound, [r for r in mine if r["bound"] == bound])
        ranks = [row for row in mine if row["changed"].get("p", 1) > 1]
        yield from _lines(f"{way}: DDP", "any", [r for r in ranks if not r["options"]])
        yield from _lines(f"{way}: FSDP", "any", [r for r in ranks if r["options"]])
        more = [row for row in mine if "accumulate" in row["options"]]
        yield from _lines(f"{way}: accumulated", "any", more)
        for host in dict.fromkeys(row["host"] for row in mine):
            yield from _lines(f"{way}: {host}", "any", [r for r in mine if r["host"] == host])


def _lines(group: str, bound: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    if rows:
        yield line(group, bound, rows)


def main() -> None:
    """Predict or score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("predict", "score"), nargs="?", default="score")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("other", type=Path, nargs="?", help="reports of another host")
    parser.add_argument("--today", action="store_true", help="score today's code")
    given = parser.parse_args()
    if given.what == "score":
        rows = scored(today=given.today)
        one = [row for row in rows if row["group"] == "one report"]
        print("\n".join((*text(rows), "", *repeats(one), "", *memory(one))))
        return
    if given.folder is None:
        parser.error("expected the folder of a host's reports")
    rows = [*predicted(given.folder, given.other)]
    results.write(given.folder / "predictions.json", rows)


if __name__ == "__main__":
    main()
