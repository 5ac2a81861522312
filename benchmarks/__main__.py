"""List the benchmarks, or run one of them.

python -m benchmarks                    what each answers, needs and takes
python -m benchmarks NAME [ARGUMENT...] run one, or a part of it: NAME.PART
python -m benchmarks --page             put the list into README.md
"""

from __future__ import annotations

import runpy
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.common.pages import put, table

LIST: Final = Path(__file__).with_name("benchmarks.toml")
PAGE: Final = Path(__file__).with_name("README.md")
MODULE: Final = "benchmarks"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What benchmarks.toml says of one benchmark."""

    name: str
    question: str
    takes: str
    needs: str = ""
    page: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    workers: tuple[str, ...] = ()

    @property
    def programs(self) -> Iterator[str]:
        """Names of all its modules that run."""
        yield self.name
        yield from (f"{self.name}.{one}" for one in (*self.parts, *self.workers))


def benchmarks() -> list[Benchmark]:
    """Return all benchmarks in the order of the list."""
    said = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Benchmark(name, **facts) for name, facts in said.items()]


def listing() -> str:
    """Return the list for a terminal."""
    lines = ["python -m benchmarks NAME [ARGUMENT...], or NAME.PART"]
    for one in benchmarks():
        needs = f"; needs {one.needs}" if one.needs else ""
        lines += ["", one.name, f"    {one.question}", f"    takes {one.takes}{needs}"]
        lines += [f"    {one.page}"] if one.page else []
        lines += [f"    {'.' + part:<18}{does}" for part, does in one.parts.items()]
    return "\n".join(lines)


def markdown() -> str:
    """Return the list for the page."""
    rows = []
    for one in benchmarks():
        parts = "; ".join(f"`.{part}` {does}" for part, does in one.parts.items())
        said = f"{one.question} Parts: {parts}." if parts else one.question
        page = f"[{Path(one.page.partition('#')[0]).name}](../{one.page})" if one.page else ""
        rows.append((f"`{one.name}`", said, one.needs, one.takes, page))
    return table(("benchmark", "question, and its parts", "needs", "takes", "page"), rows).strip()


def main(arguments: Sequence[str]) -> None:
    """List the benchmarks, or run the one that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return
    name = arguments[0]
    if name == "--page":
        put(PAGE, MODULE, markdown())
        return
    known = [program for one in benchmarks() for program in one.programs]
    if name not in known:
        raise SystemExit(
            f"expected one of {', '.join(known)}; got {name}; see python -m benchmarks"
        )
    sys.argv = [f"{MODULE}.{name}", *arguments[1:]]
    runpy.run_module(f"{MODULE}.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
