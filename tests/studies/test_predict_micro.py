"""Microbenchmarks as evidence of a model, noise by what limits the batch, and what both say."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import results
from benchmarks.common.folders import MACHINE, PROFILES, RESULTS, ROOT, unpacked
from benchmarks.predict.score import median_error
from perfmodel.machines.measure.measurement import load as load_machine
from perfmodel.studies.mlp.case import mlp_case
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.mlp.parts import GROUPS, microbenchmarks, mlp_parts, slowest
from perfmodel.studies.models.calibrate import median_sd, shrunk
from perfmodel.studies.models.model import load
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Microbenchmark, Observation, fit_term
from support.cli import fails

SIZES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 4, "b": 4}
ONE = Observation("one", mlp_case(SIZES, {"transport": "host"}), 2e-3, {}, {}, 30)


@pytest.fixture(scope="module")
def evidence() -> tuple[Microbenchmark, ...]:
    return microbenchmarks(load_machine(MACHINE), MACHINE.name)


def test_evidence_is_of_parts_that_batches_have(evidence: tuple[Microbenchmark, ...]) -> None:
    """The same key and the same amounts as the part of some batch."""
    settings = [
        {"transport": "host"}, {"transport": "pinned"},
        {"transport": "nccl", "data_on": "device"},
        {"transport": "nccl", "data_on": "device", "graph": "yes"},
    ]  # fmt: skip
    parts = {
        part.key: set(part.amounts)
        for s in settings for p in (1, 4)
        for part in mlp_parts(mlp_case({**SIZES, "p": p}, s))
    }  # fmt: skip
    assert {e.key for e in evidence} <= set(parts)
    for e in evidence:
        assert all(set(amounts) == parts[e.key] for amounts, _ in e.rows)
        assert all(seconds > 0 for _, seconds in e.rows)


def test_rows_are_the_file_s(evidence: tuple[Microbenchmark, ...]) -> None:
    """16 MiB over 4 ranks by MPI took 5.37 ms: 2 rounds, 1.5 times the bytes from every rank."""
    found = next(e for e in evidence if e.key == "all-reduce [MPI, pageable]")
    amounts, seconds = found.rows[-1]
    assert amounts == {"messages": 2.0, "bytes": 1.5 * (16 << 20)}
    assert seconds == pytest.approx(5.372513e-3)
    assert found.source == "machine_h200x4.toml: mpi_allreduce, host, all, 4 ranks"
    gaps = next(e for e in evidence if e.key == "gaps [queued]")
    assert gaps.rows[0][1] == pytest.approx(14 * 1.3427e-6, rel=1e-4)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_can_be_left_out(group: str, evidence: tuple[Microbenchmark, ...]) -> None:
    rest = [g for g in GROUPS if g != group]
    left = microbenchmarks(load_machine(MACHINE), MACHINE.name, rest)
    assert 0 < len(left) < len(evidence)
    assert all(e in evidence for e in left)


def test_a_series_counts_as_one_configuration(evidence: tuple[Microbenchmark, ...]) -> None:
    """One run tells one direction; with the series both latency and rate are told, and near it."""
    part = next(p for p in mlp_parts(ONE.case) if p.name == "all-reduce")
    rows = [(part, 4.7e-4, ONE)]
    alone, with_series = fit_term(part, rows, ()), fit_term(part, rows, evidence)
    assert len(alone.space) == 1
    assert len(with_series.space) == 2
    assert with_series.microbenchmarks
    assert not alone.microbenchmarks
    fitted = with_series.seconds(part.amounts)
    assert fitted == pytest.approx(4.7e-4, rel=0.1)
    assert np.sqrt(with_series.variance(part.amounts)) < 0.4 * fitted


def test_a_term_of_nothing_takes_no_time() -> None:
    part = next(p for p in mlp_parts(ONE.case) if p.name == "first launch")
    term = fit_term(part, (), ())
    assert term.seconds(part.amounts) == 0
    assert term.identifiable(part.amounts)


def test_a_model_says_who_told_its_terms() -> None:
    frozen = load(RESULTS / "predict_model.json")
    told = frozen.terms["all-reduce [NCCL]"]
    assert told.runs
    assert told.microbenchmarks == ("machine_h200x4.toml: nccl_allreduce, device, all, 4 ranks",)
    assert not frozen.terms["step kernels [32 bit]"].microbenchmarks


def test_another_gpu_s_microbenchmarks_are_refused(tmp_path: Path) -> None:
    report = PROFILES / "launches" / "p2_nccl_device_H128_B3000.sqlite.xz"
    other = tmp_path / "other.toml"
    text = MACHINE.read_text(encoding="utf-8")
    other.write_text(text.replace('gpus = ["NVIDIA H200"]', 'gpus = ["NVIDIA L4"]'))
    said = fails(6, "study", "calibrate", report, "-o", tmp_path / "m.json", "--machine", other)
    assert (
        "expected microbenchmarks of the reports' GPU, NVIDIA H200; got those of NVIDIA L4" in said
    )


# --- noise


def test_medians_of_launches_are_further_off_than_means() -> None:
    """One launch: sqrt(2/pi) of its deviation. Two: the median is the mean. Three: 16 % more."""
    assert median_error(1) == pytest.approx(np.sqrt(2 / np.pi), rel=0.01)
    assert median_error(2) == pytest.approx(np.sqrt(1 / np.pi), rel=0.01)
    assert median_sd(2) == pytest.approx(np.sqrt(1 / 2), rel=0.01)
    assert median_sd(3) == pytest.approx(0.6698, rel=0.01)
    assert median_sd(4) == pytest.approx(0.5461, rel=0.01)
    assert median_sd(5) == pytest.approx(0.5356, rel=0.01)


@given(
    st.dictionaries(
        st.sampled_from(["GPU", "host, queueing", "host, waiting"]),
        st.tuples(st.floats(0.0, 1.0), st.integers(1, 100)), min_size=1,
    )
)  # fmt: skip
def test_shrinking_moves_towards_the_others(found: dict[str, tuple[float, int]]) -> None:
    said = shrunk(found)
    least = min(max(sd, 0.003) for sd, _ in found.values())
    most = max(max(sd, 0.003) for sd, _ in found.values())
    for name, (sd, _) in found.items():
        assert least * (1 - 1e-9) <= said[name] <= most * (1 + 1e-9)
        if len(found) == 1:
            assert said[name] == pytest.approx(max(sd, 0.003))


def test_the_gpu_s_pace_has_the_least_noise() -> None:
    noise = load(RESULTS / "predict_model.json").batch_noise
    assert set(noise) == {"GPU", "host, queueing", "host, waiting"}
    assert noise["GPU"] < 0.5 * min(noise["host, queueing"], noise["host, waiting"])


def test_where_host_and_gpu_are_near_the_host_widens_the_interval_upwards() -> None:
    """H=512, B=12000, 2 ranks: 374 µs of the GPU, 320 µs of a host that launches differ by."""
    frozen = load(RESULTS / "predict_model.json")
    near = predict(frozen, mlp_case({**SIZES, "B": 12000, "p": 2},
                                    {"transport": "nccl", "data_on": "device"}))  # fmt: skip
    assert near.limit == "GPU"
    assert near.high_s / near.batch_s > near.batch_s / near.low_s + 0.01


def test_the_slowest_of_many_is_slower() -> None:
    assert slowest(1) == pytest.approx(0, abs=1e-12)
    assert slowest(2) == pytest.approx(0.5450, abs=1e-3)
    assert slowest(4) == pytest.approx(0.9982, abs=1e-3)
    assert all(slowest(2 * p) > slowest(p) for p in (1, 2, 64, 4096))


# --- replays


def test_kernels_of_a_replay_are_told_by_their_names() -> None:
    """H=128, B=3000, 2 ranks, us: five kernels and what lies between them."""
    from perfmodel.readers import read
    from perfmodel.timing.run import time_run

    path = PROFILES / "launches" / "p2_nccl_device_fused_tf32x3_graph_H128_B3000.sqlite.xz"
    found = observe(time_run([read(path)], "batch iteration", label=path.name))
    us = {key: round(1e6 * s, 1) for key, s in found.parts.items()}
    assert us["large GEMMs [fused tf32x3 32 bit]"] == 30.6
    assert us["fused steps [32 bit]"] == 7.8
    assert us["all-reduce [NCCL]"] == 8.1
    assert us["step in one kernel [32 bit]"] == 2.6
    assert us["gaps [replayed]"] == pytest.approx(10.95, abs=0.06)
    on_gpu = [s for key, s in found.parts.items() if not key.startswith("replay [")]
    assert sum(on_gpu) == pytest.approx(found.batch_s)


def test_rows_that_were_observed_again_have_the_kernels() -> None:
    rows = results.read(ROOT / "profiles/launches/launches.json")["launches"]
    kept = [row for row in rows if row.get("file") and row["settings"]["graph"] == "yes"]
    assert len(kept) == 9
    assert all("gaps [replayed]" in row["parts"] for row in kept)


def test_a_batch_that_is_recorded_at_an_epoch_s_end_is_left_out(tmp_path: Path) -> None:
    """A short last batch runs as it is in the first epoch and is recorded in the second."""
    from perfmodel.readers import read
    from perfmodel.timing.run import time_run

    packed = PROFILES / "launches" / "p2_nccl_device_graph_H512_B3000.sqlite.xz"
    path = unpacked(packed, tmp_path / "report.sqlite")
    before = observe(time_run([read(path)], "batch iteration", label=path.name))
    with closing(sqlite3.connect(path)) as db, db:
        named = "SELECT id FROM StringIds WHERE value = ?"
        ((batch,),), ((forward,),) = (
            db.execute(named, [name]).fetchall() for name in ("batch iteration", "forward")
        )
        last = db.execute(
            "SELECT max(rowid) FROM NVTX_EVENTS WHERE textId = ? GROUP BY globalTid", [batch]
        ).fetchall()
        assert len(last) == 2
        for (rowid,) in last:
            copied = db.execute(
                "INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS WHERE rowid = ?", [rowid]
            ).lastrowid
            db.execute(
                "UPDATE NVTX_EVENTS SET start = start + 100, end = start + 4000, textId = ? "
                "WHERE rowid = ?", [forward, copied],
            )  # fmt: skip
    after = observe(time_run([read(path)], "batch iteration", label=path.name))
    assert after.batches == before.batches - 1
    assert after.batch_s == pytest.approx(before.batch_s, rel=0.01)
    assert set(after.parts) == set(before.parts)
