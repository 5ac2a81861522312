"""Histories: commits of a results database, their changes, the reasons, the command."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.history import STEADY, histories
from perfmodel.models.launches import beside_host
from perfmodel.readers.results import Recorded, read_results
from support.build_training import Training, training_report
from support.cli import fails, perfmodel, succeeds

COMMITS = 40
SLOWER_AT = 25


def recorded(at: int, seconds: float, gemm: float = 4e-3, benchmark: str = "gpt") -> Recorded:
    """One run of commit `cNN`, of whose step one kernel and one range hold the change."""
    times = {
        ("step", "step"): seconds, ("GPU busy", "GPU busy"): gemm + 2e-3,
        ("range", "forward"): seconds - 3e-3, ("range", "optimizer"): 3e-3,
        ("kernel", "gemm"): gemm, ("kernel", "softmax"): 2e-3,
    }  # fmt: skip
    return Recorded(
        f"c{at:02d}", f"2026-01-{1 + at // 24:02d}T{at % 24:02d}:00:00", benchmark, times
    )


def runs(noise: float = 0.003, extra: float = 0.5e-3) -> list[Recorded]:
    made = np.random.default_rng(7)
    found = []
    for at in range(COMMITS):
        more = extra * (at >= SLOWER_AT)
        found.append(
            recorded(at, (1e-2 + more) * (1 + noise * made.standard_normal()), 4e-3 + more)
        )
    return found


def database(path: Path, made: list[Recorded]) -> Path:
    """Write runs as `analyze --db` does."""
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE runs (run_hash, commit_id, recorded_utc, analyzed_utc, benchmark, "
            "workload, gpu, ranks, symbols)"
        )
        base.execute("CREATE TABLE times (run_hash, row, kind, name, seconds)")
        for i, run in enumerate(made):
            base.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (i, run.commit, run.recorded_utc, "2027", run.benchmark, "?", "H200", 1, "{}"),
            )
            base.executemany(
                "INSERT INTO times VALUES (?, 0, ?, ?, ?)",
                [(i, *key, seconds) for key, seconds in run.seconds.items()],
            )
    base.close()
    return path


def test_commit_kernel_and_range_of_a_slowdown() -> None:
    (found,) = histories(runs())
    step = next(shift for shift in found.shifts if shift.kind == "step")
    assert step.commit == f"c{SLOWER_AT}"
    assert step.first <= step.commit <= step.last
    assert step.change.ratio == pytest.approx(1.05, abs=0.005)
    assert {(part.kind, part.name) for part in step.parts} == {
        ("range", "forward"), ("kernel", "gemm"),
    }  # fmt: skip
    assert not step.new
    assert found.alarms(0.03) == ()


def hosts(factors: np.ndarray, extra: float = 0.0, where: str = "forward") -> list[Recorded]:
    """Runs whose hosts take so many times as long, of 5 ms in five ranges and 1 ms on the GPU."""
    found = []
    for at, factor in enumerate(factors.tolist()):
        usual = {"": 0.5e-3, "load": 1.2e-3, "forward": 1.0e-3, "backward": 1.3e-3, "log": 1.0e-3}
        usual[where] += extra * (at >= SLOWER_AT)
        pieces = {name: factor * s for name, s in usual.items()}
        step = sum(pieces.values()) + 1e-3
        times = {("step", "step"): step, ("GPU busy", "GPU busy"): 1e-3}
        times |= {("range", name): s for name, s in pieces.items() if name}
        times |= {("idle", name): s for name, s in pieces.items()}
        found.append(Recorded(f"c{at:02d}", f"{at:03d}", "host", times))
    return found


@pytest.mark.parametrize("where", ["forward", "backward", "log"])
def test_a_slower_range_is_found_on_hosts_that_differ_by_13_percent(where: str) -> None:
    factors = np.exp(0.13 * np.random.default_rng(3).standard_normal(COMMITS))
    (found,) = histories(hosts(factors, 0.3e-3, where))  # 5 % of the step
    (shift,) = found.shifts
    assert (shift.kind, shift.name, shift.commit) == (STEADY, where, f"c{SLOWER_AT}")
    assert shift.of_step == pytest.approx(0.05, abs=0.012)
    assert shift.change.after - shift.change.before == pytest.approx(0.3e-3, rel=0.15)
    (equal,) = histories(hosts(factors))
    assert equal.shifts == ()
    without = [
        Recorded(r.commit, r.recorded_utc, r.benchmark,
                 {k: s for k, s in r.seconds.items() if k[0] != "idle"})
        for r in hosts(factors, 0.3e-3, where)
    ]  # fmt: skip
    assert all(s.kind != "step" for s in histories(without)[0].shifts)


def test_a_step_that_the_gpu_limits_has_no_speed_of_the_host() -> None:
    made = [
        Recorded(r.commit, r.recorded_utc, r.benchmark,
                 {**r.seconds, ("step", "step"): r.seconds["step", "step"] + 50e-3})
        for r in hosts(np.ones(COMMITS), 0.3e-3)
    ]  # fmt: skip
    (found,) = histories(made)
    assert all(kind != STEADY for kind, _ in found.series)


def test_what_analyze_keeps_has_the_pieces_of_the_hosts_time(tmp_path: Path) -> None:
    base = tmp_path / "h.db"
    report = PROFILES / "ladder" / "pinned_1.sqlite.xz"
    succeeds("analyze", report, "--db", base, "--commit", "c1", "-q")
    (run,) = read_results(base)
    pieces = {name: s for (kind, name), s in run.seconds.items() if kind == "idle"}
    assert {"forward GEMM 1", "MPI_Allreduce"} <= set(pieces)
    assert 0.6 < sum(pieces.values()) / run.seconds["step", "step"] < 0.8


def test_equal_commits_have_no_change() -> None:
    (found,) = histories(runs(extra=0.0))
    assert found.shifts == ()


def test_the_newest_commit_reveals_a_slowdown_once() -> None:
    made = runs()
    alarms = [
        n for n in range(15, COMMITS + 1)
        if any(s.kind == "step" for s in histories(made[:n])[0].alarms(0.03))
    ]  # fmt: skip
    assert len(alarms) == 1
    assert alarms[0] <= SLOWER_AT + 3


def test_runs_of_one_commit_are_one_and_benchmarks_are_apart() -> None:
    made = [*runs(), recorded(3, 0.5), recorded(3, 1e-2), recorded(5, 1.0, benchmark="bert")]
    gpt, bert = histories(made)
    assert gpt.runs[3] == 3
    assert gpt.series["step", "step"][3] == pytest.approx(1e-2, rel=0.02)
    assert (bert.commits, bert.shifts) == (("c05",), ())


def test_the_order_given_counts() -> None:
    backwards = [f"c{at:02d}" for at in reversed(range(COMMITS))]
    (found,) = histories(runs(), backwards)
    step = next(shift for shift in found.shifts if shift.kind == "step")
    assert (found.commits[0], step.commit) == ("c39", f"c{SLOWER_AT - 1}")
    assert step.change.ratio < 1


def test_command_says_gates_and_draws(tmp_path: Path) -> None:
    base = database(tmp_path / "r.db", runs())
    said = succeeds("compare", "--history", base, "--fail-if-slower", 3)
    assert "gpt, H200, 1 rank: 40 commits, 40 runs, c00 to c39" in said
    assert re.search(r"kernel GEMM \+500 µs; range forward \+4\d\d µs", said)
    assert "Gate: the newest commit shows nothing that is more than 3 % slower" in said
    document = json.loads(succeeds("compare", "--history", base, "--json"))
    (one,) = document["benchmarks"]
    assert len(one["commits"]) == COMMITS
    assert one["slower"] is None
    assert "c25" in {change["commit"] for change in one["changes"]}
    succeeds("compare", "--history", base, "-o", tmp_path / "h.svg")
    assert "c25" in (tmp_path / "h.svg").read_text()
    for n in range(SLOWER_AT + 1, SLOWER_AT + 4):
        part = database(tmp_path / f"{n}.db", runs()[:n])
        code = perfmodel("compare", "--history", part, "--fail-if-slower", "3%").exit_code
        if code == 7:
            break
    assert code == 7


def test_few_commits_are_a_warning(tmp_path: Path) -> None:
    result = perfmodel("compare", "--history", database(tmp_path / "r.db", runs()[:4]))
    assert result.exit_code == 0
    assert "4 commits do not show how much times vary; record 10 or more" in result.stderr


def test_wrong_files_and_options(tmp_path: Path) -> None:
    assert "got no file" in fails(3, "compare", "--history", tmp_path / "none.db")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE x (y)")
    base.close()
    assert "got other tables" in fails(3, "compare", "--history", other)
    (tmp_path / "text.db").write_text("no database" * 100)
    assert "cannot be read" in fails(3, "compare", "--history", tmp_path / "text.db")
    kept = database(tmp_path / "r.db", runs())
    assert perfmodel("compare", "--history", kept, kept).exit_code == 2
    (tmp_path / "commits.txt").write_text("ffff\n")
    said = fails(4, "compare", "--history", kept, "--commits", tmp_path / "commits.txt")
    assert "expected recorded commits among those given; got none" in said


def test_analyze_keeps_commits(tmp_path: Path) -> None:
    base = tmp_path / "results.db"
    for i in range(2):
        report = training_report(tmp_path / f"r{i}.sqlite", Training(pace=(3 + i,) * 6))
        succeeds("analyze", report, "--db", base, "--commit", f"sha{i}", "--benchmark", "mlp", "-q")
    found = sorted(read_results(base), key=lambda run: run.commit)
    assert [run.commit for run in found] == ["sha0", "sha1"]
    assert found[0].benchmark.startswith("mlp, ")
    assert [run.seconds["step", "step"] for run in found] == pytest.approx([3e-3, 4e-3])
    assert any(kind == "range" for kind, _ in found[0].seconds)
    succeeds("analyze", report, "--db", tmp_path / "without.db", "-q")
    assert "runs that name their commits" in fails(
        4, "compare", "--history", tmp_path / "without.db"
    )


def test_a_piece_beside_its_host_by_hand() -> None:
    """Copies of pinned memory do not follow the host; a piece that doubles is seen as doubled."""
    rng = np.random.default_rng(12)
    factors = np.exp(0.13 * rng.standard_normal(60))
    usual = {"load": 1.0, "forward": 1.2, "backward": 1.5, "log": 0.4, "step": 0.6}
    runs = [
        {n: f * s * (2 if n == "log" and i >= 30 else 1) for n, s in usual.items()} | {"copy": 0.5}
        for i, f in enumerate(factors.tolist())
    ]
    found = beside_host(runs)
    assert set(found) == {*usual, "copy"}
    for name, seconds in found.items():
        before, after = np.median(seconds[:30]), np.median(seconds[30:])
        assert after / before == pytest.approx(2 if name == "log" else 1, rel=0.1)
        assert np.std(np.log(seconds[:30])) < 0.02  # 0.13 as recorded
    assert beside_host([{"load": 1.0, "forward": 1.0}] * 9) == {}
