"""`perfmodel mcp`: answers agents' questions about reports, over the Model Context Protocol."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import PerfmodelError
from perfmodel.commands import _options

if TYPE_CHECKING:
    from collections.abc import Callable

_INSTRUCTIONS = """Explains recordings of GPU and MPI programs (Nsight Systems, torch.profiler).
Call summary first. Its findings have keys: evidence shows the formula, the inputs and the events
behind each. Then whatif says what changes would save. Times are in seconds, savings overlap."""


@click.command()
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False)
)
@_options.QUIET
def mcp(folders: tuple[Path, ...]) -> None:
    """Answer agents' questions about the reports in FOLDERS.

    Speaks the Model Context Protocol on standard input and output. Reads only files in these
    folders, writes none, and runs no other program. Needs the extra perfmodel[mcp].
    """
    server_of(folders).run("stdio")


def server_of(folders: tuple[Path, ...]) -> Any:
    """Return a server of the SDK `mcp` that answers by `Served`.

    Raises
    ------
    PerfmodelError
        If the SDK is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver import Image
    except ImportError:
        raise PerfmodelError(
            "expected the package mcp, version 2 or later; got none; install perfmodel[mcp]"
        ) from None
    import perfmodel
    from perfmodel.base.document import to_json
    from perfmodel.commands._operators import Asked
    from perfmodel.commands._served import Served, columns
    from perfmodel.studies.documents import json_schema_text

    served = Served(folders)
    server = MCPServer("perfmodel", instructions=_INSTRUCTIONS, version=perfmodel.__version__)

    def answers(make: Callable[[], Any]) -> str:
        try:
            return to_json(make(), None)
        except (PerfmodelError, click.ClickException) as error:
            said = {"kind": type(error).__name__, "message": str(error)}
            return to_json({"error": said}, None)

    def reports() -> str:
        """List the files that may be reports."""
        return answers(served.reports)

    def summary(reports: list[str]) -> str:
        """Say what matters most in reports of the ranks of one run: step, ranks, findings."""
        return answers(lambda: served.summary(reports))

    def section(reports: list[str], path: str) -> str:
        """Return values of analysis.json, such as `findings[]`, `ranks[rank=0]`, `kernels`."""
        return answers(lambda: served.section(reports, path))

    def evidence(reports: list[str], key: str, rows: int = 10) -> str:
        """Say what is behind a finding's key or a number's path: formula, inputs, events."""
        return answers(lambda: served.evidence(reports, key, rows))

    def query(
        reports: list[str],
        table: str,
        where: dict[str, Any] | None = None,
        by: str | None = None,
        columns: list[str] | None = None,
        first: int = 0,
        count: int = 20,
        descending: bool = True,
    ) -> str:
        """Return rows of steps, spans, operations, exchanges or gaps: with some values, sorted."""
        return answers(
            lambda: served.rows(
                reports, table, where, by, columns, first, count, descending=descending
            )
        )

    def compare(before: list[str], after: list[str]) -> str:
        """Compare the reports of two sides: which times differ significantly."""
        return answers(lambda: served.compare(before, after))

    def whatif(reports: list[str], together: list[str] | None = None) -> str:
        """Rank changes by what they would save, by a replay; `together` replays several at once."""
        return answers(lambda: served.whatif(reports, together or []))

    def predict(
        report: str,
        sizes: dict[str, int] | None = None,
        gpu: str | None = None,
        dtype: str | None = None,
        graphs: bool = False,
        compiled: bool = False,
        fsdp: bool = False,
        accumulate: int = 1,
        other_host: bool = False,
    ) -> str:
        """Predict a step of a PyTorch report with sizes: with other ones (batch, seq, p), GPU."""
        asked = Asked(
            graphs=graphs, compiled=compiled, fsdp=fsdp, accumulate=accumulate,
            other_host=other_host,
        )  # fmt: skip
        return answers(lambda: served.predict(report, sizes, gpu, dtype, asked))

    def picture(
        reports: list[str],
        step: int | None = None,
        ranks: list[int] | None = None,
        start_s: float = 0.0,
        end_s: float | None = None,
    ) -> Any:
        """Draw a step (the median one), or seconds of it, as a timeline of some ranks."""
        try:
            png = served.picture(reports, step, ranks or [], start_s, end_s)
        except PerfmodelError as error:
            raise ValueError(str(error)) from None
        return Image(data=png, format="png")

    def skill() -> str:
        """Return how to find what slows a program, with these tools or the commands."""
        return files("perfmodel.commands").joinpath("SKILL.md").read_text(encoding="utf-8")

    def schema() -> str:
        """Return the JSON Schema of analysis.json."""
        return json_schema_text()

    def glossary() -> str:
        """Return the terms of all answers, and what they mean."""
        return files("perfmodel.commands").joinpath("GLOSSARY.md").read_text(encoding="utf-8")

    def column_names() -> str:
        """Return what the columns of the tables of events hold."""
        return to_json(columns())

    tools = (reports, summary, section, evidence, query, compare, whatif, predict, picture, skill)
    for tool in tools:
        server.add_tool(tool)
    for name, text in {"skill": skill, "glossary": glossary}.items():
        server.resource(f"perfmodel://{name}", mime_type="text/markdown")(text)
    for name, resource in {"schema": schema, "columns": column_names}.items():
        server.resource(f"perfmodel://{name}", mime_type="application/json")(resource)
    return server
