"""Scaling: the laws, series of launches, computing against communication, records, bandwidth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import MACHINE, PROFILES
from perfmodel.base.errors import ModelError, ReportError
from perfmodel.machines.measure.measurement import load
from perfmodel.models.scaling_laws import amdahl, fit, gustafson, karp_flatt, weak_fraction
from perfmodel.readers import read
from perfmodel.studies.analysis.measure import Launch, launch_of_record, launches_of
from perfmodel.studies.analysis.scaling import links, of_launches, of_machine, study
from perfmodel.studies.registry import model_of_sizes
from perfmodel.studies.render.scaling import sentences
from perfmodel.timing.collectives import CollectiveGroup
from support.build_report import ReportBuilder
from support.trainer_runs import flags, run_alone, small

CAMPAIGN = PROFILES / "campaign"
ranks = st.integers(2, 4096)
shares = st.floats(0, 1)


MLP = model_of_sizes()


def launch(p: int, batch_s: float, B: int | None = 1200, **settings: str) -> Launch:
    sizes = {"H": 8, "b": 4} | ({"B": B} if B else {})
    seconds = np.array([[batch_s]])
    named = {"transport": "host", **settings}
    return Launch(f"p{p}", "report", p, sizes, named, seconds, calibrated=MLP)


# --- the laws


@given(ranks, shares)
def test_karp_and_flatt_find_amdahl_s_fraction(p: int, s: float) -> None:
    assert karp_flatt(amdahl(p, s), p) == pytest.approx(s, abs=1e-9)
    assert weak_fraction(gustafson(p, s), p) == pytest.approx(s, abs=1e-9)


@given(st.sets(ranks, min_size=1, max_size=6), shares)
def test_a_fit_finds_the_fraction_of_exact_speedups(many: set[int], s: float) -> None:
    for law, of in (("Amdahl", amdahl), ("Gustafson", gustafson)):
        speedups = [of(p, s) for p in many]
        found = fit(law, list(many), speedups, np.array([speedups] * 3))
        assert found.serial == pytest.approx(s, abs=1e-9)
        assert found.low == pytest.approx(s, abs=1e-9)
        assert (found.misfit is None) == (len(many) == 1)
        assert found.misfit is None or found.misfit < 1e-6


def test_the_laws_by_hand() -> None:
    """1/(1/4 + 3/16) = 16/7; 4 - 3/4; (1/2 - 1/4)/(3/4) = 1/3."""
    assert amdahl(4, 0.25) == pytest.approx(16 / 7)
    assert gustafson(4, 0.25) == 3.25
    assert karp_flatt(2.0, 4) == pytest.approx(1 / 3)
    assert amdahl(4, -1 / 3) == float("inf")
    # least squares: x = 1/2, 3/4; 1/S - 1/p = 0, 1/4: (3/16) / (1/4 + 9/16) = 3/13
    found = fit("Amdahl", [2, 4], [2.0, 2.0], None)
    assert found.serial == pytest.approx(3 / 13)
    assert found.low is None
    assert found.misfit == pytest.approx(1 - amdahl(2, 3 / 13) / 2)


def test_numbers_that_tell_nothing_are_refused() -> None:
    with pytest.raises(ModelError, match=r"got 2\.0 on 1"):
        karp_flatt(2.0, 1)
    with pytest.raises(ModelError, match=r"got 0\.0 on 2"):
        fit("Amdahl", [2], [0.0], None)
    with pytest.raises(ModelError, match="got 1 for 0"):
        fit("Amdahl", [], [1.0], None)
    with pytest.raises(ModelError, match="expected one or more ranks; got 0"):
        amdahl(0, 0.5)


# --- series


def test_strong_and_weak_series_of_the_same_launches() -> None:
    found = study([launch(1, 8.0), launch(2, 5.0), launch(4, 4.0), launch(4, 10.0, 4800)])
    strong, weak = found.series
    assert [p.speedup for p in strong.points] == [1.0, 1.6, 2.0]
    assert [p.efficiency for p in strong.points] == [1.0, 0.8, 0.5]
    assert [p.serial_fraction for p in strong.points] == [None, *map(pytest.approx, (0.25, 1 / 3))]
    assert strong.fit is not None
    assert strong.fit.low is None  # one number a point
    assert [(p.ranks, p.batch, p.speedup) for p in weak.points] == [(1, 1200, 1), (4, 4800, 3.2)]
    assert weak.batch_per_rank == 1200
    assert weak.points[1].serial_fraction == pytest.approx(0.8 / 3)
    assert any("intervals hold" in w for w in found.warnings)


def test_several_launches_give_intervals_of_launches() -> None:
    many = [launch(p, t * f) for p, t in ((1, 8.0), (2, 5.0)) for f in (0.9, 1.0, 1.2)]
    (series,) = study(many).series
    point = series.points[1]
    assert series.by_launches
    assert point.speedup == 1.6
    assert point.speedup_low is not None
    assert point.speedup_high is not None
    assert 8 * 0.9 / 6 <= point.speedup_low < 1.6 < point.speedup_high <= 8 * 1.2 / 4.5
    law = series.fit
    assert law is not None
    assert law.low is not None
    assert law.high is not None
    assert law.low < law.serial < law.high


def test_one_rank_that_sums_nothing_stands_for_every_transport() -> None:
    alone, two = launch(1, 8.0, transport="none"), launch(2, 5.0, transport="nccl")
    own = [launch(1, 7.0, transport="pinned"), launch(2, 5.0, transport="pinned")]
    found = {s.settings["transport"]: s for s in study([alone, two, *own]).series}
    assert found["nccl"].points[1].speedup == 1.6
    assert found["pinned"].points[1].speedup == 1.4
    assert set(found) == {"nccl", "pinned"}


def test_without_one_rank_there_is_no_serial_fraction() -> None:
    found = study([launch(2, 8.0), launch(4, 5.0), launch(2, 1.0, graph="yes")])
    (series,) = found.series
    assert series.fit is None
    assert [p.serial_fraction for p in series.points] == [None, None]
    assert series.points[1].efficiency == 0.8  # against two ranks
    assert any("no run of one rank" in w for w in found.warnings)
    assert any("left out" in w for w in found.warnings)


def counted(p: int, batch_s: float, flops: float) -> Launch:
    """A launch of a program of which only the FLOPs of one rank's step are known."""
    return replace(launch(p, batch_s, None), sizes={}, calibrated=None, flops=flops)


def test_flops_stand_for_a_batch_that_is_unknown() -> None:
    """Half of them on each of two ranks: strong scaling; as many: weak scaling."""
    (strong,) = study([counted(1, 8.0, 1e12), counted(2, 5.0, 0.5e12)]).series
    assert (strong.kind, strong.points[1].batch, strong.points[1].speedup) == ("strong", None, 1.6)
    assert strong.label == "p1, p2"
    (weak,) = study([counted(1, 8.0, 1e12), counted(2, 10.0, 1e12)]).series
    assert (weak.kind, weak.batch_per_rank, weak.points[1].speedup) == ("weak", None, 1.6)
    said = [*sentences(study([counted(1, 8.0, 1e12), counted(2, 10.0, 1e12)]))]
    assert said[0].startswith("p1, p2: 2 ranks are 1.60 times as fast as 1")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (launch(1, 8.0, None), launch(2, 5.0, None)),
        (counted(1, 8.0, 1e12), counted(2, 5.0, 0.7e12)),
        (launch(1, 8.0, 1200), launch(2, 5.0, 1300)),
    ],
)
def test_launches_of_unknown_or_unequal_batches_are_no_series(one: Launch, two: Launch) -> None:
    with pytest.raises(ModelError, match="B or B/p the same") as raised:
        study([one, two])
    unknown = one.flops is None and "B" not in one.sizes
    assert ("neither B nor FLOPs of p1, p2; give --set B=" in str(raised.value)) == unknown


def test_launches_that_differ_in_more_than_ranks_are_refused() -> None:
    with pytest.raises(ModelError, match=r"got p1 \(p=1\), p2 \(p=2\); give such reports"):
        study([launch(1, 8.0), launch(2, 5.0, graph="yes")])
    with pytest.raises(ModelError, match="got none"):
        study([])


# --- reports


def split_report(path: Path) -> Path:
    """Two ranks, six batches of 1 ms: kernels, sums (partly under kernels) and a copy."""
    report = ReportBuilder()
    for rank in range(2):
        report.gpu(rank)
        thread = report.thread(pid=1000 + rank, rank=rank)
        for i in range(6):
            at = 1_000_000 + 1_100_000 * i

            def us(start: int, end: int, at: int = at) -> tuple[int, int]:
                return at + 1000 * start, at + 1000 * end

            thread.range("batch iteration", *us(0, 1000))
            thread.kernel("gemm", us(10, 20), us(100, 400), device=rank)
            thread.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", us(21, 30), us(350, 500),
                          device=rank)  # fmt: skip
            thread.mpi("MPI_Allreduce", *us(450, 600), 4000)
            thread.memcpy("h2d", 4000, us(40, 50), us(550, 700), device=rank)
    return report.write(path)


def test_a_moment_counts_for_the_first_of_what_goes_on(tmp_path: Path) -> None:
    """Kernels 100 to 400, NCCL and MPI 350 to 600, a copy 550 to 700 of 1000 µs."""
    (found,) = launches_of([read(split_report(tmp_path / "r.sqlite"))])
    split = found.split
    assert split is not None
    assert found.ranks == 2
    microseconds = {
        "batch_s": 1000, "compute_s": 300, "exposed_s": 200, "copies_s": 100, "idle_s": 400,
        "overlapped_s": 50, "communication_s": 250,
    }  # fmt: skip
    for name, value in microseconds.items():
        assert getattr(split, name) == pytest.approx(value * 1e-6), name


def test_reports_that_cannot_tell_communication_say_why(tmp_path: Path) -> None:
    report = ReportBuilder()
    for rank in range(2):
        thread = report.thread(pid=1000 + rank, rank=rank)
        for i in range(6):
            at = 1_000_000 + 1_100_000 * i
            thread.range("batch iteration", at, at + 1_000_000)
            thread.mpi("MPI_Allreduce", at + 10, at + 20, 8)
    (found,) = launches_of([read(report.write(tmp_path / "r.sqlite"))])
    assert found.split is None
    assert any("no GPU work was recorded" in w for w in found.warnings)


@pytest.mark.slow
def test_the_campaign_s_speedups() -> None:
    """Medians of the batches by perfmodel analyze: 7.87, 6.53 and 5.57 ms."""
    names = [f"h200x4_p{p}_host_float32_H2048_B12000.sqlite.xz" for p in (1, 2, 4)]
    found = study(launches_of([read(CAMPAIGN / name) for name in names]))
    (series,) = found.series
    assert [p.speedup for p in series.points] == pytest.approx([1, 1.2051, 1.4142], abs=2e-3)
    assert series.fit is not None
    assert series.fit.serial == pytest.approx(0.625, abs=2e-3)
    parts = [p.split for p in series.points]
    for split, point in zip(parts, series.points, strict=True):
        assert split is not None
        whole = split.compute_s + split.exposed_s + split.copies_s + split.idle_s
        assert whole == pytest.approx(split.batch_s)
        assert split.batch_s == pytest.approx(point.batch_s, rel=0.02)
        assert split.overlapped_s == 0  # sums through the host wait for the kernels
    sizes = {(r.ranks, r.bytes): r for r in of_launches(found.launches)}
    assert {n for p, n in sizes if p == 4} == {4 * k for k in (2048 * 784, 2048, 2048 * 10, 10)}
    largest = sizes[4, 4 * 2048 * 784]
    assert largest.sent_bytes == 1.5 * largest.bytes
    assert largest.bus_bytes_per_s == pytest.approx(1.5 * largest.algorithm_bytes_per_s)


# --- all-reduces


def test_all_reduces_of_a_machine_by_the_ring_formula() -> None:
    rows = of_machine(load(MACHINE))
    assert {r.through for r in rows} == {"MPI", "NCCL"}
    best = max((r for r in rows if r.through == "NCCL"), key=lambda r: r.bytes)
    assert best.bytes == 1 << 26
    assert best.bus_bytes_per_s == pytest.approx(313.11e9, rel=1e-4)  # nccl_bus of the file
    assert best.seconds == pytest.approx(1.5 * best.bytes / best.bus_bytes_per_s)
    assert all(link is not None for link in links(rows).values())


def test_one_size_fits_no_link() -> None:
    group = CollectiveGroup("MPI_Allreduce", 1000, 1.0, 3e-3, 2e-3, 1e-3, None)
    one = Launch("a", "report", 4, {}, {}, np.array([[1.0]]), MLP, reduced=(group,))
    (row,) = of_launches([one, one])
    assert (row.seconds, row.bus_bytes_per_s) == (2e-3, 1000 / 2e-3 * 1.5)  # without waiting
    assert links([row]) == {("training", "MPI", 4): None}


# --- records


def record(path: Path, **changes: Any) -> Path:
    config = {
        "input_size": 784, "hidden_size": 32, "num_classes": 10, "batch_size": 400,
        "dtype": "float32", "backend": "cupy", "transport": "host", "graph": False,
    }  # fmt: skip
    made = {
        "ranks": 2,
        "config": config | changes.pop("config", {}),
        "epochs": [{"seconds": 9.0}, {"seconds": 2.0}, {"seconds": 4.0}],
        "timings": {"batch_median": 0.25, "batches": 30},
    }
    path.write_text(json.dumps(made | changes), encoding="utf-8")
    return path


def test_records_are_launches(tmp_path: Path) -> None:
    found = launch_of_record(record(tmp_path / "a.json"))
    assert (found.label, found.source, found.ranks) == ("a", "record", 2)
    assert found.sizes == {"D": 784, "H": 32, "C": 10, "B": 400, "b": 4}
    assert found.settings["graph"] == "no"
    assert found.seconds.tolist() == [[0.25]]


def test_records_of_hosts_that_only_queue_are_timed_by_epochs(tmp_path: Path) -> None:
    """30 batches in three epochs; the first compiles."""
    found = launch_of_record(record(tmp_path / "a.json", config={"transport": "nccl"}))
    assert found.seconds.tolist() == [[0.2, 0.4]]
    with pytest.raises(ReportError, match="expected times of two epochs or more; got none"):
        launch_of_record(
            record(tmp_path / "b.json", config={"transport": "none"}, epochs=[{"seconds": 1.0}])
        )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "got none that can be read"),
        ("[]", "got no 'config' in it"),
        ('{"config": {}}', "got no 'timings' in it"),
        ('{"config": {}, "timings": {}}', "a positive whole number as 'ranks'; got None"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ReportError, match=said):
        launch_of_record(path)


def test_the_trainer_s_own_record_is_read(tmp_path: Path) -> None:
    path, config = tmp_path / "run.json", small()
    done = run_alone(*flags(config), "--record", str(path))
    assert done.returncode == 0, done.stderr
    found = launch_of_record(path)
    assert (found.ranks, found.sizes["B"], found.sizes["H"]) == (1, 30, 8)
    assert found.median_s == json.loads(path.read_text())["timings"]["batch_median"]
    assert found.settings["backend"] == "numpy"
