"""Jobs of many ranks: DDP and MPI mixed, missing and damaged reports, results that are kept."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import BASE, PROGRAMS, unpacked
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.outliers import own_seconds
from perfmodel.base.cache import Cache
from perfmodel.base.errors import ReportError
from perfmodel.base.parallel import Engine
from perfmodel.programs.program import Options
from perfmodel.readers.nsys import read_sqlite
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.html import page
from profiles.grow import grow_ddp, grow_ranks
from support.cli import perfmodel as run_cli

DDP = PROGRAMS / "gpt_ddp8.sqlite.xz"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The reports of 16 ranks of MPI and of 8 of DDP."""
    folder = tmp_path_factory.mktemp("job")
    source = unpacked(DDP, folder / "source.part")
    return [*grow_ranks(BASE, folder, 16), *grow_ddp(source, folder, 8)]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The reports of nine ranks of MPI, of which the last is late."""
    return grow_ranks(BASE, tmp_path_factory.mktemp("few"), 9)


def document(paths: list[Path], **options: Any) -> str:
    return json.dumps(analysis_document(analyze_reports(paths, Options({}), **options)))


@pytest.mark.slow
def test_ranks_of_ddp_and_of_mpi_are_two_runs(job: list[Path]) -> None:
    found = analyze_reports(job, Options({}), Engine(2))
    mpi, ddp = found.runs
    assert [len(run.ranks) for run in found.runs] == [16, 8]
    assert mpi.hosts == {rank: str(rank // 8) for rank in range(16)}
    assert ddp.hosts == dict.fromkeys(range(8), "0")
    (reduced,) = [c for c in mpi.collectives if c.bytes == 1_605_632]
    assert reduced.waiting_s is not None  # matched across all reports
    assert ddp.steps is not None
    assert all(c.ranks == 8 and c.waiting_s is not None for c in ddp.collectives)


def test_a_source_may_name_its_host(tmp_path: Path) -> None:
    """In a table whose columns, as Nsight Systems makes them, must all have a value."""
    source = tmp_path / "source.sqlite"
    source.write_bytes(BASE.read_bytes())
    with closing(sqlite3.connect(source)) as db, db:
        db.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")
        db.execute(
            "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, "
            "name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL)"
        )
    (path, _) = grow_ranks(source, tmp_path / "job", 2)
    assert read_sqlite(path).host == "node000"


def test_a_straggler_of_many_is_an_outlier(few: list[Path]) -> None:
    mpi = analyze_reports(few, Options({})).runs[0]
    slowest = max(mpi.outliers, key=lambda one: one.excess, default=None)
    assert slowest is None or slowest.ranks == (8,)  # every sixteenth rank is late
    assert mpi.skew is not None
    assert mpi.skew.ranks[0].rank == 8


@pytest.mark.slow
def test_missing_and_damaged_reports_are_named_and_the_rest_is_analyzed(
    job: list[Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "rank0003.sqlite"
    damaged.write_bytes(job[3].read_bytes()[:50_000])
    given = [*job[:3], damaged, *job[4:11], *job[12:16]]
    found = analyze_reports(given, Options({}), Engine(2))
    (run,) = found.runs
    assert len(run.ranks) == 14
    assert any("no report has ranks 3, 11;" in warning for warning in run.warnings)
    (error,) = found.failed
    assert isinstance(error, ReportError)
    assert str(damaged) in str(error)


@pytest.mark.slow
def test_kept_results_give_the_same_analysis(job: list[Path], tmp_path: Path) -> None:
    expected = document(job)
    kept = tmp_path / "kept"
    assert document(job, cache=kept) == expected
    assert len(list(kept.iterdir())) == len(job)
    assert document(job, cache=kept) == expected
    assert document(job, cache=kept, engine=Engine(2)) == expected


@pytest.mark.slow
def test_adding_one_rank_reads_one_report(job: list[Path], tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def written() -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in kept.iterdir()}

    document(job[:15], cache=kept)
    before = written()
    assert document(job[:16], cache=kept) == document(job[:16])
    assert before < written()
    assert len(written() - before) == 1


@pytest.mark.slow
def test_kept_results_serve_any_number_of_reports(
    job: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more reports, the fewer operations of each are replayed; the kept results have all."""
    kept = tmp_path / "kept"
    document(job, cache=kept)
    written = set(kept.iterdir())
    few = document(job[16:])
    monkeypatch.setattr("perfmodel.analysis.analyze._REPLAYED", 1000)
    assert document(job[16:], cache=kept) == document(job[16:]) != few
    assert set(kept.iterdir()) == written


def test_a_copy_is_known_by_its_content_and_called_by_its_own_name(
    few: list[Path], tmp_path: Path
) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "copy.sqlite"
    copy.write_bytes(few[0].read_bytes())
    document(few[:1], cache=kept)
    assert analyze_reports([copy], Options({}), cache=kept).runs[0].label == "copy"
    assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize(
    "said",
    [
        {"c": "os:mkdir", "f": {"path": "made"}},
        {"c": "perfmodel.base.files:write_text", "f": {"path": "made", "text": ""}},
        {"a": ["O", 1]},
        {"a": ["<i8", 1 << 60]},
        {"x": []},
    ],
)
def test_what_is_kept_runs_no_code(
    said: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps(said).encode()
    Path("key.perfmodel").write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
    assert Cache(tmp_path).get("key") is None
    assert not Path("made").exists()


def test_a_damaged_result_is_none(few: list[Path], tmp_path: Path) -> None:
    document(few[:1], cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    for size in (0, 7, 100, len(whole) - 100):
        kept.write_bytes(whole[:size])
        assert Cache(tmp_path).get(kept.stem) is None
    assert document(few[:1], cache=tmp_path) == document(few[:1])
    assert kept.read_bytes() == whole


def test_other_options_are_kept_apart(few: list[Path], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kept")
    keys = {cache.key(few[0], Options(values)) for values in ({}, {"D": 784})}
    assert len(keys) == 2


def test_a_cache_that_cannot_be_made_is_an_error(few: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_cli("analyze", str(few[0]), "--cache", str(tmp_path / "file"))
    assert done.exit_code == 1
    assert "name another one with --cache" in done.output


@pytest.mark.slow
def test_the_page_draws_every_rank_of_every_run(job: list[Path]) -> None:
    found = analyze_reports(job, Options({}), whole=4)
    text = page(found)
    assert "12 more ranks are not drawn" in text  # in the timeline
    section = text.partition('id="ranks"')[2].partition("</section>")[0]
    strips = re.findall(r'<svg role="img".*?</svg>', section, re.DOTALL)
    assert [strip.count("<rect") for strip in strips] == [16, 16, 8, 8]
    by_number, by_time = (re.findall(r"<title>rank (\d+), host", strip) for strip in strips[:2])
    assert by_number == [str(rank) for rank in range(16)]
    own = {str(rank.rank): own_seconds(rank) for rank in found.runs[0].ranks}
    assert by_time == sorted(own, key=lambda rank: own[rank] or 0.0, reverse=True)
    assert "rank 8, host 1, GPU 0, " in strips[0]
    hosts = {rank: x for x, rank in re.findall(r'x="(\d+)" y="0".*?<title>rank (\d+)', strips[0])}
    assert int(hosts["8"]) - int(hosts["7"]) == 2 * (int(hosts["7"]) - int(hosts["6"]))  # apart
    for table in ("Ranks of rank0000", "Ranks of ddp0000"):
        assert table in section
    assert "Without waiting" in section
    files = text.partition('id="provenance"')[2].partition("</table>")[0]
    assert files.count("<tr>") == 1 + 24
    assert files.count("–") == 3 * 20  # rows that are not kept
