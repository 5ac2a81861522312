"""Of large reports only the window is read that is drawn: the timeline is that of the whole."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.analysis import runs
from perfmodel.analysis.window import only_window, read_light, time_light
from perfmodel.cli import main
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing import by_process
from perfmodel.timing.timeline import window_of
from profiles.grow import grow, grow_ranks
from support.folders import ROOT

PROFILES = ROOT / "profiles"
TWO = PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"


def shown(monkeypatch: pytest.MonkeyPatch, *words: str | Path, large: bool) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `perfmodel timeline`."""
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0 if large else 1 << 40)
    monkeypatch.setattr(by_process, "_ROWS", 1)
    done = CliRunner().invoke(main, ["timeline", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    "name",
    [
        TWO.name,
        "h200x1_2ranks_nsys2024.2.3.sqlite",
        "launches/p4_nccl_device_H512_B3000.sqlite.xz",
        "ddp/ddp_p2_H256_B3000.sqlite.xz",
        "programs/gpt_shapes.sqlite.xz",
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("--format", "csv"),
        ("--format", "json", "--api", "--batch", "0"),
        ("--perfetto", "-o", "-", "--batch", "1:3"),
        ("--batch", "999999"),
    ],
    ids=["median", "first", "trace", "none"],
)
def test_the_window_of_a_large_report_is_that_of_the_whole(
    name: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PROFILES / name
    whole = shown(monkeypatch, path, *words, large=False)
    assert shown(monkeypatch, path, *words, large=True) == whole
    assert len(whole[1]) > 10_000 or "expected batch 999999" in whole[2]


def test_a_report_per_rank_with_clocks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_ranks(TWO, tmp_path, 3)
    words = *sorted(tmp_path.glob("*.sqlite")), "--format", "csv", "--api"
    whole = shown(monkeypatch, *words, large=False)
    assert shown(monkeypatch, *words, large=True) == whole
    assert whole[0] == 0


def test_few_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "grown.sqlite"
    grow(TWO, report, 100_000, 4)
    monkeypatch.setattr(runs, "_LARGE_BYTES", 0)
    with ExitStack() as files:
        reports = [read_light(report, files)]
        run, _ = time_light(reports, Options({}, "full", by_time=True))
        (found,) = only_window(run, window_of(run, range(3, 4)), reports).traces
    whole = read(report)
    assert found.whole
    assert 0 < len(found.ops) < len(whole.ops) / 10
    assert 0 < len(found.api) < len(whole.api) / 10
    assert found.ops.end_ns.max() == whole.ops.end_ns.max()
    assert found.api.end_ns.max() == whole.api.end_ns.max()
