"""Reads folders of `nsys export --type arrowdir` and `parquetdir`: one file a table.

The tables and columns are those of the SQLite export, so that they become one. What neither holds
for perfmodel, names of constants and the launches' geometry, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.readers.write_sqlite import SqliteWriter, written

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES: Final = (".arrow", ".parquet")
_ROWS: Final = 1 << 16
_CONSTANTS: Final = "ENUM_"
_UNREAD_TABLES: Final = frozenset({
    "ANALYSIS_FILE", "COMPOSITE_EVENTS", "OSRT_CALLCHAINS", "PROFILER_OVERHEAD",
    "SAMPLING_CALLCHAINS",
})  # fmt: skip
_UNREAD_COLUMNS: Final = frozenset({
    "eventClass", "returnValue", "callchainId", "contextId", "greenContextId", "shortName",
    "mangledName", "launchType", "cacheConfig", "registersPerThread", "staticSharedMemory",
    "dynamicSharedMemory",
    "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted",
    "sharedMemoryLimitConfig", "uint64Value", "int64Value", "doubleValue", "uint32Value",
    "int32Value", "floatValue", "color", "category", "rangeId", "binaryData",
})  # fmt: skip


def is_folder(path: Path) -> bool:
    """Whether a path is a folder with tables of Arrow or Parquet."""
    try:
        return path.is_dir() and bool(_files(path))
    except (OSError, ValueError):  # which reading it says
        return False


def to_sqlite(path: Path, target: Path) -> None:
    """Convert a folder of tables to the SQLite export of the same report.

    Raises
    ------
    ReportError
        If pyarrow is missing, or a file is damaged.
    SchemaError
        If a column holds what no export of Nsight Systems does.
    """
    try:
        import pyarrow as pa
    except ImportError as error:  # as well where it is there, but for another NumPy
        raise ReportError(
            f"{path}: reading Arrow and Parquet needs the package pyarrow ({error}); install it "
            f"with: pip install 'perfmodel[arrow]', or export with: nsys export -q true -t sqlite"
        ) from None
    files = [
        f
        for f in _files(path)
        if not f.stem.startswith(_CONSTANTS) and f.stem not in _UNREAD_TABLES
    ]
    with written(target, path) as out:
        for file in files:
            try:
                _copy(file, out)
            except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                raise ReportError(
                    f"{file}: cannot be read ({' '.join(str(error).split())[:200]}): the export "
                    f"is damaged or unfinished; make it again with: nsys export -q true -t "
                    f"{'arrowdir' if file.suffix == SUFFIXES[0] else 'parquetdir'}"
                ) from error


def _files(folder: Path) -> list[Path]:
    """Return the files of tables, each table once."""
    found = sorted(f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file())
    return list({f.stem: f for f in found}.values())


def _copy(file: Path, out: SqliteWriter) -> None:
    """Copy one table, some rows at a time."""
    batches = _arrow(file) if file.suffix == SUFFIXES[0] else _parquet(file)
    schema = next(batches)
    if len({*schema.names}) < len(schema.names):
        repeated = max(schema.names, key=schema.names.count)
        raise SchemaError(
            f"{file}: expected columns with distinct names; got {repeated} more than once; this is "
            f"no export of Nsight Systems: make one with: nsys export -q true -t sqlite"
        )
    columns = {f.name: _sql_type(file, f) for f in schema if f.name not in _UNREAD_COLUMNS}
    if not columns:
        return
    out.create(file.stem, columns)
    for batch in batches:
        batch.validate(full=True)  # what points outside of the file would end the process
        read = [_values(batch.column(name)) for name in columns]
        out.add(file.stem, len(columns), zip(*read, strict=True))


def _arrow(file: Path) -> Iterator[Any]:
    """Yield the schema of a stream of Arrow's, or of a file of Feather's, and its batches."""
    import pyarrow as pa

    with pa.OSFile(str(file)) as source:  # mapped, a file that is cut meanwhile ends the process
        if source.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(source)
            yield reader.schema
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            return
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        yield stream.schema
        for batch in stream:
            yield from (batch.slice(i, _ROWS) for i in range(0, batch.num_rows, _ROWS))


def _parquet(file: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        yield opened.schema_arrow
        names: Sequence[str] = opened.schema_arrow.names
        wanted = [name for name in names if name not in _UNREAD_COLUMNS]
        yield from opened.iter_batches(_ROWS, columns=wanted)


def _sql_type(file: Path, field: pa.Field) -> str:
    import pyarrow as pa

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    for test, name in (
        (pa.types.is_integer, "INTEGER"), (pa.types.is_boolean, "INTEGER"),
        (pa.types.is_floating, "REAL"), (pa.types.is_string, "TEXT"),
        (pa.types.is_large_string, "TEXT"), (pa.types.is_binary, "BLOB"),
        (pa.types.is_large_binary, "BLOB"), (pa.types.is_null, "TEXT"),
    ):  # fmt: skip
        if test(kind):
            return name
    raise SchemaError(
        f"{file}: column {field.name}: expected numbers or text; got {field.type}; this is no "
        f"export of Nsight Systems: make one with: nsys export -q true -t sqlite"
    )


def _values(column: Any) -> list[Any]:
    """Return Python's values; unsigned numbers of 64 bits as SQLite has them, with a sign."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_uint64(column.type):
        column = column.view(pa.int64())
    found: list[Any] = column.to_pylist()
    return found
