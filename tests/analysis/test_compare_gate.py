"""The gate of `perfmodel compare`: false alarms, and slowdowns found, on recorded launches."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import permutations
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import gate as hosts
from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare.compare import KERNEL_NOISE, Amount, gate_of, judged
from perfmodel.analysis.compare.series import Launch, Series
from perfmodel.models.launches import GATE_SCALES, LAUNCH_NOISE, SCALES, Effect, Median, effect
from perfmodel.render.compare import _gate
from perfmodel.timing.recorder import Recorder
from support import launches_made
from support.cli import perfmodel
from support.launches_made import compared

LADDER = PROFILES / "ladder"
NOISE = {"replayed": SCALES["kernel"], **GATE_SCALES}
"""Assumed for one or two launches a side, over that of host times."""
PAIRS = 500
COMPUTING = ("large GEMMs", "small GEMMs", "element-wise", "step kernels")


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


@cache
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
def test_a_change_as_large_as_the_limit_is_decided(launches: int) -> None:
    """By what is seen, in half of the cases either way, where the GPU limits the batch."""
    found = answers("replayed", launches, 0.05)
    assert found[None] < 0.02 * PAIRS
    assert 0.4 * PAIRS < found[True] < 0.6 * PAIRS


def test_the_rule_by_hand() -> None:
    """Limits are exp(value -/+ 1.812 error) with 10 degrees of freedom."""

    def judge(change: float, error: float) -> bool | None:
        return judged(Effect(math.log1p(change), error, 10.0), 0.05)[2]

    assert judge(0.051, 0.01) is True
    assert judge(0.049, 0.01) is False  # at most 1.068
    assert judge(0.051, 0.03) is None  # 0.995 to 1.110
    assert judge(0.049, 0.03) is None
    assert judge(-0.2, 0.05) is False


def test_kernels_are_judged_apart_and_times_per_sample() -> None:
    noisy, tight = Effect(0.0, 0.1, 10.0), Effect(math.log(1.03), 0.005, 10.0)
    found = gate_of(noisy, (), 0.02, tight)
    assert (found.slower, found.gpu and found.gpu[2]) == (True, True)
    assert gate_of(noisy, (), 0.05, tight).slower is None
    half = Effect(0.0, 0.005, 10.0)  # as long as before, of half the samples
    assert gate_of(half, (), 0.05).slower is False
    found = gate_of(half, (), 0.05, unit=Amount("sample", 64, 32))
    assert (found.slower, found.per) == (True, "sample")
    assert found.low == pytest.approx(2 * math.exp(-1.812 * 0.005), rel=1e-4)


def test_less_work_of_an_unknown_number_of_samples_does_not_pass() -> None:
    equal = Effect(0.0, 0.005, 10.0)
    found = gate_of(equal, (), 0.05, work=0.5)
    assert (found.slower, found.less) == (None, 0.5)
    assert next(_gate(found)).startswith("Gate: a step does 0.50 times the work after")
    assert gate_of(equal, (), 0.05, work=0.96).slower is False
    assert gate_of(equal, (), 0.05, unit=Amount("token", 4, 4), work=0.5).slower is False
    assert gate_of(Effect(0.2, 0.005, 10.0), (), 0.05, work=0.5).slower is True


def test_kernels_of_one_run_a_side_show_3_percent() -> None:
    launches = [
        run
        for name in ("launches", "fresh", "hosts", "scale")
        for run in results.read(PROFILES / name / "launches.json")["launches"]
        if run["recorded"] and run.get("parts") and run["settings"]["graph"] == "no"
    ]
    groups = defaultdict(list)
    for run in launches:
        spent = [s for part, s in run["parts"].items() if part.startswith(COMPUTING)]
        groups[run["name"], run["machine"]].append(math.log(sum(spent)))

    def found(change: float) -> float:
        """Return in how many of all pairs of runs the kernels are more than 2 % slower."""
        said = [
            judged(effect([known(a)], [known(b + math.log1p(change))], KERNEL_NOISE), 0.02)[2]
            for logs in groups.values() for a, b in permutations(logs, 2)
        ]  # fmt: skip
        return said.count(True) / len(said)

    assert found(0.03) >= 0.85
    assert found(0.0) <= 0.07


def known(log: float) -> Median:
    return Median(math.exp(log), log, 5e-4, 7.0)


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


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_equal_runs_of_hosts_of_any_speed_raise_few_alarms(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel launches differ by 2.5 % from what their host's speed says: most of the ladder's."""
    monkeypatch.setattr(hosts, "of_launches", lambda: 0.03 * np.array([-1.0, 0.0, 1.0]))
    slower, equal, undecided = hosts.answers(runs, 0.0, trials=100)
    assert slower <= 0.06
    assert equal > 0.65
    assert undecided < 0.35


@pytest.mark.slow
def test_a_slower_piece_is_told_from_a_slower_host() -> None:
    """Three runs a side of recorded hosts, which differ by 13 %."""
    slower, missed, _ = hosts.answers(3, 0.10, trials=300)
    assert slower > 0.5
    assert missed < 0.08
    assert hosts.answers(3, 0.05, trials=300)[2] < 0.56  # 0.82 without the host's speed


def made(factors: list[float], slower: float = 0.0) -> list[Launch]:
    """Launches of hosts of some speeds; a step of 5 ms on the host and 1 ms on the GPU."""
    found = []
    for i, factor in enumerate(factors):
        pieces = {f"piece {k}": 1e-3 * factor for k in range(5)}
        pieces["piece 2"] += slower * 6e-3 * factor
        batch = np.full(20, sum(pieces.values()) + 1e-3)
        found.append(
            Launch(str(i), 0, 1, frozenset(), frozenset({"gpu"}),
                   {("range", ("step",)): Series(batch)}, pieces=pieces, idle_share=5 / 6)
        )  # fmt: skip
    return found


def test_a_host_that_is_slower_in_all_its_pieces_is_no_slower_program() -> None:
    speeds = [1.0, 1.3, 1.15]
    found = compared(made(speeds), made(speeds[::-1]), limit=0.05).gate
    assert found is not None
    assert found.host is not None
    assert (found.slower, found.host_ratio) == (False, pytest.approx(1.0))
    found = compared(made(speeds), made([1.05 * s for s in speeds], 0.1), limit=0.05).gate
    assert found is not None
    assert found.slower is True
    assert found.host_ratio == pytest.approx(1.05, rel=1e-3)
    assert found.host is not None
    assert math.sqrt(found.host[0] * found.host[1]) == pytest.approx(1.1, abs=0.02)


def test_what_all_pieces_gained_alike_stays_open() -> None:
    """A slower host or a slower Python: nobody can tell, and 10 % are seen."""
    speeds = [1.0, 1.3, 1.15]
    found = compared(made(speeds), made([1.1 * s for s in speeds]), limit=0.05).gate
    assert found is not None
    assert found.slower is None
    assert found.host_ratio == pytest.approx(1.1, rel=1e-3)
    assert "the host took +10.0 % in all ranges alike" in "\n".join(_gate(found))


@pytest.mark.parametrize(("longer", "slower"), [(1.1, False), (1.0, None)])
def test_kernel_launches_tell_a_slower_host_from_a_slower_program(
    longer: float, slower: bool | None
) -> None:
    """All pieces take 10 % longer: with the launches it is the host, without them the program."""
    speeds = [1.0, 1.3, 1.15]
    sides = [
        [replace(one, launch_s=4e-6 * s * more) for one, s in zip(made(slow), speeds, strict=True)]
        for slow, more in ((speeds, 1.0), ([1.1 * s for s in speeds], longer))
    ]
    found = compared(*sides, limit=0.05).gate
    assert found is not None
    assert (found.slower, found.launch_ratio) == (slower, pytest.approx(longer))


@pytest.mark.parametrize("why", ["one launch", "few pieces", "few batches", "a busy GPU"])
def test_the_hosts_speed_is_used_only_where_it_is_known(why: str) -> None:
    sides = [made([1.0, 1.1, 1.2]) for _ in range(2)]
    if why == "one launch":
        sides = [side[:1] for side in sides]
    changed = {
        "few pieces": {"pieces": {"a": 1e-3, "b": 1e-3}},
        "few batches": {"series": {("range", ("step",)): Series(np.full(5, 6e-3))}},
        "a busy GPU": {"idle_share": 0.1},
    }.get(why, {})
    sides = [[replace(one, **changed) for one in side] for side in sides]
    found = compared(*sides, limit=0.05).gate
    assert found is not None
    assert (found.host, found.host_ratio, found.launch_ratio) == (None, None, None)


def side(name: str, count: int = 3) -> list[str]:
    return [str(LADDER / f"{name}_{i + 1}.sqlite.xz") for i in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "code", "words"),
    [
        ("graph", "graph", 0, "is not more than 5 % slower"),
        ("nccl", "graph", 0, "is not more than 5 % slower"),
        ("graph", "nccl", 7, "is more than 5 % slower"),
        ("document", "document", 0, "at one speed of the host: ratio 0."),
        ("resident", "host-flat", 7, "in all ranges alike, and +1.3 % in kernel launches"),
    ],
)
def test_the_command_exits_by_the_answer(
    before: str, after: str, code: int, words: str, tmp_path
) -> None:
    junit = tmp_path / "gate.xml"
    result = perfmodel(
        "compare", *side(before), "--to", *side(after), "--fail-if-slower", "5%", "--junit", junit,
        "--section", "answer",
    )  # fmt: skip
    assert result.exit_code == code, result.output
    assert words in result.stdout
    if code == 7:
        assert "    range " in result.stdout
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


def recorded_by(share: float, source: str = "measured") -> Recorder:
    """A recorder that leaves `share` of the step, known to 1 %."""
    step_s = 1e-3
    limits = share * step_s * 0.99, share * step_s * 1.01
    return Recorder("nsys", step_s, share * step_s, *limits, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "slower"),
    [("measured", False), ("estimated", True)],
)
def test_the_recorder_s_cost_is_taken_out_where_it_was_timed(source: str, slower: bool) -> None:
    """20 % more as recorded, all of it the recorder's: it left 0.9 of a step before, 0.75 after."""
    made = np.random.default_rng(0)

    def side(speed: float, share: float) -> list[Launch]:
        how = {"between": 0.002, "within": 0.002, "speedup": dict.fromkeys(range(12), speed)}
        return [
            replace(launches_made.launch(made, **how), recorder=recorded_by(share, source))
            for _ in range(3)
        ]

    found = compared(side(1.0, 0.9), side(1 / 1.2, 0.75), limit=0.05).gate
    assert found is not None
    assert found.slower is slower
    if source == "measured":
        assert found.without_recorder_s == pytest.approx((0.9e-3, 0.9e-3), rel=0.01)
        assert found.low < 1 < found.high
    else:
        assert found.without_recorder_s is None


def test_one_launch_whose_recorder_is_unknown_leaves_all_as_recorded() -> None:
    made = np.random.default_rng(0)
    sides = [[launches_made.launch(made, between=0.002) for _ in range(3)] for _ in range(2)]
    sides[0] = [replace(one, recorder=recorded_by(0.9)) for one in sides[0]]
    found = compared(*sides, limit=0.05).gate
    assert found is not None
    assert found.without_recorder_s is None
