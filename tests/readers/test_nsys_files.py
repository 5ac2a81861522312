"""Where a report lies, how it is packed and who may write there makes no difference to reading."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.readers import read
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing.launched import launched
from support.build_report import ReportBuilder
from support.document_report import document_report

PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return document_report(tmp_path_factory.mktemp("original") / "document.sqlite")


@pytest.fixture
def report(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "report.sqlite"))


def snapshot(folder: Path) -> dict[str, Any]:
    """Names, contents and times of everything in a folder, and the folder's own time."""
    found: dict[str, Any] = {"": folder.stat().st_mtime_ns}
    for path in sorted(folder.rglob("*")):
        found[path.name] = (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
    return found


def ranges(path: Path) -> int:
    return len(read(path).ranges)


@pytest.mark.parametrize("fast", [True, False])
def test_reading_leaves_no_trace(report: Path, fast: bool) -> None:
    before = snapshot(report.parent)
    assert len(read_sqlite(report, fast=fast).ranges) > 0
    assert snapshot(report.parent) == before


def test_a_file_in_write_ahead_mode_is_read_as_it_is(report: Path, original: Path) -> None:
    with closing(sqlite3.connect(report)) as db:
        assert db.execute("PRAGMA journal_mode = wal").fetchall() == [("wal",)]
    assert list(report.parent.iterdir()) == [report]
    before = snapshot(report.parent)
    assert ranges(report) == ranges(original)
    assert snapshot(report.parent) == before


def test_an_empty_log_or_journal_beside_it_says_nothing(report: Path, original: Path) -> None:
    for suffix in ("-wal", "-journal", "-shm"):
        Path(f"{report}{suffix}").touch()
    before = snapshot(report.parent)
    assert ranges(report) == ranges(original)
    assert snapshot(report.parent) == before


def test_a_read_only_folder(report: Path, original: Path) -> None:
    report.chmod(0o444)
    report.parent.chmod(0o555)
    try:
        assert ranges(report) == ranges(original)
    finally:
        report.parent.chmod(0o755)


@pytest.mark.parametrize(
    "name",
    [
        "with space.sqlite",
        "what?.sqlite",
        "what?mode=rw&x.sqlite",
        "number#1.sqlite",
        "100%.sqlite",
        "%41%00.sqlite",
        "größe 日本 \U0001f680.sqlite",
        "'quoted' \"twice\".sqlite",
        "line\nbreak.sqlite",
        "no suffix",
        ".sqlite",
        "-o.sqlite",
        "file:report.sqlite",
    ],
)
def test_odd_names(name: str, report: Path, original: Path) -> None:
    path = report.rename(report.parent / name)
    before = snapshot(path.parent)
    assert ranges(path) == ranges(original)
    assert read(path).source == path
    assert snapshot(path.parent) == before


def test_a_name_that_is_no_text(report: Path, original: Path) -> None:
    try:
        path = report.rename(report.parent / os.fsdecode(b"latin-\xe9.sqlite"))
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    assert ranges(path) == ranges(original)
    path.write_bytes(b"text")
    with pytest.raises(ReportError, match="expected an SQLite export"):
        read(path)


def test_a_string_and_a_relative_path(
    report: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(report.parent)
    assert len(read("report.sqlite").ranges) == len(read(str(original)).ranges)


def test_a_link_to_a_report(report: Path, original: Path) -> None:
    link = report.parent / "link.sqlite"
    link.symlink_to(report)
    assert ranges(link) == ranges(original)
    Path(f"{report}-wal").write_bytes(b"x")
    with pytest.raises(ReportError, match=r"unfinished transaction.*report\.sqlite-wal"):
        read(link)


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_reports(suffix: str, report: Path, original: Path) -> None:
    packed = Path(f"{report}{suffix}")
    packed.write_bytes(PACKERS[suffix](report.read_bytes()))
    report.unlink()
    before = snapshot(packed.parent)
    assert read(packed).source == packed
    assert ranges(packed) == ranges(original)
    assert snapshot(packed.parent) == before


@pytest.mark.parametrize("suffix", PACKERS)
def test_damaged_compressed_reports(suffix: str, report: Path) -> None:
    """Cut anywhere, flipped anywhere, empty, or packing something else."""
    packed = Path(f"{report}{suffix}")
    data = PACKERS[suffix](report.read_bytes())
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    cuts = [data[:n] for n in (0, 1, 5, 11, 100, len(data) // 2, len(data) - 5, len(data) - 1)]
    for damaged in [*cuts, bytes(flipped), b"text", PACKERS[suffix](b"text")]:
        packed.write_bytes(damaged)
        with pytest.raises(ReportError) as caught:
            read(packed)
        assert str(caught.value).startswith(f"{packed}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", PACKERS)
def test_errors_name_the_compressed_file(suffix: str, tmp_path: Path) -> None:
    plain = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(plain)) as db:
        db.execute("CREATE TABLE StringIds (id, value)")
    packed = Path(f"{plain}{suffix}")
    packed.write_bytes(PACKERS[suffix](plain.read_bytes()))
    with pytest.raises(SchemaError) as caught:
        read(packed)
    assert str(caught.value).startswith(f"{packed}: expected an Nsight Systems export")
    with pytest.raises(ReportError, match="cannot be read"):
        read(packed.with_name(f"missing{suffix}"))
    folder = packed.with_name(f"folder{suffix}")
    folder.mkdir()
    with pytest.raises(ReportError, match="got a folder"):
        read(folder)


def test_zstd_needs_its_package(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    packed = report.rename(f"{report}.zst")
    with pytest.raises(ReportError, match=r"needs the package zstandard.*zstd -d report"):
        read(packed)


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_raw_report_without_nsys(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    raw = tmp_path / f"run{suffix}"
    raw.write_bytes(b"NVIDIA Tegra Profiler Report 2024@2@3")
    with pytest.raises(ReportError) as caught:
        read(raw)
    assert f"nsys export -q true -t sqlite run{suffix}" in str(caught.value)
    assert "run.sqlite" in str(caught.value)
    with pytest.raises(ReportError, match="cannot be read"):
        read(tmp_path / f"missing{suffix}")


def fake_nsys(folder: Path, script: str) -> None:
    """Put a stand-in for nsys into a folder."""
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo working; echo 'File is from a newer version' >&2; exit 1", "newer version"),
        ("exit 1", "no output"),
        ("echo done", "nsys export failed"),
        ('echo text > "$7"', "expected an SQLite export"),
        ("printf '\\377\\n'; exit 1", "nsys export failed"),
    ],
)
def test_an_export_that_fails(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nsys(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    raw = tmp_path / "run.nsys-rep"
    raw.write_bytes(b"")
    before = snapshot(tmp_path)
    with pytest.raises(ReportError, match=message) as caught:
        read(raw)
    assert str(caught.value).startswith(f"{raw}: ")
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_an_export_that_works(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nsys(tmp_path, f'[ "$*" = "export -q true -t sqlite -o $7 $8" ] && cp "{original}" "$7"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    raw = tmp_path / "run 1.nsys-rep"
    raw.write_bytes(b"")
    trace = read(raw)
    assert trace.source == raw
    assert len(trace.ranges) == ranges(original)


@pytest.mark.nsys
@pytest.mark.usefixtures("one_profile")
def test_a_raw_report_with_nsys(nsys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profile a program and read what nsys writes, before and after exporting it by hand."""
    monkeypatch.setenv("PATH", f"{Path(nsys).parent}:{os.environ['PATH']}")
    raw = tmp_path / "run.nsys-rep"
    for command in (
        ["profile", "-o", str(raw), "-t", "nvtx,osrt", "true"],
        ["export", "-q", "true", "-t", "sqlite", str(raw)],
    ):
        subprocess.run([nsys, *command], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    before = snapshot(tmp_path)
    trace, exported = read(raw), read(tmp_path / "run.sqlite")
    assert snapshot(tmp_path) == before
    assert trace.source == raw
    assert trace.product_version.startswith("2024.2.3")
    assert trace.diagnostics == exported.diagnostics
    assert trace.utc_start_ns == exported.utc_start_ns
    assert "StringIds" in trace.tables
    broken = tmp_path / "broken.nsys-rep"
    broken.write_bytes(raw.read_bytes()[:1000])
    with pytest.raises(ReportError, match="nsys export failed"):
        read(broken)


def test_an_old_export_without_nvtx_metadata_and_processes(tmp_path: Path) -> None:
    builder = ReportBuilder("2022.4.2")
    main = builder.thread()
    for at in range(4):
        main.kernel("gemm", (at * 1000, at * 1000 + 100), (at * 1000 + 200, at * 1000 + 900))
    path = builder.write(tmp_path / "old.sqlite")
    with closing(sqlite3.connect(path)) as db:
        kept = {"StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"}
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in {*names} - kept:
            db.execute(f"DROP TABLE {name}")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
        db.commit()
    trace = read(path)
    assert trace.product_version == "unknown"
    assert trace.ops.process.tolist() == [0] * 4
    assert len(launched(trace).op) == 4
