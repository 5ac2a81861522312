"""The notebooks: clean in git, without functions, executed, with figures and golden numbers.

`tests/golden/notebooks/NN_name.json` says of every notebook which figures it writes and what some
of its variables are: ``"values": {expression: [value, relative tolerance]}``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from test_questions import not_in, pages_of, rows
from writeup import export, repository, shipped

from benchmarks.common.folders import PROFILES, ROOT
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import parse_si
from perfmodel.render.plot import panels

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST_S = 120
TAIL = "import json as _json\nprint(_json.dumps({{e: float(eval(e)) for e in {!r}}}))"

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def golden(path: Path) -> dict[str, Any]:
    file = ROOT / "tests" / "golden" / "notebooks" / f"{path.stem}.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def document(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> list[str]:
    return [cell.source for cell in document(path).cells if cell.cell_type == "code"]


@dataclass(frozen=True)
class Executed:
    """What a notebook left behind."""

    values: dict[str, float]
    figures: dict[str, dict[str, Any]]
    svg: dict[str, str]
    pdf: dict[str, bytes]
    answers: dict[str, str]
    text: str
    shown: str
    seconds: float


@cache
def executed(path: Path) -> Executed:
    """Run a notebook from top to bottom in a kernel of its own."""
    notebook = document(path)
    notebook.cells.append(nbformat.v4.new_code_cell(TAIL.format(list(golden(path)["values"]))))
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=LONGEST_S, kernel_name="python3",
            resources={"metadata": {"path": str(path.parent)}},
        )  # fmt: skip
        started = time.monotonic()
        client.execute(env=_environment(Path(folder)))
        outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
        printed = [o.text for o in outputs if o.output_type == "stream" and o.name == "stdout"]
        plain = [o.data.get("text/plain", "") for o in outputs if "data" in o]
        written = Path(folder)
        return Executed(
            json.loads(printed[-1]),
            {p.stem: json.loads(p.read_text("utf-8")) for p in written.glob("*.json")},
            {p.stem: p.read_text("utf-8") for p in written.glob("*.svg")},
            {p.stem: p.read_bytes() for p in written.glob("*.pdf")},
            {p.stem: p.read_text("utf-8") for p in written.glob("*.txt")},
            "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"),
            "\n".join([*printed, *plain]),
            time.monotonic() - started,
        )


def _environment(figures: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'notebooks'}",
        "PERFMODEL_FIGURES": str(figures),
    }


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
    numbers = [path.stem.split("_")[0] for path in NOTEBOOKS]
    assert len(set(numbers)) == len(numbers)
    assert all(re.fullmatch(r"\d\d", number) for number in numbers)
    written = {p.stem for p in (ROOT / "tests" / "golden" / "notebooks").glob("*.json")}
    assert written == {path.stem for path in NOTEBOOKS}


@notebooks
def test_a_notebook_carries_no_outputs(path: Path) -> None:
    found = document(path)
    assert found.metadata.kernelspec.name == "python3"
    for cell in found.cells:
        if cell.cell_type == "code":
            clear = "jupyter nbconvert --clear-output --inplace notebooks/*.ipynb"
            assert not cell.outputs, f"outputs in git; run: {clear}"
            assert cell.execution_count is None, f"execution counts in git; run: {clear}"


@notebooks
def test_a_notebook_defines_no_functions(path: Path) -> None:
    banned = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    for source in code(path):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, banned), f"belongs into perfmodel: {ast.unparse(node)}"


@notebooks
def test_a_notebook_reads_only_what_is_shipped(path: Path) -> None:
    """Through `shipped`, by names that the repository has."""
    text = "\n".join(code(path))
    assert "open(" not in text
    assert not re.search(r"/(home|root|Users|work|mnt|tmp)/", text)
    for name in re.findall(r"""shipped\(\s*["']([^"']+)["']""", text):
        assert (ROOT / name).exists(), name


@notebooks
def test_a_notebook_asks_first_and_answers_last(path: Path) -> None:
    cells = document(path).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert "**Question.**" in cells[0].source
    assert any(c.cell_type == "markdown" and c.source.startswith("## Found") for c in cells[-3:])


@pytest.mark.slow
@notebooks
def test_numbers_are_the_golden_ones(path: Path) -> None:
    wanted = golden(path)["values"]
    assert wanted
    found = executed(path).values
    for expression, (value, tolerance) in wanted.items():
        assert found[expression] == pytest.approx(value, rel=tolerance), expression


@pytest.mark.slow
@notebooks
def test_figures_are_written_with_captions(path: Path) -> None:
    run, names = executed(path), golden(path)["figures"]
    assert names
    assert set(run.figures) == set(run.svg) == set(run.pdf) == set(names)
    for name in names:
        about = run.figures[name]
        assert about["name"] == name
        assert about["width_in"] in (3.5, 7.2), f"{name}: draw it on perfmodel.render.plot.panels"
        assert re.search(r"\d", about["caption"]), f"{name}: a caption says numbers"
        assert "nan" not in about["caption"].lower().split()
        assert ET.fromstring(run.svg[name]).tag.endswith("svg")
        assert run.pdf[name].startswith(b"%PDF")
        assert b"/FontFile2" in run.pdf[name], f"{name}: fonts are not embedded"
        assert f'"{name}"' in "\n".join(code(path)), f"{name} is in no cell"


@pytest.mark.slow
@notebooks
def test_a_notebook_runs_quickly_and_without_a_warning(path: Path) -> None:
    assert executed(path).text == ""
    assert executed(path).seconds < LONGEST_S


def test_one_report_answers_questions_2_1_to_2_6() -> None:
    """Notebooks 02, 03 and 04 begin with the same path, which is set once in each."""
    path = re.compile(r"^path = shipped\((.*)\)$", re.MULTILINE)
    found = []
    for name in ("02_profile", "03_model", "04_roofline"):
        cells = code(ROOT / "notebooks" / f"{name}.ipynb")
        assert [i for i, cell in enumerate(cells) if path.search(cell)] == [0], name
        names: dict[str, Any] = {}
        exec(cells[0], names)
        found.append(names["path"])
    assert len(set(found)) == 1


@pytest.mark.slow
def test_question_2_5_follows_from_question_2_4() -> None:
    """The ridge and the roof at the program's intensity, by hand from the rates as printed."""
    rates, roof = (
        executed(ROOT / "notebooks" / name).answers[key]
        for name, key in (("03_model.ipynb", "q24"), ("04_roofline.ipynb", "q25"))
    )
    flops, pci, mpi = (
        parse_si(re.search(rf"= ([\d.]+ [TG]{unit})", part)[1], unit)  # type: ignore[index]
        for part, unit in zip(re.split("P_pci|P_mpi", rates), ("FLOP/s", "B/s", "B/s"), strict=True)
    )
    link_s_per_byte = (1 / pci + 1 / mpi) / 2
    intensity = 4 * 1500 * 512 * (784 + 10) / (4 * 4 * (512 * (784 + 1 + 10) + 10))
    reached = intensity / (intensity / flops + link_s_per_byte)
    assert float(re.search(r"ridge is at\s(\d+) FLOP/byte", roof)[1]) == pytest.approx(  # type: ignore[index]
        flops * link_s_per_byte, rel=1e-3
    )
    said = re.search(r"at ([\d.]+) FLOP/byte, may reach ([\d.]+ TFLOP/s), ([\d.]+) %", roof)
    assert said
    assert float(said[1]) == pytest.approx(intensity, abs=0.05)
    assert parse_si(said[2], "FLOP/s") == pytest.approx(reached, rel=1e-3)
    assert float(said[3]) == pytest.approx(100 * reached / flops, abs=0.05)


@notebooks
def test_a_notebook_needs_only_what_its_readme_installs(path: Path) -> None:
    """`pip install '.[notebooks]'` installs perfmodel; `writeup` and `studies` lie beside it."""
    beside = {"writeup", "studies"}
    files = [file for name in beside for file in (path.parent / name).glob("*.py")]
    sources = [*code(path), *(file.read_text(encoding="utf-8") for file in files)]
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in named}
            assert not roots & {"trainer", "benchmarks", "tests"}, roots


@notebooks
def test_what_a_notebook_reads_is_set_at_its_top(path: Path) -> None:
    """The first cell of code names files; no other does."""
    first, *others = code(path)
    assert re.search(r"^\w+ = ", first, re.MULTILINE)
    assert "shipped(" not in "\n".join(others)
    assert len(first.splitlines()) <= 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "answered"),
    [(answer, where) for _, _, answer, where, _ in rows() if ".ipynb" in where],
)
def test_short_answers_say_what_notebooks_print(answer: str, answered: str) -> None:
    """Every number of docs/questions.md that is not on a page it links to."""
    names = dict.fromkeys(re.findall(r"notebooks/([\w.]+\.ipynb)", answered))
    shown = [executed(ROOT / "notebooks" / name).shown for name in names]
    assert not_in("\n".join([pages_of(answered), *shown]), answer) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "report",
    [
        "tests/reports/cpu_rank1of2_nsys2023.4.4.sqlite",  # no GPU, no training, rank 1 alone
        "profiles/h200x1_2ranks_nsys2024.2.3.sqlite.xz",  # no range of the setup
        "profiles/ladder/peer-x3_1.sqlite.xz",  # CUDA graphs, no MPI_Allreduce
        "profiles/memory/document.sqlite.xz",  # no MPI calls
    ],
)
def test_the_profile_can_be_of_any_report(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebook 02 leaves out what a report does not have."""
    path = ROOT / "notebooks" / "02_profile.ipynb"
    shown = "profiles/campaign/h200x2_p2_host_float32_H512_B3000_sync.sqlite.xz"
    first, *others = code(path)
    assert first.count(shown) == 1
    monkeypatch.setenv("PERFMODEL_FIGURES", str(tmp_path))
    names: dict[str, Any] = {}
    for source in (first.replace(shown, report), *others):
        exec(source, names)
    captions = [json.loads(p.read_text("utf-8"))["caption"] for p in tmp_path.glob("*.json")]
    assert len(captions) == len(golden(path)["figures"])
    assert not [c for c in captions if "None" in c or "nan" in c.lower().split()]


def test_a_caption_must_stand_alone(tmp_path: Path) -> None:
    (ax,) = panels("single")
    for said in ("", "Loss.", "Loss over epochs of several learning rates; 0.1 falls fastest"):
        with pytest.raises(PerfmodelError, match="caption"):
            export(ax, "loss", said, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_exported_figure_shows_its_caption(tmp_path: Path) -> None:
    axes = panels("double", columns=2)
    axes[0].plot([1, 2])
    said = "Two lines that go <up>,\n from 1 to 2, and that nobody has measured on any machine."
    done = export(axes[0], "lines", said, folder=tmp_path)
    assert sorted(p.suffix for p in done.files) == [".json", ".pdf", ".png", ".svg"]
    about = json.loads((tmp_path / "lines.json").read_text(encoding="utf-8"))
    assert about == {
        "name": "lines", "caption": said.replace("\n", ""), "width_in": 7.2, "height_in": 2.8,
    }  # fmt: skip
    assert "&lt;up&gt;" in done._repr_html_()
    assert "<up>" not in done._repr_html_()


def test_panels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="width"):
        panels("wide")
    with pytest.raises(PerfmodelError, match="panel"):
        panels(columns=0)


def test_files_are_found_from_inside_the_repository(tmp_path: Path) -> None:
    assert repository(ROOT / "notebooks") == ROOT
    assert shipped("profiles/README.md") == PROFILES / "README.md"
    with pytest.raises(PerfmodelError, match="no such file"):
        shipped("profiles/nothing.sqlite")
    with pytest.raises(PerfmodelError, match="clone it"):
        repository(tmp_path)
