r"""The report: its template, the captions that LaTeX gets, Markdown, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from writeup import answer, export
from writeup.__main__ import main
from writeup.report import (
    LARGEST_TEXT_BYTES,
    Figure,
    answers,
    check,
    compose,
    define_figures,
    find,
    parse,
    read_figures,
    to_markdown,
)

from benchmarks.common.folders import RESULTS, ROOT
from perfmodel.base.errors import PerfmodelError
from perfmodel.render.plot import panels

TEMPLATE = ROOT / "notebooks" / "report" / "report.tex"
GOLDEN = ROOT / "tests" / "golden" / "notebooks"
ODD = '50 % of $x_1$ & {y} #3, ~4^2 \\times <b>|"q"`*[z]: 3 µs ± 1 — ≤ 5 × 10² of it, in all.'
SMALL = r"""\documentclass{article}
\input{figures}
\begin{document}
Look at \ref{fig:fig01} and \emph{see}. % \perffigure{never}

\perffigure{fig01}
\end{document}
"""
PDFLATEX = shutil.which("pdflatex")
pytest.importorskip("pypandoc", reason="pandoc is not installed (pip install pypandoc_binary)")


@cache
def shipped() -> dict[str, Any]:
    """The template as pandoc reads it."""
    return parse(TEMPLATE.read_text(encoding="utf-8"))


@cache
def keys() -> tuple[str, ...]:
    return check(shipped())


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure for every key of the template, all with the oddest caption."""
    folder = tmp_path_factory.mktemp("figures")
    (ax,) = panels("single")
    ax.plot([1, 2])
    first, *others = keys()
    export(ax, f"{first}_drawn", ODD, folder=folder)
    for key in answers(shipped()):
        answer(key, f"{key}: {ODD}", folder=folder)
    for key in others:
        for suffix in ("pdf", "svg", "png"):
            shutil.copyfile(folder / f"{first}_drawn.{suffix}", folder / f"{key}_drawn.{suffix}")
        about = {"name": f"{key}_drawn", "caption": f"{key}: {ODD}", "width_in": 7.2}
        (folder / f"{key}_drawn.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture
def one_figure(figures: Path, tmp_path: Path) -> Path:
    """A folder with fig01_x only."""
    folder = tmp_path / "one"
    folder.mkdir()
    for suffix in ("pdf", "svg", "png", "json"):
        shutil.copyfile(figures / f"{keys()[0]}_drawn.{suffix}", folder / f"fig01_x.{suffix}")
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.tex"
    path.write_text(SMALL, encoding="utf-8")
    return path


def one(name: str = "fig01_lines", caption: str = "Two lines.", width: float = 3.5) -> Figure:
    return Figure(name, caption, width)


# --- the template that is shipped


def test_the_template_shows_every_numbered_figure_of_the_notebooks() -> None:
    """Of those that are written: tests/golden/notebooks says what each notebook exports."""
    exported = [
        Figure(name, "c", 7.2)
        for path in sorted(GOLDEN.glob("*.json"))
        for name in json.loads(path.read_text(encoding="utf-8"))["figures"]
    ]
    found = {key: find(exported, key) for key in keys()}
    assert [key for key, figure in found.items() if figure is None] == []
    shown = {figure.name for figure in found.values() if figure is not None}
    assert {f.name for f in exported if re.match(r"fig\d", f.name)} <= shown


def test_the_template_has_no_caption_and_no_picture_of_its_own() -> None:
    body = TEMPLATE.read_text(encoding="utf-8").partition(r"\begin{document}")[2]
    assert not re.search(r"\\(caption|includegraphics|begin\{figure)", body)


def test_the_template_answers_every_question_of_the_assignment() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    questions = re.findall(r"Question (\d\.\d)", text)
    assert questions == [*(f"1.{i}" for i in range(1, 5)), *(f"2.{i}" for i in range(1, 7))]
    assert re.findall(r"\\section\{(.*)\}", text)[-1] == "Conclusion"


def test_the_runs_that_the_first_answer_states_pass() -> None:
    path = RESULTS / "verify_gpu.json"
    rows = [r for r in json.loads(path.read_text(encoding="utf-8"))["rows"] if "passed" in r]
    assert all(r["passed"] for r in rows)
    assert {r["ranks"] for r in rows} == {1, 2, 4}
    assert {r["dtype"]: r["bound"] for r in rows} == {"float32": 1e-5, "float64": 1e-13}
    assert answers(shipped()) == ("q11", "q14_loss", "q14_hidden", "q23", "q24", "q25", "q26")


def test_the_report_is_written_whole(figures: Path, tmp_path: Path) -> None:
    made = compose(TEMPLATE, figures, tmp_path / "report")
    assert [p.name for p in made.files] == ["report.tex", "figures.tex", "report.md"]
    assert (made.missing, made.unused, made.shown) == ((), (), len(keys()))
    tex, defined, text = (p.read_text(encoding="utf-8") for p in made.files)
    assert tex == TEMPLATE.read_text(encoding="utf-8")
    for number, key in enumerate(keys(), 1):
        assert rf"\perfdefine{{{key}}}{{\includegraphics" in defined
        assert f"{{figures/{key}_drawn.pdf}}" in defined
        assert f"![Figure {number}](figures/{key}_drawn.svg)" in text
        assert (tmp_path / "report" / "figures" / f"{key}_drawn.pdf").stat().st_size > 1000
        assert (tmp_path / "report" / "figures" / f"{key}_drawn.svg").stat().st_size > 1000
    assert r"50 \% of \$x\_1\$ \& \{y\} \#3" in defined
    assert "$$F = 2 B' H (D + C)" in text
    assert "\n## Convergence\n" in text
    assert not re.search(r"\\(ref|section|perf|emph|item)", text)


@pytest.mark.skipif(PDFLATEX is None, reason="pdflatex is not installed (texlive-latex-base)")
def test_the_report_compiles(figures: Path, tmp_path: Path) -> None:
    compose(TEMPLATE, figures, tmp_path / "report")
    for _ in range(2):
        done = subprocess.run(
            [str(PDFLATEX), "-interaction=nonstopmode", "-halt-on-error", "report.tex"],
            cwd=tmp_path / "report", capture_output=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert b"undefined" not in done.stdout
    assert (tmp_path / "report" / "report.pdf").read_bytes().startswith(b"%PDF")


# --- the command


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "writeup", *map(str, words)], capture_output=True, text=True,
        check=False, timeout=100,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'notebooks'}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def test_the_command_lists_what_it_wrote(
    figures: Path, one_figure: Path, small: Path, tmp_path: Path
) -> None:
    for suffix in ("pdf", "svg", "png", "json"):
        shutil.copyfile(figures / f"{keys()[0]}_drawn.{suffix}", one_figure / f"fig99_y.{suffix}")
    out = tmp_path / "the \x1b[31m out"
    done = run(small, "--figures", one_figure, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 figures" in done.stdout
    assert "&& pdflatex report.tex" in done.stdout
    assert "cd '" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "fig99_y is exported and not in the report" in done.stderr
    text = (out / "report.md").read_text(encoding="utf-8")
    assert text.startswith("Look at 1 and *see*.\n")
    assert not (out / "figures" / "fig99_y.pdf").exists()


def test_a_missing_figure_is_named_and_a_draft_leaves_a_gap(figures: Path, small: Path) -> None:
    out = small.parent / "out"
    with pytest.raises(PerfmodelError, match=r"expected the figures fig01; .*make figures"):
        compose(small, figures, out)
    assert not out.exists()
    done = CliRunner().invoke(main, [str(small), "--figures", str(figures), "-o", str(out)])
    assert done.exit_code == 1
    assert done.output.startswith("writeup: error: small.tex: expected the figures fig01; ")
    made = compose(small, figures, out, draft=True)
    assert made.missing == ("fig01",)
    assert "> **Figure 1** (fig01) is not exported" in made.files[2].read_text(encoding="utf-8")
    assert "fig01} is not exported yet" in made.files[1].read_text().replace("}}", "}")


def test_no_file_outside_of_the_folder_is_read_or_written(
    one_figure: Path, small: Path, tmp_path: Path
) -> None:
    """A template of any name becomes report.tex; symbolic links are refused, or replaced."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "fig01_x.pdf").symlink_to(secret)
    for name in ("figures.tex", "report.md", "captions.tex"):
        template = small.rename(small.with_name(name))
        made = compose(template, one_figure, out)
        assert template.read_text(encoding="utf-8") == SMALL
        assert made.files[0].read_text(encoding="utf-8") == SMALL
        small = template
    assert secret.read_text() == "secret"
    with pytest.raises(PerfmodelError, match="another folder to write to than that of the temp"):
        compose(small, one_figure, small.parent)
    (one_figure / "fig01_x.pdf").unlink()
    (one_figure / "fig01_x.pdf").symlink_to(secret)
    with pytest.raises(PerfmodelError, match="a symbolic link"):
        compose(small, one_figure, out)


def test_an_earlier_report_stays_when_a_file_cannot_be_written(
    one_figure: Path, small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    compose(small, one_figure, out)
    good = (out / "figures" / "fig01_x.pdf").read_bytes()
    (out / "report.md").unlink()
    (out / "report.md").mkdir()
    (one_figure / "fig01_x.pdf").write_bytes(b"another")
    with pytest.raises(PerfmodelError, match="folder"):
        compose(small, one_figure, out)
    assert (out / "figures" / "fig01_x.pdf").read_bytes() == good


def test_a_link_in_place_of_the_folder_of_figures_is_not_followed(
    one_figure: Path, small: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "fig01_x.pdf").write_text("keep")
    out = tmp_path / "out"
    out.mkdir()
    (out / "figures").symlink_to(elsewhere)
    with pytest.raises(PerfmodelError, match="'figures' in it is a symbolic link; remove the link"):
        compose(small, one_figure, out)
    assert [p.read_text() for p in elsewhere.iterdir()] == ["keep"]
    assert [p.name for p in out.iterdir()] == ["figures"]


def test_a_template_that_pandoc_expands_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("writeup.report._PANDOC_S", 0.2)
    body = r"\begin{tabular}{*{99999999}{c}}a\end{tabular}"
    with pytest.raises(PerfmodelError, match=r"within 0\.2 s|Heap exhausted"):
        parse(SMALL.replace("and", body))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"\perffigure{fig01}", "", r"\\ref\{fig:fig01\} has no figure"),
        (r"\ref{fig:fig01}", "it", "never referred to"),
        (r"\ref{fig:fig01}", r"\ref{tab:x} \ref{fig:fig01}", r"\\ref\{tab:x\} has no figure"),
        (r"\perffigure{fig01}", "\\perffigure{fig01}\n\n\\perffigure{fig01}", "comes twice"),
        (r"\perffigure{fig01}", r"a \perffigure{fig01} b", "within a paragraph"),
        (r"\perffigure{fig01}", r"\perffigure{\emph{q}}", "cannot be the name"),
        (r"\begin{document}", "", "got no .begin.document."),
        ("and", r"\begin{itemize}", "pandoc can read"),
        ("and", r"\begin{a}\begin{b}\end{a}\end{b}", "pandoc can read"),
        ("and", "{", "pandoc can read"),
        ("and", r"\unknown{a}", r"\\unknown\{a\} is not known"),
        ("and", r"\newcommand{\a}{\a\a}\a", "Loop encountered"),
        ("and", r"\textbf{" * 1000 + "}" * 1000, "nested"),
    ],
)
def test_a_template_with_errors_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(PerfmodelError, match=message):
        check(parse(SMALL.replace(old, new)))


def test_pandoc_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret.tex").write_text("the secret")
    document = parse(SMALL.replace("and", rf"\input{{{tmp_path / 'secret.tex'}}}"))
    assert "secret" not in json.dumps(document["blocks"]).replace("secret.tex", "")


def test_a_template_that_is_no_text_is_refused(tmp_path: Path, one_figure: Path) -> None:
    large = tmp_path / "large.tex"
    large.write_bytes(b" " * (LARGEST_TEXT_BYTES + 1))
    binary = tmp_path / "binary.tex"
    binary.write_bytes(b"\xff\x00")
    for path in (large, binary, tmp_path, tmp_path / "none.tex", Path("/dev/zero")):
        with pytest.raises(PerfmodelError, match="expected a LaTeX template"):
            compose(path, one_figure, tmp_path / "out")


def test_markdown_has_the_text_of_latex() -> None:
    body = r"""\section{A \& B}
One ``word'', \textbf{bold \emph{and} more}, \texttt{a\_b}, 5~\%,
$a_b < c$ \[ x^2 \] end.
\begin{itemize}
\item first
  goes on
\item second
\end{itemize}
\begin{verbatim}
$ make \x
\end{verbatim}
"""
    document = parse(SMALL.replace("Look at", body + "Look at"))
    text = to_markdown(document, {"fig01": one(caption="1 * 2 < 3.")})
    assert "## A & B" in text
    assert "One “word”, **bold *and* more**, `a_b`, 5\N{NO-BREAK SPACE}%, $a_b < c$" in text
    assert "$$x^2$$" in text
    assert "- first goes on\n" in text
    assert "\n    $ make \\x\n\nLook at 1" in text
    assert "![Figure 1](figures/fig01_lines.svg)\n\n**Figure 1.** 1 \\* 2 \\< 3." in text


# --- computed text


def test_a_computed_text_stands_where_the_template_has_its_name(
    one_figure: Path, small: Path
) -> None:
    small.write_text(
        SMALL.replace(r"\perffigure{fig01}", "\\perfanswer{q11}\n\n\\perffigure{fig01}")
    )
    out = small.parent / "out"
    with pytest.raises(PerfmodelError, match="expected the figures q11; "):
        compose(small, one_figure, out)
    assert compose(small, one_figure, out, draft=True).missing == ("q11",)
    assert "(q11 is not computed yet.)" in (out / "report.md").read_text(encoding="utf-8")
    said = answer("q11", "All 6 runs pass,\n 5 % below $x_1$.", folder=one_figure)
    assert said == "All 6 runs pass, 5 % below $x_1$."
    assert compose(small, one_figure, out).missing == ()
    assert (
        r"\perfsay{q11}{All 6 runs pass, 5 \% below \$x\_1\$.}" in (out / "figures.tex").read_text()
    )
    assert "All 6 runs pass, 5 % below" in (out / "report.md").read_text(encoding="utf-8")
    with pytest.raises(PerfmodelError, match="is no name, or not a paragraph"):
        check(parse(SMALL.replace("and", r"and \perfanswer{q11} and")))


# --- figures and captions


def test_figures_are_found_by_number_or_name() -> None:
    some = [one("fig01_a"), one("fig02_b"), one("fig02_c"), one("fig03")]
    assert find(some, "fig01") == find(some, "fig01_a") == some[0]
    assert find(some, "fig03") == some[3]
    assert find(some, "fig0") is None
    with pytest.raises(PerfmodelError, match="fig02_b, fig02_c"):
        find(some, "fig02")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run the notebook again"),
        ("{}", "key 'caption': expected a text; got no such key"),
        ("[]", "expected a table"),
        ('{"caption": null, "width_in": 3.5}', "expected a text; got None"),
        ('{"caption": "c", "width_in": %s}' % ("9" * 400), "a finite number above 0"),
        ('{"caption": "c", "width_in": NaN}', "a finite number above 0; got nan"),
        ('{"caption": "c", "width_in": -1}', "a finite number above 0; got -1"),
        ('{"caption": "c", "width_in": true}', "a finite number above 0; got True"),
        (r'{"caption": "\ud800", "width_in": 3.5}', "fig01_x.json: .* got UnicodeEncodeError"),
        ('{"caption": " ", "width_in": 3.5}', "an empty one"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_description_of_a_figure_that_cannot_be_read(
    one_figure: Path, text: str, message: str
) -> None:
    (one_figure / "fig01_x.json").write_text(text)
    with pytest.raises(PerfmodelError, match=message):
        read_figures(one_figure)


def test_figures_that_are_not_whole_are_refused(one_figure: Path, tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="got none; run make figures"):
        read_figures(tmp_path)
    (one_figure / "fig01_x.pdf").unlink()
    with pytest.raises(PerfmodelError, match=r"fig01_x\.pdf is missing"):
        read_figures(one_figure)


def test_a_character_that_latex_lacks_is_named() -> None:
    with pytest.raises(PerfmodelError, match=r"fig01_lines: .*'Ω'"):
        define_figures({"fig01": one(caption="5 Ω.")})


@given(st.text(st.characters(max_codepoint=0xFF)))
def test_no_caption_breaks_the_file_of_captions(caption: str) -> None:
    """A line each, its groups closed, nothing special left bare."""
    *_, line, end = define_figures({"k": one(caption=caption)}).split("\n")
    assert end == ""
    group = line.partition(r"\caption")[2]
    bare = re.sub(r"\\[{}$&#%_]", "", group)
    depth = 1  # of \perfdefine
    for i, char in enumerate(bare):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth > 0 or i == len(bare) - 1
    assert depth == 0
    assert not re.search(r"[%&#_]", bare)
