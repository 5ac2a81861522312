"""Reports of a GPT on eight GPUs: who is late, and where communication is exposed."""

from __future__ import annotations

import re

import pytest

from benchmarks.common.folders import PROGRAMS
from support.once import run_of


def findings(name: str) -> dict:
    return {f.kind: f for f in run_of(PROGRAMS / f"{name}.sqlite.xz").findings}


def exposed_ms(evidence: str) -> tuple[float, dict[str, float]]:
    """Return what is exposed, and of that by range."""
    whole = re.search(r"([\d.]+) ms of them beside no computing", evidence)
    assert whole is not None, evidence
    parts = re.findall(r"([\d.]+) (ms|µs) in '(\w+)'", evidence)
    scale = {"ms": 1.0, "µs": 1e-3}
    return float(whole[1]), {name: float(v) * scale[unit] for v, unit, name in parts}


def test_gathers_of_fsdp_are_exposed_in_both_passes() -> None:
    found = findings("gpt_fsdp8")["exposed_communication"]
    whole, parts = exposed_ms(found.evidence)
    assert set(parts) >= {"forward", "backward"}
    assert sum(parts.values()) == pytest.approx(whole, rel=0.02)
    assert "set_modules_to_forward_prefetch" in found.action
    assert "bucket" not in found.action


def test_the_rank_that_sleeps_is_named_of_eight() -> None:
    """Rank 1 sleeps for 20 ms in its forward pass; the others wait for it in the backward one."""
    found = findings("gpt_straggler8")["straggler"]
    assert found.title == "rank 1 is late: its host works 20.0 ms longer in 'forward'"
    assert "comes last to 100 % of the collectives" in found.evidence
    assert "its longest gap, 20.4 ms in 'forward'" in found.evidence
    run = run_of(PROGRAMS / "gpt_straggler8.sqlite.xz")
    waiting = run.steps.waiting_s
    assert waiting[1] == 0
    assert min(waiting[:1] + waiting[2:]) > 0.030
    added_s = run.ledger.recorded_s - run.ledger.step_s
    assert added_s == pytest.approx(8.7e-3, rel=0.01)
    for row, recorded in zip(run.ranks, run.steps.ranks, strict=True):
        left_s = recorded.idle_s + recorded.waiting_s - added_s
        assert row.idle_s + row.waiting_s == pytest.approx(left_s)
