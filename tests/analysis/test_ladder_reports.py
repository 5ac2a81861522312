"""Real reports of the ladder's rungs: each is counted as it ran, without a misleading word."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.result import RunAnalysis
from profiles import collect_ladder
from support.build_training import analyzed

LADDER = PROFILES / "ladder"
REPORTS = sorted(LADDER.glob("*_1.sqlite.xz"))
FINE = (
    "replays of a CUDA graph",
    "does not wait until it is done",
    "batches of the warm-up are in no median",
)
"""What such runs are rightly told."""


def test_the_index_names_what_is_there() -> None:
    index = json.loads((LADDER / "index.json").read_text(encoding="utf-8"))
    files = [entry["file"] for entry in index]
    assert sorted(files) == sorted(path.name for path in LADDER.glob("*.sqlite.xz"))
    for entry in index:
        content = (LADDER / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["file"]
        ranks = int(entry["command"].split(" -n ")[1].split()[0])
        named = (entry["rung"], entry["launch"], ranks, entry["machine"])
        assert collect_ladder.file_name(*named) == entry["file"]


def test_other_machines_are_named_and_later_reports_replace() -> None:
    assert collect_ladder.file_name("fused x3", 2, 2, "h200x2") == "fused-x3_2.sqlite.xz"
    assert collect_ladder.file_name("thin", 1, 4, "h200x4") == "h200x4_thin_1.sqlite.xz"
    index = [{"file": "a", "launch": 1}, {"file": "b", "launch": 1}]
    again = {"file": "a", "launch": 2}
    assert collect_ladder.replaced(index, again) == [again, index[1]]
    assert collect_ladder.replaced(index, {"file": "c"}) == [*index, {"file": "c"}]


@pytest.fixture(scope="module", params=REPORTS, ids=lambda p: p.name.split(".")[0])
def run(request: pytest.FixtureRequest) -> RunAnalysis:
    return analyzed(request.param, counting="full").fitted


def test_nothing_misleading_is_said(run: RunAnalysis) -> None:
    assert [w for w in run.warnings if not any(fine in w for fine in FINE)] == []


def test_formulas_agree_with_what_was_copied_and_handed_to_mpi(run: RunAnalysis) -> None:
    head = next(r for r in run.ranges if r.label == run.batch.label)
    assert head.measured_copy_bytes == pytest.approx(run.totals.pci_message_bytes, rel=0.01)
    if run.totals.mpi_message_bytes:
        assert head.measured_mpi_bytes == pytest.approx(run.totals.mpi_message_bytes, rel=0.01)


def test_throughputs_are_those_of_the_run_s_links(run: RunAnalysis) -> None:
    names = {"P_flops": "flops", "P_pci": "pci_bytes", "P_mpi": "mpi_bytes", "P_peer": "peer_bytes"}
    for name, work in names.items():
        fitted = run.rates.get(name) is not None
        assert fitted == bool(getattr(run.totals, work) and not run.workload.replay)


def test_no_product_exceeds_its_peak(run: RunAnalysis) -> None:
    shares = [r.of_ceiling for r in run.ranges if r.of_ceiling is not None]
    assert shares
    assert max(shares) < 1


def test_the_gpu_is_not_busier_than_the_batch_is_long(run: RunAnalysis) -> None:
    for rank in run.ranks:
        assert rank.recorded_step_s is not None
        assert rank.gpu_busy_s is not None
        assert rank.gpu_busy_s <= 1.01 * rank.recorded_step_s


def test_what_a_run_does_is_not_advised(run: RunAnalysis) -> None:
    config, said = run.identity.config, " ".join(f.action for f in run.findings)
    assert not (config.get("graph") and "--graph" in said)
    assert not (config.get("overlap") and "--overlap" in said)
    for flag in ("gemm", "transport", "data_on", "math"):
        done = f"--{flag.replace('_', '-')} {config.get(flag)}"
        assert not re.search(rf"{done}(?![\w-])", said)
