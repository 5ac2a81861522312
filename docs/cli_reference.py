"""Writes docs/cli.md: the `--help` of every command.

    python docs/cli_reference.py

The test of the documentation fails when the page is not what the commands say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "cli.md"
WIDTH = 96
"""Columns of the help: the page is the same, however wide the terminal."""

OPENING = """\
# Command line

<!-- made by docs/cli_reference.py: do not edit -->

What `--help` says, command by command.
"""
EXPLAINED_IN = {
    "analyze": "analysis",
    "calibrate": "predict",
    "study": "commands",
    "completion": "pipes",
    "formulas": "model",
    "machine": "machines",
    "stats": "statistics",
}
"""Pages of commands that do not have the command's name."""


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the words that call a command and its help, then those of the commands in it."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(
        command, info_name=name, parent=parent, **{**command.context_settings, **width}
    )
    yield context.command_path, context.get_help()
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if (found := command.get_command(context, inner)) and not found.hidden:
                yield from commands(found, inner, context)


def page_of(words: str) -> str | None:
    """Return the page that explains a command, if there is one."""
    command = [*words.removeprefix("perfmodel").removeprefix(" study ").split(), ""][0]
    page = EXPLAINED_IN.get(command, command)
    return f"{page}.md" if page and (PAGE.parent / f"{page}.md").exists() else None


def reference() -> str:
    """Return the page."""
    from perfmodel.cli import main

    parts = [OPENING]
    for words, text in commands(main, "perfmodel"):
        page = page_of(words)
        parts.append(f"\n## {words}\n")
        parts += [f"\nExplained in [{page}]({page}).\n"] if page else []
        lines = (line.rstrip() for line in text.splitlines())
        parts.append("\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
