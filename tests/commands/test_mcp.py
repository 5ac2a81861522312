"""The server for agents: a fixed strategy finds the fault, and hostile requests get nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import lzma
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.base.errors import ModelError, PerfmodelError, ReportError, WorkloadError
from perfmodel.commands import _served
from perfmodel.commands._operators import Asked
from perfmodel.commands._served import MOST_LETTERS, MOST_ROWS, Served, bounded
from perfmodel.models import one_report
from perfmodel.studies.documents import json_schema
from support.build_training import training_report
from support.cli import fails, succeeds
from support.once import anew

PROGRAMS = PROFILES / "programs"
LATE = "straggler_p2_b32.sqlite.xz"
TOKEN = 4
"""Letters of a token of English and JSON, about."""


@pytest.fixture(scope="module")
def served() -> Served:
    return Served([PROGRAMS])


def letters(answer: Any) -> int:
    return len(json.dumps(answer))


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        (LATE, "straggler"), ("dataloader_b32.sqlite.xz", "host_compute"),
        ("item_b32.sqlite.xz", "blocking_sync"), ("empty_cache_b32.sqlite.xz", "allocation"),
    ],
)  # fmt: skip
def test_a_fixed_strategy_finds_the_fault_in_few_tokens(
    report: str, kind: str, served: Served
) -> None:
    summary = served.summary([report])
    keys = [one["key"] for one in summary["runs"][0]["findings"]]
    assert kind in keys
    found = served.evidence([report], kind)
    assert found["count"] >= len(found["rows"]) > 0
    changes = served.whatif([report])
    assert kind in [one["name"] for one in changes["changes"]]
    assert letters(summary) / TOKEN < 2000
    assert (letters(summary) + letters(found) + letters(changes)) / TOKEN < 10_000


def test_questions_and_answers(served: Served) -> None:
    names = [one["report"] for one in served.reports()["reports"]]
    assert str(PROGRAMS / LATE) in names
    assert not [name for name in names if name.endswith((".py", ".csv.xz"))]
    (value,) = served.section([LATE], "ranks[rank=1].idle_s")["values"]
    assert value["path"] == "ranks[1].idle_s"
    rows = served.rows([LATE], "exchanges", {"cause_rank": 1}, "waiting_s", ["rank", "waiting_s"])
    assert rows["matching"] <= rows["of"]
    assert {row["rank"] for row in rows["rows"]} == {0}
    compared = served.compare(["healthy_b32.sqlite.xz"], ["item_b32.sqlite.xz"])
    assert letters(compared) < MOST_LETTERS * 1.2
    assert served.open([LATE]) is served.open([LATE])


def test_answers_are_bounded(served: Served) -> None:
    rows = served.rows([LATE], "operations", count=10**9)
    assert len(rows["rows"]) <= MOST_ROWS
    assert letters(rows) <= MOST_LETTERS * 1.2
    whole = served.section([LATE], "collectives[]")
    assert letters(whole) <= MOST_LETTERS * 1.2
    with pytest.raises(WorkloadError, match="narrower path"):
        bounded("rows", ["x" * MOST_LETTERS])
    assert served.rows([LATE], "steps", first=-5, count=-1)["rows"] == []


@pytest.fixture
def no_largest_batch() -> Iterator[None]:
    """Leave out the search for the largest batch, most of what a prediction takes."""
    with mock.patch.object(one_report, "_largest", return_value=None):
        yield


@pytest.mark.usefixtures("no_largest_batch")
def test_predictions_of_other_sizes_and_gpus(served: Served) -> None:
    report = "gpt_shapes.sqlite.xz"
    same, twice = served.predict(report), served.predict(report, {"batch": 24})
    assert same["sizes"]["batch"] == 12
    assert twice["gpu_s"] > 1.5 * same["gpu_s"]
    other = served.predict(report, {"batch": 24}, "a100-80")
    assert other["gpu_s"] > 1.5 * twice["gpu_s"]
    h100, printed = (
        served.predict(report, {"batch": 24}, "h100", "bf16", Asked(compiled=True)),
        json.loads(succeeds("predict", PROGRAMS / report, "--set", "batch=24", "--gpu", "h100",
                            "--dtype", "bf16", "--compile", "--json")),
    )  # fmt: skip
    assert h100 == printed
    printed = json.loads(succeeds("predict", PROGRAMS / report, "--set", "batch=24", "--json"))
    assert printed["step_s"] == twice["step_s"]


def test_pictures_of_steps_and_windows(served: Served) -> None:
    whole = served.picture([LATE])
    assert whole.startswith(b"\x89PNG")
    part = served.picture([LATE], 1, [1], 0.03, 0.05)
    assert part.startswith(b"\x89PNG")
    assert part != whole


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "no.truth.json.xz", "../../pyproject.toml",
     "../h200x2_2ranks_base_nsys2025.3.1.sqlite", ".",
     "train.py", "nosuch.sqlite", "a\0b.sqlite", "x" * 100_000, "~/x.sqlite", "\x1b[31mx.sqlite",
     "file:///etc/passwd", "//etc/passwd"],
)  # fmt: skip
def test_nothing_else_is_read(name: str, served: Served) -> None:
    with pytest.raises(ReportError) as error:
        served.path_of(name)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 500


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    shutil.copy(PROGRAMS / LATE, outside / LATE)
    (inside / "link.sqlite.xz").symlink_to(outside / LATE)
    (inside / "folder").symlink_to(outside)
    (inside / "loop.sqlite").symlink_to(inside / "loop.sqlite")
    os.mkfifo(inside / "pipe.sqlite")
    (inside / "raw.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report")
    served = Served([inside])
    assert served.reports()["reports"] == []
    for name in ("link.sqlite.xz", f"folder/{LATE}", "loop.sqlite", "pipe.sqlite", "raw.nsys-rep"):
        with pytest.raises(ReportError):
            served.path_of(name)
    with pytest.raises(ReportError, match="export it by nsys first"):
        served.path_of("raw.nsys-rep")
    with pytest.raises(ReportError, match="expected a folder"):
        Served([inside / "nosuch"])


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda s: s.open([]), ReportError),
        (lambda s: s.open([LATE] * 1000), ReportError),
        (lambda s: s.rows([LATE], "nosuch"), ModelError),
        (lambda s: s.rows([LATE], "__class__"), ModelError),
        (lambda s: s.rows([LATE], "steps", {"nosuch": 1}), ModelError),
        (lambda s: s.rows([LATE], "steps", {"rank": {"$gt": 0}}), WorkloadError),
        (lambda s: s.rows([LATE], "steps", None, "nosuch"), ModelError),
        (lambda s: s.rows([LATE], "steps", None, None, ["nosuch"]), ModelError),
        (lambda s: s.rows([LATE], "steps", {"rank": [0] * 10_000}), WorkloadError),
        (lambda s: s.section([LATE], "x' OR 1=1 --"), ModelError),
        (lambda s: s.section([LATE], "\0"), ModelError),
        (lambda s: s.section([LATE], "[" * 10_000), ModelError),
        (lambda s: s.section([LATE], "__class__.__mro__["), ModelError),
        (lambda s: s.evidence([LATE], "nosuch"), ModelError),
        (lambda s: s.whatif([LATE], ["nosuch"]), ModelError),
        (lambda s: s.predict("gpt_shapes.sqlite.xz", {"nosuch": 3}), PerfmodelError),
        (lambda s: s.predict("gpt_shapes.sqlite.xz", {"batch": -1}), WorkloadError),
        (lambda s: s.predict("gpt_shapes.sqlite.xz", dtype="int2"), WorkloadError),
        (lambda s: s.predict("gpt_shapes.sqlite.xz", {"batch": 10**30}), WorkloadError),
        (lambda s: s.predict("gpt_shapes.sqlite.xz", gpu="/etc/passwd"), PerfmodelError),
        (lambda s: s.predict("halo.sqlite.xz"), PerfmodelError),
        (lambda s: s.predict("/etc/passwd"), ReportError),
        (lambda s: s.picture([LATE], 10**9), PerfmodelError),
        (lambda s: s.picture([LATE], -1), PerfmodelError),
        (lambda s: s.picture([LATE], ranks=[99]), ModelError),
        (lambda s: s.picture([LATE], start_s=5.0), ModelError),
        (lambda s: s.picture([LATE], start_s=float("inf")), WorkloadError),
        (lambda s: s.picture([LATE], end_s=float("nan")), WorkloadError),
        (lambda s: s.picture([LATE], start_s=1e300), WorkloadError),
    ],
)
def test_wrong_questions_are_refused(ask: Any, error: type[PerfmodelError], served: Served) -> None:
    with pytest.raises(error) as raised:
        ask(served)
    assert len(str(raised.value)) < 1500


def test_a_damaged_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    (tmp_path / "r.json").write_text("{" * 10_000)
    for name in ("r.sqlite", "r.json"):
        with pytest.raises(PerfmodelError):
            Served([tmp_path]).summary([name])


@pytest.mark.parametrize("packed", ["bomb.sqlite.xz", "bomb.json.gz", "tail.sqlite.xz"])
def test_a_report_that_unpacks_to_very_much_is_an_error(packed: str, tmp_path: Path) -> None:
    """A gigabyte of zeros: behind a header, in a text, behind a whole report."""
    zeros, pack = b"\0" * 2**20, gzip.compress if packed.endswith("gz") else lzma.compress
    head = {
        "bomb.sqlite.xz": b"SQLite format 3\0", "bomb.json.gz": b'{"traceEvents": [',
        "tail.sqlite.xz": training_report(tmp_path / "whole.sqlite").read_bytes(),
    }[packed]  # fmt: skip
    content = pack(head) + pack(zeros) * 1024
    (tmp_path / packed).write_bytes(content)
    with pytest.raises(PerfmodelError) as error:
        Served([tmp_path]).summary([packed])
    assert len(str(error.value)) < 1000


def test_a_report_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    served = Served([tmp_path])
    for name, kind in ((LATE, "straggler"), ("item_b32.sqlite.xz", "blocking_sync")):
        shutil.copy(PROGRAMS / name, tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "r.sqlite.xz")
        assert served.summary(["r.sqlite.xz"])["runs"][0]["findings"][0]["key"] == kind


def test_questions_of_several_threads_have_the_answers_of_one(served: Served) -> None:
    names = [f"{name}_b32.sqlite.xz" for name in ("item", "healthy", "empty_cache", "dataloader")]
    alone = [served.summary([name]) for name in (*names, LATE)]
    with anew(), ThreadPoolExecutor(5) as threads:
        pictures = threads.map(served.picture, [[LATE]] * 2)
        found = [*threads.map(served.summary, [[name] for name in (*names, LATE)])]
    assert found == alone
    assert len({*pictures}) == 1


def test_patterns_of_a_query(served: Served) -> None:
    whole = served.rows([LATE], "operations", count=0)["matching"]
    gemms = served.rows([LATE], "operations", {"name": "nvjet*"}, count=0)["matching"]
    assert 0 < gemms < whole
    assert served.rows([LATE], "operations", {"name": "*a" * 200 + "b"})["matching"] == 0
    assert served.rows([LATE], "operations", {"range": "forw*rd"}, count=0)["matching"] > 0


def test_few_analyses_stay_in_memory(served: Served) -> None:
    names = [f"{name}_b32.sqlite.xz" for name in ("item", "dataloader", "empty_cache", "healthy")]
    for name in (*names, LATE):
        served.open([name])
    assert len(served._opened) == _served._KEPT


def test_the_extra_is_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert "install perfmodel[mcp]" in fails(1, "mcp", PROGRAMS)


def test_the_client_of_the_sdk_gets_answers() -> None:
    mcp = pytest.importorskip("mcp", reason="needs the extra perfmodel[mcp]")
    from perfmodel.commands.mcp import server_of

    async def asked() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with mcp.Client(server_of((PROGRAMS,))) as client:
            found["tools"] = {tool.name for tool in (await client.list_tools()).tools}
            for name, arguments in {
                "reports": {}, "summary": {"reports": [LATE]},
                "section": {"reports": [LATE], "path": "batch"},
                "evidence": {"reports": [LATE], "key": "straggler"},
                "query": {"reports": [LATE], "table": "gaps", "by": "seconds", "count": 3},
                "whatif": {"reports": [LATE], "together": ["straggler"]},
                "predict": {"report": "gpt_shapes.sqlite.xz", "sizes": {"batch": 24}},
                "compare": {"before": ["healthy_b32.sqlite.xz"], "after": ["item_b32.sqlite.xz"]},
            }.items():  # fmt: skip
                answer = await client.call_tool(name, arguments)
                found[name] = json.loads(answer.content[0].text)
            answer = await client.call_tool("picture", {"reports": [LATE], "ranks": [1]})
            found["picture"] = {"kind": answer.content[0].mime_type}
            assert (await client.call_tool("picture", {"reports": ["/etc/passwd"]})).is_error
            answer = await client.call_tool("skill", {})
            found["skill"] = {"text": answer.content[0].text}
            for arguments in ({"reports": ["/etc/passwd"]}, {"reports": "x"}, {}):
                answer = await client.call_tool("summary", arguments)
                assert answer.is_error or "error" in json.loads(answer.content[0].text)
            schema = await client.read_resource("perfmodel://schema")
            found["schema"] = json.loads(schema.contents[0].text)
            glossary = await client.read_resource("perfmodel://glossary")
            assert "| step" in glossary.contents[0].text
        return found

    found = asyncio.run(asked())
    assert found["tools"] == {*found} - {"tools", "schema"}
    assert not [name for name in found["tools"] if "error" in found[name]]
    assert found["summary"]["runs"][0]["findings"][0]["key"] == "straggler"
    assert len(found["query"]["rows"]) == 3
    assert found["picture"]["kind"] == "image/png"
    assert all(
        f"`{name}`" in found["skill"]["text"] for name in found["tools"] - {"skill", "reports"}
    )
    assert found["schema"] == json_schema()
