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


def test_the_rank_that_is_late_is_named_of_eight() -> None:
    """The host of rank 5 works longest; the others wait for it in the next collectives."""
    found = findings("gpt_fsdp8")["straggler"]
    assert found.title == "rank 5 is late: its host works 3.46 ms longer in 'optimizer'"
    assert "comes last to 100 % of the collectives" in found.evidence
    assert "its longest gap, 3.68 ms in 'optimizer'" in found.evidence
    waiting = [row.waiting_s for row in run_of(PROGRAMS / "gpt_fsdp8.sqlite.xz").ranks]
    assert waiting[5] == 0
    assert min(waiting[:5] + waiting[6:]) > 0.050
