"""A fixed strategy over the Model Context Protocol: an agent that does not think.

It asks for the summary of the reports, for the evidence of the first finding of it, and for what
changes would save, and answers the questions of the benchmark by these three texts alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.diagnosis.edit import reports_of
from benchmarks.diagnosis.rule import Score, score

_LETTERS_OF_A_TOKEN: Final = 4
"""Of English and JSON, about."""
MOST_TOKENS: Final = 10_000


def answer(summary: Mapping[str, Any], evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return findings and late ranks in the words of analysis.json, as far as the texts say."""
    (run, *_) = summary["runs"]
    late = [run["late"]] if run["late"] else []
    places = {fix["kind"]: fix["range"] for fix in run["summary"]["fixes"]}
    findings = []
    for one in run["findings"]:
        kind, _, number = one["key"].partition("-")
        grounds = evidence if one["key"] == evidence.get("key") else {}
        findings.append({
            "kind": kind, "title": one["title"], "evidence": grounds.get("said", ""),
            "share": one["share"], "range": None if number else places.get(kind),
            "saving_s": grounds.get("value", one["saving_s"]),
        })  # fmt: skip
    return {"findings": findings, "stragglers": late}


async def scores(
    cases: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[list[Score], dict[str, int]]:
    """Ask about every case, and score the answers; and count letters.

    Returns
    -------
    list of Score
    dict
        Letters of all answers to one case: the most, the median, and how many cases stay within
        `MOST_TOKENS`.
    """
    import mcp

    from perfmodel.commands.mcp import server_of

    found, letters = [], []
    with tempfile.TemporaryDirectory() as made:
        async with mcp.Client(server_of((folder, Path(made)))) as client:
            for case in cases:
                with reports_of(case, folder, Path(made)) as reports:
                    one, spent = await _asked(client, case, [str(path) for path in reports])
                found.append(one)
                letters.append(spent)
    within = sum(n <= MOST_TOKENS * _LETTERS_OF_A_TOKEN for n in letters)
    most, median = max(letters), sorted(letters)[len(letters) // 2]
    return found, {"most": most, "median": median, "within": within, "of": len(letters)}


async def _asked(client: Any, case: Mapping[str, Any], reports: Sequence[str]) -> tuple[Score, int]:
    """Ask about one case; return its score, and the letters of all answers."""
    spent = 0

    async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
        nonlocal spent
        said = (await client.call_tool(tool, {"reports": reports, **arguments})).content[0].text
        spent += len(said)
        return dict(json.loads(said))

    summary = await ask("summary")
    keys = [one["key"] for run in summary["runs"] for one in run["findings"]]
    evidence = await ask("evidence", key=keys[0]) if keys else {}
    await ask("whatif")
    return score(case, answer(summary, evidence)), spent
