"""Of large reports only the window is read that is drawn: timeline and page are of the whole."""

from __future__ import annotations

import gzip
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.common.folders import BASE, PROFILES, unpacked
from perfmodel.analysis import runs
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.window import only_window, read_light, time_light
from perfmodel.base.errors import ReportError
from perfmodel.cli import main
from perfmodel.programs.program import Options
from perfmodel.readers import pages, read
from perfmodel.render.html import page
from perfmodel.timing import by_process
from perfmodel.timing.timeline import window_of
from profiles.grow import grow_ranks


def shown(monkeypatch: pytest.MonkeyPatch, *words: str | Path, large: bool) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `perfmodel WORDS`."""
    if large:
        monkeypatch.setattr(runs, "_LARGE_BYTES", 0)
        monkeypatch.setattr(by_process, "_ROWS", 1)
        monkeypatch.setattr(pages, "_CHUNK", 1 << 14)
    done = CliRunner().invoke(main, [*map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unpacked")


unpacked_once = cache(unpacked)

ASKED = {
    "median": ("timeline", "--format", "csv"),
    "first": ("timeline", "--format", "json", "--api", "--batch", "0"),
    "trace": ("timeline", "--perfetto", "-o", "-", "--batch", "1:3"),
    "none": ("timeline", "--batch", "999999"),
    "page": ("report", "-o", "-"),
    "whatif": ("whatif", "--format", "json"),
    "memory": ("memory", "--format", "json"),
}
QUICK = {
    BASE.name: ("median", "first", "trace", "none", "whatif", "memory"),
    "programs/gpt_unnamed.sqlite.xz": ("trace", "whatif", "memory"),
    "programs/jax_gpt.sqlite.xz": ("first", "whatif"),
}
"""What is asked of these reports, each other question being asked of another one."""
ALL = (
    *QUICK,
    "h200x1_2ranks_nsys2024.2.3.sqlite.xz",
    "launches/p4_nccl_device_H512_B3000.sqlite.xz",
    "launches/p2_nccl_device_fused_tf32x3_graph_H128_B3000.sqlite.xz",
    "ddp/ddp_p2_H256_B3000.sqlite.xz",
)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param(name, asked, marks=() if asked in QUICK.get(name, ()) else pytest.mark.slow)
        for name in ALL
        for asked in ASKED
        if name not in QUICK or asked in QUICK[name] or asked == "page"
    ],
)
def test_the_window_of_a_large_report_is_that_of_the_whole(
    name: str, asked: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, words = PROFILES / name, ASKED[asked]
    path = unpacked_once(path, place) if path.suffix == ".xz" else path
    whole = shown(monkeypatch, *words, path, large=False)
    assert shown(monkeypatch, *words, path, large=True) == whole
    assert len(whole[1]) > 400 or words[0] == "memory" or "expected step 999999" in whole[2]


def test_a_report_per_rank_with_clocks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_ranks(BASE, tmp_path, 3)
    words = "timeline", *sorted(tmp_path.glob("*.sqlite")), "--format", "csv", "--api"
    whole = shown(monkeypatch, *words, large=False)
    assert shown(monkeypatch, *words, large=True) == whole
    assert whole[0] == 0


def test_few_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = BASE
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0)
    monkeypatch.setattr(pages, "_CHUNK", 1 << 12)
    with ExitStack() as files:
        options = Options({}, "full", by_time=True)
        run, _ = time_light([read_light(report, files, options)], options)
        window = window_of(run, range(3, 4))
        (found,) = only_window(run, window).traces
    left_out = run.traces[0].left_out
    assert left_out is not None
    none = np.empty(0, np.int64)
    chosen = left_out.api.holding((window.start_ns, window.end_ns), none, none)
    assert 1 < chosen.sum() < len(chosen) / 5
    whole = read(report)
    assert found.whole
    assert 0 < len(found.ops) < len(whole.ops) / 10
    assert 0 < len(found.api) < len(whole.api) / 10
    assert found.ops.end_ns.max() == whole.ops.end_ns.max()
    assert found.api.end_ns.max() == whole.api.end_ns.max()


def test_a_report_that_changes_before_its_window_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.sqlite"
    copyfile(BASE, report)
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0)
    analysis = analyze_reports([report], Options({}), whole=1)
    (found,) = analysis.runs
    assert not found.measured.traces[0].whole
    assert found.measured.traces[0].op_count == len(read(BASE).ops)
    with report.open("ab") as file:
        file.write(b"more")
    with pytest.raises(ReportError, match="changed while it was read"):
        only_window(found.measured, window_of(found.measured, range(3, 4)))
    with pytest.raises(ReportError, match="changed while it was read"):
        page(analysis)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_is_unpacked_stays_until_the_page_is_drawn(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(BASE.read_bytes(), 1))
    whole = shown(monkeypatch, "report", packed, "-o", "-", "--jobs", jobs, large=False)
    assert shown(monkeypatch, "report", packed, "-o", "-", "--jobs", jobs, large=True) == whole
    assert whole[0] == 0
    assert [*unpacked.iterdir()] == []
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0)
    for folder, whole_rows in ((unpacked, False), (tmp_path / "nowhere", True), (None, True)):
        (found,) = analyze_reports([packed], Options({}), whole=1, unpacked=folder).runs
        assert found.measured.traces[0].whole == whole_rows
