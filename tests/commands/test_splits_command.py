"""`perfmodel study splits`: by hand, from reports, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import BASE, PROFILES
from perfmodel.base.errors import ModelError
from perfmodel.studies.analysis.splits import compare, rates_of
from support.build_training import Training, analyzed, model_report, training_report
from support.cli import evil_report, fails, harmless, perfmodel, succeeds

SIZES = ("-D", 784, "-H", 512, "-C", 10, "-B", 3000, "-p", 2)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("splits")
    return training_report(folder / "data.sqlite"), model_report(folder / "model.sqlite")


def as_json(*arguments: object) -> dict[str, Any]:
    found = json.loads(succeeds("study", "splits", *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_by_hand() -> None:
    text = succeeds("study", "splits", *SIZES)
    assert "model parallel  2x1x1    1x2x1" in text
    assert "Best for D=784  H=512  C=10  B=3000  b=4, p=2: model parallel" in text
    assert max(len(line) for line in text.splitlines() if "─" in line) <= 120
    found = as_json(*SIZES, "--dtype", "float64")
    assert found["grids"][0]["message_bytes"] == 240_000
    assert found["rates"]["source"] == "the CME 213 assignment, Question 2.4"


def test_resident_images_and_given_rates_decide() -> None:
    """With fast MPI and slow PCIe, what is copied needlessly makes data parallelism win."""
    given = ("--rate", "P_mpi=400GB/s", "--rate", "alpha=2us", "--rate", "P_pci=5GB/s")
    streamed = as_json(*SIZES, *given, "--rate", "P_flops=20TFLOP/s", "-B", 9000)
    resident = as_json(*SIZES, *given, "--images", 60_000, "-B", 9000)
    assert streamed["grids"][0]["name"] == "data parallel"
    assert resident["grids"][0]["name"] == "model parallel"
    assert streamed["rates"]["link"]["alpha_s"] == 2e-6
    assert resident["images"] == 60_000
    held = {g["name"]: g["memory_bytes"] for g in resident["grids"]}
    assert held["model parallel"] > held["data parallel"] > 60_000 / 2 * 784 * 4


def test_a_report_tells_sizes_and_rates(reports: tuple[Path, Path]) -> None:
    """Built: four all-reduces of 35 µs; images in 95 µs, gradients in 97.5 µs each way."""
    data, _ = reports
    run = analyzed(data, counting="full").fitted
    rates = rates_of(run)
    assert rates.images_bytes_per_s == pytest.approx(4_764_000 / 95e-6)
    assert rates.staging_bytes_per_s == pytest.approx(3_256_400 / (2 * 97.5e-6))
    assert 1 / rates.link.beta_s_per_byte == pytest.approx(1_628_200 / 140e-6)  # all take as long
    assert len(rates.notes) == 1
    found = json.loads(perfmodel("study", "splits", data, "--json").stdout)
    assert found["sizes"] == {"D": 784, "H": 512, "C": 10, "B": 3000, "b": 4}
    assert found["ranks"] == 2
    assert found["rates"]["source"] == "data"
    other = json.loads(perfmodel("study", "splits", data, "-p", 4, "-H", 1024, "--json").stdout)
    assert (other["ranks"], other["sizes"]["H"], len(other["grids"])) == (4, 1024, 10)


def test_a_model_parallel_report_stands_beside_the_paper(reports: tuple[Path, Path]) -> None:
    """The estimate with the data parallel report's alpha and beta; bytes agree to the last."""
    data, model = reports
    rates = rates_of(analyzed(BASE, counting="full").fitted)
    row = compare(analyzed(model, counting="full").fitted, rates)
    assert (row.parallel, row.grid.name) == ("model", "model parallel")
    assert row.estimated_bytes == row.measured_bytes == 4 * 10 * 3000
    assert row.estimated_calls == row.measured_calls == 1
    assert row.measured_s == pytest.approx(140e-6)
    assert row.transfer_s == pytest.approx(140e-6)
    link = rates.link
    assert row.estimated_s == pytest.approx(2 * link.alpha_s + 120_000 * link.beta_s_per_byte)
    text = succeeds("study", "splits", BASE, data, model)
    assert "Communication by formula and measured" in text
    assert "120.0 kB  120.0 kB" in text
    assert "1.628 MB  1.628 MB" in text


def test_one_size_of_message_gives_beta_alone(reports: tuple[Path, Path]) -> None:
    result = perfmodel("study", "splits", reports[1])
    assert result.exit_code == 0
    assert "so alpha is unknown and beta takes all of them" in result.stderr
    found = json.loads(perfmodel("study", "splits", reports[1], "--json").stdout)
    assert found["rates"]["link"]["beta_s_per_byte"] == pytest.approx(140e-6 / 120_000)
    assert found["measured"][0]["estimated_s"] == pytest.approx(140e-6)
    quiet = perfmodel("study", "splits", reports[1], "--rate", "alpha=1us")
    assert "alpha is unknown" not in quiet.stderr


def test_a_real_report() -> None:
    """Two H200s: alpha and beta of its four messages predict their sum to 4 %."""
    run = analyzed(BASE, counting="full").fitted
    rates = rates_of(run)
    assert rates.link.alpha_s == pytest.approx(2.09e-6, rel=0.01)
    assert 1 / rates.link.beta_s_per_byte == pytest.approx(4.61e9, rel=0.01)
    row = compare(run, rates)
    assert row.measured_bytes == row.estimated_bytes == 1_628_200
    assert row.transfer_s is not None
    assert row.estimated_s == pytest.approx(row.transfer_s, rel=0.04)


def test_what_is_refused(tmp_path: Path) -> None:
    assert "got no p; give --ranks p" in fails(5, "study", "splits", *SIZES[:-2])
    assert "got 'Q'; leave it out" in fails(5, "study", "splits", *SIZES, "--set", "Q=1")
    alone = training_report(tmp_path / "alone.sqlite", Training(p=1, mpi=False))
    said = fails(6, "study", "splits", alone)
    assert "no all-reduce of two or more ranks; give the report of" in said
    for value in ("P_mpi", "beta=1", "P_mpi=fast"):
        result = perfmodel("study", "splits", *SIZES, "--rate", value)
        assert result.exit_code in (1, 2)
        assert re.search("wanted|expected", result.stderr)
    with pytest.raises(ModelError, match="no P_flops"):
        rates_of(analyzed(evil_report(tmp_path / "evil.sqlite")).fitted)


def test_names_of_reports_are_shown_harmlessly(reports: tuple[Path, Path], tmp_path: Path) -> None:
    evil = tmp_path / "\x1b[31mevil\u202e.sqlite"
    evil.write_bytes(reports[0].read_bytes())
    for arguments in ((), ("--json",)):
        result = perfmodel("study", "splits", evil, *arguments)
        assert result.exit_code == 0
        assert harmless(result.stdout + result.stderr)


@pytest.mark.slow
def test_four_ranks_of_a_real_machine_mix_both() -> None:
    """docs/splits.md: B2 x H2 where images are copied in every batch, else model parallel."""
    run = PROFILES / "campaign" / "h200x4_p4_host_float32_H512_B3000.sqlite.xz"
    streamed, resident = as_json(run), as_json(run, "--images", 60_000)
    best = [(g["name"], round(1e6 * g["batch_s"])) for g in streamed["grids"][:3]]
    assert best == [("B2 x H2", 785), ("model parallel", 882), ("data parallel", 1060)]
    assert resident["grids"][0]["name"] == "model parallel"


# --- NCCL


LADDER = PROFILES / "ladder"
NCCL, MODEL, GRAPH, STAGED, PEER = (
    LADDER / f"{name}_1.sqlite.xz"
    for name in ("nccl", "model-nccl", "graph", "document", "peer-x3")
)


def test_nccl_s_all_reduce_of_z2_stands_beside_the_paper() -> None:
    """Golden: its kernels' time from the last rank's arrival on; alpha and beta are MPI's."""
    found = as_json_of(STAGED, MODEL)
    staged, summed = found["measured"]
    assert (staged["through"], summed["through"]) == ("MPI", "NCCL")
    assert summed["parallel"] == "model"
    assert summed["estimated_bytes"] == 4 * 10 * 3000
    assert summed["measured_bytes"] is None
    assert (summed["estimated_calls"], summed["measured_calls"]) == (1, 1)
    assert summed["transfer_s"] == pytest.approx(6.82e-6, rel=2e-3)
    assert summed["measured_s"] == pytest.approx(101e-6, rel=5e-3)  # with the waiting, a mean
    assert summed["estimated_s"] is None
    assert staged["estimated_s"] == pytest.approx(409e-6, rel=2e-3)
    text = perfmodel("study", "splits", STAGED, MODEL).stdout
    assert "a report does not record its bytes" in text
    assert "document_1 gives alpha and beta of MPI only" in " ".join(text.split())


def test_a_report_over_nccl_gives_rates() -> None:
    """P_peer: the ring's bytes, n b for two ranks, over 17.5 µs."""
    result = perfmodel("study", "splits", NCCL, MODEL, GRAPH, PEER, "--images", 60_000)
    assert result.exit_code == 0
    assert "do not record the sizes of NCCL's messages" in result.stderr
    assert "counts nothing" not in result.stderr
    assert "P_peer 93.0 GB/s one way" in result.stdout
    assert "Data parallelism hands NCCL 1.63 MB" in result.stdout
    found = as_json_of(NCCL, MODEL, GRAPH, PEER, "--images", 60_000)
    rates = found["rates"]
    assert (rates["through"], rates["staging_bytes_per_s"]) == ("NCCL", None)
    assert 1 / rates["link"]["beta_s_per_byte"] == pytest.approx(1_628_200 / 17.5e-6, rel=2e-3)
    own, other, graph, peer = found["measured"]
    assert own["estimated_s"] == pytest.approx(own["transfer_s"])
    assert other["estimated_s"] == pytest.approx(own["estimated_s"] * 120_000 / 1_628_200)
    assert graph["transfer_s"] == pytest.approx(17.7e-6, rel=5e-3)  # no range, but its kernel
    assert (peer["through"], peer["transfer_s"]) == (None, None)


def test_links_of_nccl_may_be_given() -> None:
    given = as_json_of(NCCL, "--rate", "P_peer=200GB/s", "--rate", "alpha=4us")["rates"]
    assert given["link"] == {"alpha_s": 4e-6, "beta_s_per_byte": 5e-12, "gamma_s_per_byte": 0.0}
    assert given["through"] == "NCCL"
    assert as_json_of(NCCL, "--rate", "P_mpi=4GB/s")["rates"]["through"] == "MPI"
    assert as_json_of(NCCL, "--rate", "alpha=4us")["rates"]["through"] == "NCCL"
    both = ("--rate", "P_peer=2GB/s", "--rate", "P_mpi=2GB/s")
    assert "got P_mpi and P_peer" in fails(6, "study", "splits", *SIZES, *both)


def test_a_graph_cannot_give_rates_and_says_which_run_can() -> None:
    assert "two or more ranks, without a CUDA graph, first" in fails(6, "study", "splits", GRAPH)


def test_images_that_stay_are_not_copied_for_nothing_in_silence() -> None:
    assert (
        "copying them counts nothing; give --images N" in perfmodel("study", "splits", NCCL).stderr
    )


def as_json_of(*arguments: object) -> dict[str, Any]:
    """What is printed, beside warnings."""
    found = json.loads(perfmodel("study", "splits", *arguments, "--json").stdout)
    assert isinstance(found, dict)
    return found
