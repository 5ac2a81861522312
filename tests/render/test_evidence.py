"""Evidence: every finding and number leads to its formula, its inputs and its events."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks.common.folders import BASE, PROFILES, ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.events import EventTable, documented, events
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.errors import ModelError
from perfmodel.findings import Finding, keyed, kinds
from perfmodel.programs.program import Options
from perfmodel.render import evidence as rendered
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.documents import definition, json_schema
from perfmodel.render.evidence import evidence, find, result, rule_of
from support import build_kineto
from support.build_operators import operators_report
from support.cli import fails, succeeds
from support.once import trace_of

PROGRAMS = PROFILES / "programs"
LATE = PROGRAMS / "straggler_p2_b32.sqlite.xz"
RULES = tomllib.loads((ROOT / "perfmodel" / "render" / "evidence.toml").read_text())["rule"]


def read(path: Path) -> tuple[RunAnalysis, dict[str, Any]]:
    analysis = analyze_reports([path], Options(), whole=True)
    return analysis.fitted, analysis_document(analysis)


@pytest.fixture(scope="module")
def late() -> tuple[RunAnalysis, dict[str, Any]]:
    return read(LATE)


@pytest.fixture(autouse=True)
def _each_table_once() -> Iterator[None]:
    """Keep the tables of events of a run, which hundreds of its numbers lead to.

    Recordings are measured without them, so that they stay shared: no monkeypatch.
    """
    kept: dict[tuple[int, str], EventTable] = {}

    def once(run: RunAnalysis, name: str) -> EventTable:
        key = id(run), name
        if key not in kept:
            kept[key] = events(run, name)
        return kept[key]

    with mock.patch.object(rendered, "events", once):
        yield


def test_a_number_has_one_rule() -> None:
    of = [one for rule in RULES for one in rule["of"]]
    assert len(set(of)) == len(of)


def test_rules_name_tables_columns_and_keys_that_exist(late: tuple[Any, dict[str, Any]]) -> None:
    schema = json_schema()

    def exists(path: str) -> bool:
        node = schema["$defs"]["AnalysisDocument"]
        for name in re.sub(r"\[[^\]]*\]", "", path).split("."):
            while "properties" not in node:
                if "anyOf" in node:
                    node = node["anyOf"][0]
                elif "items" in node:
                    node = node["items"]
                elif isinstance(node.get("additionalProperties"), dict):
                    return True  # a free key, such as a symbol
                else:
                    node = schema["$defs"][node["$ref"].rpartition("/")[2]]
            if name not in node["properties"]:
                return False
            node = node["properties"][name]
        return True

    of_findings = ({"of": (kind.key,), **kind.grounds} for kind in kinds().values())
    for rule in [*of_findings, *RULES]:
        columns = documented().get(rule.get("table", ""), {})
        assert {*rule.get("where", ()), *rule.get("loosely", ())} <= {*columns}, rule["of"]
        assert ("table" in rule) is (rule.get("by") in columns), rule["of"]
        where = [str(value) for value in rule.get("where", {}).values()]
        named = [v[1:] for v in where if v.startswith("$") and v[1] != "." and v != "$missing"]
        given = [path for path in rule.get("inputs", ()) if not path.startswith("$.")]
        own = [one for one in rule["of"] if "*" not in one and one not in kinds()]
        for path in (*given, *named, *own):
            assert exists(path), f"{rule['of']}: {path}"


def numbers(node: dict[str, Any], defs: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all numbers of a schema, with `[]` for places in lists and `x` for free keys."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name != "RunDocument":
            yield from numbers(defs[name], defs, path)
        return
    for one in node.get("anyOf", ()):
        yield from numbers(one, defs, path)
    for name, one in node.get("properties", {}).items():
        yield from numbers(one, defs, f"{path}.{name}" if path else name)
    for one in (node.get("items"), *node.get("prefixItems", ())):
        if isinstance(one, dict):
            yield from numbers(one, defs, f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from numbers(node["additionalProperties"], defs, f"{path}.x")
    if {"number", "integer"} & {*np.atleast_1d(node.get("type", ()))}:
        yield path


def test_every_number_of_the_document_has_a_definition() -> None:
    schema = json_schema()
    paths = {*numbers(schema["$defs"]["AnalysisDocument"], schema["$defs"])}
    assert len(paths) > 300
    defined = {path for path in paths if rule_of(path).get("formula") or definition(path)}
    assert paths - defined == set()


def leaves(node: Any, path: str = "") -> Iterator[str]:
    """Paths of the numbers of a document, the first three items of each list."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for i, value in enumerate(node[:3]):
            yield from leaves(value, f"{path}[{i}]")
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        yield path


REPORTS = {
    "trainer": BASE,
    "MPI": PROFILES / "diagnosis" / "heat_slow_rank_4.sqlite.xz",
    "JAX": PROGRAMS / "jax_gpt.sqlite.xz",
    "NCCL": PROFILES / "ladder" / "nccl_1.sqlite.xz",
}


@pytest.mark.parametrize("name", [*REPORTS, "torch.profiler"])
def test_every_number_of_a_report_leads_to_a_formula(name: str, tmp_path: Path) -> None:
    if name in REPORTS:
        reports = [REPORTS[name]]
    else:
        operators = operators_report(tmp_path / "operators.sqlite")
        reports = build_kineto.of_every_rank(trace_of(operators), tmp_path)
    analysis = analyze_reports(reports, Options(), whole=True)
    document = {**analysis_document(analysis), "runs": []}
    for path in leaves(document):
        found = evidence(analysis.fitted, document, path, most=1)
        assert found.formula, path
        rule = rule_of(re.sub(r"\[\d+\]", "[]", path))
        assert found.inputs or found.table or not rule, path


@pytest.mark.parametrize(
    "path", [BASE, LATE, PROGRAMS / "halo.sqlite.xz", PROGRAMS / "convnext_shapes.sqlite.xz"],
    ids=lambda p: p.name[:12],
)  # fmt: skip
def test_every_finding_has_events_and_inputs(path: Path) -> None:
    run, document = read(path)
    assert document["findings"]
    for one in document["findings"]:
        found = evidence(run, document, one["key"])
        assert found.said == f"{one['title']}: {one['evidence']}"
        assert found.value == one["saving_s"]
        assert found.formula
        assert found.inputs[0].path == "summary.step_s"
        assert found.inputs[0].value == document["summary"]["step_s"]
        assert found.count >= len(found.rows) > 0, one["key"]
        assert json.loads(result(found).render("json"))["key"] == one["key"]
        assert one["key"] in result(found).render()


def test_the_events_of_a_late_rank(late: tuple[RunAnalysis, dict[str, Any]]) -> None:
    run, document = late
    found = evidence(run, document, "straggler", most=1000)
    assert found.where == {"cause_rank": 1, "counted": True}
    assert {row["rank"] for row in found.rows} == {0}
    waited = sum(row["waiting_s"] for row in found.rows)
    caused = next(s["caused_s"] for s in document["stragglers"] if s["rank"] == 1)
    assert waited / document["batch"]["count"] == pytest.approx(caused, rel=0.02)


@pytest.mark.parametrize(
    ("key", "tolerance"),
    [
        ("batch.median_s", 1e-9),
        ("ranks[rank=0].recorded_step_s", 1e-9),
        ("ranks[rank=1].compute_s", 0.02),
        ("ranks[rank=1].copies_s", 0.02),
        ("ranks[rank=1].gpu_busy_s", 1e-9),
        ("kernels.categories[category=GEMM].kernel_s", 0.02),
    ],
)
def test_numbers_are_made_again_of_their_events(
    key: str, tolerance: float, late: tuple[RunAnalysis, dict[str, Any]]
) -> None:
    found = evidence(*late, key)
    assert found.complete
    assert found.again == pytest.approx(found.value, rel=tolerance)


def test_idle_time_is_that_of_its_gaps_less_what_recording_adds(
    late: tuple[RunAnalysis, dict[str, Any]],
) -> None:
    run, document = late
    added_s = run.ledger.recorded_s - run.ledger.step_s
    assert added_s > 0.1 * run.ledger.step_s
    for key, less_s in (
        ("ranks[rank=1].idle_s", added_s),
        ("idle[rank=1,cause=launch_bound].seconds", added_s),
        ("idle[rank=1,cause=host_compute].seconds", 0.0),
    ):
        found = evidence(run, document, key, most=100_000)
        assert found.again is None
        assert "less what recording adds" in found.formula
        idle: dict[int, float] = {}
        for row in found.rows:
            idle[row["step"]] = idle.get(row["step"], 0.0) + row["seconds"]
        recorded_s = (found.value or 0.0) + less_s
        assert np.median([*idle.values()]) == pytest.approx(recorded_s, rel=0.02), key
    step = evidence(run, document, "ranks[rank=1].step_s")
    assert [one.path for one in step.inputs] == [
        "ranks[1].recorded_step_s", "summary.recorded_s", "summary.step_s",
    ]  # fmt: skip
    recorded, whole, without = (float(one.value or 0.0) for one in step.inputs)
    assert recorded - (whole - without) == pytest.approx(step.value)


def test_paths(late: tuple[RunAnalysis, dict[str, Any]]) -> None:
    document = late[1]
    assert [value for _, value, _ in find(document, "ranks[].rank")] == [0, 1]
    assert [path for path, _, _ in find(document, "ranks[rank=1].idle_s")] == ["ranks[1].idle_s"]
    assert not [*find(document, "ranks[rank=7].idle_s")]
    assert not [*find(document, "batch.nosuch")]
    assert not [*find(document, "batch.median_s.deeper[0]")]
    for wrong in ("", ".", "a[", "a..b", "]a", "a" + ".b" * 50, "ranks[0"):
        with pytest.raises(ModelError, match="expected a path"):
            [*find(document, wrong)]


@pytest.mark.parametrize("key", ["nosuch", "ranks[].idle_s", "label", "batch", "a" * 10_000])
def test_what_is_no_number_is_refused(key: str, late: tuple[RunAnalysis, dict[str, Any]]) -> None:
    with pytest.raises(ModelError, match="expected a finding") as error:
        evidence(*late, key)
    assert len(str(error.value)) < 600


def test_a_number_without_events_is_made_again_of_its_inputs(
    late: tuple[RunAnalysis, dict[str, Any]],
) -> None:
    found = evidence(*late, "critical_path[0].share")
    assert [one.path for one in found.inputs] == ["critical_path[0].seconds", "summary.step_s"]
    assert found.again == pytest.approx(found.value, rel=1e-3)
    given = evidence(*late, "machine.figures.peak_flops_per_s.float64.value")
    assert (given.table, given.again) == ("", None)
    assert given.inputs == ()


def test_a_number_without_a_rule_is_defined_by_the_docstring_of_its_field() -> None:
    assert definition("gemms[0].flops") == (
        "FLOPs of a range's products per rank and step, and the rate that they reach."
    )
    assert definition("machine.figures.peak_flops_per_s.float64.value") == (
        "One number of a machine with its source; where it was measured, with its spread. "
        "`value`: In the unit of its section."
    )
    assert "`asleep` is the share of the longest gaps" in definition("idle[rank=0].asleep")
    assert "`config`: The configuration mark" in definition("workload.config.deep.key")
    assert "By how much longer" in definition("outliers[].excess")  # a property


def test_the_command(late: tuple[RunAnalysis, dict[str, Any]]) -> None:
    text = succeeds("analyze", LATE, "--evidence", "straggler")
    assert text.startswith("straggler = ")
    assert "of exchanges where cause_rank = 1" in text
    found = json.loads(succeeds("analyze", LATE, "--evidence", "batch.median_s", "--json"))
    assert found["again"] == pytest.approx(late[1]["batch"]["median_s"])
    assert np.isfinite([row["step_s"] for row in found["rows"]]).all()
    assert "expected a finding (straggler, " in fails(6, "analyze", LATE, "--evidence", "nosuch")


def test_keys_of_findings() -> None:
    one = Finding("a", "title", None, "", "")
    found = keyed([one, replace(one, kind="b"), one, one])
    assert [finding.key for finding in found] == ["a", "b", "a-2", "a-3"]
