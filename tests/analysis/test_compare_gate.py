"""The gate of `perfmodel compare`: false alarms, and slowdowns found, on recorded launches."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from functools import cache
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare.compare import gate_of
from perfmodel.models.launches import GATE_SCALES, LAUNCH_NOISE, SCALES, Median, effect
from support.cli import perfmodel

LADDER = PROFILES / "ladder"
NOISE = {"replayed": SCALES["kernel"], **GATE_SCALES}
"""Assumed for one or two launches a side, over that of host times."""
PAIRS = 1000


@cache
def residuals() -> dict[str, np.ndarray]:
    """How far launches are from their configuration's mean, as logarithms, by what limits them."""
    launches = results.read(PROFILES / "launches" / "launches.json")
    found = defaultdict(list)
    for launch in launches["launches"]:
        if launch["recorded"] and isinstance(launch.get("batch_s"), float):
            found[launch["name"], launch["machine"]].append(math.log(launch["batch_s"]))
    pools = defaultdict(list)
    for (name, _), logs in found.items():
        if len(logs) > 2:
            kind = (
                "replayed" if "graph" in name
                else "queued" if "nccl" in name or "peer" in name else "waiting"
            )  # fmt: skip
            unbiased = math.sqrt(len(logs) / (len(logs) - 1))
            pools[kind] += [unbiased * (x - float(np.mean(logs))) for x in logs]
    return {kind: np.array(pool) for kind, pool in pools.items()}


def answers(kind: str, launches: int, slowdown: float) -> Counter[bool | None]:
    """What the gate at 5 % says of random pairs of equal runs, one of them slowed down."""
    rng = np.random.default_rng(launches)
    found: Counter[bool | None] = Counter()
    for _ in range(PAIRS):
        before, after = (
            [Median(math.exp(x + shift), x + shift, 0.0, 7.0)
             for x in rng.choice(residuals()[kind], launches)]
            for shift in (0.0, math.log1p(slowdown))
        )  # fmt: skip
        seen = effect(before, after, LAUNCH_NOISE * NOISE[kind])
        found[gate_of(seen, (), 0.05).slower] += 1
    return found


@pytest.mark.parametrize("launches", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", NOISE)
def test_equal_runs_raise_at_most_5_percent_of_false_alarms(kind: str, launches: int) -> None:
    assert len(residuals()[kind]) > 40
    assert answers(kind, launches, 0.0)[True] <= 0.05 * PAIRS


@pytest.mark.parametrize("launches", [2, 3, 5])
def test_a_slowdown_of_10_percent_is_found_in_9_of_10(launches: int) -> None:
    assert answers("replayed", launches, 0.10)[True] >= 0.9 * PAIRS
    assert answers("replayed", launches, 0.0)[False] >= 0.9 * PAIRS


@pytest.mark.parametrize("kind", ["waiting", "queued"])
def test_noise_that_is_too_large_is_said(kind: str) -> None:
    """Medians of such launches differ by 13 to 18 %: three of them cannot tell 10 %."""
    found = answers(kind, 3, 0.10)
    assert found[None] > 0.5 * PAIRS
    assert found[False] <= 0.05 * PAIRS


def side(name: str, count: int = 3) -> list[str]:
    return [str(LADDER / f"{name}_{i + 1}.sqlite.xz") for i in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "code", "words"),
    [
        ("graph", "graph", 0, "is not more than 5 % slower"),
        ("nccl", "graph", 0, "is not more than 5 % slower"),
        ("graph", "nccl", 7, "is more than 5 % slower"),
        ("document", "document", 8, "the noise is too large to tell"),
    ],
)
def test_the_command_exits_by_the_answer(
    before: str, after: str, code: int, words: str, tmp_path
) -> None:
    junit = tmp_path / "gate.xml"
    result = perfmodel(
        "compare", *side(before), "--to", *side(after), "--fail-if-slower", "5%", "--junit", junit
    )
    assert result.exit_code == code, result.output
    assert words in result.stdout
    if code == 7:
        assert "range backward" in result.stdout
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == (
        str(int(code == 7)),
        str(int(code == 8)),
    )
    document = json.loads(
        perfmodel(
            "compare", *side(before), "--to", *side(after), "--fail-if-slower", "5", "--json"
        ).stdout
    )
    assert document["gate"]["slower"] is {0: False, 7: True, 8: None}[code]
    assert document["gate"]["limit"] == 0.05


@pytest.mark.parametrize("given", ["nan", "-1", "x", "5%%"])
def test_a_limit_that_is_no_percentage_is_refused(given: str) -> None:
    result = perfmodel("compare", *side("graph", 2), "--fail-if-slower", given)
    assert result.exit_code == 2
    assert "--fail-if-slower" in result.stderr


def test_junit_needs_a_limit(tmp_path) -> None:
    result = perfmodel("compare", *side("graph", 2), "--junit", tmp_path / "x.xml")
    assert result.exit_code == 2
    assert "expected --fail-if-slower" in result.stderr
