r"""LaTeX to Markdown, as much of it as a write-up's template uses; what is not known is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import escape_markdown
from writeup.figures import Figure
from writeup.template import Template

_HEADINGS: Final = {"section": "##", "subsection": "###", "subsubsection": "####"}
_WRAPPED: Final = {"emph": "*", "textbf": "**", "texttt": "`"}
_DROPPED: Final = ("maketitle", "tableofcontents", "clearpage", "newpage", "noindent")
_CHARACTERS: Final = {
    r"\%": "%", r"\&": "&amp;", r"\_": r"\_", r"\#": "#", r"\$": r"\$", r"\,": " ", r"\ ": " ",
    r"\ldots{}": "…", r"\ldots": "…", r"\times": "×", "---": "—", "--": "–", "``": "“",
    "''": "”", "~": " ", r"\\": "\n",
}  # fmt: skip
_MATH: Final = re.compile(r"\\\[(.*?)\\\]|\$(.+?)\$", re.DOTALL)
_KEPT: Final = re.compile("\x00(\\d+)\x00")
_SIMPLE: Final = re.compile(r"\\([A-Za-z]+)\{([^{}]*)\}")
_ITEMS: Final = re.compile(r"\\(?:begin|end)\{(?:itemize|enumerate)\}")
_VERBATIM: Final = re.compile(r"\\begin\{verbatim\}\n?(.*?)\\end\{verbatim\}", re.DOTALL)


def to_markdown(template: Template, chosen: Mapping[str, Figure | None], folder: str) -> str:
    """Return a template as Markdown, with its figures, numbered as they come, and their captions.

    Parameters
    ----------
    template : Template
    chosen : mapping of str to Figure or None
        By key; what is None is said to be missing.
    folder : str
        Where the figures are, as seen from the Markdown file.

    Raises
    ------
    PerfmodelError
        If the template uses a command that is not known here.
    """
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return f"\x00{len(kept) - 1}\x00"

    numbers = {key: i for i, key in enumerate(template.shown, 1)}
    text = _VERBATIM.sub(
        lambda m: "\n\n" + keep(f"```text\n{m[1].rstrip()}\n```") + "\n\n", template.body
    )
    text = _MATH.sub(lambda m: _math(m, keep), text)
    text = _ITEMS.sub("\n", text)
    text = re.sub(r"\n[ \t]*\\item\s+", "\n- ", text)
    for name in _DROPPED:
        text = re.sub(rf"\\{name}\b", "", text)
    previous = ""
    while previous != text:  # from the innermost braces outwards
        previous = text
        text = _SIMPLE.sub(lambda m: _command(m[1], m[2], numbers, chosen, folder, keep), text)
    for latex, said in _CHARACTERS.items():
        text = text.replace(latex, said)
    unknown = re.search(r"\\[A-Za-z]+", text)
    if unknown:
        raise PerfmodelError(
            f"wanted LaTeX that Markdown can say ({', '.join((*_HEADINGS, *_WRAPPED))}, itemize, "
            f"verbatim, math, ...); found {unknown[0]}; put it otherwise, or take --no-markdown"
        )
    text = "\n".join(_joined(block) for block in re.split(r"\n\s*\n", text) if block.strip())
    while _KEPT.search(text):
        text = _KEPT.sub(lambda m: kept[int(m[1])], text)
    heading = f"# {template.title}\n\n" if template.title else ""
    return f"{heading}{text.strip()}\n"


def _command(
    name: str, inside: str, numbers: Mapping[str, int], chosen: Mapping[str, Figure | None],
    folder: str, keep: Callable[[str], str],
) -> str:  # fmt: skip
    """Return one command with its argument, whose own commands are done."""
    if name in _HEADINGS:
        return f"\n\n{_HEADINGS[name]} {inside}\n\n"
    if name == "paragraph":
        return f"\n\n**{inside}** "
    if name in _WRAPPED:
        return keep(f"`{_raw(inside)}`") if name == "texttt" else (
            f"{_WRAPPED[name]}{inside}{_WRAPPED[name]}"
        )  # fmt: skip
    if name == "perftodo":
        return f"\n\n> **To do:** {' '.join(inside.split())}\n\n"
    if name == "url":
        return keep(f"<{_raw(inside)}>")
    if name == "ref":
        return str(numbers[inside.removeprefix("fig:")])
    if name == "perffigure":
        return "\n\n" + keep(_figure(inside, numbers[inside], chosen[inside], folder)) + "\n\n"
    raise PerfmodelError(
        f"wanted LaTeX that Markdown can say; found \\{name}{{...}}; put it otherwise, or take "
        f"--no-markdown"
    )


def _figure(key: str, number: int, figure: Figure | None, folder: str) -> str:
    if figure is None:
        return f"> **Figure {number}** ({key}) is not exported yet: run `make figures`."
    said = escape_markdown(figure.caption)
    return f"![Figure {number}]({folder}/{figure.name}.svg)\n\n**Figure {number}.** {said}"


def _math(match: re.Match[str], keep: Callable[[str], str]) -> str:
    """Keep math as it is; displayed math is a paragraph of its own."""
    if match[1] is None:
        return keep(f"${match[2]}$")
    return "\n\n" + keep(f"$$\n{match[1].strip()}\n$$") + "\n\n"


def _raw(text: str) -> str:
    r"""Undo the escapes of text that Markdown shows as it is."""
    return re.sub(r"\\([%&_#$])", r"\1", text)


def _joined(block: str) -> str:
    """Join the lines of a paragraph; list items keep theirs."""
    lines: list[str] = []
    for line in block.strip().splitlines():
        if line.startswith("- ") or not lines:
            lines.append(line.strip())
        else:
            lines[-1] += f" {line.strip()}"
    return "\n".join(lines) + "\n"
