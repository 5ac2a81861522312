"""Predictions for another host: its factors from reports and microbenchmarks, and intervals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import MACHINE, PROFILES, RESULTS
from perfmodel.base.errors import ModelError
from perfmodel.machines.measure.measurement import load as load_machine
from perfmodel.studies.mlp.case import Case, mlp_case
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.hosts import (
    SAME,
    Host,
    as_on_the_mean,
    by_calls,
    by_report,
    calls_of,
    covariance,
    unknown,
)
from perfmodel.studies.models.model import Model, document, load, parse
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import HOST_KINDS, Observation
from support.cli import fails, succeeds

REPORTS = PROFILES / "launches"
SIZES = {"D": 784, "H": 700, "C": 10, "B": 3300, "p": 2, "b": 4}
SETTINGS = ({"transport": "host"}, {"transport": "pinned"},
            {"transport": "nccl", "data_on": "device"})  # fmt: skip
REPLAYED = mlp_case(SIZES, {"transport": "nccl", "data_on": "device", "graph": "yes"})
logs = st.floats(-0.5, 0.5)


@pytest.fixture(scope="module")
def model() -> Model:
    """A model file of before hosts."""
    return load(RESULTS / "predict_model.json")


def launch(model: Model, case: Case, factors: np.ndarray, host: str = "") -> Observation:
    """Return a launch that takes what the model says, on a host with these log factors."""
    parts, batch_s = {}, predict(model, case, Host(factors, np.zeros((3, 3)))).batch_s
    for part in case.parts(model.alone):
        if part.host_kind is not None:
            seconds = model.terms[part.key].seconds(part.amounts)
            parts[part.key] = seconds * math.exp(factors[part.host_kind])
    return Observation("a launch", case, batch_s, parts, {}, 30, host)


def test_models_of_before_have_one_host(model: Model) -> None:
    assert model.hosts == {}
    assert model.host_calls == {}
    assert predict(model, REPLAYED) == predict(model, REPLAYED, SAME)


def test_hosts_are_kept_in_the_file(model: Model) -> None:
    kept = replace(model, hosts={"one": (0.1, -0.1, 0.0)}, host_calls={"launches: launch": 4e-6})
    again = parse(json.loads(json.dumps(document(kept))), "model.json")
    assert (again.hosts, again.host_calls) == (kept.hosts, kept.host_calls)
    said = json.loads(json.dumps(document(kept)))
    said["hosts"]["one"] = [1e3, 0, 0]
    with pytest.raises(ModelError, match="logarithms of at most 10"):
        parse(said, "model.json")


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_anchor_of_the_calibration_s_host_changes_no_time(
    model: Model, settings: dict[str, str]
) -> None:
    case = mlp_case(SIZES, settings)
    host = by_report(unknown(), model, launch(model, case, np.zeros(3)))
    assert host.factors == pytest.approx(np.zeros(3), abs=1e-12)
    for other in SETTINGS:
        at = mlp_case({**SIZES, "H": 1024}, other)
        before, after = predict(model, at, unknown()), predict(model, at, host)
        assert after.batch_s == pytest.approx(before.batch_s, rel=1e-12)
        assert before.low_s <= after.low_s
        assert after.high_s <= before.high_s


@given(st.tuples(logs, logs, logs))
def test_what_only_gpus_do_takes_as_long_on_any_host(factors: tuple[float, ...]) -> None:
    model = load(RESULTS / "predict_model.json")
    host = Host(np.array(factors), covariance((0.1, 0.1, 0.1), 0.5))
    assert predict(model, REPLAYED, host).batch_s == predict(model, REPLAYED).batch_s


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_host_that_is_slower_in_all_is_recovered(model: Model, settings: dict[str, str]) -> None:
    """A host 1.3 times as slow: most of it from one report of another configuration, all of it
    from many."""
    slow = np.full(3, math.log(1.3))
    anchor = launch(model, mlp_case({**SIZES, "H": 1024}, settings), slow)
    at = mlp_case(SIZES, {"transport": "host"})
    true = predict(model, at, Host(slow, np.zeros((3, 3)))).batch_s
    errors, host = [abs(math.log(predict(model, at).batch_s / true))], unknown()
    for _ in range(20):
        host = by_report(host, model, anchor)
        errors.append(abs(math.log(predict(model, at, host).batch_s / true)))
    assert all(later < before for before, later in pairwise(errors))
    kinds = 3 if settings["transport"] != "nccl" else 1
    assert errors[1] < errors[0] * (0.55 if kinds == 3 else 0.75)
    assert np.exp(host.factors[:kinds]) == pytest.approx(np.full(kinds, 1.3), rel=0.02)


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_the_less_a_host_is_known_the_wider_the_interval(model: Model, a: float, b: float) -> None:
    for settings in SETTINGS:
        case = mlp_case(SIZES, settings)
        less, more = (
            predict(model, case, Host(np.zeros(3), covariance((sd, sd, sd), 0.5)))
            for sd in sorted((a, b))
        )
        assert more.low_s <= less.low_s * (1 + 1e-12)
        assert less.high_s <= more.high_s * (1 + 1e-12)
        assert less.batch_s == more.batch_s


@given(st.tuples(logs, logs, logs), st.tuples(logs, logs, logs))
def test_observations_count_in_any_order(one: tuple[float, ...], other: tuple[float, ...]) -> None:
    errors = covariance((0.1, 0.2, 0.3), 0.5)
    first = unknown().given(np.array(one), errors, "a").given(np.array(other), 2 * errors, "b")
    swapped = unknown().given(np.array(other), 2 * errors, "b").given(np.array(one), errors, "a")
    assert first.factors == pytest.approx(swapped.factors, abs=1e-9)
    assert first.covariance == pytest.approx(swapped.covariance)
    assert (np.diag(swapped.covariance) < np.diag(unknown().covariance)).all()


def test_calls_of_the_same_machine_change_nothing(model: Model) -> None:
    calls = calls_of(load_machine(MACHINE))
    assert {name.partition(":")[0] for name in calls} == set(HOST_KINDS)
    host = by_calls(unknown(), calls, calls, "machine.toml")
    assert host.factors == pytest.approx(np.zeros(3))
    slower = by_calls(unknown(), calls, {k: 1.5 * s for k, s in calls.items()}, "machine.toml")
    assert (slower.factors > 0.5 * math.log(1.5)).all()
    with pytest.raises(ModelError, match="none in common"):
        by_calls(unknown(), calls, {"launches: nothing": 1.0}, "machine.toml")


def test_launches_of_two_hosts_are_separated(model: Model) -> None:
    """A host that takes 1.4 times as long as another: the model is of their (geometric) mean."""
    half = 0.5 * math.log(1.4)
    runs = [
        launch(model, mlp_case({**SIZES, "H": h, "B": b}, s), np.full(3, sign * half), name)
        for s in SETTINGS for h in (256, 700, 2048) for b in (1500, 6000)
        for sign, name in ((-1, "fast"), (1, "slow"))
    ]  # fmt: skip
    found = calibrate(runs, resamples=0, left_out=0)
    assert found.hosts["fast"] == pytest.approx((-half,) * 3, abs=0.01)
    assert found.hosts["slow"] == pytest.approx((half,) * 3, abs=0.01)
    for o in runs:
        moved = as_on_the_mean(o, np.array(found.hosts[o.host]))
        for part in o.case.parts():
            if part.key in o.parts:
                said = model.terms[part.key].seconds(part.amounts)
                assert moved.parts[part.key] == pytest.approx(said, rel=0.02)


def test_a_replayed_batch_is_no_anchor() -> None:
    model = load(RESULTS / "predict_model.json")
    said = {part.key: model.terms[part.key].seconds(part.amounts)
            for part in REPLAYED.parts() if part.key in model.terms}  # fmt: skip
    replayed = Observation("graph", REPLAYED, 1e-3, said, {}, 1)
    with pytest.raises(ModelError, match="says nothing of the host; give a report without --graph"):
        by_report(unknown(), model, replayed)


def test_anchors_on_the_command_line() -> None:
    model = RESULTS / "predict_model.json"
    sizes = ("-H", 700, "-B", 3300, "-p", 2, "--transport", "host", "--json")
    plain = json.loads(succeeds("study", "predict", "--model", model, *sizes))
    assert plain["host"]["factors"]["launches"][0] == 1
    anchor = REPORTS / "p2_host_H512_B1500.sqlite.xz"
    found = json.loads(succeeds("study", "predict", "--model", model, *sizes, "--anchor", anchor))
    assert found["host"]["evidence"] == [anchor.name]
    assert found["high_s"] / found["low_s"] < plain["high_s"] / plain["low_s"]
    other = REPORTS.parent / "programs" / "gpt_ddp.sqlite.xz"
    said = fails(6, "study", "predict", "--model", model, *sizes[:-1], "--anchor", other)
    assert "give --anchor reports of the program that the model is of" in said
    assert "calibrate" not in said
    said = fails(6, "study", "predict", "--model", model, *sizes[:-1], "--machine",
                 MACHINE)  # fmt: skip
    assert "a model without host times" in said
