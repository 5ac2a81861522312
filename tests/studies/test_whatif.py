"""What if: the changes that are offered, what they save at most, and what a model says of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import PROFILES, RESULTS
from benchmarks.ladder import configurations as ladder
from perfmodel.analysis.analyze import analyze, analyze_run
from perfmodel.analysis.runs import time_runs
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.machines.machine import Machine
from perfmodel.programs.mlp.settings import SETTINGS
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.studies.analysis.splits import parallelisms
from perfmodel.studies.analysis.whatif import Judge, ask, effect, evidence, gradient
from perfmodel.studies.mlp.bounds import GROUPS, Evidence
from perfmodel.studies.mlp.case import Case, mlp_case
from perfmodel.studies.mlp.changes import CHANGES, offers
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import Model, load
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Observation, Term
from perfmodel.timing.run import Run

LADDER = PROFILES / "ladder"
FROZEN = RESULTS / "predict_model.json"
RUNGS = (
    "document", "pinned", "host-flat", "prefetch", "resident", "chunked", "nccl", "graph", "thin",
    "fused-x3", "peer-x3", "model-nccl",
)  # fmt: skip
NAMED = {change.name: change for change in CHANGES}


@cache
def launch(rung: str, number: int = 1, folder: str = "ladder") -> tuple[Run, Observation, Evidence]:
    (run,) = time_runs([read(PROFILES / folder / f"{rung}_{number}.sqlite.xz")], Options({}))
    seen = observe(run)
    return run, seen, evidence(seen, analyze_run(run, Options({})))


@cache
def frozen() -> Model:
    return load(FROZEN)


@cache
def over_the_host() -> Model:
    """The frozen model's terms of two ranks whose host waits for the GPU and exchanges by MPI."""
    others = "nccl", "NCCL", "fused", "peer", "one rank", "queue", "replay", "chunked"
    terms = frozen().terms.items()
    return replace(frozen(), terms={k: t for k, t in terms if not any(o in k for o in others)})


@cache
def of_the_ladder() -> Model:
    """A model of the second and third launches of every rung."""
    return calibrate([launch(rung, number)[1] for rung in RUNGS for number in (2, 3)])


def case(h: int = 512, b: int = 3000, p: int = 2, **others: str) -> Case:
    return mlp_case({"D": 784, "H": h, "C": 10, "B": b, "p": p, "b": 4}, others)


def offered(found: Case) -> dict[str, Case | None]:
    return {o.change.name: o.case for o in offers(found)}


def bound(rung: str, name: str, number: int = 1, folder: str = "ladder") -> float:
    found = launch(rung, number, folder)[2]
    return Judge(found, ()).bound(NAMED[name], NAMED[name].apply(found.case)).saving_s


# --- changes


def test_the_document_s_program_is_offered_the_ladder() -> None:
    found = offered(case())
    assert found["pinned"] == case(transport="pinned", data_on="pinned")
    assert found["batch x 2"] == case(b=6000)
    assert found["graph"] is None
    assert found["tf32x3"] is None
    why = {o.change.name: o.needs for o in offers(case())}
    assert why["graph"] == "needs --transport nccl or peer or none and --data-on device first"


def test_what_is_made_is_not_offered() -> None:
    top = case(transport="peer", data_on="device", gemm="fused", math="tf32x3", graph="yes")
    names = {name for name, at in offered(top).items() if at is not None}
    assert names == {"tf32", "batch x 2", "ranks x 2"}


@pytest.mark.parametrize(
    ("transport", "removed"),
    [
        ("host", {"nccl": "both copies over PCIe", "ring": "both copies over PCIe"}),
        ("host-flat", {"nccl": "both copies over PCIe", "ring": "both copies over PCIe"}),
        ("cuda-aware", {
            "nccl": "the MPI library's copies", "ring": "the MPI library's copies",
            "host-flat": "the MPI library's host memory",
        }),
        ("ring", {"nccl": "MPI_Sendrecv on the host"}),
    ],
)  # fmt: skip
def test_transports_are_offered_for_what_they_remove(
    transport: str, removed: dict[str, str]
) -> None:
    """The ring has no copies over PCIe, the MPI library's own are in no range."""
    found = {
        o.change.name: o.change.removes
        for o in offers(case(transport=transport, data_on="device"))
        if o.case is not None and o.case.settings["transport"] != transport
    }
    assert {name: found[name][: len(said)] for name, said in removed.items()} == removed
    assert ("ring" in found) == (transport != "ring")


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [("cuda-aware", "host-flat", "resident"), ("cuda-aware", "ring", "ring"),
     ("resident", "ring", "ring")],
)  # fmt: skip
@pytest.mark.parametrize("hidden", [64, 512, 2048])
def test_bounds_of_transports_hold(before: str, name: str, after: str, hidden: int) -> None:
    """What the reports measured is saved is at most the bound, and what launches differ by."""
    was, became = (
        launch(f"{rung}_H{hidden}", folder="cuda_aware")[1].batch_s for rung in (before, after)
    )
    noise = 0.0 if hidden > 64 else 1.645 * 0.08 * was  # of one launch: docs/whatif.md
    assert was - became <= bound(f"{before}_H{hidden}", name, folder="cuda_aware") + noise


def test_one_rank_is_offered_no_all_reduce() -> None:
    found = offered(case(p=1))
    assert "alone" in found
    assert not {"nccl", "chunked", "peer", "model parallel"} & set(found)


def test_barriers_are_offered_to_be_dropped() -> None:
    found = offered(case(sync="yes"))
    assert found["no sync"] == case()
    assert "no sync" not in offered(case())


def test_double_precision_has_no_tensor_cores() -> None:
    one = mlp_case({"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 8}, {})
    assert not {"tf32", "tf32x3"} & set(offered(one))
    found = replace(launch("nccl")[2], case=one)
    after = NAMED["fused"].apply(one)
    assert found.least(after).parts["large GEMMs"] == 0  # no peak that it could not pass


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chosen = {name: draw(st.sampled_from(values)) for name, values in SETTINGS.items()}
    try:
        return case(p=draw(st.sampled_from([1, 2, 4])), **chosen)
    except WorkloadError:
        return case()


@given(cases())
def test_a_change_that_is_applied_is_made(found: Case) -> None:
    for offer in offers(found):
        if offer.case is None:
            assert offer.needs
            continue
        assert offer.case != found
        assert offer.change.doubles or offer.change.made(offer.case)


def test_changes_have_rungs_of_the_ladder() -> None:
    names = {rung.name for rung in ladder.RUNGS}
    shared = {change.name for change in CHANGES} & names
    assert {"pinned", "nccl", "peer", "fused", "graph"} <= shared


# --- evidence and bounds


@pytest.mark.parametrize("rung", RUNGS)
def test_evidence_accounts_for_the_batch(rung: str) -> None:
    _, seen, found = launch(rung)
    assert found.batch_s == seen.batch_s
    assert found.without(()) == pytest.approx(found.batch_s, rel=0.01)
    assert all(s >= 0 for s in found.seconds.values())


@pytest.mark.parametrize("rung", RUNGS)
def test_no_change_saves_nothing(rung: str) -> None:
    """Up to the gaps of a host that queues, which belong to no part."""
    found = launch(rung)[2]
    floor = found.least(found.case).batch_s
    assert floor <= found.batch_s * (1 + 1e-9)
    assert floor == pytest.approx(found.batch_s, rel=0.14 if rung == "model-nccl" else 0.01)


def test_resident_data_saves_at_most_the_copy_of_images() -> None:
    _, seen, _ = launch("host-flat")
    copied = seen.phases["copying images host -> device"]
    assert copied == pytest.approx(119.6e-6, rel=1e-3)
    assert bound("host-flat", "resident") == pytest.approx(copied)
    assert bound("host-flat", "prefetch") == pytest.approx(copied)


def test_one_flat_buffer_leaves_bytes_and_the_largest_message() -> None:
    _, seen, found = launch("pinned")
    out, back = seen.phases["cudaMemcpyDeviceToHost"], seen.phases["cudaMemcpyHostToDevice"]
    over_pcie = 1_628_200 / 64e9
    copies = 0.75 * (out - over_pcie) + 0.75 * (back - over_pcie)
    small = (1 - found.largest) * seen.phases["MPI_Allreduce"]
    assert 0.9 < found.largest < 1
    assert bound("pinned", "host-flat") == pytest.approx(copies + small, rel=1e-6)


def test_a_pipeline_leaves_its_longest_stage() -> None:
    _, seen, _ = launch("resident")
    copies = [seen.phases[f"cudaMemcpy{d}"] for d in ("DeviceToHost", "HostToDevice")]
    assert bound("resident", "chunked") == pytest.approx(sum(copies), rel=0.01)


def test_nccl_leaves_the_gpu() -> None:
    found = launch("resident")[2]
    gpu = ("large GEMMs", "small GEMMs", "element-wise", "step kernels")
    kernels = sum(found.seconds[name] for name in gpu)
    direct = 1_628_200 / 450e9  # NVLink, one direction; 2 (p-1)/p = 1
    assert bound("resident", "nccl") == pytest.approx(found.batch_s - kernels - direct)


def test_without_a_machine_the_bound_is_looser() -> None:
    found = launch("pinned")[2]
    unknown = replace(found, machine=Machine("?", "", {}, {}))
    after = NAMED["host-flat"].apply(found.case)
    assert unknown.least(after).batch_s < found.least(after).batch_s


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [("pinned", "host-flat", "host-flat"), ("host-flat", "resident", "resident"),
     ("resident", "nccl", "nccl"), ("nccl", "graph", "graph"), ("graph", "thin", "thin"),
     ("fused-x3", "peer", "peer-x3"), ("document", "pinned", "pinned")],
)  # fmt: skip
def test_measured_savings_stay_below_their_bounds(before: str, name: str, after: str) -> None:
    """Medians of three launches each where MPI moves the gradients: they differ by up to 11 %."""
    numbers = (1, 2, 3) if after in ("pinned", "host-flat", "resident") else (1,)
    times = {r: [launch(r, n)[2].batch_s for n in numbers] for r in (before, after)}
    saved = float(np.median(times[before]) - np.median(times[after]))
    limit = float(np.median([bound(before, name, n) for n in numbers]))
    assert 0 < saved <= limit


def test_the_report_s_batches_leave_an_interval_around_the_bound() -> None:
    run, seen, found = launch("document")
    resampled = found.draws(run, seen)
    said = Judge(found, resampled).bound(NAMED["resident"], NAMED["resident"].apply(found.case))
    assert said.low_s < said.saving_s < said.high_s
    assert said.high_s - said.low_s < 0.4 * said.saving_s  # copies of pageable memory drift
    for drawn in resampled[:20]:
        assert drawn.without(()) == pytest.approx(drawn.batch_s, rel=1e-6)


# --- predictions


def tiny(covariance: Any) -> Model:
    """The model of the host, its copies' and launches' coefficients as uncertain as said."""
    terms = {}
    for key, term in over_the_host().terms.items():
        terms[key] = replace(term, covariance=covariance(term))
    return replace(over_the_host(), terms=terms)


def none(term: Term) -> Any:
    return np.zeros_like(term.covariance)


@pytest.mark.parametrize("settings_of", [{}, {"transport": "pinned", "data_on": "pinned"}])
def test_a_batch_is_homogeneous_in_its_coefficients(settings_of: dict[str, str]) -> None:
    """Euler: the sum of coefficients times derivatives is the batch itself."""
    one = case(**settings_of)
    batch = predict(frozen(), one).batch_s
    slopes = gradient(frozen(), one, batch)
    whole = sum(float(slopes[k] @ t.coefficients) for k, t in frozen().terms.items())
    assert whole == pytest.approx(batch, rel=1e-6)


def test_shared_terms_cancel() -> None:
    """Only the copy of images is uncertain: what keeps it whole has a ratio as sure as can be."""

    def images(term: Term) -> Any:
        scale = 1.0 if term.key == "copy images [pageable]" else 0.0
        return term.covariance * scale

    model = tiny(images)
    said = effect(model, case(), case())
    assert said.ratio == pytest.approx(1)
    assert said.sd == pytest.approx(0, abs=1e-9)
    gone = effect(model, case(), case(data_on="device"))
    kept = effect(model, case(), case(transport="host-flat"))
    assert 0 < kept.sd < gone.sd
    assert effect(tiny(none), case(), case(data_on="device")).sd == pytest.approx(0, abs=1e-12)


def test_the_ratio_s_variance_is_that_of_draws() -> None:
    """Against sampled coefficients: the delta method, shared terms and all."""
    model = tiny(lambda t: np.diag((0.05 * t.coefficients) ** 2))
    before, after = case(), case(transport="pinned", data_on="pinned")
    generator, logs = np.random.default_rng(1), []
    for _ in range(150):
        terms = {
            k: replace(t, coefficients=generator.normal(t.coefficients, 0.05 * t.coefficients))
            for k, t in model.terms.items()
        }
        drawn = replace(model, terms=terms)
        logs.append(math.log(predict(drawn, after).batch_s / predict(drawn, before).batch_s))
    assert effect(model, before, after).sd == pytest.approx(float(np.std(logs)), rel=0.15)


def test_golden_prediction_for_the_document_s_program() -> None:
    found = launch("document")[2]
    said = Judge(found, (), frozen()).predicted(NAMED["pinned"], NAMED["pinned"].apply(found.case))
    assert said.source == "model"
    assert said.saving_s == pytest.approx(944e-6, rel=0.02)
    assert said.batch_s + said.saving_s == pytest.approx(found.batch_s)
    assert said.next_low_s is not None
    assert said.next_high_s is not None
    assert said.next_low_s < said.low_s < said.saving_s < said.high_s < said.next_high_s
    assert said.phases["MPI_Allreduce"][1] == pytest.approx(398e-6, rel=0.02)


def test_what_the_model_cannot_tell_is_bounded_and_named() -> None:
    found = launch("document")[2]
    said = Judge(found, (), frozen()).saving(NAMED["thin"], NAMED["thin"].apply(found.case))
    assert said.source == "bound"
    assert "profile python -m trainer --transport host --data-on host --gemm thin" in said.notes[0]
    with pytest.raises(ModelError, match="give --model"):
        Judge(found, ()).predicted(NAMED["nccl"], NAMED["nccl"].apply(found.case))


def test_ranks_predictions_before_bounds() -> None:
    found = launch("document")[2]
    ranked, later = Judge(found, (), over_the_host()).all_of(found.case)
    sources = [s.source for s in ranked]
    assert sources == sorted(sources, reverse=True)
    for source in ("model", "bound"):
        savings = [s.saving_s for s in ranked if s.source == source]
        assert savings == sorted(savings, reverse=True)
    assert {x.name for x in later} == {"overlap", "graph", "tf32x3"}


@pytest.mark.slow
def test_the_sequence_climbs() -> None:
    """With every rung calibrated, from the document's program to the peer all-reduce's times."""
    found = launch("document")[2]
    steps = Judge(found, (), of_the_ladder()).path()
    assert [s.source for s in steps] == ["model"] * len(steps)
    left = [found.batch_s, *(s.batch_s for s in steps)]
    assert all(a > b for a, b in pairwise(left))
    assert sum(s.saving_s for s in steps) + left[-1] == pytest.approx(found.batch_s)
    assert [s.name for s in steps] == [
        "nccl",
        "resident",
        "graph",
        "peer",
        "thin",
        "fused + tf32x3",
    ]
    assert steps[-1].batch_s == pytest.approx(94e-6, rel=0.05)  # the rung itself: 88 µs


def test_the_sequence_of_bounds_says_what_is_left_at_least() -> None:
    found = launch("document")[2]
    steps = Judge(found, ()).path()
    assert {s.source for s in steps} == {"bound"}
    assert steps[-1].batch_s < 88e-6  # what the ladder's best rung takes


# --- the question


@pytest.mark.parametrize("rung", RUNGS)
def test_freeing_a_unit_saves_no_more_than_it_takes(rung: str) -> None:
    found = launch(rung)[2]
    rows = list(found.if_free(1e9))
    assert rows
    for row in rows:
        waits = found.seconds.get("waiting for the GPU", 0.0)
        saved = found.batch_s - row.batch_s
        assert -1e-12 <= saved <= row.seconds + waits + 0.01 * found.batch_s
        assert row.name in GROUPS


def test_the_document_s_question_for_its_own_program() -> None:
    said = ask([read(LADDER / "document_1.sqlite.xz")]).question
    assert said.intensity_flops_per_byte == pytest.approx(374.5, abs=0.1)
    assert said.ridge_flops_per_byte == pytest.approx(2944, rel=1e-3)
    by = {r.symbol: r for r in said.reach}
    images = by["B"].ridge_at
    assert images is not None
    assert images % 2 == 0
    assert 374.519 * images / 3000 >= said.ridge_flops_per_byte > 374.519 * (images - 2) / 3000
    assert by["H"].ridge_at is None
    assert by["H"].doubled_by == "bound"
    without_mpi = next(r for r in said.removed if r.name == "MPI_Allreduce")
    assert without_mpi.intensity_flops_per_byte == pytest.approx(2 * 374.519, rel=1e-3)
    assert said.ceilings[0].factor == pytest.approx(2.27, rel=0.01)


def test_model_parallelism_on_paper_and_calibrated() -> None:
    found = launch("nccl")[2]
    full = analyze([read(LADDER / "nccl_1.sqlite.xz")], Options({}, counting="full")).runs[0]
    model = calibrate([launch(rung)[1] for rung in ("nccl", "model-nccl")])
    said = parallelisms(full, found.case, model)
    assert said is not None
    assert (said.data_bytes, said.model_bytes) == (1_628_200, 120_000)
    assert said.bytes.hidden.at == pytest.approx(37.7, abs=0.1)
    assert said.data_s is not None
    assert said.model_s is not None
    assert said.model_s < said.data_s
    assert said.calibrated is None
    assert "too few sizes" in said.missing_calibration
    assert parallelisms(full, case(p=1), None) is None


def test_the_calibrated_crossing_is_where_two_predictions_meet() -> None:
    """Launching a model parallel batch as long as the other: the frozen model tells the rest."""
    terms = dict(frozen().terms)
    for name in ("launch forward", "launch backward", "launch step", "between"):
        key = f"{name} [cublas, blocking, model parallel]"
        terms[key] = replace(terms[f"{name} [cublas, blocking]"], key=key)
    model = replace(frozen(), terms=terms)
    full = analyze([read(LADDER / "document_1.sqlite.xz")], Options({}, counting="full")).runs[0]
    said = parallelisms(full, case(), model)
    assert said is not None
    assert said.calibrated is not None
    hidden, batch = said.calibrated.hidden, said.calibrated.batch
    assert (hidden.model_wins, batch.model_wins) == ("above", "below")
    assert hidden.at is not None
    h = int(hidden.at)
    for at, wins in ((h, True), (h - 1, False)):
        data, apart = (predict(model, case(h=at, parallel=k)).batch_s for k in ("data", "model"))
        assert (apart < data) is wins
