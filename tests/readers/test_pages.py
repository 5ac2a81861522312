"""The page reader gives the arrays that sqlite3 gives, or refuses; whatever the file holds."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.folders import BASE
from perfmodel.readers.pages import PADDING, PageFile, Unsupported, varints
from perfmodel.readers.trace import NULL
from support.foreign_reports import SHARED, SHIPPED

INT64 = (-(2**63), 2**63 - 1)
PAGE_SIZES = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
OTHERS = sorted(Path(os.environ.get("PERFMODEL_REPORTS", os.devnull)).glob("*.sqlite"))
REPORTS = [*SHIPPED, *OTHERS]

bounded = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def connect(path: Path) -> Any:
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return closing(connection)


def tables(path: Path) -> dict[str, tuple[int, list[str], int | None]]:
    """Root page, columns and position of the rowid alias of every ordinary table."""
    found = {}
    with connect(path) as db:
        schema = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
        for name, root in db.execute(schema).fetchall():
            info = db.execute(f'PRAGMA table_info("{name}")').fetchall()
            keys = [row[0] for row in info if row[5]]
            alias = keys[0] if len(keys) == 1 and info[keys[0]][2] == "INTEGER" else None
            found[name] = (root, [row[1] for row in info], alias)
    return found


def stored(path: Path, table: str, column: str) -> list[Any]:
    """Values as sqlite3 gives them, in rowid order: an index would give them in its own."""
    with connect(path) as db:
        return [v for (v,) in db.execute(f'SELECT "{column}" FROM "{table}" NOT INDEXED')]


def as_integers(values: list[Any]) -> list[int]:
    return [NULL if value is None else value for value in values]


def as_codes(values: list[Any]) -> tuple[list[int], list[str]]:
    codes: dict[str, int] = {}
    return [-1 if v is None else codes.setdefault(v, len(codes)) for v in values], list(codes)


def check(path: Path) -> tuple[int, int]:
    """Compare every column of every table with sqlite3; count integer and text columns."""
    integers = texts = 0
    with PageFile(path) as pages:
        for table, (root, columns, alias) in tables(path).items():
            for position, name in enumerate(columns):
                values = stored(path, table, name)
                kinds = {type(value) for value in values} - {type(None)}
                if kinds <= {int}:
                    (array,) = pages.read(root, [position], rowid_alias=alias)
                    assert array.dtype == np.int64
                    assert array.tolist() == as_integers(values)
                    integers += 1
                else:
                    with pytest.raises(Unsupported, match="more than integers"):
                        pages.read(root, [position], rowid_alias=alias)
                if kinds <= {str} and position != alias:
                    codes, strings, _ = pages.read_text(root, position)
                    assert codes.dtype == np.int32
                    assert (codes.tolist(), strings) == as_codes(values)
                    texts += 1
                elif position != alias:
                    with pytest.raises(Unsupported, match="more than texts"):
                        pages.read_text(root, position)
    return integers, texts


def build(path: Path, *statements: str, page_size: int = 4096, **pragmas: Any) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        for name, value in {"page_size": page_size, **pragmas}.items():
            db.execute(f"PRAGMA {name} = {value}").fetchall()
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def patched(path: Path, position: int, new: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[position : position + len(new)] = new
    path.write_bytes(data)
    return path


NUMBERS = """
    INSERT INTO t WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {})
    SELECT {} FROM n
"""


@pytest.mark.parametrize("report", [SHARED, BASE, *OTHERS], ids=lambda path: path.stem)
def test_every_column_of_a_real_report(report: Path) -> None:
    integers, texts = check(report)
    assert integers >= 60
    assert texts >= 60


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_several_columns_in_any_order(report: Path) -> None:
    wanted = ["textId", "start", "globalTid", "end", "start"]
    root, columns, alias = tables(report)["NVTX_EVENTS"]
    with PageFile(report) as pages:
        arrays = pages.read(root, [columns.index(c) for c in wanted], rowid_alias=alias)
    for column, array in zip(wanted, arrays, strict=True):
        assert array.tolist() == as_integers(stored(report, "NVTX_EVENTS", column))


integer = st.none() | st.integers(*INT64) | st.integers(-129, 128)
length = st.integers(0, 90) | st.integers(0, 20_000)
text = st.none() | st.builds(lambda n, c: (c * n)[:n], length, st.text(min_size=1, max_size=9))
blob = st.none() | st.builds(lambda n, c: c * n, length, st.binary(min_size=1, max_size=3))
anything = integer | text | blob | st.floats(allow_nan=False)
row = st.tuples(integer, anything, integer, text, blob, integer)


@pytest.mark.slow
@bounded
@given(
    rows=st.lists(row, max_size=30),
    later=st.lists(row, max_size=10),
    deleted=st.sets(st.integers(0, 30)),
    key=st.sampled_from(["INTEGER", "INTEGER PRIMARY KEY"]),
    page_size=st.sampled_from(PAGE_SIZES),
    auto_vacuum=st.sampled_from([0, 1, 2]),
)
def test_any_table(
    tmp_path: Path,
    rows: list[Any],
    later: list[Any],
    deleted: set[int],
    key: str,
    page_size: int,
    auto_vacuum: int,
) -> None:
    create = f"CREATE TABLE t (k {key}, x, a INTEGER, s TEXT, b BLOB, c INTEGER)"
    path = build(tmp_path / "t", create, page_size=page_size, auto_vacuum=auto_vacuum)
    insert = "INSERT OR REPLACE INTO t VALUES (?, ?, ?, ?, ?, ?)"
    with closing(sqlite3.connect(path)) as db:
        db.executemany(insert, rows)
        keys = [key for (key,) in db.execute("SELECT rowid FROM t")]
        gone = [(key,) for nth, key in enumerate(keys) if nth in deleted]
        db.executemany("DELETE FROM t WHERE rowid = ?", gone)
        db.executemany(insert, later)
        db.commit()
    check(path)


def many_rows(path: Path, page_size: int, count: int) -> Path:
    """Scattered rowids, texts that repeat or do not, long ones that overflow, deleted rows."""
    draw = random.Random(page_size)
    names = ["", "x", "eight by", "h\u00e9llo", *("name" * n for n in (3, 15, 16, 17, 18, 400))]
    create = "CREATE TABLE t (k INTEGER PRIMARY KEY, b BLOB, a INTEGER, s TEXT, c INTEGER)"
    build(path, create, page_size=page_size)
    rows = (
        (
            draw.choice([i, 2**40 + i, -(2**60) - i]),
            bytes(draw.randrange(80)),
            draw.getrandbits(draw.randrange(1, 64)) * draw.choice([1, -1]),
            draw.choice([None, f"unique {i}", f"a longer one that shares {i}", *names]),
            draw.choice([None, 0, 1, i]),
        )
        for i in range(count)
    )
    with closing(sqlite3.connect(path)) as db:
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        db.execute("DELETE FROM t WHERE k % 7 = 3")
        db.commit()
    return path


@pytest.mark.parametrize("chunk", [1 << 14, 1 << 20])
@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: int, chunk: int
) -> None:
    monkeypatch.setattr("perfmodel.readers.pages._CHUNK", chunk)
    assert check(many_rows(tmp_path / "t", page_size, 2_500)) == (3, 1)


def test_reserved_bytes_at_the_end_of_every_page(tmp_path: Path) -> None:
    path = build(tmp_path / "t", "CREATE TABLE u (a)", "DROP TABLE u", "VACUUM", page_size=512)
    patched(path, 20, b"\x20")
    patched(path, 105, (512 - 32).to_bytes(2, "big"))  # where the content of page 1 starts
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (a INTEGER, s TEXT, b INTEGER)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", [(i, "s" * i, -i) for i in range(1500)])
        db.commit()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert path.read_bytes()[20] == 32
    assert check(path) == (2, 1)


def test_empty_table_and_no_columns(tmp_path: Path) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a INTEGER, s TEXT)")
    with PageFile(path) as pages:
        assert [len(array) for array in pages.read(2, [0, 1])] == [0, 0]
        assert pages.read(2, []) == []
        codes, strings, _ = pages.read_text(2, 1)
    assert (len(codes), strings) == (0, [])


def test_bad_utf8_that_decodes_alike_shares_a_code(tmp_path: Path) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (s TEXT)")
    with closing(sqlite3.connect(path)) as db:
        rows = [(b"a\xff",), (b"b",), (b"a\xfe",), (None,), (b"a\0z",)]
        db.executemany("INSERT INTO t VALUES (CAST(? AS TEXT))", rows)
        db.commit()
    check(path)
    with PageFile(path) as pages:
        codes, strings, _ = pages.read_text(2, 0)
    assert (codes.tolist(), strings) == ([0, 1, 0, -1, 2], ["a\ufffd", "b", "a\0z"])


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (7)")
    pages = PageFile(path)
    (array,) = pages.read(2, [0])
    pages.close()
    path.unlink()
    assert array.tolist() == [7]
    with pytest.raises(Unsupported):
        pages.read(2, [0])


def test_varints_of_every_length() -> None:
    # Worked by hand: 7 bits a byte, high bit set on all but the last, 8 bits in the ninth.
    cases = {
        b"\x00": 0,
        b"\x7f": 127,
        b"\x81\x00": 128,
        b"\xff\x7f": 16383,
        b"\x81\x80\x00": 16384,
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x05": 5,
        b"\xff" * 8 + b"\x7f": -129,
        b"\xff" * 9: -1,
        b"\xbf" + b"\xff" * 8: 2**63 - 1,
        b"\xc0" + b"\x80" * 7 + b"\x00": -(2**63),
    }
    data = np.frombuffer(b"".join(cases) + bytes(PADDING), np.uint8)
    starts = np.cumsum([0, *map(len, cases)])
    values, after = varints(data, starts[:-1])
    assert values.tolist() == list(cases.values())
    assert after.tolist() == starts[1:].tolist()


@pytest.mark.parametrize(
    ("value", "column", "message"),
    [
        ("1.5", 0, "more than integers"),
        ("'text'", 0, "more than integers"),
        ("x'00'", 0, "more than integers"),
        ("zeroblob(9000)", 0, "more than integers"),
        ("1", 1, "too few columns"),
        ("1", 7, "too few columns"),
    ],
)
def test_refused_columns(tmp_path: Path, value: str, column: int, message: str) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a)", NUMBERS.format(999, "i"))
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"INSERT INTO t VALUES ({value})")
        db.execute("ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 5")
        db.execute("INSERT INTO t VALUES (3, 4)")
        db.commit()
    with PageFile(path) as pages, pytest.raises(Unsupported, match=message):
        pages.read(2, [column])


def test_refused_tables(tmp_path: Path) -> None:
    path = build(
        tmp_path / "t",
        "CREATE TABLE t (k TEXT PRIMARY KEY, a INTEGER) WITHOUT ROWID",
        "CREATE TABLE u (k INTEGER PRIMARY KEY DESC)",
        "INSERT INTO t VALUES ('x', 1)",
        "INSERT INTO u VALUES (5)",
    )
    with PageFile(path) as pages:
        with pytest.raises(Unsupported, match="another kind"):
            pages.read(tables(path)["t"][0], [1])
        with pytest.raises(Unsupported, match="no rowid"):  # a quirk that SQLite documents
            pages.read(tables(path)["u"][0], [0], rowid_alias=0)
        for root in (-1, 0, 1, 10**9):
            with pytest.raises(Unsupported, match="outside"):
                pages.read(root, [0])


def journal_beside(path: Path) -> None:
    Path(f"{path}-journal").write_bytes(b"x")


def log_beside(path: Path) -> None:
    Path(f"{path}-wal").touch()


def log_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode = wal").fetchall() == [("wal",)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (journal_beside, "journal"),
        (log_beside, "write-ahead"),
        (log_mode, "write-ahead"),
        (lambda path: build(path, "CREATE TABLE t (a)", encoding="'UTF-16le'"), "UTF-8"),
        (lambda path: patched(path, 0, b"PAR1"), "not an SQLite"),
        (lambda path: patched(path, 16, b"\x03\x00"), "page size"),
        (lambda path: patched(path, 20, b"\xff"), "cell pointer"),
        (lambda path: patched(path, 21, b"\x41"), "fractions"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4096]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "smaller"),
        (lambda path: path.write_bytes(b""), "smaller"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), path.mkdir()), "folder"),
    ],
)
def test_refused_files(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a)", NUMBERS.format(999, "i"))
    damage(path)
    with pytest.raises(Unsupported, match=message), PageFile(path) as pages:
        pages.read(2, [0])


def first_page(path: Path, kind: int) -> int:
    """Where in a file of 512-byte pages the first page of a kind starts."""
    data = path.read_bytes()
    return next(at for at in range(512, len(data), 512) if data[at] == kind)


@pytest.mark.parametrize(
    ("kind", "offset", "new", "message"),
    [
        (5, 8, 2, "used twice"),  # the root, which is page 2, as its own child
        (5, 8, 0, "outside"),
        (5, 8, 1, "outside"),
        (5, 8, 2**32 - 1, "outside"),
        (5, 3, 0x0000_0000, "empty page"),
        (5, 3, 0xFFFF_0000, "more cells"),
        (5, 12, 0xFFFF_FFFF, "cell pointer"),
        (13, 0, 0x0A00_0000, "another kind"),
        (13, 3, 0x0000_0000, "empty page"),
        (13, 3, 0xFFFF_0000, "more cells"),
        (13, 8, 0x0000_0000, "cell pointer"),
        (13, 8, 0x01FD_01FD, "cell pointer"),
    ],
)
def test_hostile_pages(tmp_path: Path, kind: int, offset: int, new: int, message: str) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a)", NUMBERS.format(9999, "i"), page_size=512)
    patched(path, first_page(path, kind) + offset, new.to_bytes(4, "big"))
    with PageFile(path) as pages, pytest.raises(Unsupported, match=message):
        pages.read(2, [0])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("ff ff ff ff 7f 01 02 01 07", "beyond its page"),  # a payload of gigabytes
        ("ff ff ff ff ff 7f 01 02 01 07", "beyond reason"),
        ("03 01 04 01 07 00", "header beyond"),
        ("03 01 00 01 07 00", "too few columns"),
        ("03 01 02 06 07 00", "value beyond"),  # an 8-byte integer in a payload of 3
        ("03 01 02 0a 07 00", "value beyond"),  # a reserved serial type
        ("03 01 02 81 00 00", "too few columns"),  # a varint that runs past the header
        ("07 01 06 ff ff ff ff 7f 00", "value beyond"),
        ("07 ff ff ff ff ff ff ff ff ff", "beyond its page"),
    ],
)
def test_hostile_cells(tmp_path: Path, cell: str, message: str) -> None:
    path = build(tmp_path / "t", "CREATE TABLE t (a)", "INSERT INTO t VALUES (9)", page_size=512)
    new = bytes.fromhex(cell)
    patched(path, 1024 - len(new), new)
    patched(path, 512 + 8, (512 - len(new)).to_bytes(2, "big"))
    with PageFile(path) as pages, pytest.raises(Unsupported, match=message):
        pages.read(2, [0])


@pytest.mark.parametrize(
    ("link", "message"), [(0, "outside"), (99, "outside"), (2, "used twice"), (3, "used twice")]
)
def test_hostile_overflow(tmp_path: Path, link: int, message: str) -> None:
    rows = "INSERT INTO t VALUES (zeroblob(2000), 9)"
    path = build(tmp_path / "t", "CREATE TABLE t (b, a)", rows, page_size=512)
    with PageFile(path) as pages:
        assert pages.read(2, [1])[0].tolist() == [9]
    patched(path, 2 * 512, link.to_bytes(4, "big"))  # page 3 is the first overflow page
    with PageFile(path) as pages, pytest.raises(Unsupported, match=message):
        pages.read(2, [1])


def test_too_much_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "INSERT INTO t VALUES (zeroblob(2000), 9)"
    path = build(tmp_path / "t", "CREATE TABLE t (b, a)", rows, page_size=512)
    monkeypatch.setattr("perfmodel.readers.pages._SPILL", 1999)
    with PageFile(path) as pages, pytest.raises(Unsupported, match="too many bytes"):
        pages.read(2, [1])


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many_rows(tmp_path_factory.mktemp("victim") / "t", 512, 150)


def agrees(path: Path, column: str, mine: Any, convert: Callable[[list[Any]], Any]) -> None:
    try:
        values = stored(path, "t", column)
    except sqlite3.Error:
        return
    assert mine == convert(values)


@pytest.mark.slow
@settings(bounded, max_examples=120)
@given(
    flips=st.lists(
        st.tuples(
            st.integers(0, 60),  # page
            st.integers(0, 40) | st.integers(0, 511),
            st.integers(0, 255),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_flipped_bytes(victim: Path, tmp_path: Path, flips: list[tuple[int, int, int]]) -> None:
    data = bytearray(victim.read_bytes())
    for page, offset, value in flips:
        at = page % (len(data) // 512) * 512 + offset
        if not 100 <= at < 512:  # the schema: it would name other columns
            data[at] = value
    path = tmp_path / "t"
    path.write_bytes(data)
    for position, column in enumerate("kac"):
        try:
            with PageFile(path) as pages:
                (array,) = pages.read(2, [2 * position], rowid_alias=0)
        except Unsupported:
            continue
        agrees(path, column, array.tolist(), as_integers)
    try:
        with PageFile(path) as pages:
            codes, strings, _ = pages.read_text(2, 3)
    except Unsupported:
        return
    agrees(path, "s", (codes.tolist(), strings), as_codes)
