"""The blind campaign: nothing was fitted after the freeze, and the page is what was found."""

from __future__ import annotations

import pytest

from benchmarks.common import results
from benchmarks.common.folders import each, plain
from benchmarks.common.pages import section
from benchmarks.predict import fresh
from benchmarks.predict.launches import Launches, case_of, of_all_hosts
from benchmarks.predict.report import PAGE
from perfmodel.studies.models.hosts import unknown
from perfmodel.studies.models.model import load
from perfmodel.studies.models.predict import predict
from profiles.plans import BLIND, configurations

FOUND = results.read(fresh.BLIND_OUT)


def test_predictions_are_the_frozen_model_s() -> None:
    model, said = load(plain(fresh.BLIND_MODEL)), {p["name"]: p for p in FOUND["predictions"]}
    cases = {c["name"]: case_of(c, ranks) for ranks in BLIND for c in configurations(ranks, BLIND)}
    assert set(said) == set(cases)
    assert len(cases) == 44
    for name, case in cases.items():
        again = predict(model, case, unknown())
        kept = said[name]
        assert again.batch_s == pytest.approx(kept["predicted_s"], rel=1e-9)
        assert (again.low_s, again.high_s) == pytest.approx((kept["low_s"], kept["high_s"]))


@pytest.mark.slow
def test_no_configuration_that_is_scored_was_seen_before() -> None:
    """Three were, once, in the oldest collection: they are left out of the score."""
    seen = {o.case.label for o in of_all_hosts()}
    blind = [case_of(c, ranks) for ranks in BLIND for c in configurations(ranks, BLIND)]
    left = [case for case in blind if case.label not in seen]
    assert len(left) == 41
    assert sum(fresh.is_odd(dict(case.sizes)) for case in left) >= len(left) / 2
    assert {row["case"] for row in FOUND.get("rows", ())} <= {case.label for case in left}


def test_hosts_of_the_campaign_are_not_the_calibration_s() -> None:
    files = each(fresh.BLIND_MEASURED, "*/*.json")
    hosts = {o.host for file in files for o in Launches(file, None).observations}
    assert not hosts & set(load(plain(fresh.BLIND_MODEL)).hosts)


def test_no_anchor_is_worse_than_none_on_the_mean_of_hosts() -> None:
    """Nor does one change what only GPUs do; intervals hold on hosts that were left out."""
    rows = results.read(fresh.HOSTS_OUT)
    assert len(rows) == 10
    for route in fresh.ANCHORED:
        none, *anchored = (fresh.mean_of_hosts(rows, how, route) for how in fresh.KNOWN)
        for error, inside, width in anchored:
            assert error < none[0]
            assert width < none[2]
            assert 0.85 <= inside <= 0.95
        assert 0.85 <= none[1] <= 0.95
    replayed = {fresh.mean_of_hosts(rows, how, "replayed") for how in fresh.KNOWN}
    assert max(replayed)[0] - min(replayed)[0] < 1e-3
    assert max(error for error, _, _ in replayed) < 0.04


def test_the_page_says_what_was_found() -> None:
    script = fresh.SCRIPT
    assert section(PAGE, script, "found against target") == fresh.made_blind(FOUND).strip()
    assert section(PAGE, script, "by host") == fresh.made_by_host(FOUND).strip()
    hosts = results.read(fresh.HOSTS_OUT)
    assert section(PAGE, script, "hosts left out") == fresh.made_of_hosts(hosts).strip()
