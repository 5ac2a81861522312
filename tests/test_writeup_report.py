r"""The write-up: its template, the captions that LaTeX gets, Markdown, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from writeup import export
from writeup.compose import compose
from writeup.figures import Figure, find, read_figures
from writeup.markdown import to_markdown
from writeup.template import captions, parse

from perfmodel.base.errors import PerfmodelError
from perfmodel.cli import main
from perfmodel.render.plot import panels

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "notebooks" / "report" / "report.tex"
GOLDEN = ROOT / "tests" / "golden" / "notebooks"
ODD = '50 % of $x_1$ & {y} #3, ~4^2 \\times <b>|"q"`*[z]: 3 µs ± 1 — ≤ 5 × 10² of it, in all.'
SMALL = r"""\documentclass{article}
\begin{document}
Look at \ref{fig:fig01} and \emph{see}. % \perffigure{never}
\perffigure{fig01}
\end{document}
"""
PDFLATEX = shutil.which("pdflatex")


def keys() -> tuple[str, ...]:
    return parse(TEMPLATE.read_text(encoding="utf-8")).shown


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A figure for every key of the template, all with the oddest caption."""
    folder = tmp_path_factory.mktemp("figures")
    (ax,) = panels("single")
    ax.plot([1, 2])
    first, *others = keys()
    export(ax, f"{first}_drawn", ODD, folder=folder)
    for key in others:
        for suffix in ("pdf", "svg", "png"):
            shutil.copyfile(folder / f"{first}_drawn.{suffix}", folder / f"{key}_drawn.{suffix}")
        about = {"name": f"{key}_drawn", "caption": f"{key}: {ODD}", "width_in": 7.2}
        (folder / f"{key}_drawn.json").write_text(json.dumps(about), encoding="utf-8")
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


def test_the_report_is_written_whole(figures: Path, tmp_path: Path) -> None:
    made = compose(TEMPLATE, figures, tmp_path / "report")
    assert [p.name for p in made.files] == ["report.tex", "captions.tex", "report.md"]
    assert (made.missing, made.unused, made.shown) == ((), (), len(keys()))
    tex, said, text = (p.read_text(encoding="utf-8") for p in made.files)
    assert tex == TEMPLATE.read_text(encoding="utf-8")
    for number, key in enumerate(keys(), 1):
        assert rf"\perfdefine{{{key}}}{{{key}_drawn}}" in said
        assert f"![Figure {number}](figures/{key}_drawn.svg)" in text
        assert (tmp_path / "report" / "figures" / f"{key}_drawn.pdf").stat().st_size > 1000
        assert (tmp_path / "report" / "figures" / f"{key}_drawn.svg").stat().st_size > 1000
    assert r"50 \% of \$x\_1\$ \& \{y\} \#3" in said
    assert "$F = 4" not in text
    assert "$$\nF = 2 B' H (D + C)" in text
    assert "## Convergence" in text
    assert "> **To do:** " in text
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


def test_the_command_says_what_it_wrote(figures: Path, small: Path, tmp_path: Path) -> None:
    for suffix in ("pdf", "svg", "png", "json"):
        shutil.copyfile(figures / f"{keys()[0]}_drawn.{suffix}", tmp_path / f"fig01_x.{suffix}")
        shutil.copyfile(figures / f"{keys()[0]}_drawn.{suffix}", tmp_path / f"fig99_y.{suffix}")
    out = tmp_path / "out"
    words = ["writeup", str(small), "--figures", str(tmp_path), "-o", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "1 of 1 figures" in done.output
    assert "fig99_y is exported and not in the report" in done.output
    assert (out / "small.md").read_text(encoding="utf-8").startswith("Look at 1 and *see*.\n")
    assert not (out / "figures" / "fig99_y.pdf").exists()
    assert CliRunner().invoke(main, [*words, "--no-markdown"]).exit_code == 0


def test_a_missing_figure_is_named_and_a_draft_leaves_a_gap(figures: Path, small: Path) -> None:
    with pytest.raises(PerfmodelError, match=r"wanted the figures fig01; .*--draft"):
        compose(small, figures, small.parent / "out")
    assert not (small.parent / "out").exists()
    made = compose(small, figures, small.parent / "out", draft=True)
    assert made.missing == ("fig01",)
    said = (small.parent / "out" / "small.md").read_text(encoding="utf-8")
    assert "**Figure 1** (fig01) is not exported yet" in said
    assert "fig01" not in (small.parent / "out" / "captions.tex").read_text(encoding="utf-8")


def test_the_template_is_not_overwritten(figures: Path, small: Path) -> None:
    with pytest.raises(PerfmodelError, match="another folder than the template's"):
        compose(small, figures, small.parent, draft=True)
    assert small.read_text(encoding="utf-8") == SMALL


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"\perffigure{fig01}", "", r"\\ref\{fig:fig01\} has no figure"),
        (r"\ref{fig:fig01}", "it", "never referred to"),
        (r"\perffigure{fig01}", r"\perffigure{fig01}\perffigure{fig01}", "comes twice"),
        (r"\begin{document}", "", "found no .begin.document."),
        ("and", r"\begin{itemize}", r"wanted .end.itemize."),
        ("and", r"\begin{a}\begin{b}\end{a}\end{b}", "closes another"),
        ("and", "{", "closing braces"),
    ],
)
def test_a_template_that_does_not_hold_together_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(PerfmodelError, match=said):
        parse(SMALL.replace(old, new))


def test_latex_that_markdown_cannot_say_is_refused() -> None:
    for odd in (r"\footnote{a}", r"\LaTeX", r"\footnote{\emph{a}}"):
        template = parse(SMALL.replace("and", odd))
        with pytest.raises(PerfmodelError, match=r"--no-markdown"):
            to_markdown(template, {"fig01": one()}, "figures")


def test_markdown_says_what_latex_says() -> None:
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
    text = SMALL.replace("Look at", body + "Look at")
    said = to_markdown(parse(text), {"fig01": one(caption="1 * 2 < 3.")}, "f")
    assert "## A &amp; B" in said
    assert "One “word”, **bold *and* more**, `a_b`, 5 %, $a_b < c$" in said
    assert "\n\n$$\nx^2\n$$\n\nend." in said
    assert "- first goes on\n- second" in said
    assert "\n\n```text\n$ make \\x\n```\n\nLook at 1" in said
    assert "![Figure 1](f/fig01_lines.svg)\n\n**Figure 1.** 1 \\* 2 \\< 3." in said


# --- figures and captions


def test_figures_are_found_by_number_or_name() -> None:
    some = [one("fig01_a"), one("fig02_b"), one("fig02_c"), one("fig03")]
    assert find(some, "fig01") == find(some, "fig01_a") == some[0]
    assert find(some, "fig03") == some[3]
    assert find(some, "fig0") is None
    with pytest.raises(PerfmodelError, match="fig02_b, fig02_c"):
        find(some, "fig02")


def test_figures_that_are_not_whole_are_refused(figures: Path, tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="found none; run make figures"):
        read_figures(tmp_path)
    about = tmp_path / "fig01_a.json"
    for text, said in (
        ("{", "run the notebook again"), ("{}", "KeyError"),
        ('{"caption": "c", "width_in": 3.5}', "wanted fig01_a.pdf, fig01_a.svg, fig01_a.png"),
    ):  # fmt: skip
        about.write_text(text)
        with pytest.raises(PerfmodelError, match=said):
            read_figures(tmp_path)
    for suffix in ("pdf", "svg", "png"):
        (tmp_path / f"fig01_a.{suffix}").write_bytes(b"x")
    about.write_text('{"caption": " ", "width_in": 3.5}')
    with pytest.raises(PerfmodelError, match="an empty one"):
        read_figures(tmp_path)


def test_a_character_that_latex_lacks_is_named() -> None:
    with pytest.raises(PerfmodelError, match=r"fig01_lines: .*'Ω'"):
        captions({"fig01": one(caption="5 Ω.")})


@given(st.text(st.characters(max_codepoint=0xFF)))
def test_no_caption_breaks_the_file_of_captions(caption: str) -> None:
    """A line each, its four groups closed, nothing special left bare."""
    comment, line, end = captions({"k": one(caption=caption)}).split("\n")
    assert comment.startswith("% made by perfmodel writeup")
    assert end == ""
    group = line.removeprefix(r"\perfdefine{k}{fig01_lines}{0.55\linewidth}")
    bare = re.sub(r"\\[{}$&#%_]", "", group)
    depth = 0
    for i, char in enumerate(bare):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth > 0 or i == len(bare) - 1
    assert depth == 0
    assert not re.search(r"[%&#_]", bare)
