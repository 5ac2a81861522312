"""The house: import directions, owners, sizes, and what the code must never do."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Final
from unittest import mock

import click
import pytest

from benchmarks.common.folders import IMAGES, ROOT, TESTS
from benchmarks.common.pictures import is_small
from perfmodel.programs import MARK_SYMBOLS
from perfmodel.programs.identify import MARK_KEY
from perfmodel.programs.mlp.mlp import as_it_ran, mlp
from perfmodel.workloads import Workload
from support.cli import leaves

MODULES: Final = sorted((ROOT / "perfmodel").rglob("*.py"))
TRAINER: Final = sorted((ROOT / "trainer").rglob("*.py"))

DIRECTLY_BELOW: Final = {
    "base": (),
    "readers": ("base",),
    "timing": ("readers",),
    "workloads": ("base",),
    "machines": ("base",),
    "models": ("workloads", "machines"),
    "programs": ("timing", "models", "workloads"),
    "findings": ("programs",),
    "analysis": ("findings",),
    "render": ("analysis",),
    "studies": ("render",),
    "api": ("studies",),
    "commands": ("api",),
    "cli": ("commands",),
    "__init__": ("api",),
    "__main__": ("cli",),
}
"""Rooms and the rooms that they stand on; a room imports only what is below it."""

OWNERS: Final = {
    "matplotlib": ("render/plot",),
    "sympy": ("workloads",),
    "pandas": ("base/table", "api"),
    "sqlite3": ("readers", "render/outputs"),
    "sqlite_utils": ("render/outputs",),
    "click": ("cli", "commands"),
    "rich": ("base/table", "commands"),
    "subprocess": ("readers", "machines", "base/pattern"),
    "pynvml": ("machines",),
    "jinja2": ("render/html",),
    "distributed": ("base/parallel",),
    "multiprocessing": ("base/parallel",),
}
"""What only these may import; types for annotations do not count."""

FORBIDDEN_IMPORTS: Final = {"pickle", "marshal", "shelve", "dill", "joblib", "runpy", "imp"}
FORBIDDEN_CALLS: Final = {
    "eval", "exec", "compile", "__import__", "sympify", "parse_expr", "lambdify", "system", "popen",
    "literal_eval",
}  # fmt: skip
MOST_LINES_OF_A_FUNCTION: Final = 60


parsed = cache(ast.parse)
"""Parses every file once, for the picture of the packages, too."""


def unit(path: Path) -> str:
    """Top-level module or package of perfmodel that a file belongs to."""
    return path.relative_to(ROOT / "perfmodel").parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return parsed(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """Nodes of a file by what they are."""
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree(path)):
        found[type(node)].append(node)
    return found


def dotted(node: ast.AST) -> str:
    """A name with its attributes as it is written, '.name' where they are of something else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports(path: Path, *, for_types: bool = True) -> frozenset[str]:
    """Names of all modules a file imports anywhere, with what it takes from them."""
    found = nodes(path)
    all_of_them = {id(node): node for node in found[ast.Import] + found[ast.ImportFrom]}
    for node in found[ast.If]:
        if not for_types and isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING":
            for inner in ast.walk(node):
                all_of_them.pop(id(inner), None)
    return frozenset(name for node in all_of_them.values() for name in imported(node))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes of a module, and methods of its public classes."""

    def inside(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                yield node
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node
                yield from inside(node.body)

    return inside(tree(path).body)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def packages(path: Path, *, for_types: bool = True) -> set[str]:
    """First parts of what a file imports."""
    return {name.split(".")[0] for name in imports(path, for_types=for_types)}


# --- imports


def below(room: str) -> set[str]:
    """All rooms that a room stands on."""
    return {found for under in DIRECTLY_BELOW[room] for found in {under, *below(under)}}


def test_the_rooms_are_those_of_the_plan() -> None:
    assert {unit(path) for path in MODULES} - {"_version"} == set(DIRECTLY_BELOW)


def test_imports_point_one_way() -> None:
    """docs/architecture.md: from errors and units up to the command line."""
    upwards = []
    for path in MODULES:
        mine = unit(path)
        if mine == "_version":
            continue
        allowed = {mine, *below(mine)}
        for name in imports(path):
            parts = name.split(".")
            other = parts[1] if parts[0] == "perfmodel" and len(parts) > 1 else mine
            if other in DIRECTLY_BELOW and other not in allowed:
                upwards.append(f"{named(path)} must not import {other}")
    assert upwards == []


def test_the_picture_of_the_packages_is_drawn_from_their_imports() -> None:
    import architecture

    committed = architecture.PICTURE.read_text(encoding="utf-8")
    with mock.patch.object(ast, "parse", parsed):
        assert committed == architecture.draw(), "run: python docs/architecture.py"


def test_heavy_or_dangerous_packages_have_owners() -> None:
    taken = []
    for path in MODULES:
        inside = path.relative_to(ROOT / "perfmodel").with_suffix("").as_posix()
        for package in OWNERS.keys() & packages(path, for_types=False):
            if not any(inside == o or inside.startswith(f"{o}/") for o in OWNERS[package]):
                taken.append(f"{package} is not for {inside}")
    assert taken == []


def test_the_trainer_and_perfmodel_do_not_import_each_other() -> None:
    assert [named(path) for path in TRAINER if "perfmodel" in packages(path)] == []
    assert [named(path) for path in MODULES if "trainer" in packages(path)] == []


WHAT_A_MARK_SAYS: Final = (
    "transport", "parallel", "backend", "gemm", "math", "data_on", "overlap", "graph",
)  # fmt: skip
"""Keys that choose a workload's ranges, the roof of its products, or what is advised."""


def workloads_of_all_runs() -> Iterator[Workload]:
    """The MLP with every value of a setting, and all combinations of what chooses ranges.

    Of the kinds of a product only 'fused', and of the places of images only 'device' does.
    """
    config = pytest.importorskip("trainer.config")
    plain = mlp()
    gemms = cycle(name for name in config.GEMMS if name != "fused")
    places = cycle(name for name in config.DATA_ON if name != "device")
    for transport, fused, on_device, parallel, backend, graph in product(
        config.TRANSPORTS, (False, True), (False, True), config.PARALLEL, ("numpy", "cupy"),
        (False, True),
    ):  # fmt: skip
        if parallel == "model" and transport == "peer":
            continue  # the trainer refuses it
        gemm = "fused" if fused else next(gemms)
        data_on = "device" if on_device else next(places)
        said = {
            "transport": transport, "gemm": gemm, "data_on": data_on, "parallel": parallel,
            "backend": backend, "graph": graph, "math": "ieee", "overlap": False,
        }  # fmt: skip
        assert set(said) == set(WHAT_A_MARK_SAYS)
        yield as_it_ran(plain, said)


def test_the_trainer_speaks_perfmodel_s_language() -> None:
    """Names of ranges, the key of the mark, and the names of what it tells.

    Every range of the trainer is in the workload of some run, and every such workload has ranges
    of the trainer only. `tests/programs/test_mlp_ranges.py` runs the trainer to see which occur.
    """
    ranges = pytest.importorskip("trainer.ranges")
    around = {ranges.TRAIN, ranges.SETUP, ranges.BATCH}
    in_batches = {n for n, parent in ranges.PARENT.items() if parent == ranges.BATCH}
    variants = list(workloads_of_all_runs())
    assert set(ranges.PARENT) - around == {name for load in variants for name in load.ranges}
    for load in variants:
        assert load.batch_range == ranges.BATCH
        assert set(load.phases) <= in_batches
        assert load.replay in ("", ranges.GRAPH)
    assert ranges.MARK_KEY == MARK_KEY
    record = (ROOT / "trainer" / "record.py").read_text(encoding="utf-8")
    for name in (*MARK_SYMBOLS.values(), *WHAT_A_MARK_SAYS, "dtype", "run_id"):
        assert f'"{name}":' in record, f"the trainer's mark lacks {name}"


# --- owners and sizes


def test_a_file_says_in_one_sentence_what_it_owns() -> None:
    silent = []
    for path in (*MODULES, *TRAINER):
        sentence = (ast.get_docstring(tree(path)) or "").split("\n\n")[0]
        if not (10 < len(sentence) < 300 and sentence.endswith((".", ":"))):
            silent.append(f"{named(path)}: expected one sentence on top; got {sentence!r}")
    assert silent == []


def test_what_is_public_is_documented() -> None:
    undocumented = [
        f"{named(path)}: {node.name}"
        for path in MODULES
        for node in functions(path)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert undocumented == []


# --- what must not happen


def executes(call: ast.Call) -> bool:
    """Whether a call may run what a string or a file brings."""
    called = dotted(call.func).split(".")
    if called[0] not in ("re", "ast") and called[-1] in FORBIDDEN_CALLS:  # re.compile: patterns
        return True
    return any(
        keyword.arg in ("shell", "allow_pickle")
        and getattr(keyword.value, "value", "") is not False
        for keyword in call.keywords
    )


def test_nothing_is_executed_that_a_file_brings() -> None:
    wrong = []
    for path in (*MODULES, *TRAINER):
        wrong += [f"{named(path)} imports {name}" for name in packages(path) & FORBIDDEN_IMPORTS]
        wrong += [
            f"{named(path)}: {ast.unparse(node)}"
            for node in nodes(path)[ast.Call]
            if isinstance(node, ast.Call) and executes(node)
        ]
    assert wrong == []


PRINTS_OR_EXITS: Final = {
    ast.Call: {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort"},
    ast.Attribute: {"sys.stdout", "sys.stderr", "sys.argv"},
    ast.Name: {"SystemExit"},
}


def test_only_the_command_line_prints_or_exits() -> None:
    wrong = [
        f"{named(path)}: {ast.unparse(node)}"
        for path in MODULES
        if unit(path) not in ("cli", "commands", "__main__")
        for kind, names in PRINTS_OR_EXITS.items()
        for node in nodes(path)[kind]
        if dotted(getattr(node, "func", node)) in names
    ]
    assert wrong == []


def test_no_path_of_a_machine() -> None:
    path_of_one = re.compile(r"/(home|root|Users|work|mnt)/\w")
    texts = {path: path.read_text(encoding="utf-8") for path in (*MODULES, *TRAINER)}
    assert [named(path) for path, text in texts.items() if path_of_one.search(text)] == []


# --- what is tracked

MOST_TRACKED_BYTES: Final = 50 << 20
"""So small, a clone is copied to a GPU machine in seconds."""


def tracked() -> dict[str, int]:
    """Sizes of all tracked files."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git: nothing says which files are tracked")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    paths = {name: ROOT / name for name in listed if name}
    return {name: path.lstat().st_size for name, path in paths.items() if path.exists()}


def test_the_repository_stays_small() -> None:
    sizes = tracked()
    folders: Counter[str] = Counter()
    for name, size in sizes.items():
        folders["/".join(name.split("/")[:-1][:2])] += size
    largest = ", ".join(f"{name} {size >> 10:,d} KiB" for name, size in folders.most_common(8))
    assert sum(sizes.values()) <= MOST_TRACKED_BYTES, f"pack or cut files of {largest}"


def test_pictures_of_the_documentation_are_small() -> None:
    large = [named(path) for path in sorted(IMAGES.glob("*.png")) if not is_small(path)]
    assert large == [], "run: python -m benchmarks.common.pictures"


# --- tests


def test_tests_are_in_folders_named_as_the_packages_they_test() -> None:
    """Their names differ over all folders, as pytest imports them without a package."""
    packages = {path.parent.name for path in (ROOT / "perfmodel").glob("*/__init__.py")}
    packages |= {"trainer", "benchmarks", "notebooks"}
    tests = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    assert {path.parent.relative_to(TESTS).as_posix() for path in tests} <= packages
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


# --- documents


def options() -> list[tuple[str, str]]:
    found = []
    for name, command in leaves().items():
        found += [(name, f"perfmodel {name}")]
        found += [
            (name, max(p.opts, key=len)) for p in command.params if isinstance(p, click.Option)
        ]
    return found


def test_commands_and_options_are_documented() -> None:
    written = set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "cli.md"}  # that is --help
    text = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "README.md", *written))
    shown = set(
        re.findall(r"(?<![\w-])(?:perfmodel (?:study |machine )?\w+|--?[\w-]+)(?![\w-])", text)
    )
    assert [f"{option} of {command}" for command, option in options() if option not in shown] == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{named(document)}: {target}"
