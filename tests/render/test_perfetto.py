"""The trace for Perfetto: valid events, named rows, flows in pairs, the report's totals."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from test_timeline import PROFILES, REPORTS, run_of

from perfmodel.analysis.runs import time_runs
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.perfetto import to_json
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.projection import join_launches
from perfmodel.timing.run import Run
from perfmodel.timing.timeline import GPU, select, window_of
from support.build_report import ReportBuilder
from support.cli import evil_report, fails, perfmodel, succeeds

Event = dict[str, Any]


@pytest.fixture(scope="module", params=REPORTS[::2])
def run(request: pytest.FixtureRequest) -> Run:
    return run_of(PROFILES / request.param)


@pytest.fixture(scope="module")
def events(run: Run) -> list[Event]:
    document = json.loads(to_json(select(run, None), "all"))
    assert document["displayTimeUnit"] == "ns"
    found: list[Event] = document["traceEvents"]
    return found


def ns(event: Event, key: str = "ts") -> int:
    return round(event[key] * 1000)


def of(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def test_only_known_phases_on_named_rows(events: list[Event]) -> None:
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}  # of two ranks: no "t"
    named = {(e["pid"], e["tid"]) for e in of(events, "M") if e["name"] == "thread_name"}
    ranks = {e["pid"]: e["args"]["name"] for e in of(events, "M") if e["name"] == "process_name"}
    assert ranks == {0: "rank 0", 1: "rank 1"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"} == named


def test_totals_are_the_report_s(run: Run, events: list[Event]) -> None:
    (trace,) = run.traces
    spent: Counter[str] = Counter()
    for event in of(events, "X"):
        spent[event["cat"]] += ns(event, "dur")
    for table, kinds in ((trace.api, ("api",)), (trace.mpi, ("mpi",)), (trace.ops, GPU)):
        assert sum(spent[k] for k in kinds) == int((table.end_ns - table.start_ns).sum())
    assert sum(e["args"].get("bytes", 0) for e in of(events, "X") if e["cat"] in GPU) == int(
        trace.ops.bytes[trace.ops.bytes > 0].sum()
    )
    assert min(ns(e) for e in of(events, "X")) == 0


def test_events_of_a_row_nest(events: list[Event]) -> None:
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of(events, "X"):
        rows[event["pid"], event["tid"]].append((ns(event), ns(event) + ns(event, "dur")))
    for row in rows.values():
        opened: list[int] = []
        for start, end in sorted(row, key=lambda span: (span[0], -span[1])):
            while opened and opened[-1] <= start:
                opened.pop()
            assert not opened or end <= opened[-1]
            opened.append(end)


def test_flows_lead_from_each_call_to_what_it_launched(run: Run, events: list[Event]) -> None:
    (trace,) = run.traces
    starts, ends = (
        [e for e in of(events, phase) if e["cat"] == "launch"] for phase in ("s", "f")
    )  # fmt: skip
    pairs = len(join_launches(trace, trace.ops, trace.api)[0])
    assert [e["id"] for e in starts] == [e["id"] for e in ends] == [*range(1, pairs + 1)]
    assert pairs
    at = {(e["pid"], e["tid"], e["ts"]): e for e in of(events, "X")}
    for start, end in zip(starts, ends, strict=True):
        call = at[start["pid"], start["tid"], start["ts"]]
        launched = at[end["pid"], end["tid"], end["ts"]]
        assert call["cat"] == "api"
        assert launched["cat"] in GPU
        assert end["bp"] == "e"
        assert start["pid"] == end["pid"]
        assert call["args"]["correlation"] == launched["args"]["correlation"]


@pytest.mark.slow
def test_flows_join_the_ranks_of_every_collective() -> None:
    paths = [PROFILES / name for name in (REPORTS[0], "programs/straggler_p2_b32.sqlite.xz")]
    for path, kind, count in zip(paths, ("mpi", "nccl"), (200, 32), strict=True):
        (run,) = time_runs([read(path)], Options())
        events: list[Event] = json.loads(to_json(select(run, None), "all"))["traceEvents"]
        at = {(e["pid"], e["tid"], e["ts"]): e for e in of(events, "X")}
        joined: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "collective":
                joined[event["id"]].append(event)
        assert len(joined) == count
        for first, last in joined.values():
            bars = [at[e["pid"], e["tid"], e["ts"]] for e in (first, last)]
            assert [e["ph"] for e in (first, last)] == ["s", "f"]
            assert {bar["cat"] for bar in bars} == {kind}
            assert bars[0]["name"] == bars[1]["name"]
            assert {bar["pid"] for bar in bars} == {0, 1}
            assert bars[0]["ts"] <= bars[1]["ts"]


@pytest.mark.slow
def test_operations_and_ranges_have_their_flops_and_bytes(tmp_path: Path) -> None:
    def arguments(report: str) -> list[Event]:
        out = tmp_path / "trace.json"
        succeeds("timeline", PROFILES / report, "-o", out)
        return of(json.loads(out.read_text(encoding="utf-8"))["traceEvents"], "X")

    trainer = [e for e in arguments("ladder/document_1.sqlite.xz") if "flops" in e["args"]]
    gemm = {e["args"]["flops"] for e in trainer if e["name"] == "forward GEMM 1"}
    assert gemm == {2 * 784 * 512 * 1500}
    found = arguments("programs/gpt_shapes.sqlite.xz")
    products = [e["args"] for e in found if e["args"].get("operator") == "aten::addmm"]
    assert products
    for product in products:
        bias, a, b = (
            [int(n) for n in size.split("×")] for size in product["sizes"].split(", ")
        )  # fmt: skip
        assert product["flops"] == 2 * a[0] * a[1] * b[1]
        assert bias == [b[1]]
    sent = arguments("programs/straggler_p2_b32.sqlite.xz")
    assert {e["args"]["message_bytes"] for e in sent if e["cat"] == "nccl"} >= {16_777_216}


def test_a_recording_without_a_step_is_traced_whole(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread()
    thread.kernel("k", (100, 200), (300, 5000))
    path = report.write(tmp_path / "r.sqlite")
    out = tmp_path / "trace.json"
    succeeds("timeline", path, "-o", out)
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")  # nothing launched it
    file.close()
    result = perfmodel("timeline", path, "-o", out)
    assert result.exit_code == 0
    assert "the trace shows no steps" in result.stderr
    (kernel,) = of(json.loads(out.read_text(encoding="utf-8"))["traceEvents"], "X")
    assert (kernel["cat"], ns(kernel, "dur")) == ("kernel", 4700)
    assert "expected CUDA calls, MPI calls or ranges of the host beside 1 GPU" in fails(
        4, "timeline", path, "-o", tmp_path / "x.png"
    )


def test_some_batches_only(tmp_path: Path) -> None:
    report = PROFILES / REPORTS[0]
    out = tmp_path / "trace.json"
    succeeds("timeline", report, "--batch", "2:5", "-o", out)
    document = json.loads(out.read_text(encoding="utf-8"))
    (run,) = time_runs([read(report)], Options(by_time=True))
    lanes = select(run, window_of(run, range(2, 5)))
    found = of(document["traceEvents"], "X")
    assert len(found) == sum(len(lane.bars) for lane in lanes)
    gaps = [event for event in found if event["cat"] in CAUSE_NAMES]
    assert {event["name"] for event in gaps} <= {*CAUSE_NAMES.values()}
    synced = [event["args"] for event in gaps if event["name"] == "synchronization"]
    assert {args["call"] for args in synced} >= {"cudaDeviceSynchronize"}
    assert all("before" in event["args"] for event in gaps)
    assert "steps 2 to 4" in document["otherData"]["title"]


def test_names_are_harmless(tmp_path: Path) -> None:
    report = evil_report(tmp_path / "evil.sqlite")
    out = tmp_path / "trace.json"
    succeeds("timeline", report, "-o", out)
    text = out.read_text(encoding="utf-8")
    assert all(line.isprintable() for line in text.splitlines())
    names = {event["name"] for event in json.loads(text)["traceEvents"]}
    assert r"\x1b[31m[bold]evil[/bold] name \u202e$x_1$" in names
