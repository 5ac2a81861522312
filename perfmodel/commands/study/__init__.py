"""`perfmodel study`: the studies of the course, a file each: a group of commands."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

COMMANDS: Final = ("calibrate", "predict", "splits", "tta", "scaling", "layers", "formulas")


class _Study(click.Group):
    """Imports the command that is asked for, and no other."""

    def list_commands(self, _: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return super().get_command(context, name)
        found: click.Command = getattr(import_module(f"{__name__}.{name}"), name)
        return found


@click.group(cls=_Study)
def study() -> None:
    """Study the trainer, scaling, time to accuracy and layers."""
