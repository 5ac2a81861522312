"""What is installed: one wheel for every machine, its version from one line, its data inside."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, ROOT
from perfmodel import __version__

pytestmark = pytest.mark.slow

pytest.importorskip("hatchling", reason="builds the package: pip install -e '.[dev]'")

TREE = (
    "perfmodel", "trainer", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
    ".gitignore",
)  # fmt: skip


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **env}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build(tree: Path, kind: str = "wheel") -> Path:
    """Build as pip does, but with the packages that are here."""
    out = tree.parent / f"{tree.name}-{kind}"
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=tree)
    (made,) = out.iterdir()
    return made


def version(package: Path) -> str:
    return package.name.split("-")[1].removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is here, without git: nothing but the line of the version can say it."""
    folder = tmp_path_factory.mktemp("package") / "tree"
    folder.mkdir()
    leave = shutil.ignore_patterns("__pycache__", "images")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return build(tree, "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel that is built from the source distribution, where there is no git."""
    with tarfile.open(sdist) as packed:
        packed.extractall(sdist.parent / "unpacked", filter="data")
    (folder,) = (sdist.parent / "unpacked").iterdir()
    assert not (folder / ".git").exists()
    return build(folder)


def test_the_version_stands_in_one_line(tree: Path, sdist: Path, wheel: Path) -> None:
    assert version(sdist) == __version__
    assert wheel.name == f"perfmodel-{__version__}-py3-none-any.whl"
    module = tree / "perfmodel" / "__init__.py"
    text = module.read_text(encoding="utf-8")
    raised = tree.parent / "raised"
    shutil.copytree(tree, raised)
    (raised / "perfmodel" / "__init__.py").write_text(
        text.replace(f'__version__ = "{__version__}"', '__version__ = "7.8.9"'), encoding="utf-8"
    )
    assert version(build(raised)) == "7.8.9"


def test_the_changelog_has_the_version_with_a_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert released[0][0] == __version__


def test_nothing_is_compiled_and_all_data_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        about = packed.read(f"perfmodel-{__version__}.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: true" in about
    assert "Tag: py3-none-any" in about
    inside = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "perfmodel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names - inside == {
        f"perfmodel-{__version__}.dist-info/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert inside <= names


def test_extras_bring_what_they_are_named_for(wheel: Path) -> None:
    """No extra promises the trainer, which no wheel holds; every extra that is advised exists."""
    with zipfile.ZipFile(wheel) as packed:
        about = packed.read(f"perfmodel-{__version__}.dist-info/METADATA").decode()
    extras = set(re.findall(r"^Provides-Extra: (.+)$", about, re.MULTILINE))
    assert "trainer" not in extras
    advised = [
        extra
        for folder, pattern in (("docs", "*.md"), ("perfmodel", "*.py"), ("benchmarks", "*.py"))
        for path in (ROOT / folder).rglob(pattern)
        for names in re.findall(r"(?:perfmodel|['\" ]\.)\[([a-z0-9,-]+)\]", path.read_text("utf-8"))
        for extra in names.split(",")
    ]
    assert {"gpu", "mpi", "nvml"} <= set(advised) <= extras


def test_the_wheel_works_where_there_is_no_repository(wheel: Path, tmp_path: Path) -> None:
    """In a new environment, without the index: its dependencies are those of this one."""
    python = tmp_path / "venv" / "bin" / "python"
    install = ("install", "-q", "--no-index", "--no-deps", "--no-compile", wheel)
    if importlib.util.find_spec("pip"):
        run(sys.executable, "-m", "venv", "--without-pip", python.parents[1], cwd=tmp_path)
        run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    else:  # an environment of uv's
        run(sys.executable, "-m", "venv", python.parents[1], cwd=tmp_path)
        run(python, "-m", "pip", *install, cwd=tmp_path)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path)
    others = [path for path in sys.path if path.endswith("-packages")]
    (Path(site) / "others.pth").write_text("\n".join(others))  # does not follow their .pth files
    shutil.copy(BASE, tmp_path / "run.sqlite")
    program = tmp_path / "venv" / "bin" / "perfmodel"
    clean = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    assert run(program, "--version", cwd=tmp_path, **clean) == f"perfmodel, version {__version__}"
    where = run(python, "-c", "import perfmodel; print(perfmodel.__file__)", cwd=tmp_path, **clean)
    assert where.startswith(site)
    said = run(program, "analyze", "run.sqlite", "-o", "out", "--no-plots", cwd=tmp_path, **clean)
    assert "VERDICT  The GPU of rank 0 is idle" in said
    with (tmp_path / "out" / "ranges.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 14
    assert "h200" in run(program, "machine", "list", "--format", "csv", cwd=tmp_path, **clean)
