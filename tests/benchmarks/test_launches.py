"""Launches with many visits: what they visit, on which cores, and how their reports are cut."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.part import part
from profiles.plans import FRESH, PLANS, USUAL, configurations
from profiles.visit import configuration, own_cores, settle
from support.trainer_runs import environment, mpirun_command

pytestmark = pytest.mark.slow

VISITS = [
    {"name": "one", "hidden_size": 16, "batch_size": 6000, "transport": "host"},
    {"name": "two", "hidden_size": 8, "batch_size": 12000, "transport": "host-flat"},
    {"name": "three", "hidden_size": 32, "batch_size": 12000, "transport": "host"},
]
BATCHES = 10


@pytest.mark.parametrize(("plan", "ranks"), [(p, n) for p in PLANS for n in sorted(PLANS[p])])
def test_every_planned_configuration_is_one_of_the_trainer(plan: str, ranks: int) -> None:
    found = configurations(ranks, PLANS[plan])
    assert len({each["name"] for each in found}) == len(found)
    for each in found:
        config = configuration({k: v for k, v in each.items() if k != "name"}, 30)
        config.check_ranks(ranks)
        assert config.epochs * -(-60_000 // config.batch_size) >= 30


@pytest.mark.parametrize("ranks", sorted(FRESH))
def test_fresh_configurations_were_never_visited(ranks: int) -> None:
    """But for those at one size, which compare the hosts; and a CUDA graph needs equal batches."""
    before = {each["name"] for each in configurations(ranks)}
    for each in configurations(ranks, FRESH):
        usual = (each["hidden_size"], each["batch_size"]) == USUAL
        assert (each["name"] in before) == usual
        assert 60_000 % each["batch_size"] == 0


@given(st.integers(1, 64), st.integers(1, 8))
def test_ranks_do_not_share_cores_where_there_are_enough(cores: int, ranks: int) -> None:
    shares = [own_cores(range(cores), ranks, rank) for rank in range(ranks)]
    assert all(shares)
    if cores >= 2 * ranks:
        chosen = [core for share in shares for core in share]
        assert len(set(chosen)) == len(chosen)
        assert all(core % 2 == 0 for core in chosen)  # neighbours may be two halves of one


def test_a_thread_settles_on_one_of_its_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        core, seconds = settle(sorted(before)[:2])
        assert os.sched_getaffinity(0) == {core}
        assert core in before
        assert 1e-5 < seconds < 1
    finally:
        os.sched_setaffinity(0, before)


def launched(folder: Path, *before: str) -> list[dict[str, Any]]:
    """Visit all with two ranks of NumPy; return what rank 0 wrote."""
    plan, record = folder / "plan.json", folder / "times.json"
    plan.write_text(json.dumps([{**visit, "backend": "numpy"} for visit in VISITS]))
    train = ["-m", "profiles.visit", str(plan), "--launch", "2",
             "--batches", str(BATCHES), "--record", str(record)]  # fmt: skip
    done = subprocess.run(
        [*before, *mpirun_command(2, *train)], env=environment(), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(record.read_text())
    return rows


@pytest.mark.mpi
def test_a_launch_visits_all_in_an_order_of_its_own(tmp_path: Path) -> None:
    rows = launched(tmp_path)
    names = [row["name"] for row in rows]
    assert sorted(names) == sorted(visit["name"] for visit in VISITS)
    assert names != [visit["name"] for visit in VISITS]
    for row in rows:
        assert 0 < row["host_median_s"] < row["visit_s"]
        assert row["loop_s"] > 0


@pytest.mark.mpi
@pytest.mark.nsys
@pytest.mark.usefixtures("one_profile")
def test_a_report_is_cut_into_its_visits(nsys: str, tmp_path: Path) -> None:
    """Every part has one visit's mark; together they have every batch, and none twice."""
    raw = tmp_path / "raw"
    trace = ("--trace=nvtx,mpi", "--sample=none", "--cpuctxsw=none", "--mpi-impl=openmpi")
    launched(tmp_path, nsys, "profile", *trace, "-o", str(raw))
    whole = raw.with_suffix(".sqlite")
    export = [nsys, "export", "-q", "true", "-t", "sqlite", "-o", str(whole)]
    subprocess.run([*export, f"{raw}.nsys-rep"], check=True, capture_output=True, timeout=120)
    found = part(whole, tmp_path / "parts")
    assert set(found) == {visit["name"] for visit in VISITS}
    inside = 0
    for visit in VISITS:
        texts = _texts(found[visit["name"]])
        marks = [json.loads(text) for text in texts if "perfmodel_config" in text]
        assert {mark["hidden_size"] for mark in marks} == {visit["hidden_size"]}
        assert {mark["rank"] for mark in marks} == {0, 1}
        batches = texts.count("batch iteration")
        assert batches >= 2 * BATCHES
        inside += batches
    assert inside == _texts(whole).count("batch iteration")


def _texts(report: Path) -> list[str]:
    query = """SELECT COALESCE(n.text, s.value) FROM NVTX_EVENTS n
               LEFT JOIN StringIds s ON s.id = n.textId"""
    with sqlite3.connect(report) as connection:
        return [text for (text,) in connection.execute(query) if text]
