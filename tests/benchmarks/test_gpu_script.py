"""benchmarks/gpu.sh: which parts it has, that their commands can be read, and its budget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.common import folders, results
from benchmarks.ladder import __main__ as ladder
from benchmarks.predict import gpt_ranks
from benchmarks.scaling import all_reduce, steps
from perfmodel.commands.machine import measure_
from profiles import collect_ladder
from profiles.programs import record

SCRIPT: Final = folders.ROOT / "benchmarks" / "gpu.sh"
STUB: Final = """#!/bin/sh
printf '%s\\0' "$(basename "$0")" "$@" >> "$CALLS"
printf '\\n' >> "$CALLS"
"""
FIRST: Final = (
    "gpt-ranks", "gpt-ranks", "gpt-ranks", "gpt-reports", "all-reduce", "all-reduce",
    "tensor",
)  # fmt: skip
"""Parts on four and eight GPUs, the most valuable first."""
OLDER: Final = ("resnet-ddp", "ddp-lab")
LAUNCHER: Final = "torch.distributed.run"


@dataclass(frozen=True)
class Call:
    """A part that was begun: its limit, how many ranks start, a module and its words."""

    part: str
    limit_s: int
    ranks: int
    module: str
    words: list[str]


def run(tmp_path: Path, *words: str, **env: str) -> tuple[list[Call], str]:
    """Run the script with programs that only note how they are called; return it and the output."""
    bin_, noted = tmp_path / "bin", tmp_path / "calls"
    bin_.mkdir()
    for name in ("python3", "mpirun", "sleep"):
        (bin_ / name).write_text(STUB, encoding="utf-8")
        (bin_ / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT), *words], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "CALLS": str(noted),
             "PYTHON": "python3", "LOGS": str(tmp_path / "logs"), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    begun = re.findall(r"^== (\S+) \(at \d+ s, at most (\d+) s\)", done.stdout, re.MULTILINE)
    lines = noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []
    called = [line.split("\0")[:-1] for line in lines]
    made = [words for words in called if words[0] != "sleep"]
    return [_call(*p, words) for p, words in zip(begun, made, strict=True)], done.stdout


def _call(part: str, limit: str, words: list[str]) -> Call:
    at = words.index("-m")
    ranks = int(words[words.index("-n") + 1]) if words[0] == "mpirun" else 1
    if words[at + 1] == LAUNCHER:
        ranks = int(words[words.index("--nproc-per-node") + 1])
        at = words.index("-m", at + 1)
    return Call(part, int(limit), ranks, words[at + 1], words[at + 2 :])


def read(call: Call, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Read a part's words as its program does; return what it makes of them."""
    monkeypatch.setattr(sys, "argv", [call.module, *call.words])
    if call.module == "benchmarks.predict.gpt_runs":
        pytest.importorskip("torch")
        from benchmarks.predict import gpt_runs

        return gpt_runs.flags()
    # a copy of the command: it keeps the names of its help option, which are the group's elsewhere
    readers: dict[str, Callable[[], Any]] = {
        "benchmarks.ladder": lambda: ladder.parse(call.words),
        "benchmarks.scaling.all_reduce": lambda: all_reduce.parse(call.words),
        "benchmarks.predict.gpt_ranks": gpt_ranks.main,
        "profiles.programs.record": lambda: record.RECORDINGS[call.words[1]],
        "profiles.collect_ladder": collect_ladder.options,
        "perfmodel": lambda: copy(measure_).make_context("measure", call.words[2:]).params,
    }
    return readers[call.module]()


@pytest.mark.parametrize("ranks", [4, 8])
def test_parts_on_several_gpus_can_be_read(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, int]] = []
    monkeypatch.setattr(gpt_ranks, "record", lambda *words: asked.append(words))
    calls, _ = run(tmp_path, str(ranks))
    made = [(call, read(call, monkeypatch)) for call in calls if call.part not in OLDER]
    scaled = [call.ranks for call in calls if call.part == "scaling"]
    assert [call.part for call, _ in made] == [
        *FIRST, *("scaling" for _ in scaled), "ladder", "profiles",
    ]  # fmt: skip
    assert sorted(scaled) == [p for p in (1, 2, 4, 8) if p <= ranks]
    assert {call.ranks for call in calls if call.part in ("gpt-ranks", "all-reduce", "ladder")} == {
        ranks
    }
    found = {call.part: options for call, options in made}
    launches = [options for call, options in made if call.part == "gpt-ranks"]
    assert [(o.sizes, o.both, o.tag) for o in launches] == [
        ("ranks", True, f"launch{n}") for n in (1, 2, 3)
    ]
    (folder,) = {o.out for o in launches}
    assert asked == [(folder, ranks)], "reports lie beside the times: `score` reads both"
    assert folder.parent == Path("benchmarks/results/gpt")
    assert found["all-reduce"].out == all_reduce.RESULTS
    assert found["tensor"] == record.RECORDINGS[f"gpt_tensor{ranks}"]
    assert folders.ROOT / found["ladder"].out == ladder.RESULTS


@pytest.mark.parametrize("ranks", [2, 8])
def test_strong_and_weak_scaling_have_a_point_for_each_number_of_gpus(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, _ = run(tmp_path, str(ranks), "scaling")
    sizes = set()
    for call in calls:
        options = read(call, monkeypatch)
        assert options.out == Path(f"benchmarks/results/scaling_{ranks}.json")
        assert {*options.rungs, *(f"torch {peer}" for peer in options.peers)} == {*steps.ORDER}
        sizes |= {(call.ranks, cell.hidden, cell.batch) for cell in options.cells}
    every = [p for p in (1, 2, 4, 8) if p <= ranks]
    for p in every:
        assert {(p, 512, 3000), (p, 2048, 12000), (p, 512, 3000 * p)} <= sizes
    assert len(sizes) == 3 * len(every) - 1, "one GPU's point is both"


def test_two_gpus_measure_what_they_can_and_keep_the_recorded_report(tmp_path: Path) -> None:
    calls, said = run(tmp_path, "2")
    parts = [call.part for call in calls]
    assert {"all-reduce", "tensor", "scaling", "ladder", "memory-two"} <= {*parts}
    assert not any(part.startswith("gpt-") for part in parts), "nothing predicts two"
    (tensor,) = [call for call in calls if call.part == "tensor"]
    assert tensor.words == [f"{tmp_path}/logs/programs", "gpt_tensor2"]
    assert said.endswith("failed: none; no time for: none\n")
    assert len(read_log(tmp_path, "all-reduce")) == 2


def read_log(tmp_path: Path, part: str) -> list[str]:
    """Return how the launches of a part ended."""
    text = (tmp_path / "logs" / f"{part}.log").read_text(encoding="utf-8")
    return re.findall(r"status 0", text)


def test_parts_are_chosen_by_name_also_those_that_two_gpus_leave_out(tmp_path: Path) -> None:
    calls, _ = run(tmp_path, "2", "gpt-ranks", "tensor")
    assert [call.part for call in calls] == ["gpt-ranks"] * 3 + ["tensor"]


def test_no_part_takes_longer_than_the_budget_leaves(tmp_path: Path) -> None:
    calls, said = run(tmp_path, "8", BUDGET_S="45")
    assert max(call.limit_s for call in calls) <= 45
    assert "failed: none; no time for: none" in said


def test_a_spent_budget_is_said(tmp_path: Path) -> None:
    calls, said = run(tmp_path, "8", "tensor", "ladder", BUDGET_S="9")
    assert calls == []
    assert said.endswith("failed: none; no time for: tensor ladder\n")


def test_utilization_is_sampled_as_long_as_it_was_recorded() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    [(limit, asked)] = re.findall(
        r"utilization-resnet (\d+) .*utilization\.resnet[ \\\n]+--seconds ([\d ]+)", script
    )
    recorded_s: dict[str, float] = {}
    rows = results.read(folders.RESULTS / "utilization_resnet.json")["rows"]
    for row in rows:
        names, seconds = row["command"].partition("--steps ")[2].split(" --seconds ")
        each = seconds.split() * (len(names.split()) if len(seconds.split()) == 1 else 1)
        recorded_s |= dict(zip(names.split(), map(float, each), strict=True))
    assert len(rows) == len(asked.split()) == len(recorded_s)
    for row, given in zip(rows, map(float, asked.split()), strict=True):
        assert given >= recorded_s[row["name"]]
    assert float(limit) > sum(map(float, asked.split())) + 60
