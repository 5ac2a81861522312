"""Ask other tools about the recordings that they can read, and score what they say.

    python -m benchmarks.diagnosis.others --python PYTHON [--tool TOOL ...] [--out FILE]

PYTHON is an interpreter of an environment in which HolisticTraceAnalysis, TraceLens and nsys-ai are
installed. Each is used as its documentation says (`used` in others.toml), and what it says counts
as the kinds that others.toml names. perfmodel is scored on the same recordings.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from benchmarks.diagnosis.__main__ import CASES, analyzed, cases_of
from benchmarks.diagnosis.edit import linked, reports_of
from benchmarks.diagnosis.rule import ALARM

OTHERS: Final = tomllib.loads((Path(__file__).parent / "others.toml").read_text())
_LIMIT_S: Final = 300
_HTA: Final = """
import json, sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_dir=sys.argv[1])
found = {"parts": trace.get_temporal_breakdown(visualize=False).to_dict("records")}
ranks = sorted(row["rank"] for row in found["parts"])
found["idle"] = trace.get_idle_time_breakdown(ranks=ranks, visualize=False)[0].to_dict("records")
found["late"] = []
if len(ranks) > 1:
    try:
        found["late"] = [int(r) for r in trace.get_potential_stragglers(num_candidates=1)]
    except ValueError as error:
        print("get_potential_stragglers:", error, file=sys.stderr)
open(sys.argv[2], "w").write(json.dumps(found, default=float))
"""
"""Runs in the other environment, as the README of HolisticTraceAnalysis shows."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool says of a case: statements, the first one first, and the rank that is late."""

    statements: tuple[str, ...]
    rank: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A tool's score of one case; None where it is not asked.

    `first` is whether its first statement may mean the fault, `named` whether any of them may, and
    `kinds` how many kinds the first one may mean.
    """

    name: str
    tool: str
    made: str
    tuned: bool
    first: bool | None
    named: bool | None
    rank: bool | None
    kinds: int
    said: tuple[str, ...]


def kinds_of(tool: str, statement: str) -> frozenset[str]:
    """Return the kinds that a statement may mean; empty for one that is passed over.

    Raises
    ------
    KeyError
        If others.toml does not know the statement.
    """
    for one in OTHERS[tool]["statement"]:
        if fnmatchcase(statement, one["says"]):
            return frozenset(one.get("kinds", ()))
    raise KeyError(f"{tool}: {statement!r} stands in no pattern of others.toml")


def scored(case: Mapping[str, Any], tool: str, said: Said) -> Answer:
    """Score what a tool says."""
    told = [(text, meant) for text in said.statements if (meant := kinds_of(tool, text))]
    right = [not meant.isdisjoint(case.get("kind", ())) for _, meant in told]
    fault = "kind" in case
    return Answer(
        case["name"], tool, case.get("made", "recorded"), case["tuned"],
        right[:1] == [True] if fault else None,
        any(right) if fault else None,
        said.rank == case["rank"] if "rank" in case else None,
        len(told[0][1]) if told else 0,
        tuple(text for text, _ in told[:3]),
    )  # fmt: skip


def parts(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Return the parts of a step that take a tenth of it, the largest first, or computing."""
    large = [f"{name} {share:.0%}" for share, name in
             sorted(((share, name) for name, share in shares.items()), reverse=True)
             if share >= ALARM]  # fmt: skip
    return (*large, "computing")


def nsys_ai(python: Path, reports: Sequence[Path], folder: Path) -> Said:
    """Ask nsys-ai, which ranks its findings."""
    (report,) = reports
    plain = folder / "report.sqlite"
    plain.write_bytes(lzma.decompress(report.read_bytes()))
    command = [python.with_name("nsys-ai"), "diagnose", plain, "--session", folder / "session",
               "--format", "json"]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    findings = json.loads(ran.stdout)["findings"]
    return Said(tuple(f"{one.get('id') or '-'}: {one['label']}" for one in findings), None)


def _traces(reports: Sequence[Path], folder: Path) -> list[Path]:
    """Write traces with their arrows, each with its rank, as torch.profiler does."""
    written = []
    for rank, report in enumerate(reports):
        packed = report.read_bytes()
        text = lzma.decompress(packed) if report.suffix == ".xz" else packed
        document = linked(json.loads(text))
        document.setdefault("distributedInfo", {"rank": rank})
        written.append(folder / f"rank{rank}.json")
        written[-1].write_text(json.dumps(document))
    return written


def hta(python: Path, reports: Sequence[Path], folder: Path) -> Said:
    """Ask HolisticTraceAnalysis."""
    traces, out = folder / "traces", folder / "found.json"
    traces.mkdir()
    _traces(reports, traces)
    command = [python, "-c", _HTA, traces, out]
    subprocess.run(command, capture_output=True, check=True, timeout=_LIMIT_S)
    found = json.loads(out.read_text())
    beside = "communication" if len(reports) > 1 else "copies"
    shares = {
        "idle": max(row["idle_time_pctg"] for row in found["parts"]) / 100,
        beside: max(row["non_compute_time_pctg"] for row in found["parts"]) / 100,
    }
    return Said(parts(shares), found["late"][0] if found["late"] else None)


def tracelens(python: Path, reports: Sequence[Path], folder: Path) -> Said:
    """Ask TraceLens for its reports of every rank and, of several, of their collectives."""
    traces = _traces(reports, folder)
    tool = python.with_name
    shares: dict[str, float] = {}
    for trace in traces:
        out = folder / trace.stem
        command = [tool("TraceLens_generate_perf_report_pytorch"), "--profile_json_path", trace,
                   "--output_csvs_dir", out]  # fmt: skip
        subprocess.run(command, capture_output=True, check=True, timeout=_LIMIT_S)
        rows = {row["type"]: float(row["percent"]) / 100 for row in _csv(out / "gpu_timeline.csv")}
        for name, key in {"communication": "exposed_comm_time", "copies": "exposed_memcpy_time",
                          "idle": "idle_time"}.items():  # fmt: skip
            shares[name] = max(shares.get(name, 0.0), rows.get(key, 0.0))
    rank = None
    if len(traces) > 1:
        command = [tool("TraceLens_generate_multi_rank_collective_report_pytorch"),
                   "--trace_pattern", folder / "rank*.json", "--world_size", str(len(traces)),
                   "--output_csvs_dir", folder / "collectives"]  # fmt: skip
        subprocess.run(command, capture_output=True, check=True, timeout=_LIMIT_S)
        rank = int(_csv(folder / "collectives" / "straggler_summary.csv")[0]["rank"])
    return Said(parts(shares), rank)


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


TOOLS: Final[dict[str, tuple[Callable[[Path, Sequence[Path], Path], Said], str]]] = {
    "nsys-ai": (nsys_ai, ".sqlite.xz"),
    "HolisticTraceAnalysis": (hta, ".json"),
    "TraceLens": (tracelens, ".json"),
}
"""How each is asked, and the names of the reports that it may read."""


def own(case: Mapping[str, Any], reports: Sequence[Path]) -> Answer:
    """Score perfmodel in the same way."""
    document = analyzed(reports)
    kinds = [one["kind"] for one in document["findings"]]
    fault, late = "kind" in case, document["stragglers"]
    return Answer(
        case["name"], "perfmodel", case.get("made", "recorded"), case["tuned"],
        kinds[:1] != [] and kinds[0] in case["kind"] if fault else None,
        not {*kinds}.isdisjoint(case["kind"]) if fault else None,
        (bool(late) and late[0]["rank"] == case["rank"]) if "rank" in case else None,
        1,
        tuple(kinds[:3]),
    )  # fmt: skip


def asked(
    case: Mapping[str, Any], tool: str, python: Path, reports: Sequence[Path]
) -> Answer | str:
    """Ask a tool about a case; return its score, or why it says nothing."""
    ask, suffix = TOOLS[tool]
    if not all(suffix in report.name for report in reports):
        return "another format"
    with tempfile.TemporaryDirectory() as folder:
        try:
            return scored(case, tool, ask(python, reports, Path(folder)))
        except subprocess.CalledProcessError as error:
            text = error.stderr if isinstance(error.stderr, str) else error.stderr.decode()
            return text.strip().splitlines()[-1][:200] if text.strip() else "it fails"


def totals(answers: Sequence[Answer]) -> dict[str, str]:
    """Return right answers of those that were asked, by question."""
    found = {}
    for question in ("first", "named", "rank"):
        asked_of = [value for one in answers if (value := getattr(one, question)) is not None]
        found[question] = f"{sum(asked_of)} of {len(asked_of)}"
    faults = [one.kinds for one in answers if one.first is not None]
    found["kinds a statement"] = f"{sum(faults) / max(len(faults), 1):.1f}"
    return found


def main() -> None:
    """Ask all tools about all cases, and keep what they say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.others")
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--tool", choices=TOOLS, nargs="+", default=[*TOOLS])
    parser.add_argument("--reports", type=Path, default=PROFILES)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cases = cases_of(CASES, unseen=False)
    document: dict[str, Any] = {}
    for tool in given.tool:
        theirs: list[Answer] = []
        ours: list[Answer] = []
        refused: dict[str, int] = {}
        for case in cases:
            with reports_of(case, given.reports) as reports:
                answer = asked(case, tool, given.python, reports)
                if isinstance(answer, str):
                    refused[answer] = refused.get(answer, 0) + 1
                    continue
                theirs.append(answer)
                ours.append(own(case, reports))
            print(f"{tool:22} {answer.name:55.55} {answer.first} {answer.named} {answer.rank} "
                  f"{'; '.join(answer.said)[:120]}", flush=True)  # fmt: skip
        document[tool] = {"reads": len(theirs), "of": len(cases), "refused": refused}
        for made in ("recorded", "edited"):
            pair = [[one for one in side if one.made == made] for side in (theirs, ours)]
            document[tool][made] = {"cases": len(pair[0]), tool: totals(pair[0]),
                                    "perfmodel": totals(pair[1])}  # fmt: skip
        document[tool]["cases"] = [asdict(one) for one in theirs]
        print(json.dumps({k: v for k, v in document[tool].items() if k != "cases"}, indent=1))
    if given.out:
        results.write(given.out, document)


if __name__ == "__main__":
    main()
