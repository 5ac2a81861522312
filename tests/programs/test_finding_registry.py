"""A kind of finding is one file: it is asked of every program, and has all its words and tests."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_findings import DOCS, QUIET

from benchmarks.common.folders import PROFILES, PROGRAMS, ROOT
from perfmodel import findings
from perfmodel.analysis import analyze as analyses
from perfmodel.analysis.analyze import RunAnalysis, analyze_reports
from perfmodel.analysis.changes import changes_of
from perfmodel.base.kernels import categories
from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, kinds
from perfmodel.programs.actions import ADVICE
from perfmodel.programs.facts import Spent
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.evidence import evidence
from perfmodel.render.html.sections import place_of
from perfmodel.timing.collectives import CollectiveGroup
from perfmodel.timing.critical_path import EXPOSED
from perfmodel.timing.host_timeline import CAUSE_CLAUSES, CAUSE_NAMES, CAUSES
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
def analyzed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find nothing by the kinds that other tests register."""
    for name in ("analyze_run", "analyze_measured"):
        monkeypatch.setattr(analyses, name, inspect.unwrap(getattr(analyses, name)))


def newcomer(monkeypatch: pytest.MonkeyPatch, key: str, **more: Any) -> Kind:
    """Register a kind, as a file of this name would, until the end of a test."""
    kind = Kind(
        key=key,
        change="no step is unlucky",
        remedy="Be lucky:",
        grounds={
            "formula": "a share of the step",
            "inputs": ["batch.median_s"],
            "table": "steps",
            "where": {"counted": True},
            "by": "step_s",
        },
        **more,
    )
    monkeypatch.setitem(kinds(), key, kind)
    return kind


def analyzed(path: Path, options: Options | None = None) -> RunAnalysis:
    return analyze_reports([path], options or Options()).fitted


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
def test_a_newcomer_s_finding_appears_for_every_program(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @newcomer(monkeypatch, "unlucky_step").rule()
    def unlucky_step(facts: Facts, actions: Actions) -> Findings:
        yield Finding("unlucky_step", "the step is unlucky", facts.batch.value / 3, "so", "wait")

    path = REPORTS[program] if program in REPORTS else traced(tmp_path)
    (own,) = (f for f in analyzed(path).findings if f.kind == "unlucky_step")
    assert own.saving.endswith(" (33 %)") or own.share != pytest.approx(1 / 3)
    assert own.title == "the step is unlucky"


def test_a_newcomer_s_finding_appears_for_the_user_s_own_formulas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from perfmodel.workloads import load

    @newcomer(monkeypatch, "unlucky_step").rule()
    def unlucky_step(facts: Facts, actions: Actions) -> Findings:
        yield Finding("unlucky_step", "the step is unlucky", facts.batch.value / 2, "so", "wait")

    options = Options({"H": 512, "B": 12000}, workload=load(OWN))
    run = analyzed(PROFILES / "ddp" / "ddp_p2_H512_B12000.sqlite.xz", options)
    assert "unlucky_step" in [f.kind for f in run.findings]


def test_a_newcomer_s_words_are_on_every_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict, what-if, evidence and the page know nothing of the kind but its file."""

    @newcomer(monkeypatch, "unlucky_step", part="compute", several=True).rule(needs=("steps",))
    def unlucky_step(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
        saving_s = 0.9 * steps.step_s
        name = steps.kernels[0].name
        title = f"{name} is unlucky"
        yield Finding("unlucky_step", title, saving_s, "so", "wait", subject=name)

    analysis = analyze_reports([REPORTS["PyTorch"]], Options())
    run = analysis.fitted
    assert run.steps is not None
    kernel = run.steps.facts.kernels[0].name
    text = run.summary.verdict.text
    assert "computes" in text.partition(":")[0]
    assert f": {kernel} is unlucky. Be lucky: a step takes at best" in text
    (row,) = (one for one in changes_of(run).changes if one.name == "unlucky_step")
    assert row.change == f"no step is unlucky: {kernel} is unlucky"
    behind = evidence(run, analysis_document(analysis), "unlucky_step")
    assert (behind.formula, behind.table) == ("a share of the step", "steps")
    assert behind.count == run.batch.count
    place = place_of(run, run.findings[0])
    assert place is not None
    assert place.name == kernel


def test_a_finding_is_asked_where_its_facts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    @newcomer(monkeypatch, "by_step").rule(needs=("steps",))
    def by_step(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
        yield Finding("by_step", "of steps", steps.step_s / 2, "so", "wait")

    @newcomer(monkeypatch, "by_collective").rule(needs=("collectives",), unless=("steps",))
    def by_collective(
        facts: Facts, actions: Actions, groups: tuple[CollectiveGroup, ...]
    ) -> Findings:
        yield Finding("by_collective", groups[0].name, facts.batch.value / 2, "so", "wait")

    found = {
        name: {f.kind for f in analyzed(REPORTS[name]).findings} for name in ("JAX", "trainer")
    }
    assert "by_step" in found["JAX"]
    assert "by_collective" not in found["JAX"]
    assert "by_collective" in found["trainer"]
    assert "by_step" not in found["trainer"]


def test_savings_below_one_percent_are_hidden_and_the_others_ranked_by_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @newcomer(monkeypatch, "small").rule(needs=("input_copy",))
    def small(facts: Facts, actions: Actions, copy: Spent) -> Findings:
        for saving_s in (9e-6, 340e-9, 0.0, -1.0, 300e-6, 11e-6):
            yield Finding("small", f"{saving_s}", saving_s, "so", "wait")
        yield Finding("small", "in some steps", 200e-6, "so", "wait", of_mean=True)

    from dataclasses import replace

    facts = replace(
        QUIET, mean_s=1.5e-3, input_copy=Spent("inputs", 1e-6), host_ranks={0: (1e-3, 0.0)}
    )
    shown = findings.find(facts, Actions())
    assert [f.saving_s for f in shown] == [300e-6, 200e-6, 11e-6]
    assert [f.share for f in shown] == pytest.approx([0.3, 0.2 / 1.5, 0.011])


def test_a_finding_says_the_remedy_of_its_kind_its_rank_or_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = newcomer(monkeypatch, "unlucky", of_ranks=True, replays="luck")

    @own.rule()
    def unlucky(facts: Facts, actions: Actions) -> Findings:
        yield Finding("unlucky", "a", 4e-4, "so", "wait")
        yield Finding("unlucky", "b", 3e-4, "so", "wait", remedy="Wait:", change="time")
        yield Finding("unlucky", "c", 2e-4, "so", "wait", rank=1)

    shown = findings.find(QUIET, Actions())
    assert [(f.key, f.remedy, f.change) for f in shown] == [
        ("unlucky", "Be lucky:", "luck"),
        ("unlucky-2", "Wait:", "time"),
        ("unlucky-3", "With rank 1 like the others", "luck"),
    ]


@cache
def all_tests() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def rules() -> Iterator[Any]:
    for kind in kinds().values():
        for find, needs, unless in kind.rules:
            yield pytest.param(find, {*needs, *unless}, id=f"{kind.key}-{find.__name__}")


@pytest.mark.parametrize(("find", "facts"), [*rules()])
def test_every_rule_needs_facts_that_exist(find: findings.Find, facts: set[str]) -> None:
    assert find.__doc__
    assert facts <= Facts.__dataclass_fields__.keys()


@pytest.mark.parametrize("kind", [*kinds().values()], ids=lambda kind: kind.key)
def test_every_kind_has_all_its_words_and_is_documented_and_tested(kind: Kind) -> None:
    file = ROOT / "perfmodel" / "findings" / f"{kind.key}.py"
    assert file.is_file()
    assert all((kind.rules, kind.change, kind.remedy, kind.grounds["formula"]))
    assert kind.limits.format(title="x", share="1 %").startswith("x")
    assert {*kind.kernels} <= {one.name for one in categories()} | {"softmax"}
    assert f"`{kind.key}`" in DOCS.read_text(encoding="utf-8"), "docs/findings.md lacks it"
    assert f'"{kind.key}"' in all_tests(), "no test has a finding of this kind"


def test_every_advice_is_given_by_a_program_or_a_finding() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "perfmodel").rglob("*"
                   ) if path.suffix in (".py", ".toml"))  # fmt: skip
    assert [key for key in ADVICE if code.count(f'"{key}"') < 2] == []


def test_every_cause_of_idle_time_has_a_name_and_a_clause() -> None:
    assert [*CAUSE_NAMES] == [*CAUSE_CLAUSES] == [*CAUSES]
    assert all((*CAUSE_NAMES.values(), *CAUSE_CLAUSES.values()))


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """String constants of a file with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_other_code_names_a_kind_of_finding() -> None:
    """Some kinds are called as the cause of idle time, or the kind of work, that they are about.

    These are defined in two files of `timing`; all else takes them from there.
    """
    package = ROOT / "perfmodel"
    defined = {
        package / "timing" / "host_timeline.py": {*CAUSES},
        package / "timing" / "critical_path.py": {EXPOSED},
    }
    named = [
        f"{path.relative_to(ROOT)}:{line} {text}"
        for path in sorted(package.rglob("*.py"))
        if package / "findings" not in path.parents
        for line, text in strings(path)
        if text.rpartition("-")[0] in kinds() or text in kinds().keys() - defined.get(path, set())
    ]
    assert named == []
