"""Fuzz targets for Arrow and Parquet folders, kept results, and predictions of operators.

Each takes bytes; the same bytes are the same case. See `support.fuzz_targets`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders
from perfmodel.analysis.analyze import analyze
from perfmodel.base import cache
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.analysis_json import analysis_document
from support.build_columnar import write_folder
from support.build_operators import operators_report
from support.fuzz_draws import Draws, drawn
from support.fuzz_options import NUMBERS, check_command

_TABLES: Final = (
    "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds",
    "MPI_P2P_EVENTS", "TARGET_INFO_GPU", "MPI_RANKS",
)  # fmt: skip


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="perfmodel-fuzz-formats-"))


@functools.cache
def _written(kind: str) -> tuple[tuple[str, bytes], ...]:
    """Name and content of every table of a small report, as `kind`."""
    report = operators_report(_folder() / f"{kind}.sqlite")
    files = sorted(write_folder(report, _folder() / kind, kind).iterdir())
    return tuple((file.name, file.read_bytes()) for file in files)


def _copied(kind: str) -> Path:
    folder = _folder() / "report"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in _written(kind):
        (folder / name).write_bytes(data)
    return folder


def _analyzed(path: Path) -> None:
    analysis = analyze([read(path)], Options())
    json.dumps(analysis_document(analysis), allow_nan=False)


def columnar_bytes(data: bytes) -> None:
    """Patch bytes of one table's file: one byte says which, then three say where, and one how."""
    kind = ("arrow", "parquet")[data[0] % 2] if data else "arrow"
    folder, tables = _copied(kind), [name for name, _ in _written(kind)]
    file = folder / tables[data[1] % len(tables) if len(data) > 1 else 0]
    content = bytearray(file.read_bytes())
    for i in range(2, len(data) - 3, 4):
        content[int.from_bytes(data[i : i + 3], "big") % len(content)] ^= data[i + 3]
    if data[-1:] == b"\xff":
        del content[len(content) * data[0] // 256 :]
    file.write_bytes(content)
    _analyzed(folder)


def columnar_tables(data: bytes) -> None:
    """Change tables' columns, types and files as an export of another program may have them."""
    draw = Draws(data)
    kind = draw.choice(("arrow", "parquet"))
    folder = _copied(kind)
    for _ in range(draw.choice((1, 1, 2, 3))):
        file = folder / f"{draw.choice(_TABLES)}.{kind}"
        if file.is_file() and not file.is_symlink():
            draw.choice((_changed_file, _changed_column, _changed_column))(file, draw)
    _analyzed(folder)


def _changed_file(file: Path, draw: Draws) -> None:
    content, what = file.read_bytes(), draw.randrange(9)
    other = file.with_suffix({".arrow": ".parquet", ".parquet": ".arrow"}[file.suffix])
    file.unlink()
    if what == 1:
        file.symlink_to(draw.choice((file, "/dev/zero", "/nothing", "/proc/self/mem", ".")))
    elif what == 2:
        file.mkdir()
    elif what == 3:
        os.mkfifo(file)
    elif what == 4:
        other.write_bytes(content)
    elif what == 5:
        file.touch()
    elif what == 6:
        file.write_bytes(content[: len(content) * draw.randrange(256) // 256])
    elif what == 7:
        file.write_bytes(draw.choice((b"ARROW1", b"PAR1", b"\xff\xff\xff\xff", b"\0" * 99)) * 9)
    elif what == 8:
        (file.with_name(draw.choice(("a\x1b[2J", "x'); DROP", "é", "sqlite_x")) + file.suffix)
         ).write_bytes(content)  # fmt: skip


def _stream(pa: Any, file: Path) -> Any:
    with pa.ipc.open_stream(pa.py_buffer(file.read_bytes())) as stream:
        return stream.read_all()


def _changed_column(file: Path, draw: Draws) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(file) if file.suffix == ".parquet" else _stream(pa, file)
    except (pa.ArrowException, OSError):  # changed before
        return
    if not table.num_columns:
        return
    at, rows = draw.randrange(table.num_columns), table.num_rows
    name = table.column_names[at]
    odd = draw.choice((
        None, 0, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, float("nan"), float("inf"), "", "\0",
        "\x1b[31m", "{" * 3000, "9" * 400, b"\xff", [1], {"a": 1}, True,
    ))  # fmt: skip
    values = [odd if draw.random() < 0.5 else None for _ in range(rows)]
    column: Any = pa.array([odd] * rows if draw.random() < 0.7 else values)
    if draw.random() < 0.2 and pa.types.is_integer(column.type):
        types = (pa.uint64(), pa.int8(), pa.float16(), pa.decimal128(38), pa.timestamp("ns"))
        try:
            column = column.cast(draw.choice(types))
        except (pa.ArrowException, ValueError):
            column = pa.nulls(rows)
    elif draw.random() < 0.2:
        column = pa.array([odd] * rows, pa.string()) if isinstance(odd, str) else pa.nulls(rows)
        column = column.dictionary_encode() if isinstance(odd, str) else column
    made = draw.choice((
        lambda: table.set_column(at, name, column), lambda: table.set_column(at, name, column),
        lambda: table.remove_column(at), lambda: table.append_column(name, column),
        lambda: table.append_column("odd\x1b[2J\"'", column), lambda: table.slice(0, 0),
    ))()  # fmt: skip
    if file.suffix == ".parquet":
        parquet.write_table(made, file)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_table(made)


def kept_results(data: bytes) -> None:
    """Patch a kept result: it is absent, or what it was; any document with its checksum is read."""
    kept = cache.Cache(_folder() / "kept")
    numbers = (1.5, -2.0, 0.0)
    kept.put("whole", {"a": numbers, "b": np.arange(5), "c": Path("x"), "d": [None, "é"]})
    whole = (kept.folder / "whole.perfmodel").read_bytes()
    patched = bytearray(whole)
    for i in range(0, len(data) - 2, 3):
        patched[int.from_bytes(data[i : i + 2], "big") % len(patched)] ^= data[i + 2]
    (kept.folder / "patched.perfmodel").write_bytes(patched)
    found = kept.get("patched")
    if bytes(patched) != whole and found is not None:
        raise AssertionError("a damaged result was taken")
    text = b'{"c":"perfmodel.' + data if data[:1] == b"c" else data
    held = len(text).to_bytes(8, "little") + text
    checked = cache._MAGIC + cache._digest(held, cache.secret()) + held
    (kept.folder / "made.perfmodel").write_bytes(checked)
    kept.get("made")


def operator_prediction(data: bytes) -> None:
    """Predict a GPT by one or two shipped reports, of drawn sizes."""
    draw = Draws(data)
    names = ("gpt_shapes", "gpt_modules", "gpt_compiled_shapes")
    reports = [folders.plain(folders.PROGRAMS / f"{name}.sqlite") for name in names]
    given = ["predict", str(draw.choice(reports))]
    if draw.random() < 0.3:
        given.append(str(draw.choice(reports)))
    plain = {"n_layer": "2", "d_model": "256", "heads": "4", "batch": "4", "seq": "128"}
    for name, value in {**plain, "vocab": "4096"}.items():
        if draw.random() < 0.95:
            odd = draw.choice((*NUMBERS, "1,2", "n_layer", "2**9", "1e3", "="))
            given += ["--set", f"{name}={odd if draw.random() < 0.25 else value}"]
    if draw.random() < 0.3:
        given += [
            "--set",
            draw.choice(("p=2", "p=0", "x=1", "=", "seq=1", "n_layer==3", "\x1b[2J")),
        ]
    if draw.random() < 0.5:
        given += ["-p", draw.choice(("1", "2", "8", "4096", "0", "-1", "3"))]
    if draw.random() < 0.3:
        given += ["--machine", draw.choice(("h100", "h200", "t4", "nothing"))]
    given += ["--format", draw.choice(("text", "csv", "json", "jsonl", "markdown", "latex"))]
    check_command(given)


FORMAT_SEEDS: Final[dict[str, list[bytes]]] = {
    "columnar_bytes": [bytes(8), b"\1\3\0\1\2\3", bytes(range(60)), b"\x80\2\xff"],
    "columnar_tables": drawn(20),
    "kept_results": [
        bytes(3), b"\0\x20\1", b'{"a":["<i8",3]}', b'{"T":[{"d":[[1,2]]},{"p":"x"}]}',
        b'c.base.gpu:Gpu","f":{}}', b'{"s":[1,"a",null]}', b"[" * 3000,
    ],
    "operator_prediction": drawn(20),
}  # fmt: skip
FORMAT_TARGETS: Final[tuple[Callable[[bytes], None], ...]] = (
    columnar_bytes, columnar_tables, kept_results, operator_prediction,
)  # fmt: skip
