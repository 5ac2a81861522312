"""The documentation says what is: its commands run, its output is real, its links resolve."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import BASE, ROOT
from support.cli import perfmodel
from support.public_recordings import NAMES, small

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("profiles/*.md")])
PROGRAMS = ("perfmodel", "python", "sqlite-utils")
SET_UP = ("make ", "pip install")  # .ci/run runs these themselves


Run = Callable[[str, str], str]
ON_A_CLUSTER = ("sbatch ", "nsys-reports/")
"""What commands of jobs hold; tests/test_nsys_sh.py runs these."""


def _commands_of(block: str) -> list[str]:
    """Return the commands of a fenced block, one a line; the set-up is left out."""
    lines = (line.strip() for line in block.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith(("#", *SET_UP))]


def _all_commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found += [(page.name, command) for command in _commands_of(block)]
    return found


def _commands() -> list[tuple[str, str]]:
    return [(page, line) for page, line in _all_commands() if not _of_a_job(line)]


def commands_of_jobs() -> list[tuple[str, str]]:
    """Return page and command of everything that submits a job, or reads what one left."""
    return [(page, line) for page, line in _all_commands() if _of_a_job(line)]


def _of_a_job(command: str) -> bool:
    return any(words in command for words in ON_A_CLUSTER)


def _above_text(kind: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield page, commands and shown output of every block of a kind right above a text block."""
    block = r"((?:(?!```).*\n)*)```"
    pair = re.compile(rf"^```{kind}\n{block}\n\n```text\n{block}", re.M)
    for page in PAGES:
        for above, shown in pair.findall(page.read_text(encoding="utf-8")):
            yield page.name, _commands_of(above), shown


def _samples() -> list[tuple[str, list[str], str]]:
    """Return those that any clone can run."""
    return [row for row in _above_text("sh") if row[1] and not any(map(_of_a_job, row[1]))]


def _of_others() -> list[tuple[str, list[str], str]]:
    """Return those of recordings that no clone has: their commands stand in text blocks, too."""
    return [row for row in _above_text("text") if any(name in " ".join(row[1]) for name in NAMES)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the repository to the documented commands, but may be written."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("profiles", "perfmodel", "tests", "benchmarks", "docs", "trainer"):
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def run(workplace: Path) -> Run:
    """Run a command, once for all pages; return what it prints.

    perfmodel's own run in this process, which spares each the start of an interpreter.
    """

    @cache
    def once(command: str) -> tuple[int, str, str]:
        words = shlex.split(command, comments=True)
        if words[0] == "perfmodel":
            with chdir(workplace):
                done = perfmodel(*words[1:])
            return done.exit_code, done.stdout, done.stderr
        beside = Path(sys.executable).parent / words[0]
        program = str(beside) if beside.exists() else shutil.which(words[0])
        assert program, f"{words[0]} is not installed"
        ended = subprocess.run(
            [program, *words[1:]], cwd=workplace, capture_output=True, text=True, timeout=120
        )
        return ended.returncode, ended.stdout, ended.stderr

    def run(page: str, command: str) -> str:
        known = command.split()[0] in PROGRAMS
        assert known, f"{page}: say ```text for what a test cannot run: {command}"
        code, printed, said = once(command)
        assert code == 0, f"{page}: {command}\n{said}"
        return printed

    return run


def _of_pages(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Mark what is not on the README as slow, and training."""

    def quick(row: tuple[Any, ...]) -> bool:
        return row[0] == "README.md" and "-m trainer" not in str(row[1])

    return [pytest.param(*row, marks=() if quick(row) else pytest.mark.slow) for row in rows]


@pytest.mark.parametrize(("page", "command"), _of_pages(_commands()))
def test_documented_command_runs(page: str, command: str, run: Run) -> None:
    assert run(page, command) or "-q" in shlex.split(command)


@pytest.mark.parametrize(("page", "commands", "shown"), _of_pages(_samples()))
def test_output_that_is_shown_is_printed(
    page: str, commands: list[str], shown: str, run: Run
) -> None:
    """Whole lines, in their order; a page may leave lines out."""
    printed = iter("".join(run(page, command) for command in commands).splitlines())
    wanted = [line.rstrip() for line in shown.splitlines() if line.strip()]
    missing = [line for line in wanted if line not in printed]  # each search goes on from the last
    assert wanted
    assert missing[:1] == [], f"{page}: not printed (there) by\n" + "\n".join(commands)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "commands", "shown"), _of_others())
def test_output_of_other_people_s_recordings_is_printed(
    page: str, commands: list[str], shown: str, run: Run, workplace: Path
) -> None:
    for name in NAMES:
        if not (workplace / name).exists():
            (workplace / name).symlink_to(small(name))
    test_output_that_is_shown_is_printed(page, commands, shown, run)


def test_pages_with_samples_are_found() -> None:
    assert {"compare.md", "splits.md"} <= {page for page, *_ in _samples()}
    assert {"symptoms.md", "serving.md"} == {page for page, *_ in _of_others()}


@pytest.mark.slow
def test_a_page_shows_what_the_demonstration_prints(tmp_path: Path) -> None:
    import refresh

    page = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    assert refresh.shown(page) == refresh.demo(tmp_path), "run: python docs/refresh.py"


@pytest.mark.slow
def test_the_page_names_every_format_of_every_picture(tmp_path: Path) -> None:
    assert perfmodel("analyze", BASE, "-o", tmp_path / "out").exit_code == 0
    written = {f.name for f in (tmp_path / "out").iterdir() if f.suffix in (".png", ".svg", ".pdf")}
    drawn = {Path(name).stem for name in written}
    assert written == {f"{stem}{s}" for stem in drawn for s in (".png", ".svg")} | {"roofline.pdf"}
    for page in ("docs/demo.md", "docs/size.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert re.search(r"PNG and (an )?SVG, the roofline (and the sweep a |as )PDF, too", text), (
            page
        )
    table = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    assert {"roofline", "breakdown", "idle"} == drawn
    assert all(f"`{stem}.png`, `.svg`" in table for stem in drawn)
    assert "`roofline.png`, `.svg`, `.pdf`" in table


def test_the_number_of_packages_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "size.md").read_text(encoding="utf-8")
    assert f"perfmodel needs {len(project['dependencies'])} packages" in page


MOST_WORDS = {
    "README.md": 700,
    **{f"docs/{path}.md": 1500 for path in ("quickstart", "tutorial", "notebook")},
    **{f"docs/{study}.md": 2500 for study in ("ladder", "scaling", "layers", "layers_timed")},
}
"""Of the first page, the three paths, and pages of research whose tables are in docs/data."""


@pytest.mark.parametrize("page", MOST_WORDS)
def test_a_page_is_short(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS[page]
    if page == "README.md":
        assert text.count("![") == 1


def test_the_symptoms_are_ten_screens_four_of_them_public() -> None:
    own, public = _samples(), _of_others()
    assert sum(page == "symptoms.md" for page, *_ in own) == 6
    assert sum(page == "symptoms.md" for page, *_ in public) == 4


def test_command_line_reference_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import cli_reference

    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        page = cli_reference.PAGE.read_text(encoding="utf-8")
        assert page == cli_reference.reference(), "run: python docs/cli_reference.py"


def test_the_architecture_names_all_packages_and_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    top = "perfmodel|trainer|tests|notebooks|benchmarks|docs"
    named = set(re.findall(rf"`((?:{top})/[^`*]*)`", page))
    assert len(named) > 60
    made = {name for name in named if "NAME" in name or "NN_" in name}
    assert {name for name in named - made if not (ROOT / name).exists()} == set()
    assert {name for name in made if not (ROOT / name).parent.is_dir()} == set()
    said = {name.split("/")[1] for name in named if name.startswith("perfmodel/")}
    packages = {path.parent.name for path in (ROOT / "perfmodel").glob("*/__init__.py")}
    assert packages - {"models"} <= said | {"base"}


def test_what_the_architecture_says_to_extend_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    registries = {
        "trainer/transports/host.py": "register(",
        "perfmodel/studies/mlp/case.py": "TRANSPORTS",
        "perfmodel/programs/pytorch/operators.py": "@formula(",
        "perfmodel/workloads/networks.py": "_MAKERS",
        "perfmodel/cli.py": "GROUPS",
        "perfmodel/programs/__init__.py": "programs()",
        "perfmodel/timing/nsys_stats/collect.py": "REPORTS",
        "perfmodel/machines/measure/measurement.py": "class Found",
        "perfmodel/machines/measure/measure.py": "class Part",
        "perfmodel/machines/doctor.py": "class Probe",
        "perfmodel/programs/program.py": "class Program",
        "trainer/kernels/__init__.py": "GEMMS",
    }
    for file, word in registries.items():
        assert word in (ROOT / file).read_text(encoding="utf-8"), file
        assert word.removeprefix("class ") in page


def test_functions_that_the_model_names_exist() -> None:
    page = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(perfmodel(?:\.\w+)+)`", page))
    assert len(names) > 40
    assert {name for name in names if not _exists(name.split("."))} == set()


def _exists(words: list[str]) -> bool:
    """Whether a module, or what is in it, has this name; modules first: functions share names."""
    for cut in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:cut]))
        except ImportError:
            continue
        return all((found := getattr(found, word, None)) is not None for word in words[cut:])
    return False


def test_every_formula_with_a_source_is_in_the_model() -> None:
    page = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    cited = re.compile(r"^\s*(?:\"\"\")?Sources?: [\w\[`]", re.MULTILINE)  # as docstrings cite
    left_out = set()
    for path in (ROOT / "perfmodel").rglob("*.py"):
        if cited.search(path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if not re.search(rf"{re.escape(module)}\b", page):
                left_out.add(module)
    assert left_out == set(), "docs/model.md lacks these"


def test_every_key_of_analysis_json_is_on_its_page(workplace: Path, run: Run) -> None:
    command = "perfmodel analyze profiles/programs/gpt_ddp.sqlite.xz --json"
    document = json.loads(run("analysis.md", command))
    page = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    page = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", page))))
    own = ("program", "batch", "ranks", "kernels", "collectives", "idle", "findings", "ranges")
    named = {*document, *(key for part in own for key in _keys(document[part]))}
    assert len(named) > 90
    assert named - said == set()


def _keys(value: Any) -> Iterator[str]:
    """All keys of a JSON document."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from _keys(inner)


def test_every_table_that_is_read_is_in_the_schema() -> None:
    page = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    table = re.compile(
        r'"((?:CUPTI_ACTIVITY_KIND|CUDA|NVTX|TARGET_INFO|GPU|META|EXPORT|DIAGNOSTIC)_[A-Z_]+'
        r'|MPI_[A-Z2_]{4,}|StringIds)"'
    )
    read = set()
    for path in (ROOT / "perfmodel" / "readers").glob("*.py"):
        read |= set(table.findall(path.read_text(encoding="utf-8")))
    assert len(read) > 20
    rows = {"EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"}  # of the metadata table
    assert {name for name in read - rows if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_paragraph_reads_as_a_list(page: Path) -> None:
    """As '1) + C' does where a formula is broken in front of it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = re.compile(r"^(?![-+*|#<> ]|\d+[.)] )(\S.*)\n((?:[-+*]|1[.)]) .*)", re.MULTILINE)
    assert broken.findall(text) == []


def _python(page: Path) -> list[tuple[str, str]]:
    """Return every Python block of a page, with the output that stands below it ('' if none)."""
    block = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.M | re.S)
    return block.findall(page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if _python(p)], ids=lambda page: page.name)
def test_python_of_a_page_runs(page: Path, workplace: Path, run: Run) -> None:
    """All blocks of a page as one program, behind its commands, whose files they may read."""
    for name, command in _commands():
        if name == page.name and any(out in command for out in (" -o ", " --db ", "--save ")):
            run(name, command)
    blocks = _python(page)
    code = "\n".join(code for code, _ in blocks)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=workplace, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert all(shown in done.stdout for _, shown in blocks), done.stdout
