"""ncu.sh with a stand-in for ncu, which is not here: its arguments, ranks, retries and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.analysis.counters import METRICS
from perfmodel.readers.ncu import DEVICE
from support.build_ncu import FFMA, TIME, Kernel, wide
from support.cli import succeeds
from support.trainer_runs import ROOT, environment, need_mpi

pytestmark = pytest.mark.slow

FLAGS = [
    "--backend", "numpy", "--data", "synthetic", "--train-size", "90", "--test-size", "30",
    "--batch-size", "30", "--hidden-size", "16",
]  # fmt: skip
STUB = r"""#!/usr/bin/env bash
echo "$@" >>"$STUB_CALLS"
if [ "$1" = --import ]; then cat "$STUB_TABLE"; exit; fi
while [ $# -gt 0 ]; do
    case $1 in
        --target-processes | --clock-control | --nvtx-exclude | --nvtx-include) shift 2 ;;
        --metrics) metrics=$2; shift 2 ;;
        -o) out=$2; shift 2 ;;
        --nvtx | --force-overwrite) shift ;;
        *) break ;;
    esac
done
[ -z "${STUB_SAYS:-}" ] || { echo "$STUB_SAYS"; exit 1; }
for unknown in ${STUB_UNKNOWN:-}; do
    case ,$metrics, in *,$unknown,*) echo "==ERROR== Failed to find metric $unknown"; exit 1 ;; esac
done
"$@" || exit $?
[ -n "${STUB_NOTHING:-}" ] || echo report >"$out.ncu-rep"
"""


def script(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    stub = tmp_path / "bin" / "ncu"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(STUB)
    stub.chmod(0o755)
    kernels = [Kernel("sgemm", {TIME: 62e3, FFMA: 1e9}, ("batch iteration", "forward GEMM 1"))]
    (tmp_path / "table.csv").write_text(wide(kernels))
    clean = {k: v for k, v in environment().items() if not k.startswith("SLURM_")}
    stand_in = {
        "PERFMODEL_NCU": str(stub), "PYTHON": sys.executable, "NCU_OUT": str(tmp_path / "out"),
        "STUB_CALLS": str(tmp_path / "calls"), "STUB_TABLE": str(tmp_path / "table.csv"),
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(ROOT / "ncu.sh"), *arguments],
        capture_output=True, text=True, timeout=120, check=False, env={**clean, **stand_in, **env},
    )  # fmt: skip


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


@pytest.fixture(autouse=True)
def tools() -> None:
    pytest.importorskip("nvtx")
    need_mpi()


@pytest.mark.mpi
def test_one_rank_is_counted_and_its_table_is_read(tmp_path: Path):
    done = script(tmp_path, "--", *FLAGS)
    assert done.returncode == 0, done.stderr
    profile, table = calls(tmp_path)
    assert "--nvtx --clock-control none" in profile
    assert "--nvtx-include batch iteration/" in profile
    assert "--nvtx-exclude ncclAllReduce/" in profile
    assert f"--metrics {','.join((*METRICS, DEVICE))} {sys.executable} -m trainer" in profile
    assert table.endswith("--csv --page raw --print-units base")
    command = done.stdout.splitlines()[-1].split()
    assert command[:2] == ["perfmodel", "counters"]
    assert "forward GEMM 1" in succeeds(*command[1:])


@pytest.mark.mpi
def test_of_several_ranks_one_is_counted(tmp_path: Path):
    done = script(tmp_path, "--", *FLAGS, RANKS="2", NCU_RANK="1", NCU_RANGE="forward")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1  # rank 0 speaks, and was not counted
    assert len(calls(tmp_path)) == 2
    assert "--nvtx-include forward/" in calls(tmp_path)[0]


@pytest.mark.mpi
def test_metrics_that_the_gpu_does_not_know_are_left_out(tmp_path: Path):
    unknown = f"sm__ops_path_tensor_src_fp64.sum {DEVICE}"
    done = script(tmp_path, "--", *FLAGS, STUB_UNKNOWN=unknown, NCU_RANGE="")
    assert done.returncode == 0, done.stderr
    first, *_, last, _ = calls(tmp_path)
    assert DEVICE in first
    assert "src_fp64" not in last
    assert DEVICE not in last
    assert "--nvtx-include" not in last
    assert done.stderr.count("this GPU does not know") == 2


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("env", "arguments", "words"),
    [
        ({"PERFMODEL_NCU": "/dev/null/none/ncu"}, [], "expected /dev/null/none/ncu; got none"),
        ({"PYTHON": "/dev/null/none/python"}, [], "expected /dev/null/none/python; got none"),
        ({"RANKS": "two"}, [], "expected a number of ranks; got 'two'"),
        ({"NCU_RANK": "1"}, [], "expected one of ranks 0 to 0; got '1'"),
        ({"SLURM_SUBMIT_DIR": "/"}, [], "call sbatch in the repository's root"),
        ({"STUB_SAYS": "==ERROR== ERR_NVGPUCTRPERM"}, [], "NVreg_RestrictProfilingToAdminUsers=0"),
        ({"STUB_NOTHING": "1"}, FLAGS, "no kernel was launched inside 'batch iteration'"),
        ({}, [*FLAGS, "--learning-rate", "-1"], "ended with code 2"),
    ],
)
def test_what_is_wrong_is_named(env, arguments, words, tmp_path: Path):
    done = script(tmp_path, "--", *arguments, **env)
    assert done.returncode == 1
    assert words in done.stderr
    assert not list(tmp_path.glob("out/*.csv"))


def test_help_is_the_head_of_the_file():
    done = subprocess.run(["bash", "ncu.sh", "-h"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("Count what the trainer's kernels do")
    assert "NCU_RANK" in done.stdout
    assert "SBATCH" not in done.stdout


def test_the_script_may_be_run():
    assert os.access(ROOT / "ncu.sh", os.X_OK) == os.access(ROOT / "nsys.sh", os.X_OK)
