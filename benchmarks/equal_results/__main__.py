"""Show that two checkouts of perfmodel give the same results: run both on the same reports.

    python -m benchmarks.equal_results BEFORE AFTER [--quick] [--only REGEX] [--cache FOLDER]

Each case is a line of cases.txt: perfmodel commands, run by run.py with both checkouts
on the reports of BEFORE. Exit codes, text, CSV, JSON and every file written must be equal; numbers
exactly, unless a tolerance says otherwise. Intended changes and tolerances are listed in
changes.toml. A difference is one line: case, file and path in it, before -> after. The exit
code is 1 if there is any. REGEX is found in the name of a case, which is its commands (--list):
--only '^(stats|compare)', --only ddp.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import html
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

CHANGES: Final = tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))
RENAMED: Final[dict[str, str]] = CHANGES["renamed"]
REWORDED: Final[dict[str, str]] = CHANGES["reworded"]
ARGUMENTS: Final[dict[str, str]] = CHANGES["arguments"]
TOLERANCES: Final[dict[str, float]] = CHANGES["tolerances"]
EXPECTED: Final[dict[str, str]] = CHANGES["expected"]

Case = list[list[str]]  # its commands, each a list of arguments

ABSENT: Final = "(absent)"
UNORDERED: Final = (".gpus",)
"""Lists whose order says nothing."""
NAMED: Final = (".changes",)
"""Lists of objects with names, which need not stand at the same place."""
COUNTED: Final = ("cases", "files", "numbers", "differences", "expected")
PRINTED: Final = "0.stdout.csv"
CASES: Final = Path(__file__).with_name("cases.txt")
RUNNER: Final = Path(__file__).with_name("run.py")
QUICK: Final = r"ranks_base|document_1|peer-x3_1|ddp_p2_H512_B3000|rank0of2|p4_host_float32_H512_B3"
"""Reports of --quick."""


class Rules(NamedTuple):
    """What may differ between two results."""

    renamed: Mapping[str, str] = {}
    reworded: Mapping[str, str] = {}
    tolerances: Mapping[str, float] = {}
    only_numbers: bool = False  # of text, words are not compared

    def key(self, key: str) -> str:
        """How a key or a column is called after: `product` renames `product [float64]`, too."""
        name, bracket, rest = key.partition(" [")
        return f"{self.renamed.get(name, name)}{bracket}{rest}"

    def text(self, text: str, *, headers: bool = False) -> str:
        """A text with listed phrases replaced; headers of tables in it are columns; 5 % as 5%."""
        text = re.sub(r"(?<=\d)\s(\\?%)", r"\1", text)
        changes = {**(self.renamed if headers else {}), **self.reworded}
        found = _phrases(tuple(changes))
        return found.sub(lambda m: changes[" ".join(m[0].split())], text) if changes else text

    def same(self, before: Any, after: Any, path: str) -> bool:
        """Whether two numbers, strings, booleans or None are equal."""
        if isinstance(before, bool) is not isinstance(after, bool):
            return False
        if before == after or (before != before and after != after):  # not a number
            return True
        relative = [t for pattern, t in self.tolerances.items() if re.search(pattern, path)]
        try:
            return bool(relative) and math.isclose(
                float(before), float(after), rel_tol=max(relative)
            )
        except (TypeError, ValueError):
            return False


@cache
def _phrases(phrases: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(phrases, key=len, reverse=True)
    any_of_them = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in longest_first)
    return re.compile(rf"(?:\b|(?=\W))(?:{any_of_them})(?!\w)")


class Difference(NamedTuple):
    """One place where two results differ."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        texts = [v if isinstance(v, str) else json.dumps(v) for v in (self.before, self.after)]
        equal = len(os.path.commonprefix(texts)) - 20  # noqa: RUF071
        return f"{self.path}: " + " -> ".join(_short(text, equal) for text in texts)


def _short(text: str, start: int) -> str:
    if start > 20:
        text = f"...{text[start:]}"
    return text if len(text) <= 90 else f"{text[:87]}..."


def compare(before: Any, after: Any, rules: Rules, path: str = "") -> Iterator[Difference]:
    """Differences of two JSON values, depth first; keys of an object in any order."""
    if isinstance(before, dict) and isinstance(after, dict):
        renamed = {rules.key(key): value for key, value in before.items()}
        for key in dict.fromkeys((*renamed, *after)):
            values = renamed.get(key, ABSENT), after.get(key, ABSENT)
            yield from compare(*values, rules, f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        if path.endswith(NAMED):
            named = ({entry["name"]: entry for entry in values} for values in (before, after))
            yield from compare(*named, rules, path)
            return
        if path.endswith(UNORDERED):
            before, after = (
                sorted(values, key=lambda value: json.dumps(value, sort_keys=True))
                for values in (before, after)
            )
        if len(before) != len(after):
            yield Difference(f"{path} length", len(before), len(after))
        for i, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from compare(old, new, rules, f"{path}[{i}]")
    else:
        old, new = (rules.text(v) if isinstance(v, str) else v for v in (before, after))
        if not rules.same(old, new, path):
            yield Difference(path, before, after)


def compare_text(before: str, after: str, rules: Rules, path: str = "") -> Iterator[Difference]:
    """Differences of two texts by words: neither padding, nor wrapping, nor rules count."""
    old, new = (
        [word for word in text.split() if not re.fullmatch(r"\W*[-=─━]{3,}\W*", word)]
        for text in (rules.text(before, headers=True), rules.text(after))
    )
    if rules.only_numbers:
        old, new = ([word for word in words if re.search(r"\d", word)] for words in (old, new))
    if _same_words(old, new, rules, path):
        return
    for _, i, i_end, j, j_end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if not _same_words(old[i:i_end], new[j:j_end], rules, path):
            behind = f"{path} behind '{' '.join(old[max(i - 3, 0) : i])}'"
            texts = [" ".join(words) for words in (old[i:i_end], new[j:j_end])]
            yield Difference(behind, *(text or ABSENT for text in texts))


def _same_words(before: Sequence[str], after: Sequence[str], rules: Rules, path: str) -> bool:
    return len(before) == len(after) and all(
        rules.same(old, new, path) for old, new in zip(before, after, strict=True)
    )


def text_of_page(page: str) -> str:
    """What an HTML page or an SVG picture says: matplotlib writes a drawn text as a comment, too.

    Where it is drawn is no result: it changes with the fonts and with every legend.
    """
    said = re.sub(r"(?s)<(style|script|metadata)\b.*?</\1>", " ", page)
    return html.unescape(re.sub(r"(?s)<!--(.*?)-->|<[^>]*>", r" \1 ", said))


def compare_files(name: str, before: str, after: str, rules: Rules) -> Iterator[Difference]:
    """Differences of two files, by what the name says they hold."""
    if before == after:
        return
    if ABSENT in (before, after):
        yield Difference(name, *(t if t == ABSENT else "(a file)" for t in (before, after)))
        return
    if name.endswith((".svg", ".html")):
        before, after = text_of_page(before), text_of_page(after)
    try:
        values = [_parsed(name, text) for text in (before, after)]
    except ValueError:
        yield from compare_text(before, after, rules, name)
        return
    if name.endswith(".csv"):
        values[0] = [
            {rules.key(column): cell for column, cell in row.items()}
            if isinstance(row, dict)
            else [rules.key(cell) for cell in row]
            for row in values[0]
        ]
        if all(isinstance(row, dict) for value in values for row in value[1:]):
            columns, more = (value[0] for value in values)
            for column in dict.fromkeys((*columns, *more)):
                if column not in more:
                    yield Difference(f"{name}.{column}", "(a column)", ABSENT)
                elif column not in columns:
                    yield Difference(f"{name}.{column}", ABSENT, "(a column)")
            values = [_columns_of(value, {*columns} & {*more}) for value in values]
    yield from compare(values[0], values[1], rules, name)


def _columns_of(table: list[Any], names: set[str]) -> list[Any]:
    """Those columns of a table, as `_parsed` returns it."""
    header = [column for column in table[0] if column in names]
    return [header, *({column: row[column] for column in header} for row in table[1:])]


def _parsed(name: str, text: str) -> Any:
    """A file as a JSON value; a table is its columns, and then its rows by column."""
    if name.endswith(".json"):
        value = _json(text)
        return _by_lane(value) if isinstance(value, dict) and "traceEvents" in value else value
    if name.endswith(".jsonl"):
        tables: dict[str, list[Any]] = {}
        for line in text.splitlines():
            row = json.loads(line)
            tables.setdefault(str(row.pop("table", "")), []).append(row)
        return tables
    if not name.endswith(".csv"):
        raise ValueError("expected JSON or CSV; got text")
    rows = list(csv.reader(io.StringIO(text)))
    if len({len(row) for row in rows}) != 1 or len(set(rows[0])) < len(rows[0]):
        return rows  # several tables
    return [rows[0], *(dict(zip(rows[0], row, strict=True)) for row in rows[1:])]


def _json(text: str) -> Any:
    """One JSON value, or a list of those that follow one another."""
    values, rest = [], text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values[0] if len(values) == 1 else values


def _by_lane(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace for Perfetto by process, lane and event: numbers of lanes and flows are no result."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    lanes: dict[str, dict[str, dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        process = names["process_name", event["pid"], 0]
        lane = names["thread_name", event["pid"], event["tid"]]
        events = lanes.setdefault(process, {}).setdefault(lane, {})
        what = " ".join(str(event[key]) for key in ("ts", "ph", "cat", "name"))
        same = sum(key.partition(" again")[0] == what for key in events) if what in events else 0
        events[f"{what} again {same}" if same else what] = {
            key: value for key, value in event.items() if key not in ("pid", "tid", "id")
        }
    return {**trace, "traceEvents": lanes}


def read_cases(text: str, inputs: Path, *, quick: bool = False) -> Iterator[Case]:
    """Commands of every case; cases.txt says how it is written."""
    section: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]").split()
        elif not line or line.startswith("#"):
            continue
        elif section == ["once"]:
            if line.startswith("+ ") or not quick:
                yield _commands(line.removeprefix("+ "), inputs)
        elif section[0] == "formats":
            for form in section[1:2] if quick else section[1:]:
                yield _commands(f"{line} --format {form}", inputs)
        else:
            for report in sorted(path for glob in section for path in inputs.glob(glob)):
                if re.search(QUICK, report.name) or not quick:
                    sizes = dict(re.findall(r"_([HB])(\d+)", report.name))
                    sizes["report"] = str(report.relative_to(inputs))
                    filled = re.sub(r"\{(\w+)\}", lambda m: sizes.get(m[1], m[0]), line)  # noqa: B023
                    yield _commands(filled, inputs)


def _commands(line: str, inputs: Path) -> Case:
    """Commands of one line as lists of arguments, with patterns of files expanded."""

    def expanded(word: str) -> list[str]:
        paths = sorted(inputs.glob(word)) if "*" in word else []
        return [str(path.relative_to(inputs)) for path in paths] or [word]

    commands = line.split(" && ")
    return [[a for word in shlex.split(c) for a in expanded(word)] for c in commands]


def case_name(commands: Case) -> str:
    """Name of a case and of its folder: its commands, or their start and a digest."""
    text = " && ".join(" ".join(command) for command in commands)
    short = re.sub(r" -o \{out\}\S*|profiles/|\.sqlite|\.xz", "", text)
    name = re.sub(r"[^\w.=:*-]+", "_", short)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return name if len(name) <= 120 else f"{name[:110]}_{digest}"


def run(checkout: Path, python: str, inputs: Path, cases: Mapping[str, Case], results: Path,
        jobs: int) -> None:  # fmt: skip
    """Run those cases that the results do not hold yet."""

    def done(name: str) -> Any:
        path = results / name / "commands.json"
        return json.loads(path.read_text()) if path.exists() else None

    missing = {name: commands for name, commands in cases.items() if done(name) != commands}
    if not missing:
        return
    results.mkdir(parents=True, exist_ok=True)
    job = {"checkout": str(checkout), "results": str(results.resolve()), "jobs": jobs}
    settings = {"PYTHONPATH": str(checkout), "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    subprocess.run(
        [python, "-P", str(RUNNER.resolve())], input=json.dumps({**job, "cases": missing}),
        text=True, cwd=inputs, check=True, env={**os.environ, **settings, "SOURCE_DATE_EPOCH": "0"},
    )  # fmt: skip


def renamed_arguments(command: list[str]) -> list[str]:
    """Return a command as it is written after."""
    line = "\t".join(command)
    for before, after in ARGUMENTS.items():
        line = re.sub(before, after, line)
    return line.split("\t")


def compare_cases(
    names: Sequence[str], before: Path, after: Path, rules: Rules, shown: int
) -> Counter[str]:
    """Print how the cases' files differ, `shown` times for each kind; counts of what was seen."""
    counts = Counter(cases=len(names))
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for name in names:
        old, new = (_files(root / name, rules) for root in (before, after))
        if PRINTED in old and any(re.match(r"out/.*\.csv", file) for file in new):
            old, new = _tables(old, new, rules)
        for file in sorted({*old, *new}):
            texts = old.get(file, ABSENT), new.get(file, ABSENT)
            counts.update(files=1, numbers=len(re.findall(r"(?<![\w.])\d+", texts[0])))
            for found in compare_files(f"{name}/{file}", *texts, rules):
                if reason := next((EXPECTED[p] for p in EXPECTED if re.search(p, str(found))), ""):
                    counts.update(expected=1)
                    reasons[reason] += 1
                    continue
                counts.update(differences=1)
                command, place = name.split("_")[0], found.path.removeprefix(f"{name}/")
                kind = re.sub(r"\d+", "#", f"{command} {place}")
                kinds[kind] += 1
                if kinds[kind] <= shown:
                    print(found)
    for kind, count in kinds.most_common():
        if count > shown:
            print(f"{count - shown} more like {kind}")
    for reason, count in reasons.most_common():
        print(f"{count} expected: {reason}")
    return counts


def _tables(
    before: dict[str, str], after: dict[str, str], rules: Rules
) -> tuple[dict[str, str], dict[str, str]]:
    """Call every table that was printed before as the file that holds it after."""
    files = {
        name: set(text.partition("\n")[0].strip().split(","))
        for name, text in after.items()
        if name.endswith(".csv") and name != PRINTED
    }
    named = {name: text for name, text in before.items() if name != PRINTED}
    for table in before[PRINTED].replace("\r\n", "\n").strip().split("\n\n"):
        columns = {rules.key(column) for column in table.partition("\n")[0].split(",")}
        fitting = [name for name in files if columns <= files[name] and name not in named]
        cells = set(re.split(r"[,\n]", table))
        alike = {
            name: (-len(files[name]), len(cells & set(re.split(r"[,\r\n]+", after[name]))))
            for name in fitting
        }
        named[max(fitting, key=lambda name: alike[name], default=min(columns))] = f"{table}\n"
    return named, {name: text for name, text in after.items() if name != PRINTED}


def _files(folder: Path, rules: Rules) -> dict[str, str]:
    """What a case printed and wrote, by how the file is called after."""
    files = (path for path in folder.rglob("*.*") if path.is_file())
    found = {path.relative_to(folder): path.read_text("utf-8") for path in files}
    found.pop(Path("commands.json"), None)
    return {str(path.with_name(rules.key(path.name))): text for path, text in found.items()}


def main() -> int:
    """Run what is missing, compare, and say how much was equal."""
    parser = argparse.ArgumentParser(description="Do two checkouts give the same results?")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few reports, one format")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name has it")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keeps the results of BEFORE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the results of AFTER")
    parser.add_argument("--numbers-only", action="store_true", help="ignore words of text")
    parser.add_argument("--shown", type=int, default=2, help="differences of a kind to print")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--python-before", default=sys.executable)
    parser.add_argument("--python-after", default=sys.executable)
    given = parser.parse_args()
    inputs = given.before.resolve()
    every = read_cases(CASES.read_text("utf-8"), inputs, quick=given.quick)
    named = {case_name(commands): commands for commands in every}
    cases = {name: named[name] for name in named if re.search(given.only, name)}
    if given.list:
        print("\n".join(cases))
        return 0
    changed = {n: [renamed_arguments(c) for c in cases[n]] for n in cases}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        before = given.cache or Path(scratch, "before")
        after = Path(tempfile.mkdtemp(dir=given.keep)) if given.keep else Path(scratch, "after")
        run(inputs, given.python_before, inputs, cases, before, given.jobs)
        run(given.after.resolve(), given.python_after, inputs, changed, after, given.jobs)
        rules = Rules(RENAMED, REWORDED, TOLERANCES, given.numbers_only)
        counts = compare_cases(list(cases), before, after, rules, given.shown)
    seconds = time.monotonic() - started
    print(", ".join(f"{counts[what]} {what}" for what in COUNTED) + f"; {seconds:.0f} s")
    return 1 if counts["differences"] or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
