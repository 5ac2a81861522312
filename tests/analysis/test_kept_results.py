"""A folder of kept results: several commands at once, damage, other versions, no space, folders."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import BASE, ROOT
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.cache import Cache
from perfmodel.programs.program import Options
from perfmodel.render.analysis_json import analysis_document
from profiles.grow import grow_ranks

REPORTS = 6


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return grow_ranks(BASE, tmp_path_factory.mktemp("job"), REPORTS)


def start(
    job: list[Path], kept: Path, *options: str, root: Path = ROOT, seed: str = "0", limit: int = 0
) -> subprocess.Popen[str]:
    """Start the command; `limit` bytes are the most that it may write to one file."""
    command = [sys.executable, "-m", "perfmodel", "analyze", *map(str, job), "--json"]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": seed}

    def no_space() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [*command, "--cache", str(kept), *options], stdout=subprocess.PIPE, text=True, cwd=root,
        stderr=subprocess.PIPE, env=environment, preexec_fn=no_space,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


def written(kept: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}


@pytest.mark.slow
def test_commands_at_once_share_a_folder(job: list[Path], tmp_path: Path) -> None:
    alone, _ = finished(start(job, tmp_path / "alone"))
    together = [start(job, tmp_path / "kept") for _ in range(4)]
    assert {finished(process)[0] for process in together} == {alone}
    before = written(tmp_path / "kept")
    assert sorted(before) == sorted(written(tmp_path / "alone"))  # nothing half-written is left
    assert finished(start(job, tmp_path / "kept"))[0] == alone
    assert written(tmp_path / "kept") == before


def test_a_result_of_which_one_byte_changed_is_none(job: list[Path], tmp_path: Path) -> None:
    expected = analysis_document(analyze_reports(job[:1], Options({}), cache=tmp_path))
    (kept,) = tmp_path.iterdir()
    whole, rng = kept.read_bytes(), np.random.default_rng(4)
    for at in (0, 9, 20, len(whole) - 1, *rng.integers(0, len(whole), 60).tolist()):
        kept.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert Cache(tmp_path).get(kept.stem) is None
    assert analysis_document(analyze_reports(job[:1], Options({}), cache=tmp_path)) == expected
    assert kept.read_bytes() == whole


@pytest.mark.slow
def test_another_version_keeps_its_own_results(job: list[Path], tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other"
    out, _ = finished(start(job, kept))
    before = written(kept)
    shutil.copytree(ROOT / "perfmodel", other / "perfmodel")
    with (other / "perfmodel" / "base" / "units.py").open("a") as file:
        file.write("# changed\n")
    assert finished(start(job, kept, root=other))[0] == out
    assert len(written(kept)) == 2 * len(before)
    assert before.items() < written(kept).items()


@pytest.mark.slow
def test_options_that_change_results_have_their_own(job: list[Path], tmp_path: Path) -> None:
    """The same ones find them again, whatever order Python's hashes have."""
    example = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
    cases = (
        (),
        ("--batch-range", "forward"),
        ("--attribute", "thread"),
        ("--workload", str(example)),
        ("--workload", "layers:resnet18", "--batch-size", "768000"),
    )
    kept = tmp_path / "kept"
    for count, options in enumerate(cases, 1):
        plain = start(job[:1], tmp_path / str(count), *options)
        out, err = plain.communicate(timeout=120)
        for seed in ("1", "2"):
            again = start(job[:1], kept, *options, seed=seed)
            assert again.communicate(timeout=120) == (out, err)
            assert again.returncode == plain.returncode
            assert len(written(kept)) == count


@pytest.mark.slow
def test_where_there_is_no_space_it_says_so_and_analyzes(job: list[Path], tmp_path: Path) -> None:
    out, _ = finished(start(job, tmp_path / "alone"))
    kept = tmp_path / "kept"
    again, err = finished(start(job, kept, limit=10_000))
    assert again == out
    assert f"{REPORTS} of {REPORTS} results are not kept" in err
    assert "raise the limit of the size of a file" in err
    assert written(kept) == {}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_read(job: list[Path], tmp_path: Path) -> None:
    out, _ = finished(start(job[:-1], tmp_path))
    tmp_path.chmod(0o500)
    assert finished(start(job[:-1], tmp_path)) == (out, "")
    _, err = finished(start(job, tmp_path))
    assert f"1 of {REPORTS} results are not kept" in err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_folders_of_arrow_and_parquet_are_kept(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow", reason="no pyarrow: pip install 'perfmodel[arrow]'")
    from support.build_columnar import write_folder

    suffix = {"arrow": "arwdir", "parquet": "pqtdir"}[kind]
    folder, kept = write_folder(BASE, tmp_path / f"report_{suffix}", kind), tmp_path / "kept"

    def found() -> object:
        return analysis_document(analyze_reports([folder], Options({}), cache=kept))

    expected = found()
    before = written(kept)
    assert len(before) == 1
    assert found() == expected
    assert written(kept) == before
    kernels = folder / f"CUPTI_ACTIVITY_KIND_KERNEL.{kind}"
    kernels.rename(kernels.with_name("OTHER" + kernels.suffix))  # the same bytes, another name
    assert found() != expected
    assert len(written(kept)) == 2
