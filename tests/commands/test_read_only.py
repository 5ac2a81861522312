"""Commands in folders where nothing can be written, with no other place for what they keep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.folders import PROGRAMS, ROOT, unpacked
from support.build_others import rocpd

pytestmark = pytest.mark.slow

READ = (
    ["analyze", "gpt_ddp.sqlite"], ["analyze", "gpt_ddp.sqlite.xz"], ["analyze", "rocprof.db"],
    ["analyze", "gpt_both_rank0.json.xz"], ["stats", "gpt_ddp.sqlite"],
    ["timeline", "gpt_ddp.sqlite"], ["whatif", "gpt_ddp.sqlite"],
    ["compare", "gpt_ddp.sqlite", "gpt_ddp.sqlite.xz"],
)  # fmt: skip
WRITTEN = (
    ["analyze", "gpt_ddp.sqlite", "-o", "out"], ["analyze", "gpt_ddp.sqlite", "--db", "x.db"],
    ["timeline", "gpt_ddp.sqlite", "-o", "t.png"], ["report", "gpt_ddp.sqlite", "-o", "r.html"],
    ["share", "gpt_ddp.sqlite", "-o", "copy.sqlite"],
)  # fmt: skip


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of reports, and a home in it, that cannot be written."""
    folder = tmp_path_factory.mktemp("locked")
    for name in ("gpt_ddp.sqlite.xz", "gpt_both_rank0.json.xz"):
        shutil.copy(PROGRAMS / name, folder)
    unpacked(PROGRAMS / "gpt_ddp.sqlite.xz", folder)
    rocpd(folder / "rocprof.db")
    (folder / "home").mkdir()
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    folder.chmod(0o755)
    (folder / "home").chmod(0o755)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, as root without the right to write what is locked."""
    command = [sys.executable, "-m", "perfmodel", *words]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root writes anywhere, and there is no setpriv (util-linux)")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    kept = {"HOME": str(folder / "home"), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    left = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPLCONFIG"))}
    return subprocess.run(
        command, cwd=folder, env=left | kept | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_reports_in_read_only_folders_are_read(words: list[str], locked: Path) -> None:
    done = run(locked, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert all(line.startswith("perfmodel: warning: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize("words", WRITTEN, ids=" ".join)
def test_outputs_into_read_only_folders_are_one_error(words: list[str], locked: Path) -> None:
    before = sorted(locked.iterdir())
    done = run(locked, *words)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if ": warning: " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("perfmodel: error: ")
    assert sorted(locked.iterdir()) == before
