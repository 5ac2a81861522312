"""The JSON Schema: made of the types, and every document is valid by it; errors are JSON, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import json_schema
import jsonschema
import pytest

from benchmarks.common.folders import BASE, PROFILES, ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.document import plain
from perfmodel.programs.program import Options
from perfmodel.render.analysis_json import analysis_document, brief_document
from perfmodel.render.evidence import evidence
from perfmodel.studies import documents
from support import build_kineto
from support.build_operators import FORWARD, operators_report
from support.build_training import Training, training_report
from support.cli import perfmodel as invoke
from support.cli import succeeds
from support.once import trace_of
from support.small_model import MODEL, few_draws, small_model

PROGRAMS = PROFILES / "programs"
REPORTS = {
    "trainer": (BASE,),
    "two runs": tuple(
        PROFILES / "campaign" / f"h200x4_p{p}_host_float32_H512_B3000.sqlite.xz" for p in (1, 2)
    ),
    "messages": (PROGRAMS / "halo.sqlite.xz",),
    "operators": (PROGRAMS / "convnext_shapes.sqlite.xz",),
    "modules": (PROGRAMS / "gpt_modules.sqlite.xz",),
    "late rank": (PROGRAMS / "straggler_p2_b32.sqlite.xz",),
    "no GPU": (ROOT / "tests" / "reports" / "cpu_2ranks_nsys2024.2.3.sqlite",),
}


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(documents.json_schema())
    return jsonschema.Draft202012Validator(documents.json_schema())


def test_the_page_of_the_schema_is_what_the_types_say() -> None:
    again = "run: python docs/json_schema.py"
    assert json_schema.PAGE.read_text(encoding="utf-8") == json_schema.page(), again
    assert json_schema.GLOSSARY.read_text(encoding="utf-8") == json_schema.glossary(), again


@pytest.mark.parametrize("name", [*REPORTS, "torch.profiler"])
def test_every_document_is_valid(name: str, validator: Any, tmp_path: Path) -> None:
    if name in REPORTS:
        reports = [*REPORTS[name]]
    else:
        operators = operators_report(tmp_path / "operators.sqlite")
        reports = build_kineto.of_every_rank(trace_of(operators), tmp_path)
    analysis = analyze_reports(reports, Options(), whole=True)
    for document in (analysis_document(analysis), brief_document(analysis)):
        wrong = [f"{e.json_path}: {e.message}"[:300] for e in validator.iter_errors(document)]
        assert wrong == []


@pytest.mark.parametrize("name", ["late rank", "messages", "operators"])
def test_evidence_and_changes_are_valid(name: str, validator: Any) -> None:
    analysis = analyze_reports(REPORTS[name], Options(), whole=True)
    document = analysis_document(analysis)
    keys = [one["key"] for one in document["findings"]]
    for key in (*keys, "batch.median_s", "ranks[0].step_s"):
        found = plain(evidence(analysis.fitted, document, key))
        assert found["key"] == key
        assert [*validator.iter_errors(found)] == []
        assert not validator.is_valid({**found, "count": "many"})
    printed = succeeds("analyze", *REPORTS[name], "--evidence", keys[0], "--json")
    assert [*validator.iter_errors(json.loads(printed))] == []
    if name == "late rank":
        changes = json.loads(succeeds("whatif", *REPORTS[name], "--json"))
        assert [*validator.iter_errors(changes)] == []
        assert changes["changes"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Two runs of each kind, before and after a change."""
    folder = tmp_path_factory.mktemp("compared")
    few, more = Training(pace=(2,) * 6), Training(pace=(3,) * 6)
    return {
        "trainer": (
            training_report(folder / "few.sqlite", few),
            training_report(folder / "more.sqlite", more),
        ),
        "operators": (
            operators_report(folder / "whole.sqlite"),
            operators_report(folder / "part.sqlite", FORWARD[:3]),
        ),
        "programs": (PROGRAMS / "healthy_b32.sqlite.xz", PROGRAMS / "item_b32.sqlite.xz"),
        "MPI": (
            PROFILES / "diagnosis" / "heat_healthy_4.sqlite.xz",
            PROFILES / "diagnosis" / "heat_slow_rank_4.sqlite.xz",
        ),
    }


@pytest.mark.parametrize(
    ("name", "gate"),
    [("trainer", ["--fail-if-slower", "5%"]), ("operators", []), ("programs", []), ("MPI", [])],
)
def test_comparisons_are_valid(
    name: str, gate: list[str], compared: dict[str, tuple[Path, Path]], validator: Any
) -> None:
    printed = invoke("compare", *compared[name], *gate, "--json").stdout
    document = json.loads(printed)
    assert [f"{e.json_path}: {e.message}"[:300] for e in validator.iter_errors(document)] == []
    assert (document["gate"] is not None) is bool(gate)
    assert not validator.is_valid({**document, "batch": {**document["batch"], "p": "small"}})


@pytest.mark.slow
def test_a_brief_document_has_few_tokens_and_the_same_numbers() -> None:
    report = PROGRAMS / "gpt_straggler8.sqlite.xz"
    text = succeeds("analyze", report, "--json", "--brief")
    assert len(text) / 4 < 2000  # letters of a token, about
    (run,) = json.loads(text)["runs"]
    whole = json.loads(succeeds("analyze", report, "--json"))
    assert [one["key"] for one in run["findings"]] == [f["key"] for f in whole["findings"][:5]]
    assert run["summary"]["step_s"] == whole["summary"]["step_s"]
    assert run["findings"][0]["saving_s"] == whole["findings"][0]["saving_s"]
    assert len(run["summary"]["bars"]) == whole["summary"]["ranks"] == 8


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("findings"),
        lambda d: d.update(new=1),
        lambda d: d["batch"].update(count="five"),
        lambda d: d["ranges"][0].update(path=["a", "b"]),
        lambda d: d.update(schema_version=None),
    ],
)
def test_the_schema_refuses_other_documents(spoil: Any, validator: Any) -> None:
    document = analysis_document(analyze_reports([BASE], Options()))
    spoil(document)
    assert not validator.is_valid(document)


LADDER = PROFILES / "ladder" / "document_1.sqlite.xz"
SIZES = ("-H", 512, "-B", 3000, "-p", 2)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("whatif", PROFILES / "ladder" / "nccl_1.sqlite.xz"), "WhatIfDocument"),
        (("whatif", LADDER, "--model", "SMALL"), "WhatIfDocument"),
        (("study", "predict", "--model", MODEL, *SIZES), "PredictionDocument"),
        (("predict", "OPERATORS"), "ReportPredictionDocument"),
    ],
)
def test_what_other_commands_print_is_of_its_type(
    words: tuple[Any, ...], kind: str, validator: Any, tmp_path: Path
) -> None:
    made = {
        "SMALL": lambda: small_model(tmp_path),
        "OPERATORS": lambda: operators_report(tmp_path / "operators.sqlite", FORWARD[:3]),
    }
    words = tuple(made[word]() if word in made else word for word in words)
    with few_draws():
        printed = json.loads(succeeds(*words, "--json"))
    assert sorted(printed) == sorted({*printed} & {*validator.schema["$defs"][kind]["properties"]})
    only = validator.evolve(schema={**validator.schema, "anyOf": [{"$ref": f"#/$defs/{kind}"}]})
    assert [error.message for error in only.iter_errors(printed)] == []


def test_predictions_over_a_symbol_are_a_list(validator: Any) -> None:
    printed = json.loads(
        succeeds("study", "predict", "--model", MODEL, *SIZES, "--scaling", "strong", "--json")
    )
    assert len(printed) > 1
    assert validator.is_valid(printed)
    del printed[-1]["batch_s"]
    assert not validator.is_valid(printed)


def test_the_command_prints_the_schema() -> None:
    assert json.loads(succeeds("analyze", "--json-schema")) == documents.json_schema()


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (("analyze", "--json", "nosuch.sqlite"), "ReportError", 3),
        (("analyze", "--format", "json", "nosuch.sqlite"), "ReportError", 3),
        (("analyze", "--json"), "UsageError", 2),
        (("analyze", BASE, "--json", "--nosuch"), "UsageError", 2),
        (("analyze", BASE, "--json", "--fit", "nosuch"), "WorkloadError", 5),
        (("nosuch", "--json"), "UsageError", 2),
    ],
)
def test_errors_are_json_where_json_is_asked_for(
    words: tuple[Any, ...], kind: str, code: int, validator: Any
) -> None:
    result = invoke(*words)
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["error"]["kind"] == kind
    assert document["error"]["exit_code"] == code
    assert document["error"]["message"]
    assert validator.is_valid(document)


def test_errors_are_text_where_it_is_not() -> None:
    result = invoke("analyze", "nosuch.sqlite")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("perfmodel: error: ")
