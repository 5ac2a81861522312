"""An analysis depends on what was recorded, not on rows, ids, files, formats and the zero of time.

Each relation rewrites a real report, and the analysis must say the same. Reports of Nsight Systems
are rewritten as tables, traces of torch.profiler as lists of events.
"""

from __future__ import annotations

import json
import lzma
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from decimal import Decimal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.common.folders import PROFILES, ROOT
from perfmodel.analysis.analyze import analyze, analyze_reports
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import PROCESS_BITS
from perfmodel.render.analysis_json import analysis_document
from support import build_kineto, build_serving
from support.build_columnar import write_folder
from support.build_operators import operators_report
from support.build_report import ReportBuilder
from support.public_recordings import NAMES, small

REPORTS = ROOT / "tests" / "reports"
MS = 1_000_000

Table = tuple[list[tuple[str, str]], list[list[Any]]]
"""Names and types of the columns, and the rows."""
Tables = dict[str, Table]
Change = Callable[[Any], Any]

TEXTS = {"textId", "jsonTextId", "nameId", "demangledName", "shortName", "mangledName"}
THREADS = {"globalTid", "endGlobalTid"}
EVENTS = ("CUPTI", "NVTX_EVENTS", "MPI_")
LATER_NS = 123_456_789


def plain(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def tables_of(path: Path) -> Tables:
    found: Tables = {}
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(plain(path))
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [(row[1], row[2]) for row in db.execute(f"PRAGMA table_info({name})")]
            rows = db.execute(f"SELECT * FROM {name} ORDER BY rowid")
            found[name] = columns, [list(row) for row in rows]
    return found


def written(tables: Tables, path: Path) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        for name, (columns, rows) in tables.items():
            said = ", ".join(f'"{column}" {kind}' for column, kind in columns)
            db.execute(f"CREATE TABLE {name} ({said})")
            db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
        db.commit()
    return path


def column(table: Table, name: str) -> Iterator[Any]:
    """Values of a column but NULL; none of a column that is not there."""
    for i, (known, _) in enumerate(table[0]):
        if known == name:
            yield from (row[i] for row in table[1] if row[i] is not None)


def replaced(tables: Tables, new: Callable[[str, str], Callable[[int], int] | None]) -> Tables:
    """Replace the values of some columns, as `new(table, column)` says."""
    found = {}
    for name, (columns, rows) in tables.items():
        changes = [(i, f) for i, (c, _) in enumerate(columns) if (f := new(name, c))]
        rows = [[*row] for row in rows]
        for row in rows:
            for i, f in changes:
                row[i] = None if row[i] is None else f(row[i])
        found[name] = columns, rows
    return found


def shuffled(tables: Tables) -> Tables:
    draw = random.Random(3)
    return {name: (c, draw.sample(rows, len(rows))) for name, (c, rows) in tables.items()}


def backwards(tables: Tables) -> Tables:
    return {name: (columns, rows[::-1]) for name, (columns, rows) in tables.items()}


def turned(values: set[int]) -> dict[int, int]:
    """New values for ids: the same ones, in the other order."""
    return dict(zip(sorted(values), sorted(values, reverse=True), strict=True))


def strings(tables: Tables) -> Tables:
    ids = turned({*column(tables["StringIds"], "id")})

    def new(table: str, name: str) -> Callable[[int], int] | None:
        return (lambda v: ids.get(v, v)) if name in TEXTS or (table, name) == IDS else None

    return backwards(replaced(tables, new))


IDS = ("StringIds", "id")


def thread_ids(tables: Tables) -> set[int]:
    return {tid for table in tables.values() for name in THREADS for tid in column(table, name)}


def threads(tables: Tables) -> Tables:
    ids: dict[int, int] = {}
    everything = thread_ids(tables)
    for process in {tid & PROCESS_BITS for tid in everything}:
        ids |= turned({tid for tid in everything if tid & PROCESS_BITS == process})
    return replaced(tables, lambda _, name: ids.__getitem__ if name in THREADS else None)


def processes(tables: Tables) -> Tables:
    of_threads = {tid & PROCESS_BITS for tid in thread_ids(tables)}
    ids = turned(of_threads.union(*(column(table, "globalPid") for table in tables.values())))
    short = {a >> 24 & 0xFFFFFF: b >> 24 & 0xFFFFFF for a, b in ids.items()}

    def new(_: str, name: str) -> Callable[[int], int] | None:
        if name in THREADS:
            return lambda tid: ids[tid & PROCESS_BITS] | tid & ~PROCESS_BITS
        if name == "globalPid":
            return ids.__getitem__
        return (lambda pid: short.get(pid, ids.get(pid, pid))) if name == "pid" else None

    return replaced(tables, new)


def correlations(tables: Tables) -> Tables:
    most = max((c for t in tables.values() for c in column(t, "correlationId")), default=0)
    return replaced(
        tables, lambda _, name: (lambda v: v and most + 5 - v) if name == "correlationId" else None
    )


def in_time(tables: Tables, new: Callable[[int], int]) -> Tables:
    times = ("start", "end", "timestamp")
    return replaced(
        tables,
        lambda table, name: new if name in times and table.startswith(EVENTS) else None,
    )


def later(tables: Tables) -> Tables:
    return in_time(tables, lambda ns: ns + LATER_NS)


def everything(tables: Tables) -> Tables:
    for change in (strings, threads, processes, correlations, later, shuffled):
        tables = change(tables)
    return tables


OF_TABLES: dict[str, Change] = {
    "rows shuffled": shuffled,
    "rows backwards": backwards,
    "strings": strings,
    "threads": threads,
    "processes": processes,
    "correlations": correlations,
    "later": later,
}

HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime",
        "python_function")  # fmt: skip


def events_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plain(path), parse_float=Decimal)
    return found


def written_events(document: Mapping[str, Any], path: Path) -> Path:
    """Write a trace with all decimals of its times."""
    text = json.dumps(document, default=lambda value: f"exact {value}")
    path.write_text(re.sub(r'"exact ([^"]*)"', r"\1", text))
    return path


def of_each(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def changed(document: dict[str, Any]) -> dict[str, Any]:
        return document | {"traceEvents": [change(event) for event in document["traceEvents"]]}

    return changed


def events_shuffled(document: dict[str, Any]) -> dict[str, Any]:
    events = document["traceEvents"]
    return document | {"traceEvents": random.Random(3).sample(events, len(events))}


def events_backwards(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"traceEvents": document["traceEvents"][::-1]}


def events_threads(document: dict[str, Any]) -> dict[str, Any]:
    found = (e["tid"] for e in document["traceEvents"] if e.get("cat") in HOST)
    ids = turned({tid for tid in found if isinstance(tid, int)})
    return of_each(
        lambda e: e | {"tid": ids.get(e["tid"], e["tid"])} if e.get("cat") in HOST else e
    )(document)


def events_correlations(document: dict[str, Any]) -> dict[str, Any]:
    def new(event: dict[str, Any]) -> dict[str, Any]:
        args = event.get("args") or {}
        if not isinstance(args.get("correlation"), int):
            return event
        return event | {"args": args | {"correlation": 10**9 - args["correlation"]}}

    return of_each(new)(document)


def events_later(document: dict[str, Any]) -> dict[str, Any]:
    by = Decimal(LATER_NS) / 1000
    return of_each(lambda e: e | {"ts": Decimal(e["ts"]) + by} if e.get("ph") == "X" else e)(
        document
    )


def events_everything(document: dict[str, Any]) -> dict[str, Any]:
    for change in (events_threads, events_correlations, events_later, events_shuffled):
        document = change(document)
    return document


OF_EVENTS: dict[str, Change] = {
    "events shuffled": events_shuffled,
    "events backwards": events_backwards,
    "threads": events_threads,
    "processes": of_each(lambda e: e | {"pid": e["pid"] + 4321} if e.get("cat") in HOST else e),
    "correlations": events_correlations,
    "later": events_later,
}


def said_of(*paths: Path) -> dict[str, Any]:
    """Everything in analysis.json, but files and what identifies them; and the recorded ranks."""
    analysis = analyze([read(path) for path in paths], Options())
    document = analysis_document(analysis)
    steps = analysis.fitted.steps
    document["recorded_ranks"] = [asdict(rank) for rank in steps.ranks] if steps else []
    for report in document["reports"]:
        report.pop("path")
    text = json.dumps(document)
    for path in paths:
        text = text.replace(path.name, "report").replace(path.stem, "report")
    found: dict[str, Any] = json.loads(text)
    return found


def without_zero(said: dict[str, Any], zero_ns: int = 0) -> dict[str, Any]:
    """The same with the only times that are counted from the report's zero counted from another."""
    excesses = [late["excess"] or {} for late in said["stragglers"] or ()]
    gaps = [gap for cause in said["idle"] for gap in cause["gaps"]]
    for gap in (*gaps, *filter(None, (more.get("gap") for more in excesses))):
        gap["start_s"] = round(gap["start_s"] - zero_ns * 1e-9, 9)
    return said


def untimed(title: str) -> str:
    """The title of a finding without times."""
    return re.sub(r"\d[\d.,]* ?[µmn]?s\b", "", title)


def source_of(name: str) -> Path:
    if name.startswith("public/"):
        return small(f"{name.removeprefix('public/')}.xz")
    places = [PROFILES / name, REPORTS / name, PROFILES / f"{name}.xz", REPORTS / f"{name}.xz"]
    return next(path for path in places if path.exists())


ENDED_EARLY = {
    "h200x2_2ranks_base_nsys2025.3.1.sqlite": 0.25,
    "programs/straggler_p2_b32.sqlite": 0.35,
    "programs/gpt_compiled_shapes.sqlite": 0.6,
    "ladder/graph_1.sqlite": 0.35,
    "programs/jax_gpt.sqlite": 0.6,
}
"""Of these reports so many events, the first ones, say as much as all of them."""


def begun(tables: Tables, share: float) -> Tables:
    """Leave out what began later, as if the recording had ended then."""
    timed = {name: table for name, table in tables.items() if name.startswith(EVENTS)}
    starts = sorted(ns for table in timed.values() for ns in column(table, "start"))
    last = starts[int(share * len(starts))]
    found = dict(tables)
    for name, (columns, rows) in timed.items():
        at = {known: i for i, (known, _) in enumerate(columns)}.get("start")
        found[name] = columns, [row for row in rows if at is None or row[at] <= last]
    return found


@cache
def tables_named(name: str) -> Tables:
    tables = tables_of(source_of(name))
    return begun(tables, ENDED_EARLY[name]) if name in ENDED_EARLY else tables


@cache
def built(name: str) -> dict[str, Any]:
    """A trace without a recording: a decode as a graph, training with operators, its host alone."""
    if name == "built/decode.json":
        return build_serving.decode("vllm")
    with TemporaryDirectory() as folder:
        trace = read(operators_report(Path(folder) / "report.sqlite"))
    document = build_kineto.document(trace)
    if name == "built/host.json":
        document["traceEvents"] = [e for e in document["traceEvents"] if e["cat"] in HOST[:2]]
    return document


@cache
def events_named(name: str) -> dict[str, Any]:
    if name.startswith("built/"):
        found: dict[str, Any] = json.loads(json.dumps(built(name)), parse_float=Decimal)
        return found
    return events_of(source_of(name))


_KNOWN: dict[str, dict[str, Any]] = {}


def known(name: str, folder: Path) -> dict[str, Any]:
    """What is said of a report, which is analyzed once."""
    if name not in _KNOWN:
        is_trace = name.endswith(".json")
        path = folder / ("report_a.json" if is_trace else "report_a.sqlite")
        write: Any = written_events if is_trace else written
        content = events_named(name) if is_trace else tables_named(name)
        _KNOWN[name] = without_zero(said_of(write(content, path)))
    return _KNOWN[name]


def check(name: str, change: Change, folder: Path, zero_ns: int = 0) -> None:
    """Analyze a report that was changed; a trace of torch.profiler has a zero of its own."""
    expected = known(name, folder)
    if name.endswith(".json"):
        path = written_events(change(events_named(name)), folder / "report_b.json")
        zero_ns = 0
    else:
        path = written(change(tables_named(name)), folder / "report_b.sqlite")
    assert without_zero(said_of(path), zero_ns) == expected


QUICK = (
    "h200x2_2ranks_base_nsys2025.3.1.sqlite",  # MPI's collectives, a configuration mark
    "cpu_2ranks_nsys2022.4.2.sqlite",  # MPI as ranges
    "programs/halo.sqlite",  # MPI's messages
    "programs/gpt_compiled_shapes.sqlite",  # operators of two threads
    "programs/straggler_p2_b32.sqlite",  # NCCL
    "ladder/graph_1.sqlite",  # CUDA graphs
    "programs/jax_gpt.sqlite",
    "public/ddp_nsys2026.2.1.sqlite",
)
QUICK_TRACES = (
    "built/decode.json", "built/training.json", "built/host.json", "public/bert_h100.json",
    "public/host_only.json",
)  # fmt: skip


ALL = sorted(
    str(path.relative_to(folder)).removesuffix(".xz")
    for folder, pattern in (
        (PROFILES, "programs/*.sqlite.xz"), (PROFILES, "ladder/[gn]*_1.sqlite.xz"),
        (PROFILES, "cuda_aware/*_1.sqlite.xz"), (PROFILES, "*.sqlite*"),
        (REPORTS, "cpu_2ranks*.sqlite"),
    )
    for path in folder.glob(pattern)
)  # fmt: skip
ALL_TRACES = sorted(
    [f"programs/{path.stem}" for path in (PROFILES / "programs").glob("*.json.xz")]
    + [f"public/{name.removesuffix('.xz')}" for name in NAMES if name.endswith(".json.xz")]
)


def others(every: Sequence[str], quick: Sequence[str]) -> list[Any]:
    """The quick reports, and half of the others, which are slow."""
    rest = [name for name in every if name not in quick][::2]
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in rest)]


@pytest.mark.parametrize("name", others(ALL, QUICK))
def test_neither_rows_nor_ids_nor_the_zero_of_time_change_an_analysis(
    name: str, tmp_path: Path
) -> None:
    check(name, everything, tmp_path, LATER_NS)


@pytest.mark.parametrize("name", others(ALL_TRACES, QUICK_TRACES))
def test_neither_events_nor_ids_nor_the_zero_change_that_of_a_trace(
    name: str, tmp_path: Path
) -> None:
    check(name, events_everything, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", OF_TABLES)
@pytest.mark.parametrize("name", QUICK)
def test_a_report_in_another_order_says_the_same(name: str, how: str, tmp_path: Path) -> None:
    check(name, OF_TABLES[how], tmp_path, LATER_NS if how == "later" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", OF_EVENTS)
@pytest.mark.parametrize("name", QUICK_TRACES)
def test_a_trace_in_another_order_says_the_same(name: str, how: str, tmp_path: Path) -> None:
    check(name, OF_EVENTS[how], tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("programs/halo.sqlite", "parquet"),
        pytest.param("programs/gpt_compiled_shapes.sqlite", "arrow", marks=pytest.mark.slow),
        pytest.param("programs/straggler_p2_b32.sqlite", "parquet", marks=pytest.mark.slow),
        pytest.param("ladder/nccl_1.sqlite", "parquet", marks=pytest.mark.slow),
    ],
)
def test_tables_of_arrow_and_parquet_say_the_same(name: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = written(everything(tables_named(name)), tmp_path / "plain.sqlite")
    folder = write_folder(path, tmp_path / "report_b", kind)
    assert without_zero(said_of(folder), LATER_NS) == known(name, tmp_path)


# --- another unit of time


def doubled(tables: Tables) -> Tables:
    return in_time(tables, lambda ns: 2 * ns)


events_doubled = of_each(
    lambda e: e | {key: 2 * Decimal(e[key]) for key in ("ts", "dur") if key in e and "ts" in e}
)
OF_MACHINES = ("kernel_below_ceiling", "memory_bound", "low_precision_unused",
               "weights_not_quantized", "small_exchanges")  # fmt: skip
"""Findings against the rates of a device, which do not change with the unit of time."""


def lost(path: Path) -> tuple[dict[Any, float], dict[Any, float]]:
    """Sums of the steps, and what is said of causes and savings, in s."""
    run = analyze([read(path)], Options()).fitted
    sums: dict[Any, float] = {"batch": run.batch.median.value}
    said: dict[Any, float] = {}
    for f in run.findings:
        latency = "NCCL's all-reduce is mostly latency"  # of the link
        if f.kind not in OF_MACHINES and f.title != latency and f.kind != "shared_gpu":
            said[f.kind, untimed(f.title)] = f.saving_s or 0.0
    if run.steps is None:
        return sums, said
    facts = run.steps.facts
    for rank in run.steps.ranks:
        for name in ("step_s", "gpu_busy_s", "idle_s", "communication_s", "waiting_s", "copies_s"):
            sums[rank.rank, name] = getattr(rank, name) or 0.0
    said |= {("idle", c.rank, c.cause): c.seconds for c in run.steps.facts.idle}
    said |= {("free", kind): facts.step_s - s for kind, s in facts.free_s.items()}
    said |= {("small", s.range): s.saving_s for s in facts.small}
    said |= {("path", p.kind): p.seconds for p in facts.path}
    return sums, said | {"late": facts.straggler_saving_s, "sums": facts.bucket_saving_s}


@pytest.mark.parametrize("name", others([*ALL, *ALL_TRACES], [*QUICK, *QUICK_TRACES]))
def test_sums_double_and_causes_stay_where_all_times_are_doubled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the recorded step: what a profiler costs is a time of its own."""
    monkeypatch.setattr("perfmodel.timing.step_facts.without_recorder", lambda *_: None)
    if name.endswith(".json"):
        once = written_events(events_named(name), tmp_path / "a.json")
        twice = written_events(events_doubled(events_named(name)), tmp_path / "b.json")
    else:
        once = written(tables_named(name), tmp_path / "a.sqlite")
        twice = written(doubled(tables_named(name)), tmp_path / "b.sqlite")
    (sums, said), (sums_then, said_then) = lost(once), lost(twice)
    assert sums_then == pytest.approx({key: 2 * s for key, s in sums.items()}, rel=1e-12, abs=1e-15)
    near = 0.01 * sums_then["batch"]
    for key in {*said, *said_then}:
        assert abs(said_then.get(key, 0.0) - 2 * said.get(key, 0.0)) <= near, key


# --- several files


def by_process(tables: Tables) -> list[Tables]:
    """Split a report: each process with what happens at no time."""
    named = tables.get("MPI_RANKS", ([], []))
    tids, numbers = column(named, "globalTid"), column(named, "rank")
    ranks = {tid & PROCESS_BITS: rank for tid, rank in zip(tids, numbers, strict=True)}
    found = []
    for process in sorted(ranks or {tid & PROCESS_BITS for tid in thread_ids(tables)}):
        own: Tables = {}
        for name, (columns, rows) in tables.items():
            at = {known: i for i, (known, _) in enumerate(columns)}
            kept = rows
            if "globalTid" in at:
                kept = [r for r in rows if r[at["globalTid"]] & PROCESS_BITS == process]
            elif "globalPid" in at and name.startswith(EVENTS):
                kept = [r for r in rows if r[at["globalPid"]] == process]
            elif name == "MPI_COMMUNICATORS":
                kept = [r for r in rows if r[at["rank"]] == ranks[process]]
            elif name == "DIAGNOSTIC_EVENT" and found:
                kept = []
            own[name] = columns, kept
        found.append(own)
    return found


BY_REPORT = ("candidates", "diagnostics")
"""Each report finds its own steps, and has its own diagnostics."""


def together(said: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on whether ranks share a file: they have clocks of their own then."""
    kept = {key: value for key, value in said.items() if key not in (*BY_REPORT, "reports")}
    kept["warnings"] = sorted({*said["warnings"]})  # some are of each report
    kept["batch"].pop("confidence", None)
    if kept["skew"]:
        kept["skew"].pop("clock_bound_s")
    return kept


@pytest.mark.parametrize(
    "name",
    [
        "h200x2_2ranks_base_nsys2025.3.1.sqlite",
        "programs/halo.sqlite",
        "programs/straggler_p2_b32.sqlite",
        pytest.param("programs/gpt_ddp.sqlite", marks=pytest.mark.slow),
        pytest.param("ladder/nccl_1.sqlite", marks=pytest.mark.slow),
        pytest.param("ladder/graph_1.sqlite", marks=pytest.mark.slow),
        pytest.param("cpu_2ranks_nsys2023.4.4.sqlite", marks=pytest.mark.slow),
        pytest.param("campaign/h200x4_p4_host_float32_H512_B3000.sqlite", marks=pytest.mark.slow),
    ],
)
def test_a_file_per_rank_in_any_order_says_the_same(name: str, tmp_path: Path) -> None:
    expected = together(json.loads(json.dumps(known(name, tmp_path))))
    parts = by_process(tables_named(name))
    paths = [written(part, tmp_path / f"report_{i}.sqlite") for i, part in enumerate(parts)]
    for given in (paths, paths[::-1]):
        said = together(without_zero(said_of(*given)))
        said["label"] = expected["label"]
        said["fit"] = expected["fit"]
        assert said == expected


# --- twice as long


TIMED = (
    "batch", "ranges", "recorded_ranks", "collectives", "copies", "point_to_point",
    "ranges_by_rank", "levels", "layers", "skew",
)  # fmt: skip
"""Sections that hold what was measured."""
RECORDED = ("rank", "gpu", "batches", "recorded_step_s", "gpu_busy_s", "compute_s", "copies_s")
"""Of `ranks`; the others are without the recorder, whose cost does not double."""
FITTED = {"low_s", "high_s", "launch_low_s", "launch_high_s"}


def leaves(said: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(said, dict):
        for key, value in said.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(said, list):
        for value in said:
            yield from leaves(value, path)
    else:
        yield path, said


def twice(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Times are doubled, rates halved, all else is equal; intervals are found by iteration."""
    found = zip(leaves(before), leaves(after), strict=True)
    for (path, was), (there, now) in found:
        assert path == there
        if not isinstance(was, float) or was == now or was == 0:
            assert now == was, path
            continue
        name = path.rsplit(".", 1)[1]
        close = 1e-3 if name in FITTED else 1e-6
        assert now / was == pytest.approx(2, rel=close) or now / was == pytest.approx(
            0.5, rel=close
        ), (path, was, now)


@pytest.mark.parametrize(
    "name",
    [
        "h200x2_2ranks_base_nsys2025.3.1.sqlite",
        "programs/halo.sqlite",
        "programs/straggler_p2_b32.sqlite",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "programs/gpt_shapes.sqlite", "programs/jax_gpt.sqlite", "programs/item_b32.sqlite",
                "ladder/nccl_1.sqlite", "cpu_2ranks_nsys2024.2.3.sqlite",
            )
        ),
    ],
)  # fmt: skip
def test_times_that_are_doubled_double_every_sum(name: str, tmp_path: Path) -> None:
    """Why a GPU idles is not among these: launches of the hardware's speed tell causes apart."""
    path = written(in_time(tables_named(name), lambda ns: 2 * ns), tmp_path / "report_b.sqlite")
    before, after = known(name, tmp_path), said_of(path)
    for section in TIMED:
        twice({section: before[section]}, {section: after[section]})
    ranks = ([{key: row[key] for key in RECORDED} for row in d["ranks"]] for d in (before, after))
    for was, now in zip(*ranks, strict=True):
        twice(was, now)


def test_of_twice_as_long_messages_the_same_rank_is_late(tmp_path: Path) -> None:
    name = "programs/halo.sqlite"
    path = written(in_time(tables_named(name), lambda ns: 2 * ns), tmp_path / "report_b.sqlite")
    before, after = known(name, tmp_path)["findings"], said_of(path)["findings"]
    assert [(f["kind"], untimed(f["title"])) for f in before] == [
        (f["kind"], untimed(f["title"])) for f in after
    ]
    for was, now in zip(before, after, strict=True):
        assert now["saving_s"] == pytest.approx(2 * was["saving_s"], rel=0.01)


# --- ceilings


def above(said: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Operators that multiply faster than the machine can, and their phases."""
    rows = (*said["operators"], *said["operators_by_size"])
    return {
        (row["name"], row["phase"])
        for row in rows
        if row["bound"] == "compute" and (row["of_ceiling"] or 0.0) > 1.05
    }


def check_ceilings(said: Mapping[str, Any]) -> set[tuple[str, str]]:
    found = above(said)
    for name, phase in found:
        assert any(f"{name} ({phase}) runs at " in w for w in said["warnings"])
    return found


OF_OPERATORS = sorted(
    name
    for name in ALL
    if re.search(r"programs/.*(shapes|both|modules|tensor2|pipeline|video)\.", name)
)


@pytest.mark.parametrize(
    "name",
    [
        "programs/gpt_compiled_shapes.sqlite",
        *(pytest.param(one, marks=pytest.mark.slow) for one in OF_OPERATORS),
    ],
)
def test_no_operator_multiplies_faster_than_its_ceiling(name: str, tmp_path: Path) -> None:
    assert not check_ceilings(known(name, tmp_path))


def test_an_operator_above_its_ceiling_is_warned_of(tmp_path: Path) -> None:
    """Recorded in a quarter of the time, products are faster than the GPU."""
    tables = in_time(tables_named("programs/gpt_compiled_shapes.sqlite"), lambda ns: ns // 4)
    said = said_of(written(tables, tmp_path / "report_b.sqlite"))
    assert ("aten::addmm", "forward") in check_ceilings(said)


# --- calls that are two rows


def sendrecv_ring(folder: Path, turn: bool) -> Path:
    """Three ranks send to the right in every step; rank 2 is 3 ms late.

    As Nsight Systems records MPI_Sendrecv: the send takes no time, the receive the call's.
    """
    builder = ReportBuilder(world_size=3)
    ranks = [builder.thread(pid=100 + rank, rank=rank) for rank in range(3)]
    for step in range(6):
        at = (1 + 10 * step) * MS
        arrived = [at + MS, at + MS + 100, at + 4 * MS]
        for rank, thread in enumerate(ranks):
            thread.range(f"step {step}", at, at + 8 * MS)
            begin = arrived[rank]
            end = max(begin, arrived[(rank - 1) % 3]) + 10_000
            sent = {"remoteRank": (rank + 1) % 3, "tag": 5}
            received = {"remoteRank": (rank - 1) % 3, "tag": 5}
            rows = [(begin, sent), (end, received)]
            for until, how in reversed(rows) if turn else rows:
                thread.mpi("MPI_Sendrecv", begin, until, 8192, "p2p", **how)
    return builder.write(folder / f"ring_{turn}.sqlite")


def test_the_rows_of_a_call_that_sends_and_receives_are_told_apart(tmp_path: Path) -> None:
    found = []
    for turn in (False, True):
        run = analyze_reports([sendrecv_ring(tmp_path, turn)], Options(warmup=0)).fitted
        assert run.messages is not None
        assert run.messages.unmatched == 0
        pairs = {(p.sender, p.receiver): p.waiting_s for p in run.messages.pairs}
        assert pairs.keys() == {(0, 1), (1, 2), (2, 0)}
        assert pairs[2, 0] == pytest.approx(3e-3, rel=0.01)
        assert run.messages.ranks[0].rank == 2
        found.append((run.messages.pairs, run.messages.ranks, run.messages.chains))
    assert found[0] == found[1]


def test_operators_of_one_microsecond_nest_as_they_began(tmp_path: Path) -> None:
    """Times in whole µs do not say which of two operators is the parent; their numbers do."""

    def event(name: str, number: int) -> dict[str, Any]:
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 5, "dur": 1,
                "args": {"External id": number}}  # fmt: skip

    events = [event("aten::to", 1), event("aten::_to_copy", 2), event("aten::empty", 3)]
    for given in (events, events[::-1]):
        path = written_events({"traceEvents": given}, tmp_path / "trace.json")
        trace = read(path)
        named: Sequence[str] = [trace.range_labels[n] for n in trace.ranges.name.tolist()]
        assert named == ["aten::to", "aten::_to_copy", "aten::empty"]
