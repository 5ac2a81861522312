"""What is installed: one wheel for every machine, its version from the tag, its data inside."""

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

from support.folders import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("hatchling", reason="builds the package: pip install -e '.[dev]'")
pytest.importorskip("hatch_vcs", reason="builds the package: pip install -e '.[dev]'")

REPORT = ROOT / "profiles" / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
TREE = (
    "perfmodel", "trainer", "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
    ".gitignore", ".gitattributes", ".git_archival.txt",
)  # fmt: skip


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **env}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def git(tree: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return run("git", *who, *arguments, cwd=tree)


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
    """A repository of its own with what is here, tagged as a release."""
    folder = tmp_path_factory.mktemp("package") / "tree"
    folder.mkdir()
    leave = shutil.ignore_patterns("__pycache__", "_version.py", "images")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "All")
    git(folder, "tag", "v0.3.0")
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


def test_the_version_is_the_tag_s(tree: Path, sdist: Path, wheel: Path) -> None:
    assert version(sdist) == "0.3.0"
    assert wheel.name == "perfmodel-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        assert '__version__ = "0.3.0"' in packed.read("perfmodel/_version.py").decode()
    assert git(tree, "status", "--porcelain") == ""  # the file that the build writes is ignored


def test_the_version_of_what_is_no_release(tree: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    git(tree.parent, "clone", "-q", str(tree), str(later))
    git(later, "commit", "-q", "--allow-empty", "-m", "More")
    assert version(build(later)).startswith("0.3.1.dev1+g")
    archive = tmp_path / "archive.tar"
    git(later, "archive", "--prefix=archive/", "-o", str(archive), "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert version(build(tmp_path / "archive")).startswith("0.3.1.dev1+g")  # .git_archival.txt
    shutil.rmtree(later / ".git")
    (later / ".git_archival.txt").unlink()
    (later / "perfmodel" / "_version.py").unlink()
    assert version(build(later.rename(tmp_path / "bare"))) == "0.1.0.dev0"


def test_nothing_is_compiled_and_all_data_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        about = packed.read("perfmodel-0.3.0.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: true" in about
    assert "Tag: py3-none-any" in about
    inside = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "perfmodel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "_version.py"
    }
    assert names - inside == {"perfmodel/_version.py"} | {
        f"perfmodel-0.3.0.dist-info/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert inside <= names


def test_extras_bring_what_they_are_named_for(wheel: Path) -> None:
    """No extra promises the trainer, which no wheel holds; every extra that is advised exists."""
    with zipfile.ZipFile(wheel) as packed:
        about = packed.read("perfmodel-0.3.0.dist-info/METADATA").decode()
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
    shutil.copy(REPORT, tmp_path / "run.sqlite")
    program = tmp_path / "venv" / "bin" / "perfmodel"
    clean = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    assert run(program, "--version", cwd=tmp_path, **clean) == "perfmodel, version 0.3.0"
    where = run(python, "-c", "import perfmodel; print(perfmodel.__file__)", cwd=tmp_path, **clean)
    assert where.startswith(site)
    said = run(program, "analyze", "run.sqlite", "-o", "out", "--no-plots", cwd=tmp_path, **clean)
    assert "Where a median batch goes (38 batches, 2 ranks)" in said
    with (tmp_path / "out" / "ranges.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 14
    assert "h200" in run(program, "machine", "list", "--format", "csv", cwd=tmp_path, **clean)
