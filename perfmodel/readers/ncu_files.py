"""Files of Nsight Compute: what each is called, and its text; `.ncu-rep` through `ncu --import`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from perfmodel.base.errors import ReportError
from perfmodel.base.files import check_path

_EXPORT_SECONDS: Final = 600


def names(paths: Sequence[Path]) -> list[str]:
    """Name files by their last parts, as many as tell them apart: runs of one name are not one."""
    whole = [path.resolve().parts for path in paths]
    for path, parts in zip(paths, whole, strict=True):
        if whole.count(parts) > 1:
            raise ReportError(f"{path}: wanted every file once, found it twice; leave one out")
    tails = (["/".join(parts[-n:]) for parts in whole] for n in range(1, max(map(len, whole)) + 1))
    return next((names for names in tails if len(set(names)) == len(names)), [])


def read_text(path: Path) -> str:
    """Return what ncu printed, or prints of a report; bytes that are no text become marks."""
    check_path(path)
    if path.suffix == ".ncu-rep":
        return _import(path)
    data = path.read_bytes()
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # redirected by PowerShell
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _import(path: Path) -> str:
    """Let ncu print a report; the report holds all metrics that were collected."""
    command = ["ncu", "--import", str(path.resolve()), "--csv", "--page", "raw"]
    command += ["--print-units", "base"]
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ReportError(
            f"{path}: a raw report needs ncu to be exported, and ncu is not on the PATH; where ncu "
            f"is, run: ncu --import {path.name} --csv --page raw > {path.stem}.csv  and read that"
        )
    try:
        done = subprocess.run(
            [ncu, *command[1:]], capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=_EXPORT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReportError(f"{path}: {' '.join(command)} did not finish: {error}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise ReportError(
            f"{path}: ncu --import failed ({said[-1].strip()}); an ncu at least as new as the one "
            f"that made the report is needed"
        )
    return done.stdout
