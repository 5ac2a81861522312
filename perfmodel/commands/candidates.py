"""What a shell is offered when it completes a word: files, ranges, machines, networks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

_LARGEST_FOR_RANGES_BYTES: Final = 64 << 20
"""A larger report takes more than a tenth of a second to read the names of its ranges from."""


def files(incomplete: str, suffixes: tuple[str, ...]) -> list[CompletionItem[str]]:
    """Offer files with these suffixes and folders; the shell's own choice where there are none.

    A shell adds a blank behind what it completes, also behind a folder: folders alone are left to
    the shell, which knows better.
    """
    folder, beginning = os.path.split(incomplete)
    try:
        with os.scandir(Path(folder or ".").expanduser()) as entries:
            found = sorted(
                (e.name, e.is_dir())
                for e in entries
                if e.name.startswith(beginning)
                and (beginning.startswith(".") or not e.name.startswith("."))
            )
    except OSError:
        found = []
    matching = [(name, is_dir) for name, is_dir in found if is_dir or name.endswith(suffixes)]
    if all(is_dir for _, is_dir in matching):
        return [CompletionItem(incomplete, type="file")]
    before = incomplete.removesuffix(beginning)
    return [CompletionItem(before + name + "/" * is_dir) for name, is_dir in matching]


def ranges(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer the names of the NVTX ranges of the reports that are already on the line."""
    from perfmodel.base.errors import PerfmodelError
    from perfmodel.readers import read

    names: set[str] = set()
    for path in _paths(context):
        try:
            if path.suffix == ".sqlite" and path.stat().st_size <= _LARGEST_FOR_RANGES_BYTES:
                names.update(read(path, parts=("nvtx",)).range_names)
        except (PerfmodelError, OSError):
            continue
    return [
        CompletionItem(name)
        for name in sorted(names)
        if name and name.isprintable() and name.startswith(incomplete)
    ]


def _paths(context: click.Context) -> list[Path]:
    """Return the files named so far: behind an option without its value click has not read them."""
    values = context.params.values()
    listed = [v if isinstance(v, (tuple, list)) else [v] for v in values]
    found = [path for group in listed for path in group if isinstance(path, Path)]
    return found + [Path(word) for word in context.args if not word.startswith("-")]


def machines(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the machines that perfmodel knows, and TOML files."""
    from perfmodel.machines.machine import shipped

    names = [CompletionItem(n, help=m.name) for n, m in shipped() if n.startswith(incomplete)]
    found = files(incomplete, (".toml",))
    return names + [item for item in found if not names or item.type == "plain"]


def networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer the networks that perfmodel knows layer by layer."""
    from perfmodel.workloads.networks import NETWORKS

    return [CompletionItem(name) for name in NETWORKS if name.startswith(incomplete)]
