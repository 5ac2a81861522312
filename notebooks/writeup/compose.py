"""Composes a write-up: template, captions and figures in one folder, as LaTeX and as Markdown."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.files import write_text
from writeup.figures import read_figures
from writeup.markdown import to_markdown
from writeup.template import captions, choose, parse

FIGURES: Final = "figures"
"""Folder of the figures beside the write-up."""
CAPTIONS: Final = "captions.tex"


@dataclass(frozen=True, slots=True)
class Composed:
    """What was written, and what the author should know.

    Attributes
    ----------
    files : tuple of Path
        Texts; figures are in the folder `FIGURES` beside them.
    shown : int
        Figures.
    missing : tuple of str
        Keys of figures that nobody has exported.
    unused : tuple of str
        Exported figures that the template does not show.
    """

    files: tuple[Path, ...]
    shown: int
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def compose(
    template: Path, figures: Path, out: Path, *, draft: bool = False, markdown: bool = True
) -> Composed:
    """Write a folder that compiles by itself: report.tex, captions.tex, report.md, figures/.

    Parameters
    ----------
    template : Path
        Such as notebooks/report/report.tex.
    figures : Path
        Folder that the notebooks exported to.
    out : Path
        Folder to write to; made if there is none.
    draft : bool
        Whether figures may be missing.
    markdown : bool

    Raises
    ------
    PerfmodelError
        If the template cannot be read or does not refer to what it shows, a figure is missing, or
        nothing can be written.
    """
    name = printable(template.name)
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PerfmodelError(
            f"{name}: wanted a LaTeX template; found none that can be read "
            f"({printable(str(error))}); give one, or run where notebooks/report/report.tex is"
        ) from None
    parsed = parse(text, name)
    exported = read_figures(figures)
    chosen = choose(parsed, exported)
    missing = tuple(key for key, figure in chosen.items() if figure is None)
    if missing and not draft:
        raise PerfmodelError(
            f"{name}: wanted the figures {', '.join(missing)}; found {len(exported)} others in "
            f"{printable(str(figures))!r}; run make figures, or take --draft to leave gaps"
        )
    texts = {template.name: text, CAPTIONS: captions(chosen)}
    if markdown:
        texts[f"{template.stem}.md"] = to_markdown(parsed, chosen, FIGURES)
    if (out / template.name).resolve() == template.resolve():
        raise PerfmodelError(
            f"wanted another folder than the template's to write to; found {printable(str(out))!r};"
            f" give one with -o"
        )
    try:
        (out / FIGURES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfmodelError(
            f"wanted a folder to write to; found that {printable(str(out))!r} cannot be one "
            f"({error.strerror}); give another with -o"
        ) from None
    for figure in chosen.values():
        if figure is not None:
            for suffix in ("pdf", "svg"):
                shutil.copyfile(
                    figures / f"{figure.name}.{suffix}", out / FIGURES / f"{figure.name}.{suffix}"
                )
    for file, said in texts.items():
        write_text(out / file, said)
    used = {figure.name for figure in chosen.values() if figure is not None}
    return Composed(
        tuple(out / file for file in texts), len(parsed.shown), missing,
        tuple(f.name for f in exported if f.name not in used),
    )  # fmt: skip
