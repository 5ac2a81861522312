"""The documentation says what is: its commands run, its output is real, its links resolve."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("profiles/*.md")])
sys.path.insert(0, str(ROOT / "docs"))
PROGRAMS = ("perfmodel", "python", "sqlite-utils")
SET_UP = ("make ", "pip install")  # .ci/run runs these themselves


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip()
                if command and not command.startswith(("#", *SET_UP)):
                    found.append((page.name, command))
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the repository to the documented commands, but may be written."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("profiles", "perfmodel", "tests", "benchmarks", "docs", "trainer"):
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize(("page", "command"), _commands())
def test_documented_command_runs(page: str, command: str, workplace: Path) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] in PROGRAMS, f"{page}: say ```text for what a test cannot run: {command}"
    beside = Path(sys.executable).parent / words[0]
    program = str(beside) if beside.exists() else shutil.which(words[0])
    assert program, f"{words[0]} is not installed"
    done = subprocess.run(
        [program, *words[1:]], cwd=workplace, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{page}: {command}\n{done.stderr}"
    assert done.stdout or "-q" in words


def test_readme_shows_what_the_demonstration_prints(tmp_path: Path) -> None:
    import refresh

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert refresh.shown(readme) == refresh.demo(tmp_path), "run: python docs/refresh.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_python_of_the_readme_runs(workplace: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=workplace, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
