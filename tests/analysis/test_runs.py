"""Runs: which reports belong together, how they are called, which one fits the roofline."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.analysis.analyze import _chosen, analyze
from perfmodel.analysis.runs import group
from perfmodel.base.errors import ModelError, ReportError, WorkloadError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from support.build_training import Training, analyzed, training_report

REPORTS = TESTS / "reports"
UTC = 1_700_000_000_000_000_000
SECOND = 10**9


def rank_report(
    folder: Path, run: str, rank: int, *, started: float = 0.0, run_id: str = "", world: int = 2
) -> Path:
    """Write one rank's report of a run that starts `started` seconds after the first one."""
    mark = json.dumps({"perfmodel_config": 1, "run_id": run_id}) if run_id else None
    return training_report(
        folder / f"{run}{rank}.sqlite",
        Training(H=512 * (1 + "ABCD".index(run)), p=world, B=600),
        ranks=[rank],
        world_size=world,
        utc_start_ns=UTC + int(started * SECOND) + 13_000_000 * rank,
        mark=mark,
    )


def grouped(*paths: Path) -> list[tuple[str, list[str]]]:
    return [(label, [t.source.stem for t in g]) for label, g in group([read(p) for p in paths])]


def test_one_report_with_all_ranks_is_a_run(tmp_path: Path) -> None:
    paths = [training_report(tmp_path / f"{n}.sqlite", Training(pace=(1,))) for n in "ab"]
    assert grouped(*paths) == [("a", ["a"]), ("b", ["b"])]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """Two runs of two ranks, one a minute after the other."""
    folder = tmp_path_factory.mktemp("four")
    return {
        f"{run}{rank}": read(rank_report(folder, run, rank, started=60.0 * "AB".index(run)))
        for run in "AB"
        for rank in (0, 1)
    }


@pytest.mark.parametrize("order", list(itertools.permutations(("A0", "A1", "B0", "B1"))))
def test_reports_of_the_ranks_of_one_run_are_put_together(
    four: dict[str, Trace], order: tuple[str, ...]
) -> None:
    """They overlap in time, those of the other run do not. Rank 0 gives a run its name."""
    found = group([four[name] for name in order])
    members = sorted(sorted(t.source.stem for t in traces) for _, traces in found)
    assert members == [["A0", "A1"], ["B0", "B1"]]
    assert [label for label, _ in found] == [
        f"{run}0" for run in dict.fromkeys(n[0] for n in order)
    ]


def test_ranks_of_different_runs_stay_apart(tmp_path: Path) -> None:
    paths = [rank_report(tmp_path, "A", 0), rank_report(tmp_path, "B", 1, started=30.0)]
    assert [members for _, members in grouped(*paths)] == [["A0"], ["B1"]]
    runs = analyzed(*paths).runs
    for run in runs:
        assert any("1 of p = 2 ranks are in the report" in w for w in run.warnings)


def test_run_ids_tell_runs_that_overlap_apart(tmp_path: Path) -> None:
    paths = [
        rank_report(tmp_path, "A", 0, run_id="one"),
        rank_report(tmp_path, "B", 1, run_id="two"),
        rank_report(tmp_path, "A", 1, run_id="one"),
        rank_report(tmp_path, "C", 1),
    ]
    assert [members for _, members in grouped(*paths)] == [["A0", "A1"], ["B1"], ["C1"]]


def test_worlds_of_different_sizes_stay_apart(tmp_path: Path) -> None:
    paths = [rank_report(tmp_path, "A", 0, world=2), rank_report(tmp_path, "B", 1, world=3)]
    assert len(grouped(*paths)) == 2


def test_a_rank_that_is_missing_is_said(tmp_path: Path) -> None:
    paths = [rank_report(tmp_path, "A", rank, world=3) for rank in (0, 2)]
    (run,) = analyzed(*paths).runs
    assert [r.rank for r in run.ranks] == [0, 2]
    assert any("2 of p = 3 ranks are in the report" in w for w in run.warnings)


def test_real_reports_of_one_rank_each() -> None:
    paths = [REPORTS / f"cpu_rank{rank}of2_nsys2023.4.4.sqlite" for rank in (0, 1)]
    (run,) = analyzed(*paths).runs
    assert [r.rank for r in run.ranks] == [0, 1]
    assert run.label == "cpu_rank0of2_nsys2023.4.4"
    assert run.identity.values["p"] == 2
    reduce = run.collectives[0]
    assert reduce.transfer_s is not None
    assert 0.9 * reduce.seconds < reduce.transfer_s <= reduce.seconds


def test_reports_of_one_rank_each_say_what_one_report_of_both_says(tmp_path: Path) -> None:
    whole = analyzed(training_report(tmp_path / "both.sqlite", lag_ns=5_000)).fitted
    parts = [
        training_report(
            tmp_path / f"rank{rank}.sqlite", ranks=[rank], world_size=2, lag_ns=5_000,
            utc_start_ns=UTC,
        )
        for rank in (1, 0)
    ]  # fmt: skip
    apart = analyzed(*parts).fitted
    for field in ("ranges", "rates", "copies", "collectives", "batch", "model"):
        assert getattr(apart, field) == getattr(whole, field), field
    assert apart.ranks == whole.ranks


# --- labels, repetitions


def test_labels_are_distinct(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(pace=(1,)))
    copies = []
    for folder in ("one", "two", "three/one"):
        (tmp_path / folder).mkdir(parents=True)
        copies.append(Path(shutil.copy(path, tmp_path / folder / "r.sqlite")))
    labels = [run.label for run in analyzed(path, *copies[:2]).runs]
    assert labels == [f"{tmp_path.name}/r", "one/r", "two/r"]
    assert len({run.label for run in analyzed(path, *copies).runs}) == 4


def test_relative_paths_get_their_folder_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    path = training_report(Path("r.sqlite"), Training(pace=(1,)))
    shutil.copy(path, "deeper/r.sqlite")
    labels = [run.label for run in analyzed(path, Path("deeper/r.sqlite")).runs]
    assert labels == ["here/r", "deeper/r"]


def test_a_report_given_twice_counts_once(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(pace=(1,)))
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    analysis = analyzed(path, link, path)
    assert [run.label for run in analysis.runs] == ["r"]
    assert "2 of the reports were given before and are left out" in analysis.fitted.warnings


def test_no_report_is_an_error() -> None:
    with pytest.raises(ReportError, match="at least one report"):
        analyze([], Options({}))


# --- which run fits


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("three")
    return [
        training_report(folder / f"h{H}.sqlite", Training(H=H, B=600, pace=(1, 1)))
        for H in (64, 128, 256)
    ]


def test_a_run_is_chosen_to_fit(three: list[Path]) -> None:
    analysis = analyzed(*three, fit="h128")
    assert analysis.fit == 1
    assert analysis.fitted is analysis.runs[1]
    assert len(analysis.points) == 6
    assert {p.group for p in analysis.points} == {"h64", "h128", "h256"}
    for fit, wanted in ((0, 0), ("0", 0), (2, 2), ("2", 2)):
        assert _chosen(analysis.runs, fit) == wanted, fit


@pytest.mark.parametrize("fit", [3, "3", "-1", -1, "", "h12", "²", "9" * 5_000, "h64 "])
def test_a_wrong_choice_names_the_runs(three: list[Path], fit: str | int) -> None:
    with pytest.raises(WorkloadError, match="h64, h128, h256") as caught:
        _chosen(analyzed(*three).runs, fit)
    assert len(str(caught.value)) < 6_000


def test_a_wrong_choice_is_no_analysis(three: list[Path]) -> None:
    with pytest.raises(WorkloadError, match="h64, h128, h256"):
        analyzed(*three, fit=3)


def test_the_first_run_that_can_fits_the_roofline(three: list[Path], tmp_path: Path) -> None:
    cannot = training_report(tmp_path / "cannot.sqlite", Training(gpu=False, mpi=False, p=1))
    analysis = analyzed(cannot, *three)
    assert analysis.fitted.label == "h64"
    assert analyzed(cannot).fitted.label == "cannot"
    for fit in (0, "cannot"):
        with pytest.raises(ModelError, match="got no P_flops and no P_pci and no P_mpi there"):
            _chosen(analysis.runs, fit)


def test_labels_go_before_numbers(tmp_path: Path) -> None:
    paths = [
        training_report(tmp_path / f"{name}.sqlite", Training(pace=(1,))) for name in ("1", "0")
    ]
    assert analyzed(*paths, fit="0").fitted.label == "0"


def test_progress_is_told_before_every_run(three: list[Path]) -> None:
    seen: list[str] = []
    analyze([read(p) for p in three], Options({}), seen.append)
    assert seen == ["h64", "h128", "h256"]
