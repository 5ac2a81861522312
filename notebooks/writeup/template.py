r"""A write-up's LaTeX template: which figures it shows and refers to, and what is wrong with that.

A figure is shown by ``\perffigure{fig12}`` and referred to by ``\ref{fig:fig12}``; the key is a
figure's name, or what its name begins with. Captions are never in the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import escape_latex
from writeup.figures import Figure, find

BEGIN: Final = r"\begin{document}"
END: Final = r"\end{document}"
_COMMENT: Final = re.compile(r"(?<!\\)%.*")
_SHOWN: Final = re.compile(r"\\perffigure\{([^}]*)\}")
_REFERRED: Final = re.compile(r"\\ref\{fig:([^}]*)\}")
_PAIRS: Final = re.compile(r"\\(begin|end)\{([^}]*)\}")
_LAST: Final = 0xFF  # of Latin-1, which T1 fonts have
_FULL_IN: Final = 5.0
"""Figures wider than this take the whole line."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template, parted.

    Attributes
    ----------
    body : str
        Between the document's begin and end, without comments.
    title : str
    shown : tuple of str
        Keys of the figures, as they come.
    """

    body: str
    title: str
    shown: tuple[str, ...]


def parse(text: str, name: str = "the template") -> Template:
    r"""Part a template and check that its figures and references belong together.

    Raises
    ------
    PerfmodelError
        If it is no LaTeX document, an environment or a brace is not closed, a figure is shown
        twice or never referred to, or a reference has no figure.
    """
    plain = _COMMENT.sub("", text)
    if BEGIN not in plain or END not in plain:
        raise PerfmodelError(
            f"{name}: wanted a LaTeX document; found no {BEGIN} ... {END}; see "
            f"notebooks/report/report.tex"
        )
    preamble, _, rest = plain.partition(BEGIN)
    body = rest.partition(END)[0]
    _check_closed(body, name)
    shown = tuple(_SHOWN.findall(body))
    referred = set(_REFERRED.findall(body))
    twice = sorted({key for key in shown if shown.count(key) > 1})
    problems = [f"\\perffigure{{{key}}} comes twice; keep one" for key in twice]
    problems += [
        f"\\perffigure{{{key}}} is never referred to; comment on it in the text, with "
        f"\\ref{{fig:{key}}}"
        for key in dict.fromkeys(shown) if key not in referred
    ]  # fmt: skip
    problems += [
        f"\\ref{{fig:{key}}} has no figure; show it with \\perffigure{{{key}}}"
        for key in sorted(referred - set(shown))
    ]
    if problems:
        raise PerfmodelError(
            f"{name}: wanted every figure to be shown once and referred to; found that "
            f"{'; '.join(problems)}"
        )
    titled = re.search(r"\\title\{([^}]*)\}", preamble + body)
    return Template(body, titled[1] if titled else "", shown)


def choose(template: Template, figures: Sequence[Figure]) -> dict[str, Figure | None]:
    """Return the exported figure of every key of the template; None where there is none.

    Raises
    ------
    PerfmodelError
        If a key fits several figures.
    """
    return {key: find(figures, key) for key in template.shown}


def captions(chosen: Mapping[str, Figure | None]) -> str:
    r"""Return the file that gives LaTeX the figures' files, widths and captions, escaped.

    A line is ``\perfdefine{key}{file}{width}{caption}``. What is missing has no line, and
    ``\perffigure`` then says so.

    Raises
    ------
    PerfmodelError
        If a caption has a character that LaTeX's T1 fonts lack.
    """
    lines = ["% made by perfmodel writeup from the exported figures: do not edit"]
    for key, figure in chosen.items():
        if figure is not None:
            width = r"\linewidth" if figure.width_in > _FULL_IN else r"0.55\linewidth"
            said = escape_latex(figure.caption)
            odd = next((c for c in said if ord(c) > _LAST), None)
            if odd is not None:
                raise PerfmodelError(
                    f"{figure.name}: wanted a caption that LaTeX can set; found {odd!r} in it; "
                    f"write it in letters"
                )
            lines.append(rf"\perfdefine{{{key}}}{{{figure.name}}}{{{width}}}{{{said}}}")
    return "\n".join(lines) + "\n"


def _check_closed(body: str, name: str) -> None:
    """Check that braces and environments are closed in the order they are opened."""
    escaped = re.sub(r"\\[\\{}$%]", "", body)
    if escaped.count("{") != escaped.count("}"):
        raise PerfmodelError(
            f"{name}: wanted as many closing braces as opening ones; found {escaped.count('{')} "
            f"opening and {escaped.count('}')} closing; close them"
        )
    opened: list[str] = []
    for what, environment in _PAIRS.findall(body):
        if what == "begin":
            opened.append(environment)
        elif not opened or opened.pop() != environment:
            raise PerfmodelError(
                f"{name}: wanted environments closed in turn; found \\end{{{environment}}} that "
                f"closes another; mend it"
            )
    if opened:
        raise PerfmodelError(f"{name}: wanted \\end{{{opened[-1]}}}; found none; add it")
