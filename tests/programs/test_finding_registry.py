"""A finding is one function: it is asked of every program that has its facts, and documented."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from test_findings import DOCS, QUIET

from benchmarks.common.folders import PROFILES, PROGRAMS, ROOT
from perfmodel.analysis import analyze as analyses
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs import findings
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, Spent
from perfmodel.programs.findings import Finding, finding
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing.collectives import CollectiveGroup
from perfmodel.timing.step_facts import StepFacts
from support import build_kineto
from support.build_report import ReportBuilder

OWN = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
REPORTS = {
    "PyTorch": PROGRAMS / "healthy_b32.sqlite.xz",
    "JAX": PROGRAMS / "jax_two_gpus.sqlite.xz",
    "MPI": PROGRAMS / "halo.sqlite.xz",
    "CuPy": PROGRAMS / "cupy_cg.sqlite.xz",
    "trainer": PROFILES / "ladder" / "document_1.sqlite.xz",
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test what it registers; find nothing by what other tests registered."""
    monkeypatch.setattr(findings, "_RULES", [*findings.rules()])
    for name in ("analyze_run", "analyze_measured"):
        monkeypatch.setattr(analyses, name, inspect.unwrap(getattr(analyses, name)))


def found(path: Path, options: Options | None = None) -> list[Finding]:
    return list(analyze_reports([path], options or Options()).fitted.findings)


def traced(folder: Path) -> Path:
    """Steps of one kernel, as torch.profiler traces them."""
    builder = ReportBuilder("2025.3.2")
    builder.gpu()
    main = builder.thread()
    for at in range(0, 6_000_000, 1_000_000):
        main.range(f"ProfilerStep#{at // 1_000_000}", at, at + 900_000)
        main.kernel("relu", (at + 1_000, at + 5_000), (at + 9_000, at + 709_000))
    report = builder.write(folder / "r.sqlite")
    return build_kineto.write(folder / "trace.json", build_kineto.document(read(report)))


@pytest.mark.parametrize("program", [*REPORTS, "torch.profiler"])
def test_a_newcomer_s_finding_appears_for_every_program(program: str, tmp_path: Path) -> None:
    @finding("unlucky_step")
    def unlucky_step(facts: Facts, actions: Actions) -> Iterator[Finding]:
        """A third of every step."""
        yield Finding("unlucky_step", "the step is unlucky", facts.batch.value / 3, "so", "wait")

    path = REPORTS[program] if program in REPORTS else traced(tmp_path)
    (mine,) = (f for f in found(path) if f.kind == "unlucky_step")
    assert mine.saving.endswith(" (33 %)") or mine.share != pytest.approx(1 / 3)
    assert mine.title == "the step is unlucky"


def test_a_newcomer_s_finding_appears_for_the_user_s_own_formulas() -> None:
    from perfmodel.workloads import load

    @finding("unlucky_step")
    def unlucky_step(facts: Facts, actions: Actions) -> Iterator[Finding]:
        """Half of every step."""
        yield Finding("unlucky_step", "the step is unlucky", facts.batch.value / 2, "so", "wait")

    options = Options({"H": 512, "B": 12000}, workload=load(OWN))
    kinds = [f.kind for f in found(PROFILES / "ddp" / "ddp_p2_H512_B12000.sqlite.xz", options)]
    assert "unlucky_step" in kinds


def test_a_finding_is_asked_where_its_facts_are_known() -> None:
    @finding("by_step", needs=("steps",))
    def by_step(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
        yield Finding("by_step", "of steps", steps.step_s / 2, "so", "wait")

    @finding("by_collective", needs=("collectives",), unless=("steps",))
    def by_collective(
        facts: Facts, actions: Actions, groups: Sequence[CollectiveGroup]
    ) -> Iterator[Finding]:
        yield Finding("by_collective", groups[0].name, facts.batch.value / 2, "so", "wait")

    kinds = {name: {f.kind for f in found(REPORTS[name])} for name in ("JAX", "trainer")}
    assert "by_step" in kinds["JAX"]
    assert "by_collective" not in kinds["JAX"]
    assert "by_collective" in kinds["trainer"]
    assert "by_step" not in kinds["trainer"]


def test_a_finding_says_what_it_needs_and_what_it_is_about() -> None:
    with pytest.raises(ValueError, match=r"expected fields of Facts .* got stepps"):
        finding("x", needs=("stepps",))
    with pytest.raises(ValueError, match="expected a kind"):
        finding()

    @finding("x")
    def about_y(facts: Facts, actions: Actions) -> Iterator[Finding]:
        yield Finding("y", "of another kind", None, "so", "wait")

    with pytest.raises(ValueError, match="expected one of x; got 'y'"):
        findings.find(QUIET, Actions())


def test_savings_below_one_percent_are_hidden_and_the_others_ranked_by_their_share() -> None:
    @finding("straggler", needs=("input_copy",))
    def small(facts: Facts, actions: Actions, copy: Spent) -> Iterator[Finding]:
        for saving_s in (9e-6, 340e-9, 0.0, -1.0, 300e-6, 11e-6):
            yield Finding("straggler", f"{saving_s}", saving_s, "so", "wait")
        yield Finding("straggler", "in some steps", 200e-6, "so", "wait", of_mean=True)

    from dataclasses import replace

    facts = replace(
        QUIET, mean_s=1.5e-3, input_copy=Spent("inputs", 1e-6), host_ranks={0: (1e-3, 0.0)}
    )
    shown = findings.find(facts, Actions())
    assert [f.saving_s for f in shown] == [300e-6, 200e-6]  # 11 µs is 0.7 % of the mean step
    assert [f.share for f in shown] == pytest.approx([0.2, 0.2 / 1.5])


@cache
def all_tests() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("rule", findings.rules(), ids=lambda rule: rule.find.__name__)
def test_every_finding_is_documented_and_tested(rule: findings.Rule) -> None:
    assert rule.find.__doc__
    said, tests = DOCS.read_text(encoding="utf-8"), all_tests()
    for kind in rule.kinds:
        assert f"`{kind}`" in said, f"docs/findings.md says nothing of {kind}"
        assert f'"{kind}"' in tests, f"no test has a finding of kind {kind}"
