"""`perfmodel completion`: the script that makes a shell complete perfmodel's command line."""

from __future__ import annotations

import re
from typing import Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
)

from perfmodel.commands._options import COMPLETING
from perfmodel.commands._output import echo

_INSTALL: Final = {
    "bash": "perfmodel completion bash > ~/.local/share/bash-completion/completions/perfmodel",
    "zsh": "perfmodel completion zsh > ~/.zfunc/_perfmodel",
    "fish": "perfmodel completion fish > ~/.config/fish/completions/perfmodel.fish",
}
_THEN: Final = {
    "bash": "mkdir -p that folder first; or put into ~/.bashrc: "
    'eval "$(perfmodel completion bash)"',
    "zsh": "mkdir -p ~/.zfunc first; in ~/.zshrc, above compinit: fpath+=~/.zfunc; or below it: "
    'eval "$(perfmodel completion zsh)"',
    "fish": "mkdir -p that folder first; new shells find it by themselves",
}
_SPECIAL: Final = re.compile(r"([^\w./:=@%+,-])")


@add_completion_class
class QuotingBash(BashComplete):
    """Bash takes a completed word as it comes: blanks and the like need a backslash.

    Two of them, because click's script loses one when it reads the words.
    """

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return type and word as click's script reads them."""
        if item.type == "plain":
            quoted = _SPECIAL.sub(r"\\\\\1", item.value)
            return f"{item.type},{quoted}"
        return super().format_completion(item)


@click.command()
@click.pass_context
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in bash, zsh or fish.

    Its first lines say where to put it. It completes commands, options and their values, report
    files, machines, networks, and for --batch-range the ranges of the reports named before it.
    """
    made = get_completion_class(shell)
    assert made is not None  # the choices are click's
    echo(f"# {_INSTALL[shell]}\n# {_THEN[shell]}")
    echo(made(context.find_root().command, {}, "perfmodel", COMPLETING).source())
