r"""Fill a LaTeX template with the exported figures, and convert it to Markdown with pandoc.

A template has ``\input{figures}`` in its preamble. It shows a figure with ``\perffigure{fig12}``, in
a paragraph of its own, and refers to it with ``\ref{fig:fig12}``; the key is the name of a figure or
what its name begins with. Captions are never in the template. ``\perfanswer{q11}`` in a paragraph of
its own stands for the text that a notebook computed (`writeup.answer`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.base.document import Entries
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import escape_latex, printable
from perfmodel.base.files import staged_folder

SUFFIXES: Final = ("pdf", "svg", "png")
"""Of the files of an exported figure, beside its .json."""
LARGEST_TEXT_BYTES: Final = 1_000_000
"""Of a template, and of the file that describes a figure."""
_AGAIN: Final = "run the notebook again, or move the file away"
_PANDOC_S: Final = 10
_PANDOC_MEMORY: Final = "300M"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_COMMAND: Final = re.compile(r"\\(perffigure|perfanswer|ref)\s*\{(.*)\}\s*", re.DOTALL)
_WITHOUT_TEXT: Final = {
    r"\maketitle", r"\tableofcontents", r"\clearpage", r"\newpage", r"\noindent", r"\FloatBarrier",
}  # fmt: skip
"""Commands that Markdown needs no counterpart of."""
_LAST_CODE_POINT: Final = 0xFF  # of Latin-1, which T1 fonts have
_FULL_WIDTH_IN: Final = 5.0
"""Figures wider than this take the whole line."""
_MACROS: Final = r"""% Written by python -m writeup from the exported figures: do not edit.
\newcommand{\perffigure}[1]{\begin{figure}[htbp]\centering
  \csname perffigure@#1\endcsname\label{fig:#1}\end{figure}}
\newcommand{\perfdefine}[2]{\expandafter\def\csname perffigure@#1\endcsname{#2}}
\newcommand{\perfanswer}[1]{\csname perfanswer@#1\endcsname}
\newcommand{\perfsay}[2]{\expandafter\def\csname perfanswer@#1\endcsname{#2}}
"""

Node = dict[str, Any]
"""A block or an inline of pandoc's document."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One exported figure.

    Attributes
    ----------
    name : str
        Of its files, such as 'fig12_roofs'.
    caption : str
        Plain text.
    width_in : float
        3.5 for one column, 7.2 for both.
    """

    name: str
    caption: str
    width_in: float


@dataclass(frozen=True, slots=True)
class Composed:
    """What was written, and what the author should know.

    Attributes
    ----------
    files : tuple of Path
        report.tex, figures.tex and report.md.
    shown : int
        Number of figures that the template shows.
    missing : tuple of str
        Keys of figures and answers that were not exported.
    unused : tuple of str
        Exported figures that the template does not show.
    """

    files: tuple[Path, ...]
    shown: int
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def compose(template: Path, figures: Path, out: Path, *, draft: bool = False) -> Composed:
    """Write report.tex, figures.tex, report.md and figures/, which compile without other files.

    Either all files are written, or `out` stays as it was.

    Parameters
    ----------
    template : Path
        Such as notebooks/report/report.tex.
    figures : Path
        Folder that the notebooks exported to.
    out : Path
        Folder to write to; created if there is none.
    draft : bool
        Whether figures may be missing.

    Raises
    ------
    PerfmodelError
        If the template cannot be read or does not refer to what it shows, a figure is missing,
        pandoc is not installed, or nothing can be written.
    """
    name = printable(template.name)
    text = _read(template, "a LaTeX template")
    document = parse(text, name)
    shown = check(document, name)
    exported = read_figures(figures)
    chosen = {key: find(exported, key) for key in shown}
    said = {key: _read_answer(figures, key) for key in answers(document)}
    missing = tuple(key for key, found in (chosen | said).items() if found is None)
    if missing and not draft:
        raise PerfmodelError(
            f"{name}: expected the figures {', '.join(missing)}; got {len(exported)} others in "
            f"{printable(str(figures))!r}; run make figures, or leave gaps with --draft"
        )
    found = [figure for figure in chosen.values() if figure is not None]
    texts = {
        "report.tex": text,
        "figures.tex": define_figures(chosen) + define_answers(said),
        "report.md": to_markdown(document, chosen, said),
    }
    if template.resolve().parent == out.resolve():
        raise PerfmodelError(
            f"expected another folder to write to than that of the template; got "
            f"{printable(str(out))!r}; choose one with -o"
        )
    with staged_folder(out) as stage:
        (stage / "figures").mkdir()
        for figure in found:
            for suffix in ("pdf", "svg"):
                file = f"{figure.name}.{suffix}"
                (stage / "figures" / file).write_bytes((figures / file).read_bytes())
        for file, content in texts.items():
            (stage / file).write_text(content, encoding="utf-8")
    used = {figure.name for figure in found}
    return Composed(
        tuple(out / file for file in texts), len(shown), missing,
        tuple(figure.name for figure in exported if figure.name not in used),
    )  # fmt: skip


# --- figures


def read_figures(folder: Path) -> tuple[Figure, ...]:
    """Read the figures that notebooks exported to a folder, by name.

    Raises
    ------
    PerfmodelError
        If the folder has none, a file of one is missing or is a symbolic link, or its caption is
        empty or cannot be read.
    """
    found = tuple(_read_figure(path) for path in sorted(folder.glob("*.json")))
    if not found:
        raise PerfmodelError(
            f"expected figures in {printable(str(folder))!r}; got none; run make figures, or name "
            f"the folder with --figures"
        )
    return found


def find(figures: Sequence[Figure], key: str) -> Figure | None:
    """Return the figure of this name, or the only one whose name begins with it and '_'.

    Raises
    ------
    PerfmodelError
        If there are several.
    """
    exact = [f for f in figures if f.name == key]
    found = exact or [f for f in figures if f.name.startswith(f"{key}_")]
    if len(found) > 1:
        raise PerfmodelError(
            f"expected one figure {key!r}; got {', '.join(f.name for f in found)}; give the whole "
            f"name"
        )
    return found[0] if found else None


def define_figures(chosen: Mapping[str, Figure | None]) -> str:
    r"""Return the file that defines ``\perffigure`` for every key, captions escaped.

    Raises
    ------
    PerfmodelError
        If a caption has a character that LaTeX's T1 fonts do not have.
    """
    lines = []
    for key, figure in chosen.items():
        shown = (
            rf"\fbox{{\texttt{{\detokenize{{{key}}}}} is not exported yet}}\caption{{Missing.}}"
            if figure is None
            else _included(figure)
        )
        lines.append(rf"\perfdefine{{{key}}}{{{shown}}}")
    return _MACROS + "\n".join(lines) + "\n"


def define_answers(said: Mapping[str, str | None]) -> str:
    r"""Return the lines that define ``\perfanswer`` for every key, texts escaped.

    Raises
    ------
    PerfmodelError
        If a text has a character that LaTeX's T1 fonts do not have.
    """
    texts = {key: text or f"({key} is not computed yet.)" for key, text in said.items()}
    return "".join(f"\\perfsay{{{key}}}{{{_escaped(text, key)}}}\n" for key, text in texts.items())


def _escaped(text: str, name: str) -> str:
    escaped = escape_latex(text)
    odd = next((c for c in escaped if ord(c) > _LAST_CODE_POINT), None)
    if odd is not None:
        raise PerfmodelError(
            f"{name}: expected a caption that LaTeX can typeset; got {odd!r} in it; write it in "
            f"letters"
        )
    return escaped


def _included(figure: Figure) -> str:
    width = r"\linewidth" if figure.width_in > _FULL_WIDTH_IN else r"0.55\linewidth"
    caption = _escaped(figure.caption, figure.name)
    return rf"\includegraphics[width={width}]{{figures/{figure.name}.pdf}}\caption{{{caption}}}"


def _read_figure(path: Path) -> Figure:
    where = printable(path.name)
    files = [path, *(path.with_suffix(f".{suffix}") for suffix in SUFFIXES)]
    wrong = [printable(f.name) for f in files if f.is_symlink() or not f.is_file()]
    if wrong:
        raise PerfmodelError(
            f"{where}: expected the files of an exported figure; {', '.join(wrong)} is missing or "
            f"a symbolic link; run the notebook again"
        )
    try:
        read = Entries(json.loads(_read(path, "the description of a figure")), where, _AGAIN)
        caption = " ".join(read.text("caption").split())
        caption.encode()  # a lone surrogate is no text
        figure = Figure(path.stem, caption, read.number("width_in"))
    except (ValueError, RecursionError) as error:
        raise PerfmodelError(
            f"{where}: expected a figure's caption as writeup.export writes it; got "
            f"{type(error).__name__}; {_AGAIN}"
        ) from None
    if not figure.caption:
        raise PerfmodelError(f"{where}: expected a caption; got an empty one; give it to export")
    if not _NAME.fullmatch(figure.name):
        raise PerfmodelError(
            f"{where}: expected a name of letters, digits, - and _; got another; rename the figure"
        )
    return figure


def _read_answer(folder: Path, key: str) -> str | None:
    """Return the text that a notebook computed; None if there is none."""
    path = folder / f"{key}.txt"
    if path.is_symlink() or not path.exists():
        return None
    return " ".join(_read(path, "the text that a notebook computed").split()) or None


# --- the template as pandoc reads it


def parse(text: str, name: str = "the template") -> Node:
    r"""Return pandoc's document of a template.

    ``\perffigure``, ``\ref`` and every other command that pandoc does not know stay raw LaTeX.

    Raises
    ------
    PerfmodelError
        If it is not LaTeX that pandoc can read, or pandoc is not installed.
    """
    if r"\begin{document}" not in text:
        raise PerfmodelError(
            rf"{name}: expected a LaTeX document; got no \begin{{document}}; see "
            f"notebooks/report/report.tex"
        )
    try:
        document: Node = json.loads(_pandoc(text, "latex+raw_tex", "json", name))
        _walk(document, lambda node: node)  # the recursion of json and of what follows
    except RecursionError:
        raise PerfmodelError(
            f"{name}: expected LaTeX of some levels; got hundreds of nested ones; flatten it"
        ) from None
    return document


def check(document: Node, name: str = "the template") -> tuple[str, ...]:
    r"""Return the keys of the figures that a template shows, in order.

    Raises
    ------
    PerfmodelError
        If a figure is shown twice, within a paragraph, or never referred to, a reference has no
        figure, or a command is neither known here nor to pandoc.
    """
    shown: list[str] = []
    referred: dict[str, None] = {}
    problems: list[str] = []

    def note(node: Node) -> Node:
        if node["t"] in ("RawBlock", "RawInline"):
            command, argument = _raw(node)
            if command == "ref":
                referred[argument] = None
            elif command == "perffigure" and not _NAME.fullmatch(argument):
                problems.append(f"{printable(argument)!r} cannot be the name of a figure")
            elif command == "perffigure" and node["t"] == "RawInline":
                problems.append(rf"\perffigure{{{argument}}} is within a paragraph; separate it")
            elif command == "perffigure":
                shown.append(argument)
            elif command == "perfanswer":
                if node["t"] == "RawInline" or not _NAME.fullmatch(argument):
                    problems.append(
                        rf"\perfanswer{{{printable(argument)}}} is no name, or not a paragraph"
                    )
            elif command not in _WITHOUT_TEXT:
                problems.append(f"{printable(command)[:60]} is not known; write it otherwise")
        return node

    _walk(document, note)
    keys = tuple(dict.fromkeys(shown))
    problems += [rf"\perffigure{{{k}}} comes twice; keep one" for k in keys if shown.count(k) > 1]
    problems += [
        rf"\perffigure{{{key}}} is never referred to; comment on it with \ref{{fig:{key}}}"
        for key in keys if f"fig:{key}" not in referred
    ]  # fmt: skip
    labels = {f"fig:{key}" for key in keys}
    problems += [
        rf"\ref{{{printable(label)}}} has no figure; show it with \perffigure"
        for label in referred if label not in labels
    ]  # fmt: skip
    if problems:
        raise PerfmodelError(
            f"{name}: expected every figure to be shown once and referred to, and no LaTeX that "
            f"pandoc does not know; got: {'; '.join(problems[:10])}"
        )
    return keys


def answers(document: Node) -> tuple[str, ...]:
    """Return the keys of the computed texts that a checked template has, in order."""
    found: dict[str, None] = {}

    def note(node: Node) -> Node:
        if node["t"] == "RawBlock" and _raw(node)[0] == "perfanswer":
            found[_raw(node)[1]] = None
        return node

    _walk(document, note)
    return tuple(found)


def to_markdown(
    document: Node,
    chosen: Mapping[str, Figure | None],
    said: Mapping[str, str | None] | None = None,
) -> str:
    """Return a checked template as Markdown, with numbered figures and their captions.

    Parameters
    ----------
    document : dict
        Of `parse`.
    chosen : mapping of str to Figure or None
        By key; None is a figure that was not exported.
    said : mapping of str to str or None
        Computed texts by key.
    """
    numbers = {key: i for i, key in enumerate(chosen, 1)}

    def replace(node: Node) -> Node | list[Node]:
        if node["t"] == "Header":
            return {**node, "c": [node["c"][0] + 1, *node["c"][1:]]}
        if node["t"] not in ("RawBlock", "RawInline"):
            return node
        command, argument = _raw(node)
        if command == "ref":
            return _str(str(numbers[argument.removeprefix("fig:")]))
        if command == "perffigure":
            return _shown(argument, numbers[argument], chosen[argument])
        if command == "perfanswer":
            text = (said or {}).get(argument) or f"({argument} is not computed yet.)"
            return {"t": "Para", "c": [_str(text)]}
        return []

    body = _walk(document, replace)
    title = document["meta"].get("title")
    heading = [{"t": "Header", "c": [1, ["", [], []], title["c"]]}] if title else []
    whole = {**body, "meta": {}, "blocks": [*heading, *body["blocks"]]}
    target = "gfm-tex_math_gfm+tex_math_dollars-raw_html"
    return _pandoc(json.dumps(whole), "json", target, "the report").rstrip("\n") + "\n"


def _shown(key: str, number: int, figure: Figure | None) -> list[Node]:
    """Return the blocks of one figure: picture and caption."""
    label = _str(f"Figure {number}")
    if figure is None:
        gap = [{"t": "Strong", "c": [label]}, _str(f" ({key}) is not exported yet.")]
        return [{"t": "BlockQuote", "c": [{"t": "Para", "c": gap}]}]
    image = {"t": "Image", "c": [["", [], []], [label], [f"figures/{figure.name}.svg", ""]]}
    caption = [{"t": "Strong", "c": [_str(f"Figure {number}.")]}, _str(f" {figure.caption}")]
    return [{"t": "Para", "c": [image]}, {"t": "Para", "c": caption}]


def _str(text: str) -> Node:
    return {"t": "Str", "c": text}


def _raw(node: Node) -> tuple[str, str]:
    """Return a raw command's name and argument, or all of it and nothing."""
    text = str(node["c"][1]).strip()
    match = _COMMAND.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def _walk(node: Any, change: Callable[[Node], Node | list[Node]]) -> Any:
    """Replace every block and inline, from the innermost; a list takes the place of one."""
    if isinstance(node, list):
        items: list[Any] = []
        for item in node:
            new = _walk(item, change)
            items.extend(new if isinstance(item, dict) and isinstance(new, list) else [new])
        return items
    if isinstance(node, dict):
        inside = {key: _walk(value, change) for key, value in node.items()}
        return change(inside) if "t" in inside else inside
    return node


def _pandoc(text: str, source: str, target: str, name: str) -> str:
    """Convert with pandoc, which may read no file and has limited memory and time."""
    try:
        import pypandoc
    except ImportError:
        raise PerfmodelError(
            "expected pandoc; got none; install it with python -m pip install pypandoc_binary"
        ) from None
    command = [
        pypandoc.get_pandoc_path(), "+RTS", f"-M{_PANDOC_MEMORY}", "-RTS", "--sandbox",
        "--wrap=none", "-f", source, "-t", target,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, check=False, timeout=_PANDOC_S,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PerfmodelError(
            f"{name}: expected LaTeX that pandoc reads within {_PANDOC_S} s; got more; shorten it"
        ) from None
    if done.returncode:
        said = "; ".join(done.stderr.split("\n")[:2])
        raise PerfmodelError(f"{name}: expected LaTeX that pandoc can read; got {printable(said)}")
    return done.stdout


def _read(path: Path, what: str) -> str:
    """Read a regular file of limited size."""
    where = printable(str(path))
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_TEXT_BYTES:
            raise PerfmodelError(
                f"{where}: expected {what}, a file of {LARGEST_TEXT_BYTES:,} bytes at most; got "
                f"none; give another path"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PerfmodelError(
            f"{where}: expected {what}; got {printable(str(error))}; give a file of text in UTF-8"
        ) from None
