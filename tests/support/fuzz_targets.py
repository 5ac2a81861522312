"""What the fuzzers drive: a function for each thing that perfmodel reads, and its first inputs.

A target takes bytes and returns nothing. `PerfmodelError` is a right answer to any input; whatever
else is raised is a bug, and so is a disagreement of two ways to read one report.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import lzma
import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.robustness.reading import numbers
from perfmodel.analysis.analyze import analyze
from perfmodel.base import escape, units
from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.gpu_samples import read_series
from perfmodel.machines.measure import measurement
from perfmodel.programs.program import Options
from perfmodel.readers import ncu, nsys, read
from perfmodel.readers.run_records import read_trainings
from perfmodel.render import summary
from perfmodel.render.analysis_json import analysis_document
from perfmodel.studies.analysis.measure import launch_of_record
from perfmodel.studies.models import model as model_file
from perfmodel.timing.nsys_stats.collect import REPORTS, collect, compute
from perfmodel.timing.nsys_stats.tables import to_csv, to_table
from perfmodel.workloads import spec
from perfmodel.workloads.expression import Expression
from support import build_kineto
from support.build_operators import operators_report
from support.build_others import rocpd, small_xplane
from support.build_stacks import stacks_report
from support.fuzz_formats import FORMAT_SEEDS, FORMAT_TARGETS
from support.fuzz_onnx import ONNX_SEEDS, onnx_graph
from support.fuzz_options import OPTION_SEEDS, options
from support.fuzz_programs import PROGRAM_TARGETS, SEEDS

Target = Callable[[bytes], None]
WORK: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
ODD: Final = (
    None, 0, 1, -1, 2, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, -(2**63),
    -(2**62) + 1, 0.5, -1e300, float("inf"), "", "x", "\0", "\x1b[31m", "{" * 3000, "9" * 400,
    b"", b"\xff\xfe", "MPI_Allreduce", "batch iteration", "MPI Rank 3", "[" * 100_000,
)  # fmt: skip
"""Values that a cell of a report gets, whatever its column."""

JSON_ODD: Final = (
    *(value for value in ODD if not isinstance(value, bytes)), [], {}, [[]], [1], [[1, 2], [3]],
    [[[2, 3]], []], [-1], ["x"], True, "allreduce", "_allgather_base", "Float", "kernel", "cpu_op",
    "gpu_memcpy", "cuda_runtime", "X", "i", "aten::mm", "Memcpy HtoD (Pageable -> Device)", 2**70,
    1e30, 4471160574158.131, 0.001,
)  # fmt: skip
"""Values that a key of a trace's event gets."""

_FILE: Final = WORK / f"perfmodel-fuzz-{os.getpid()}"


def _file(data: bytes, suffix: str) -> Path:
    path = _FILE.with_suffix(suffix)
    path.write_bytes(data)
    return path


@functools.cache
def small_report() -> bytes:
    """Return a built report of one training (D=9, H=6, C=2, B=20): few rows, pages of 512 bytes."""
    return lzma.decompress(Path(__file__).with_name("small_report.sqlite.xz").read_bytes())


def sqlite_bytes(data: bytes) -> None:
    """Patch bytes of a report: three bytes say where, one by what it is xored."""
    report = bytearray(small_report())
    for i in range(0, len(data) - 3, 4):
        report[int.from_bytes(data[i : i + 3], "big") % len(report)] ^= data[i + 3]
    path = _file(report, ".sqlite")
    said = [_said(path, fast=fast) for fast in (True, False)]
    if None not in said and said[0] != said[1]:
        raise AssertionError("both ways of reading gave numbers, and not the same")
    found = collect(path, list(REPORTS))
    for name, whole in zip(REPORTS, said[0] or (), strict=False):
        counted = found[name]
        if not isinstance(counted, PerfmodelError) and to_csv(to_table(name, counted)) != whole:
            raise AssertionError(f"{name}: streamed and whole are not the same")


def _said(path: Path, *, fast: bool) -> list[Any] | None:
    try:
        return numbers(nsys.read_sqlite(path, fast=fast))
    except PerfmodelError:
        return None


@functools.cache
def _loose_tables() -> tuple[bytes, tuple[tuple[str, str, int], ...]]:
    return loosened(small_report())


def loosened(report: bytes) -> tuple[bytes, tuple[tuple[str, str, int], ...]]:
    """Return a report whose columns take anything, and its cells: table, column, rows."""
    path = _file(report, ".loose")
    with closing(sqlite3.connect(path)) as db:
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = []
        for name in names:
            for n in (f"CREATE TABLE t AS SELECT * FROM {name}", f"DROP TABLE {name}"):
                db.execute(n)
            columns = [f'"{row[1]}"' for row in db.execute("PRAGMA table_info(t)")]
            db.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            db.execute(f"INSERT INTO {name} SELECT * FROM t")
            db.execute("DROP TABLE t")
            (rows,) = db.execute(f"SELECT count(*) FROM {name}").fetchone()
            cells += [(name, column, rows) for column in columns if rows and "ENUM" not in name]
        db.commit()
    return path.read_bytes(), tuple(cells)


def cells(data: bytes) -> None:
    """Put odd values into cells of a report, then do all that `analyze` and `stats` do."""
    path = _odd_cells(data, *_loose_tables())
    trace = nsys.read_sqlite(path)
    for name in REPORTS:
        try:
            to_csv(compute(name, trace)).encode()
        except PerfmodelError:
            continue
    analysis = analyze([trace], Options(values={"D": 9, "H": 6}))
    json.dumps(analysis_document(analysis), allow_nan=False)
    if escape._UNSAFE.search(summary.result(analysis).render(width=120).replace("\n", "")):
        raise AssertionError("the summary holds what a terminal obeys")


def _odd_cells(data: bytes, report: bytes, found: tuple[tuple[str, str, int], ...]) -> Path:
    """Put odd values into cells: five bytes say where, and which."""
    path = _file(report, ".sqlite")
    with closing(sqlite3.connect(path)) as db:
        for i in range(0, len(data) - 4, 5):
            table, column, rows = found[int.from_bytes(data[i : i + 2], "big") % len(found)]
            value, row = ODD[data[i + 2] % len(ODD)], data[i + 3] * rows // 256 + 1
            where = "" if data[i + 4] % 4 == 0 else f" WHERE rowid = {row}"
            db.execute(f"UPDATE {table} SET {column} = ?{where}", [value])
        db.commit()
    return path


@functools.cache
def _loose_rocpd() -> tuple[bytes, tuple[tuple[str, str, int], ...]]:
    path = _file(b"", ".db")
    return loosened(rocpd(path).read_bytes())


def rocpd_cells(data: bytes) -> None:
    """Put odd values into a recording of rocprofv3."""
    _analyzed(_odd_cells(data, *_loose_rocpd()))


@functools.cache
def _loose_stacks() -> tuple[bytes, tuple[tuple[str, str, int], ...]]:
    path = _file(b"", ".sqlite")
    path.unlink()
    return loosened(stacks_report(path).read_bytes())


def stack_cells(data: bytes) -> None:
    """Put odd values into a report with call chains and stacks of Python."""
    _analyzed(_odd_cells(data, *_loose_stacks()))


def xplane_bytes(data: bytes) -> None:
    """Read an XPlane file, and analyze it."""
    _analyzed(_file(data, ".xplane.pb"))


def _analyzed(path: Path) -> None:
    analysis = analyze([read(path)], Options())
    json.dumps(analysis_document(analysis), allow_nan=False)
    if escape._UNSAFE.search(summary.result(analysis).render(width=120).replace("\n", "")):
        raise AssertionError("the summary holds what a terminal obeys")


def kineto_json(data: bytes) -> None:
    """Read a trace of torch.profiler, and analyze it."""
    trace = read(_file(data, ".json"))
    analysis = analyze([trace], Options())
    json.dumps(analysis_document(analysis), allow_nan=False)


def kineto_values(data: bytes) -> None:
    """Put odd values into a trace of torch.profiler: four bytes say where, and which."""
    document = json.loads(_small_trace())
    events = document["traceEvents"]
    for i in range(0, len(data) - 3, 4):
        where = events[int.from_bytes(data[i : i + 2], "big") % (len(events) + 1) - 1]
        for holder in (document, where, where["args"])[data[i + 2] % 3 :][:1]:
            if isinstance(holder, dict) and holder:
                keys = sorted(set(holder) - {"traceEvents"})
                holder[keys[data[i + 2] // 3 % len(keys)]] = JSON_ODD[data[i + 3] % len(JSON_ODD)]
    kineto_json(json.dumps(document).encode("utf-8", "surrogatepass"))


def ncu_csv(data: bytes) -> None:
    """Read what ncu may have printed."""
    ncu.parse(data.decode("utf-8", "replace"))


def workload_toml(data: bytes) -> None:
    """Read a workload, and compute every formula of it."""
    workload = spec.load(_file(data, ".toml"))
    values = dict.fromkeys(workload.symbols, 7)
    for work in workload.ranges.values():
        for expression in (getattr(work, field.name) for field in dataclasses.fields(work)):
            try:
                expression.evaluate(values)
            except PerfmodelError:
                continue


def formula(data: bytes) -> None:
    """Check one formula, compute it, and take its canonical spelling back."""
    symbols = ("B", "D", "H", "p")
    parsed = Expression.parse(data.decode("utf-8", "replace"), symbols)
    values = {"B": 3000, "D": 784, "H": 512, "p": 2}
    again = Expression.parse(parsed.text, symbols)
    if again.evaluate(values) != parsed.evaluate(values):
        raise AssertionError("the canonical spelling means another formula")


def model_json(data: bytes) -> None:
    """Read a calibrated model."""
    model_file.load(_file(data, ".json"))


def machine_toml(data: bytes) -> None:
    """Read a machine."""
    measurement.choose(str(_file(data, ".toml")))


def records(data: bytes) -> None:
    """Read the trainer's records and a series of samples, and text on its way out."""
    path = _file(data, ".json")
    for reads in (launch_of_record, lambda p: read_trainings([p]), read_series):
        try:
            reads(path)
        except PerfmodelError:
            continue
    text = data.decode("utf-8", "surrogateescape")
    shown = escape.printable(text)
    if escape._UNSAFE.search(shown + escape.escape_markdown(text)):
        raise AssertionError("a control character came through")
    escape.escape_latex(text)
    next(csv.reader(io.StringIO(shown)), None)
    with suppress(PerfmodelError):
        units.parse_si(text, "B/s")


TARGETS: Final[dict[str, Target]] = {
    t.__name__: t
    for t in (sqlite_bytes, cells, kineto_json, kineto_values, ncu_csv, workload_toml, formula,
              model_json, machine_toml, records, rocpd_cells, stack_cells,
              xplane_bytes, *PROGRAM_TARGETS, options, onnx_graph, *FORMAT_TARGETS)
}  # fmt: skip


def run(name: str, data: bytes) -> None:
    """Give one input to a target; only perfmodel's own errors are passed over."""
    with warnings.catch_warnings():
        for kind in (RuntimeWarning, SyntaxWarning):  # a user would see it on the terminal
            warnings.simplefilter("error", kind)
        try:
            TARGETS[name](data)
        except PerfmodelError as error:
            message = str(error)
            if not message or len(message) > 5000:
                raise AssertionError(f"an error of {len(message)} characters") from error


def _head(path: Path) -> bytes:
    """Return how a file begins, a packed one unpacked."""
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data)[:60_000]


def seeds(name: str) -> list[bytes]:
    """Return what a fuzzer starts from: real files, and what has been found with it."""
    results, golden = folders.RESULTS, folders.ROOT / "tests" / "golden"
    files: dict[str, list[Path]] = {
        "ncu_csv": sorted((golden / "ncu").glob("*.csv*")),
        "workload_toml": sorted((folders.ROOT / "perfmodel/workloads/examples").glob("*.toml")),
        "machine_toml": [*sorted((folders.ROOT / "perfmodel/machines").glob("*.toml"))],
        "model_json": [results / "predict_model.json"],
        "records": [results / "tta" / "base.json", results / "utilization" / "document.csv"],
    }
    found = [_head(path) for path in files.get(name, [])]
    found += {
        "formula": [b"2*D*H*ceil(B/p)", b"max(B, D)**3 // -min(H, 2) + sqrt(log2(B)) * 1e-3"],
        "model_json": [_small_model()],
        "sqlite_bytes": [bytes(8), b"\0\0\x12\x05", bytes(range(64))],
        "cells": [bytes(10), bytes(range(100))],
        "kineto_json": [_small_trace()],
        "rocpd_cells": [bytes(10), bytes(range(100))],
        "stack_cells": [bytes(10), bytes(range(100))],
        "xplane_bytes": [small_xplane()],
        "kineto_values": [bytes(8), bytes(range(100))],
    }.get(name, (SEEDS | OPTION_SEEDS | ONNX_SEEDS | FORMAT_SEEDS).get(name, []))
    return found + sorted(
        path.read_bytes() for path in (folders.ROOT / "tests" / "fuzz").glob(f"{name}-*")
    )


@functools.cache
def _small_trace() -> bytes:
    """Return a trace of operators, their kernels and a collective."""
    path = _file(b"", ".sqlite")
    path.unlink()
    document = build_kineto.document(read(operators_report(path)), world=2)
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8}
    document["traceEvents"][0]["args"] |= said
    return json.dumps(document, separators=(",", ":")).encode()


def _small_model() -> bytes:
    """Return the shipped model with one term and one run, so that most bytes matter."""
    model = json.loads((folders.RESULTS / "predict_model.json").read_text())
    key = min(model["terms"], key=lambda k: len(json.dumps(model["terms"][k])))
    model |= {"terms": {key: model["terms"][key]}, "runs": model["runs"][:1]}
    model["gemms_alone"] = None
    return json.dumps(model).encode()
