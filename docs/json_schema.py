"""Writes docs/json.md, the page of the JSON Schema, and the glossary of `perfmodel mcp`.

    python docs/json_schema.py

A test fails when either is not what the types and docs/glossary.md say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perfmodel.studies.documents import json_schema  # noqa: E402

PAGE: Final = ROOT / "docs" / "json.md"
GLOSSARY: Final = ROOT / "perfmodel" / "commands" / "GLOSSARY.md"
_OPENING: Final = """# analysis.json, key by key

<!-- made by docs/json_schema.py: do not edit -->

`perfmodel analyze --json` prints one JSON document, and `-o FOLDER` writes it as `analysis.json`.
`perfmodel analyze --json-schema` prints its [JSON Schema](https://json-schema.org/). The schema is
made of the types that write the document, and tests hold the documents against it.

- `schema_version` grows by one when a key changes its meaning or goes away. New keys do not change
  it.
- Numbers are in base units, which names end in: `_s`, `_ns`, `_bytes`, `_flops`, `_bytes_per_s`,
  `_flops_per_s`. Shares are fractions of one.
- What is not known, or not finite, is `null`. Keys in *italics* are left out where not known.
- `--json --brief` prints a [BriefDocument](#briefdocument): the first screen of every run. `--json
  --evidence KEY` prints [Evidence](#evidence). `perfmodel whatif --json` prints
  [GraphChanges](#graphchanges) where it replays steps, `perfmodel compare --json` a
  [CompareDocument](#comparedocument). Of the trainer `whatif` prints a
  [WhatIfDocument](#whatifdocument). `perfmodel predict --json` prints a
  [ReportPredictionDocument](#reportpredictiondocument), `perfmodel study predict --json` a
  [PredictionDocument](#predictiondocument), and `perfmodel study scaling --json` a
  [ScalingDocument](#scalingdocument). The schema is of all of these.
- With `--json` an error is JSON, too: `{"error": {...}}` on standard output, with the exit code of
  the command.
"""
_CHANGES: Final = """## Changes since version 2

Of `perfmodel analyze` (now `schema_version` 3):

| old key | new key |
|---|---|
| | `batch.rank`: the slowest rank, of which `batch` is |
| `ranks[].batch_s` | `ranks[].step_s` without the profiler, `ranks[].recorded_step_s` as \
recorded; the other parts of a rank are without it, too |
| `findings[].saving_without_recorder_s` | `findings[].saving_s`, of the step without the \
profiler |
| `findings[].after_previous_s` | `summary.fixes[].after_previous_s` |
| | `findings[].subject`, `findings[].remedy`, `findings[].waits`, `summary.fixes[].key` |
| `ranks[].copy_s` | `ranks[].copies_s` |
| `ranks[].exposed_communication_s` | `ranks[].communication_s`, without waiting |
| `ranks[].communication_s`, hidden or not, with waiting | `ranks[].collectives_s` |
| `ranks[].waiting_s`, hidden or not | `ranks[].waiting_s`, of it what nothing hides |
| `summary.bars[]` | with all keys of `ranks[]` |
| `idle[]`, `mfu.of_step`, `critical_path[]` of the recorded step | the same keys, of the step \
without the profiler |
| `point_to_point.ranks[]` | with all keys of `stragglers[]` |

Of `whatif` of any program: `changes[].name` is the key of a finding: `KIND-2` in place of \
`KIND_2`. Of the events
`steps`: `period_s` is new.

Of `perfmodel compare` (now 2):

| old key | new key |
|---|---|
| `test.alpha`, `test.least`, `test.launch_noise`, `test.other_machines` | without `test.` |
| `test.intervals` | `intervals` |
| `test.detectable_slower`, `test.detectable_faster` | `detectable_slower`, `detectable_faster` |
| `test.correction`, `test.unit` | none: always Holm's; the unit is runs where `launch_noise` is \
null |
| `per` | `unit` |
| `before.launches[].settings`, `after.launches[].settings` | `before.settings[]`, \
`after.settings[]`, in the order of the runs |
| `rows[].launches_before`, `rows[].launches_after` | `rows[].launches[0]`, `rows[].launches[1]`; \
the same of `batch`, `addressed`, `idle`, `gate.rows` |
| | `rows[].part`, `work[].ratio`, `gate.launch_ratio` |
| `summary.gone[]`, `summary.new[]` | with all keys of `findings[]` |

Of `perfmodel study scaling` (now 2):

| old key | new key |
|---|---|
| `series[].interval` | none: always 0.95 |
| `series[].resampled` | `series[].by_launches`: true in place of `launches`, false in place of \
`batches` |
| | `series[].unusual` |
| `links[].alpha_s`, `links[].beta_s_per_byte` | `links[].link.alpha_s`, \
`links[].link.beta_s_per_byte`, with `gamma_s_per_byte`; `links[].link` is null without a fit |
| `links[].algorithm` | none: always a ring |

Of `perfmodel whatif` of the trainer (now 2):

| old key | new key |
|---|---|
| `format`, `version` | `schema_version`, `perfmodel_version` |
| `report`, `sizes`, `settings` | `label`, `case.sizes`, `case.settings` |
| `interval` | none: always 0.9 |
| `changes[].sizes`, `changes[].settings`, `path[].settings` | `changes[].case`, `path[].case` |
| `changes[].predicted_s`, `path[].predicted_s`, `path[].at_least_s` | `changes[].batch_s`, \
`path[].batch_s`; at least where `source` is `bound` |
| `changes[].at_most_saving_s` | `changes[].saving_s` |
| `changes[].phases[].name`, `.now_s`, `.then_s` | `changes[].phases.NAME[0]`, \
`changes[].phases.NAME[1]` |

Of `perfmodel predict`, and of a model `perfmodel study predict`:

| old key | new key |
|---|---|
| | of a report `recorded_s`, `host.noise`, `recorded.gpu_s_by_kind`, `recorded.source`, \
`recorded.warnings`, `micro_batches`, `batches` |
| of a model `sizes`, `settings` | `case.sizes`, `case.settings` |
| of a model `interval` | none: always 0.9 |
| of a model `host.factors.KIND.ratio`, `.low`, `.high` | `host.factors.KIND[0]`, `[1]`, `[2]` |
"""


def _kind(one: Mapping[str, Any]) -> str:
    """Say a schema in a cell of a table."""
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "anyOf" in one:
        return " or ".join(map(_kind, one["anyOf"]))
    kind = one.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(one['items'])}" if one.get("items") else "list"
    if kind == "object":
        return f"by name: {_kind(one['additionalProperties'])}"
    return kind if isinstance(kind, str) else " or ".join(kind)


def _tables(document: Mapping[str, Any]) -> Iterator[str]:
    defs = document["$defs"]
    first = ["AnalysisDocument", "RunDocument"]
    for name in [*first, *(one for one in defs if one not in first)]:
        one = defs[name]
        yield f"## {name}\n\n{one['description']}\n"
        shown = one["properties"]
        if name == "RunDocument":
            yield "As [AnalysisDocument](#analysisdocument), without versions and runs.\n"
            continue
        rows = ["| key | type | |", "|---|---|---|"]
        for key, value in shown.items():
            word = f"`{key}`" if key in one["required"] else f"*`{key}`*"
            said = value.get("description", "").replace("|", "\\|")
            rows.append(f"| {word} | {_kind(value)} | {said} |")
        yield "\n".join(rows) + "\n"


def page() -> str:
    """Return the page of the schema."""
    return "\n".join([_OPENING, *_tables(json_schema()), _CHANGES])


def glossary() -> str:
    """Return docs/glossary.md without links, for `perfmodel mcp`."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    text = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


if __name__ == "__main__":
    GLOSSARY.write_text(glossary(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
