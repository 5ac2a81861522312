"""Comparisons of real launches: none is called different that is not, and real changes are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare.compare import compare_traces
from perfmodel.analysis.compare.series import Key, Launch, Series, launch_of
from perfmodel.models.launches import LAUNCH_NOISE, SCALES
from perfmodel.readers import read
from perfmodel.timing.run import time_run
from support.foreign_reports import SHIPPED
from support.launches_made import certain, compared

SIZES: Final = ("H512_B3000", "H512_B12000", "H2048_B3000", "H2048_B12000")
HIDDEN: Final = (128, 256, 512, 1024, 2048, 4096)


REPORTS: Final = {
    path.name.split(".sqlite")[0]: path
    for path in sorted([*PROFILES.glob("campaign/*.sqlite.xz"), *SHIPPED])
}


@cache
def launch(name: str) -> Launch:
    """A shipped report as a launch."""
    return launch_of(time_run([read(REPORTS[name])], "batch iteration", label=name))


def part(one: Launch, batches: slice) -> Launch:
    series = {k: Series(s.seconds[batches], s.noise) for k, s in one.series.items()}
    return replace(one, series={k: s for k, s in series.items() if np.isfinite(s.seconds).any()})


def halves(one: Launch) -> tuple[Launch, Launch]:
    middle = one.batches // 2
    return part(one, slice(0, middle)), part(one, slice(middle, None))


@pytest.mark.slow
def test_two_halves_of_one_launch_are_not_different() -> None:
    assert len(REPORTS) == 48
    for one in map(launch, REPORTS):
        first, second = halves(one)
        assert certain(compared([first], [second])) == []


@pytest.mark.slow
def test_noise_within_launches_is_seen_as_such() -> None:
    """Nothing assumed between launches: only runs that drift from one level to another differ.

    Five of 48 do, all of the shortest batches (B = 1500, 119 of them): their host times shift by
    5 to 20 % half way. Batches taken in turns differ in one report.
    """
    drifting = [n for n in REPORTS if certain(compared(*pairs(halves(launch(n))), 0.0))]
    assert len(drifting) <= 5
    assert all(name.endswith("B1500") for name in drifting)
    turns = {n: (part(one, slice(0, None, 2)), part(one, slice(1, None, 2)))
             for n, one in ((n, launch(n)) for n in REPORTS)}  # fmt: skip
    assert sum(bool(certain(compared(*pairs(turn), 0.0))) for turn in turns.values()) <= 1


def pairs(halved: tuple[Launch, Launch]) -> tuple[list[Launch], list[Launch]]:
    return [halved[0]], [halved[1]]


@pytest.mark.parametrize("size", SIZES)
def test_one_configuration_on_two_machines_is_not_different(size: str) -> None:
    """Host times differ by up to 2 between the machines; even as if it were one machine."""
    one, other = (launch(f"{m}_p2_host_float32_{size}") for m in ("h200x2", "h200x4"))
    found = compared([one], [other])
    assert found.other_machines
    assert certain(found) == []
    found = compared([replace(one, gpus=frozenset())], [other])
    assert not found.other_machines
    assert certain(found) == []


@pytest.mark.parametrize("size", SIZES)
def test_pinned_buffers_are_found_and_nothing_else(size: str) -> None:
    before, after = (launch(f"h200x2_p2_{t}_float32_{size}") for t in ("host", "pinned"))
    found = compared([before], [after])
    faster = certain(found)
    assert found.batch.verdict == "faster"
    assert "copying images host -> device" in faster
    assert "Host-to-Device copies" in faster
    assert all("cop" in n or "Memcpy" in n or n in ("batch iteration", "GPU busy", "GPU idle")
               for n in faster)  # fmt: skip
    assert [r.group for r in found.addressed] == ["range", "link"]
    assert found.addressed[1].name == "Host-to-Device copies"


def test_pinned_buffers_from_the_reports_themselves() -> None:
    """Golden numbers: the medians of the slowest rank, and what differs in the marks."""
    names = [f"campaign/h200x2_p2_{t}_float32_H512_B3000.sqlite.xz" for t in ("host", "pinned")]
    found = compare_traces(*([read(PROFILES / name)] for name in names))
    batch = found.batch
    assert batch.before_s == pytest.approx(1712.13e-6, rel=1e-5)
    assert batch.after_s == pytest.approx(1080.07e-6, rel=1e-5)
    assert [str(d) for d in found.differences] == ["transport: host -> pinned"]
    copies = next(r for r in found.rows if r.path[-1] == "copying images host -> device")
    assert copies.before_s == pytest.approx(518.14e-6, rel=1e-4)
    assert copies.share_before == pytest.approx(518.14 / 1712.13, rel=1e-4)
    assert found.addressed[0] == copies
    gone = {r.path for r in found.rows if r.verdict == "only before"}
    assert gone == {("Device-to-Host copies", "pageable"), ("Host-to-Device copies", "pageable")}
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("1 run before and 1 after do not show")


# --- what the stated noise rests on


def logarithm(one: Launch, key: Key) -> float:
    return float(np.log(np.nanmedian(one.series[key].seconds)))


def spread_over_batch_sizes(group: str, *path: str) -> float:
    """Standard deviation over launches that differ in B only, which this does not depend on."""
    key = (group, path)
    table = np.array(
        [[logarithm(launch(f"h200x2_p2_host_float32_H{h}_B{b}"), key)
          for b in (1500, 3000, 6000, 12000)] for h in HIDDEN]
    )  # fmt: skip
    off = table - table.mean(axis=1, keepdims=True)
    return float(np.sqrt((off**2).sum() / (len(HIDDEN) * 3)))


@pytest.mark.parametrize(
    ("path", "kind", "measured"),
    [
        (("range", "batch iteration", "step"), "host", 0.115),
        (("range", "batch iteration", "forward", "forward GEMM 1"), "host", 0.100),
        (("range", "batch iteration", "backward", "cudaMemcpyHostToDevice"), "host", 0.061),
        (("link", "collectives, transfer", "MPI_Allreduce"), "host", 0.053),
        (("link", "Device-to-Host copies", "pageable"), "host", 0.068),
        (("range", "batch iteration", "backward", "MPI_Allreduce"), "collective", 0.220),
        (("link", "collectives, waiting", "MPI_Allreduce"), "waiting", 1.22),
        (("kernel", "kernels", "trainer_descend"), "kernel", 0.036),
    ],
)
def test_the_stated_noise_of_launches_is_what_the_campaign_shows(
    path: tuple[str, ...], kind: str, measured: float
) -> None:
    found = spread_over_batch_sizes(*path)
    assert found == pytest.approx(measured, rel=0.02)
    assert 0.5 < LAUNCH_NOISE * SCALES[kind] / found < 2.0
    one = launch("h200x2_p2_host_float32_H512_B3000")
    assert one.series[path[0], path[1:]].noise == kind


def test_kernels_of_launches_that_differ_in_their_buffers() -> None:
    off = []
    for size in SIZES:
        one, other = (launch(f"h200x2_p2_{t}_float32_{size}") for t in ("host", "pinned"))
        shared = [k for k in one.series if k[0] == "kernel" and k in other.series]
        off += [(logarithm(other, k) - logarithm(one, k)) / np.sqrt(2) for k in shared]
    assert len(off) > 40
    assert np.sqrt(np.mean(np.square(off))) < LAUNCH_NOISE * SCALES["kernel"]
