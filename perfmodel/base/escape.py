"""Make text that comes from a report harmless in a terminal, JSON, Markdown and LaTeX."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
                     r"\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"
                     r"\U000e0000-\U000e007f]")  # fmt: skip
_JSON_UNSAFE = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"{\textquotedblright}",
    "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}", "-": "-{}", "–": "--",
    "—": "---", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$", "±": r"$\pm$",
    "→": r"$\rightarrow$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "µ": r"$\mu$",
    "μ": r"$\mu$", "²": r"$^2$", "\xa0": "~",
}  # fmt: skip
_MARKDOWN = re.compile(r"[\\`*\[\]<|~&$]|(?<![^\W_])_|_(?![^\W_])")


def printable(text: str) -> str:
    r"""One harmless line: white space becomes blanks, control and invisible characters escapes.

    Examples
    --------
    >>> printable("a\tb\x1b[31m")
    'a b\\x1b[31m'
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text.replace("\r\n", " "))


def escape_json(text: str) -> str:
    """Escape what `json.dumps` leaves raw: DEL, C1 controls, bidi controls, lone surrogates."""
    return _JSON_UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def escape_markdown(text: str) -> str:
    """Escape one line for a GitHub table: pipes, code, emphasis, links, HTML and math."""
    return _MARKDOWN.sub(lambda m: "\\" + m[0], printable(text))


def escape_latex(text: str) -> str:
    """Escape one line for LaTeX, any font encoding; ``--`` stays two hyphens."""
    escaped = "".join(_LATEX.get(c, c) for c in printable(text))
    return re.sub(r"-\{\}(?!-)", "-", escaped)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char.isspace():
        return " "
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
