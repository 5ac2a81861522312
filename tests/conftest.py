"""Shared fixtures: the real Nsight Systems CLI, where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NSYS_VERSION = "2024.2.3"


@pytest.fixture(scope="session")
def nsys() -> str:
    """Path of the CLI whose output the golden files hold; skips where it is missing."""
    found = os.environ.get("PERFMODEL_NSYS") or shutil.which("nsys")
    if found is None:
        pytest.skip("no Nsight Systems: set PERFMODEL_NSYS, or put nsys on the PATH")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip()
    if NSYS_VERSION not in version:
        pytest.skip(f"wanted Nsight Systems {NSYS_VERSION}, found {found}: {version}")
    return found


@pytest.fixture(scope="session")
def nsys_stats(nsys: str) -> Callable[[Path, str], str]:
    """Run `nsys stats` on a report; the CSV is '' where it has nothing to say."""

    def stats(report: Path, statistic: str) -> str:
        command = [nsys, "stats", "-q", "--format", "csv", "--report", statistic, str(report)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=120)
        text = done.stdout.decode()
        return text[:-1] if text.endswith("\n\n") else text

    return stats
