"""Make text that comes from a report harmless in a terminal, JSON, Markdown and LaTeX."""

from __future__ import annotations

import codecs
import io
import re
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Final, TextIO

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
_ASCII = str.maketrans({
    **dict.fromkeys("─━═╌┄╴╶", "-"), **dict.fromkeys("│┃║┆┊╎", "|"), "×": "x", "·": ".", "−": "-",
    "–": "-", "—": "-", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≈": "~", "µ": "u", "μ": "u",
    "‘": "'", "’": "'", "“": '"', "”": '"', "±": "+-", "█": "#", "▏": "|",
    **{chr(corner): "+" for corner in range(0x250C, 0x254C)},
    **{chr(block): "#" for block in range(0x2589, 0x2590)},
})  # fmt: skip
_SUBSTITUTE: Final = "perfmodel.substitute"
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


def substitute_unencodable(*streams: TextIO | None) -> None:
    """Let streams write ASCII for characters that their encoding lacks, instead of failing.

    Lines of tables become - | +, other characters lose their accents or become ``?``.
    """
    for stream in streams:
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
        if isinstance(stream, io.TextIOWrapper) and not encoding.startswith("utf"):
            codecs.register_error(_SUBSTITUTE, _substituted)
            stream.reconfigure(errors=_SUBSTITUTE)


def _substituted(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "replace").decode("ascii")
    return plain, error.end


def shell_line(words: Iterable[str]) -> str:
    r"""Return a command to be copied: words quoted for bash, control characters by their codes.

    Examples
    --------
    >>> shell_line(["cat", "my file", "a'\x1b[2J"])
    "cat 'my file' $'a\\'\\x1b[2J'"
    """
    return " ".join(_shell_word(word) for word in words)


def _shell_word(word: str) -> str:
    if not _UNSAFE.search(word):
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_UNSAFE.sub(_bash_code, plain)}'"


def _bash_code(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape_json(text: str) -> str:
    """Escape what `json.dumps` leaves raw: DEL, C1 controls, bidi controls, lone surrogates."""
    if text.isascii() and "\x7f" not in text:  # most of what is long
        return text
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
