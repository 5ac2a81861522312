"""Runs Nsight Compute, leaving out metrics that the GPU or this ncu does not know; sums them up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.common import folders


class Failed(Exception):
    """ncu or its program failed, or took too long: the end of what they said, and all printed."""

    def __init__(self, why: str, printed: str = "") -> None:
        super().__init__(why)
        self.printed = printed


def collect(
    words: Sequence[str], program: Sequence[str], metrics: Sequence[str], timeout_s: float | None
) -> tuple[str, list[str]]:
    """Run ``words --metrics ... program``; return what was printed, and the metrics that are known.

    Raises
    ------
    Failed
        If it ends with an error other than an unknown metric, or after `timeout_s` seconds.
    """
    wanted = list(metrics)
    while True:
        command = [*words, "--metrics", ",".join(wanted), *program]
        code, said, printed = _ended(command, timeout_s)
        if not code:
            return printed, wanted
        unknown = [m for m in wanted if m in said and "ailed to find metric" in said]
        if not unknown or len(unknown) == len(wanted):
            raise Failed(f"{' '.join(command)}\n{said[-3000:]}", printed)
        print(f"ncu does not know {', '.join(unknown)}: left out", file=sys.stderr, flush=True)
        wanted = [m for m in wanted if m not in unknown]


def _ended(command: list[str], timeout_s: float | None) -> tuple[int, str, str]:
    """Exit code, all that was said, and standard output; a late one is ended with its children."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=folders.ROOT, stdout=pipe, stderr=pipe, text=True, errors="replace",
        start_new_session=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"{' '.join(command)}\ntook more than {timeout_s:.0f} s") from error
    return process.returncode, printed + errors, printed
