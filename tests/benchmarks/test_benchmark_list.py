"""The list of benchmarks: it has all that run, the page shows it, and each of them runs by name."""

from __future__ import annotations

import runpy
import sys

import pytest

from benchmarks.__main__ import PAGE, Benchmark, benchmarks, listing, main, markdown
from benchmarks.common.folders import ROOT
from benchmarks.common.pages import section

FOLDER = ROOT / "benchmarks"


def runnable() -> set[str]:
    """Names of the modules that run, of a package its own."""
    found = set()
    for path in FOLDER.rglob("*.py"):
        if "__main__" in path.read_text(encoding="utf-8") and path.parent.name != "common":
            name = ".".join(path.relative_to(FOLDER).with_suffix("").parts)
            found.add(name.removesuffix(".__main__"))
    return found - {"__main__"}


def test_the_list_has_all_modules_that_run_and_no_others() -> None:
    listed = [program for one in benchmarks() for program in one.programs]
    assert len(listed) == len(set(listed))
    assert set(listed) == runnable()


def test_every_benchmark_has_a_question_and_a_page_that_is_there() -> None:
    for one in benchmarks():
        assert one.question.endswith("?")
        assert one.takes
        page, _, title = one.page.partition("#")
        assert (ROOT / page).exists(), one.name
        if title:
            headings = [
                line.strip("# ").lower().replace(" ", "-").replace("?", "")
                for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
                if line.startswith("#")
            ]
            assert title in headings, one.name


def test_the_page_shows_the_list() -> None:
    assert section(PAGE, "benchmarks") == markdown()


def test_it_is_printed_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    printed = capsys.readouterr().out
    assert printed == f"{listing()}\n"
    for one in benchmarks():
        assert one.question in printed


def test_one_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: ran.append((name, sys.argv[1:])))
    monkeypatch.setattr(sys, "argv", [])
    main(["scale.size", "--page"])
    assert ran == [("benchmarks.scale.size", ["--page"])]
    with pytest.raises(SystemExit, match=r"expected one of .* got size"):
        main(["size"])


def test_programs_are_named_with_their_benchmark() -> None:
    one = Benchmark("a", "Is it?", "1 s", parts={"b": "does"}, workers=("c",))
    assert [*one.programs] == ["a", "a.b", "a.c"]
