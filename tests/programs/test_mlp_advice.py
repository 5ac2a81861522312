"""Advice by the mark: what a run does already is not advised, the next rung is, by its flag."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from test_findings import QUIET, STAGED, copy, only, reduce, titles

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.analyze import analyze
from perfmodel.programs.facts import DeviceReduce, Facts, GemmTime
from perfmodel.programs.mlp.program import actions_of
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing.collectives import Waiting

TRAINER = {
    "transport": "host", "overlap": False, "graph": False, "data_on": "host", "gemm": "cublas",
    "math": "ieee", "parallel": "data", "backend": "cupy",
}  # fmt: skip
SLOW = GemmTime("forward GEMM 1", 100e-6, 1.2e9, 18e-6)


def facts(config: dict[str, Any] | None = None, **changes: Any) -> Facts:
    return replace(QUIET, config=TRAINER | (config or {}), **changes)


@pytest.mark.parametrize(
    ("config", "advised", "not_advised"),
    [
        ({}, ["--gemm fused", "which needs --data-on device and --transport nccl"], []),
        ({"gemm": "fused"}, ["CUDA graph"], ["fuse"]),
        ({"data_on": "device"}, ["which needs --transport nccl"], ["needs --data-on"]),
        ({"data_on": "device", "transport": "peer"}, ["(--graph)"], ["which needs"]),
        ({"graph": True}, ["fuse"], ["CUDA graph", "--graph"]),
        ({"graph": True, "gemm": "fused"}, ["a larger batch"], ["launch less"]),
        ({"parallel": "model"}, ["fuse elementwise kernels,"], ["--gemm fused"]),
    ],
)
def test_a_gpu_that_waits(
    config: dict[str, Any], advised: list[str], not_advised: list[str]
) -> None:
    action = only(facts(config, busy_s=100e-6), "the GPU waits for the host").action
    assert all(a in action for a in advised)
    assert not any(a in action for a in not_advised)


def test_polling_for_mpi_is_no_idleness() -> None:
    """Of 1000 µs the GPU works 300 and MPI_Test 500; the calls themselves took 20."""
    changes = {
        "busy_s": 300e-6, "host_s": {"MPI_Allreduce": 500e-6}, "waiting": Waiting([20e-6] * 2, None)
    }  # fmt: skip
    for config, idle in (
        ({"transport": "chunked"}, 200e-6),
        ({"overlap": True}, 200e-6),
        ({}, 680e-6),
    ):
        found = only(facts(config, **changes), "the GPU waits for the host")
        assert found.saving_s == pytest.approx(idle)


@pytest.mark.parametrize("transport", ["host", "pinned", "host-flat", "chunked"])
def test_every_way_through_the_host_leads_to_nccl(transport: str) -> None:
    staged = facts({"transport": transport}, host_s=STAGED, collectives=[reduce()])
    assert "--transport nccl" in only(staged, "through the host").action
    begun = replace(staged, collectives=[replace(reduce(), name="MPI_Iallreduce")])
    assert only(begun, "through the host").saving_s == only(staged, "through the host").saving_s


STAGED_BY_MPI = {"cudaDeviceSynchronize": 20e-6, "MPI_Allreduce": 600e-6}
"""Ranges of a run that hands GPU memory to MPI_Allreduce."""


def test_gradients_that_the_mpi_library_copies_to_the_host() -> None:
    """600 µs for 1.6 MB, which a ring between the GPUs carries in 3.56 µs."""
    own = facts(
        {"transport": "cuda-aware", "data_on": "device"}, host_s=STAGED_BY_MPI,
        collectives=[reduce()], copies=[copy(), copy("Host-to-Device")],
    )  # fmt: skip
    found = only(own, "gradients are reduced through the host")
    assert found.saving_s == pytest.approx(600e-6 - 1.6e6 / 450e9)
    assert "the MPI library copies the gradients to the host" in found.evidence
    assert titles(own) == [found.title]  # its copies are not the program's to pin
    direct = replace(own, copies=[])
    assert "gradients are reduced through the host" not in titles(direct)


def test_images_are_to_be_pinned_where_the_library_copies_gradients() -> None:
    """Of 6.4 MB to the GPU 1.6 are the library's: 4.8 in 240 µs, at 51.2 GB/s 93.75."""
    up = copy("Host-to-Device", bytes=6.4e6, seconds=320e-6, count=3.0)
    own = facts(
        {"transport": "cuda-aware"}, host_s=STAGED_BY_MPI, collectives=[reduce()],
        copies=[copy(), up],
    )  # fmt: skip
    found = only(own, "Host-to-Device copies use pageable memory")
    assert found.saving_s == pytest.approx(240e-6 - 4.8e6 / 51.2e9)
    assert "2 copies, 4.80 MB per step" in found.evidence
    assert not any("Device-to-Host copies" in title for title in titles(own))


def test_gradients_are_to_be_reduced_between_the_gpus() -> None:
    action = only(facts(host_s=STAGED, collectives=[reduce()]), "through the host").action
    places = [action.index(f"--transport {name}") for name in ("nccl", "ring", "peer")]
    assert places == sorted(places)
    assert "or CUDA-aware MPI" not in action
    assert "no improvement where the library copies to the host" in action
    many = facts(host_s=STAGED, collectives=[reduce()], ranks=16)
    assert "--transport peer" not in only(many, "through the host").action


@pytest.mark.parametrize("stem", ["cuda-aware_H512_1", "cuda-aware_H512_2", "cuda-aware_H2048_1"])
def test_reports_of_cuda_aware_lose_most_through_the_host(stem: str) -> None:
    trace = read(PROFILES / "cuda_aware" / f"{stem}.sqlite.xz")
    (run,) = analyze([trace], Options({})).runs
    assert run.findings[0].title == "gradients are reduced through the host"
    assert not any("pageable" in found.title for found in run.findings)
    reduced = next(r.host_s for r in run.ranges if r.path[-1] == "MPI_Allreduce")
    assert 0.98 * reduced < run.findings[0].saving_s < reduced


def test_chunks_are_no_small_messages() -> None:
    several = [reduce(20_000, count=4.0, seconds=20e-6)]
    assert "--transport host-flat" in only(facts(collectives=several), "several messages").action
    assert titles(facts({"transport": "chunked"}, collectives=several)) == []


@pytest.mark.parametrize(
    ("data_on", "advised", "not_advised"),
    [
        ("host", ["--data-on device", "--data-on prefetch"], []),
        ("pinned", ["--data-on device", "--data-on prefetch"], []),
        ("prefetch", ["--data-on device"], ["--data-on prefetch", "stream of its own"]),
    ],
)
def test_inputs(data_on: str, advised: list[str], not_advised: list[str]) -> None:
    copied = facts({"data_on": data_on}, host_s={"copying images host -> device": 1e-4})
    action = only(copied, "inputs are copied").action
    assert all(a in action for a in advised)
    assert not any(a in action for a in not_advised)


def test_pageable_copies() -> None:
    down = only(facts(copies=[copy()]), "Device-to-Host copies use pageable").action
    up = only(facts(copies=[copy("Host-to-Device")]), "Host-to-Device copies use pageable").action
    assert "--transport host-flat" in down
    assert "--data-on" not in down
    assert "--data-on pinned" in up


def test_nccl_against_the_link() -> None:
    """26 µs for 1.6 MB, which 450 GB/s each way carry in 3.56 µs."""
    slow = facts({"transport": "nccl"}, reduced=DeviceReduce(26e-6, 1.6e6))
    found = only(slow, "mostly latency")
    assert found.saving_s == pytest.approx(26e-6 - 1.6e6 / 450e9)
    assert "--transport peer" in found.action
    assert "--overlap" in found.action
    beside = replace(slow, config=dict(slow.config) | {"overlap": True})
    assert "--overlap" not in only(beside, "mostly latency").action
    by_model = replace(beside, config=dict(beside.config) | {"parallel": "model"})
    assert "fewer ranks" in only(by_model, "mostly latency").action
    many = replace(slow, ranks=16)
    assert "peer" not in only(many, "mostly latency").action


@pytest.mark.parametrize(
    "silent",
    [
        {"reduced": None},
        {"reduced": DeviceReduce(26e-6, 0.0)},
        {"reduced": DeviceReduce(4e-6, 1.6e6)},
        {"machine": None},
    ],
)
def test_nccl_is_as_fast_as_the_link_or_unknown(silent: dict[str, Any]) -> None:
    known = facts({"transport": "nccl"}, reduced=DeviceReduce(26e-6, 1.6e6))
    assert titles(replace(known, **silent)) == []


@pytest.mark.parametrize("transport", ["host", "chunked", "nccl", "peer"])
@pytest.mark.parametrize("overlap", [False, True])
def test_overlapping_is_advised_to_those_that_do_not(transport: str, overlap: bool) -> None:
    late = facts(
        {"transport": transport, "overlap": overlap}, waiting=Waiting([1e-3, 0], [1e-4, 0])
    )
    action = only(late, "ranks wait").action
    assert ("--overlap" in action) == (not overlap and transport in ("host", "nccl"))
    by_model = replace(late, config=dict(late.config) | {"parallel": "model"})
    assert "--overlap" not in only(by_model, "ranks wait").action  # z2 is there all at once


@pytest.mark.parametrize(
    ("gemm", "math", "advised", "not_advised"),
    [
        ("cublas", "ieee", ["hierarchical", "--math tf32 or tf32x3", "--gemm fused"], []),
        ("hierarchical", "ieee", ["--math tf32", "--gemm fused"], ["hierarchical"]),
        ("fused", "ieee", ["--math tf32"], ["hierarchical", "fus"]),
        ("cublas", "tf32", ["hierarchical"], ["tensor cores", "--math"]),
        ("fused", "tf32x3", ["--math tf32)"], ["tensor cores", "fus", "hierarchical"]),
        ("fused", "tf32", ["a larger batch"], ["tensor", "fus", "--"]),
    ],
)
def test_products(gemm: str, math: str, advised: list[str], not_advised: list[str]) -> None:
    action = only(facts({"gemm": gemm, "math": math}, gemms=[SLOW]), "of its ceiling").action
    assert all(a in action for a in advised)
    assert not any(a in action for a in not_advised)


def test_an_older_mark_says_tf32_by_a_flag() -> None:
    assert "tensor cores" not in actions_of({"transport": "host", "tf32": True}).multiply()
    assert "tensor cores" in actions_of({"transport": "host", "tf32": False}).multiply()


def test_other_programs_hear_of_no_flags() -> None:
    for said in (
        actions_of({}).launch_less(synchronizes=True), actions_of({}).pin("Host-to-Device"),
        actions_of({}).keep_inputs(), actions_of({}).balance(), actions_of({}).multiply(),
    ):  # fmt: skip
        assert said
        assert "--" not in said


def test_flags_that_are_advised_exist() -> None:
    flags = pytest.importorskip("trainer.flags")
    config = pytest.importorskip("trainer.config")
    said = " ".join(
        text
        for data_on, transport, gemm, math, direction in product(
            config.DATA_ON, config.TRANSPORTS, config.GEMMS, config.MATHS,
            ("Host-to-Device", "Device-to-Host"),
        )
        for rungs in [
            actions_of({"data_on": data_on, "transport": transport, "gemm": gemm, "math": math})
        ]
        for text in (
            rungs.launch_less(synchronizes=True), rungs.pin(direction), rungs.keep_inputs(),
            rungs.balance(), rungs.multiply(), rungs.reduce_on_gpus(2),
        )
    )  # fmt: skip
    known = set(flags.parser()._option_string_actions)
    assert {w.strip("(),;") for w in said.split() if w.strip("(").startswith("--")} <= known
