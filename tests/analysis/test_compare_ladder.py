"""Comparisons of the ladder's real reports: hosts that only queue, batches that the GPU limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Final

import numpy as np
import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare.compare import Comparison, compare_traces
from perfmodel.analysis.compare.series import Key, Launch, Series, launch_of
from perfmodel.models.launches import LAUNCH_NOISE, SCALES
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.render.compare import compare_document, group_table, result
from perfmodel.timing.run import time_run
from support.launches_made import certain, compared

LADDER: Final = PROFILES / "ladder"
RUNGS: Final = {
    "document", "pinned", "host-flat", "prefetch", "resident", "chunked", "nccl", "graph", "thin",
    "fused-x3", "peer-x3", "model-nccl",
}  # fmt: skip
GRAPHS: Final = ("graph", "thin", "fused-x3", "peer-x3")
BATCH: Final[Key] = ("range", ("batch iteration",))
IDLE: Final[Key] = ("link", ("GPU idle",))


@cache
def traces(name: str) -> list[Trace]:
    """The launches of a rung."""
    found = [read(path) for path in sorted(LADDER.glob(f"{name}_[0-9].sqlite.xz"))]
    assert len(found) == 3
    return found


@cache
def launches(name: str) -> list[Launch]:
    """The same, each batch timed until all of its work is done."""
    return [
        launch_of(time_run([t], "batch iteration", label=f"{name}_{i}"), done=True)
        for i, t in enumerate(traces(name))
    ]


@cache
def rungs(before: str, after: str) -> Comparison:
    return compare_traces(traces(before), traces(after))


# --- golden numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "before_us", "after_us", "lost"),
    [
        ("nccl", "graph", 330.0, 164.1, ["GPU idle"]),
        ("graph", "thin", 164.1, 151.0, ["kernels"]),
        ("thin", "fused-x3", 151.0, 104.7, ["kernels"]),
        ("fused-x3", "peer-x3", 104.7, 88.3, ["collectives, transfer: NCCL AllReduce"]),
        ("resident", "nccl", 871.2, 330.0, ["MPI_Allreduce", "collectives, transfer"]),
        ("document", "peer-x3", 2047.0, 88.3, ["GPU idle", "Host-to-Device copies: pageable"]),
    ],
)
def test_rungs_are_faster_by_what_the_ladder_says(
    before: str,
    after: str,
    before_us: float,
    after_us: float,
    lost: list[str],
) -> None:
    """Without nsys, by the same code on the same day: 236, 163, 150, 104, 88.7 µs from nccl up."""
    found = rungs(before, after)
    assert found.batch.before_s == pytest.approx(before_us * 1e-6, rel=2e-3)
    assert found.batch.after_s == pytest.approx(after_us * 1e-6, rel=2e-3)
    assert found.batch.verdict == "faster"
    assert [r.name for r in found.addressed] == lost


@pytest.mark.parametrize(
    ("before", "after", "ladder"),
    [("graph", "thin", 149.891 / 163.451), ("thin", "fused-x3", 104.175 / 149.891),
     ("fused-x3", "peer-x3", 88.6614 / 104.175)],
)  # fmt: skip
def test_nsys_does_not_change_what_the_gpu_paces(before: str, after: str, ladder: float) -> None:
    batch = rungs(before, after).batch
    assert batch.ratio == pytest.approx(ladder, rel=0.01)
    assert batch.low is not None
    assert batch.high is not None
    assert batch.low < ladder < batch.high


@pytest.mark.parametrize("name", GRAPHS)
def test_busy_and_idle_make_the_batch(name: str) -> None:
    for one in launches(name):
        busy, idle = one.series["link", ("GPU busy",)], one.series[IDLE]
        whole = np.nanmedian(one.series[BATCH].seconds)
        assert np.nanmedian(busy.seconds + idle.seconds) == pytest.approx(whole, rel=0.01)
        assert one.warmup >= 20  # an epoch of 20 batches records the graph


# --- sides that mean the same


def test_one_clock_on_both_sides() -> None:
    """A host that waits takes what its batches take; one that queues a fourth of it and less."""
    waits = rungs("document", "resident")
    assert not waits.before.queues
    assert not waits.after.queues
    assert not any("queues" in w for w in waits.warnings)
    mixed = rungs("resident", "graph")
    assert (mixed.before.queues, mixed.after.queues) == (False, True)
    assert mixed.batch.before_s == pytest.approx(waits.batch.after_s, rel=2e-3)
    (said,) = [w for w in mixed.warnings if "queues" in w]
    assert said.startswith("the host queues steps after without waiting")
    assert said.endswith("host times of ranges after are those of queueing")
    back = rungs("graph", "resident")
    assert back.batch.after_s == mixed.batch.before_s
    assert back.batch.verdict == "slower"


def test_times_of_queueing_address_no_bottleneck() -> None:
    """Launching 'step' takes the host 57 µs before and nothing after: no work went away."""
    found = rungs("nccl", "graph")
    assert any(r.verdict == "only before" for r in found.group("range"))
    assert {r.group for r in found.addressed} == {"link"}
    (idle,) = found.addressed
    assert idle.before_s == pytest.approx(178e-6, rel=0.01)
    said = result(found, "all").render()
    assert "Bottleneck addressed, by host: GPU idle, 178 µs (54 % of the step) before" in said
    assert "Of a step, the GPU idles" not in said  # once is enough
    shown = group_table(found, "range")
    assert shown is not None
    assert "the step until the GPU is done" in shown.title
    assert all(one["queues"] for one in compare_document(found)["after"]["launches"])


def test_more_may_be_lost_than_the_batch_lost() -> None:
    said = result(rungs("fused-x3", "peer-x3"), "all").render()
    assert "gone after; 18.1 µs saved, 16.3 µs of the step\n" in said


def test_nccl_s_own_range_is_no_second_row() -> None:
    found = rungs("resident", "nccl")
    names = [r.path for r in found.group("range") if r.path[-1] == "ncclAllReduce"]
    assert names == [("batch iteration", "backward", "ncclAllReduce")]


# --- noise


def logarithms(side: Sequence[Launch], key: Key) -> np.ndarray:
    return np.log([np.nanmedian(one.series[key].seconds) for one in side])


def test_batches_that_the_gpu_paces_vary_as_kernels_do() -> None:
    """Launches of one rung: 0.2 % of a replayed batch, 1.1 % of its idle time; 5 % over NCCL."""
    for key, measured in ((BATCH, 0.0022), (IDLE, 0.011)):
        off = [logarithms(launches(n), key).var(ddof=1) for n in GRAPHS]
        assert np.sqrt(np.mean(off)) == pytest.approx(measured, rel=0.1)
        assert np.sqrt(np.mean(off)) < LAUNCH_NOISE * SCALES["kernel"]
        assert {one.series[key].noise for n in GRAPHS for one in launches(n)} == {"kernel"}
    assert logarithms(launches("nccl"), BATCH).std(ddof=1) == pytest.approx(0.045, rel=0.05)
    assert {one.series[BATCH].noise for one in launches("nccl")} == {"host"}


@pytest.mark.slow
def test_launches_of_one_rung_are_not_different() -> None:
    """One launch a side, and the halves of each: no verdict at all."""
    for of in map(launches, RUNGS):
        for one, other in combinations(of, 2):
            assert certain(compared([one], [other])) == []
        for one in of:
            middle = len(one.series[BATCH].seconds) // 2
            sides = [part(one, slice(0, middle)), part(one, slice(middle, None))]
            assert certain(compared(sides[:1], sides[1:])) == []


def part(one: Launch, batches: slice) -> Launch:
    series = {k: Series(s.seconds[batches], s.noise) for k, s in one.series.items()}
    return replace(one, series={k: s for k, s in series.items() if np.isfinite(s.seconds).any()})


def test_the_noisier_side_decides() -> None:
    """One launch each: what the host limits is not called different by the GPU's small noise."""
    paced, hosted = launches("graph")[0], launches("nccl")[0]
    near = replace(
        hosted, series={**paced.series, BATCH: Series(paced.series[BATCH].seconds * 0.9)}
    )
    assert compared([paced], [near]).batch.verdict == "within noise"
    near = replace(near, series={k: replace(s, noise="kernel") for k, s in near.series.items()})
    assert compared([paced], [near]).batch.verdict == "faster"
