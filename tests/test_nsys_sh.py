"""nsys.sh for real: under a one-node Slurm and without, asserting on the exported reports."""

import contextlib
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import commands_of_jobs

from perfmodel.machines.doctor import parse
from support.trainer_runs import ROOT, environment, need_mpi
from trainer.ranges import PARENT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_profile")]

FLAGS = [
    "--backend", "numpy", "--data", "synthetic", "--train-size", "900", "--test-size", "50",
    "--batch-size", "90", "--hidden-size", "32",
]  # fmt: skip
ON_GPUS = {
    "copying images host -> device", "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice",
    "cudaDeviceSynchronize", "ncclAllReduce", "peer all-reduce and step", "CUDA graph",
}  # fmt: skip


@pytest.fixture(scope="module")
def nsys() -> str:
    found = shutil.which(os.environ.get("PERFMODEL_NSYS", "nsys"))
    if found is None:
        pytest.skip("no nsys: neither on the PATH nor in PERFMODEL_NSYS")
    pytest.importorskip("nvtx", reason="nvtx is not installed")
    need_mpi()
    return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Start a real one-node Slurm with two pretended GPUs; yield its command and environment."""
    tool = os.environ.get("SLURM_LOCAL") or shutil.which("slurm-local")
    if not tool or not Path(tool).exists():
        pytest.skip("no Slurm: SLURM_LOCAL does not name slurm-local, which starts one")
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            pytest.skip(f"no Slurm: {program} is not installed")
    directory = tmp_path_factory.mktemp("slurm")
    started = subprocess.run(
        [tool, "start", str(directory), "--gpus", "2"], capture_output=True, text=True, check=False
    )
    if started.returncode:
        pytest.skip(f"Slurm does not start here: {started.stderr.strip()[-300:]}")
    yield tool, directory, environment(SLURM_CONF=str(directory / "slurm.conf"))
    subprocess.run([tool, "stop", str(directory)], check=False)


def script(*arguments: str, timeout: float = 300, **env: str):
    """Run ``bash nsys.sh`` with a Python that is this one."""
    clean = {k: v for k, v in environment(**env).items() if not k.startswith("SLURM_")}
    return subprocess.run(
        ["bash", str(ROOT / "nsys.sh"), *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={"PYTHON": sys.executable, "OMPI_MCA_rmaps_base_oversubscribe": "1", **clean},
    )  # fmt: skip


def test_an_nvtx_that_this_nsys_does_not_record_stops_before_the_run(
    nsys: str, tmp_path: Path
) -> None:
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True)
    if parse(version.stdout) >= (2024, 3):
        pytest.skip("this nsys records any nvtx")
    (tmp_path / "nvtx.py").touch()
    info = tmp_path / "nvtx-0.2.12.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvtx\nVersion: 0.2.12\n")
    done = script("--", *FLAGS, PYTHONPATH=str(tmp_path), NSYS_OUT=str(tmp_path / "out"))
    assert done.returncode == 1
    assert "nvtx 0.2.12 with Nsight Systems 2024.2" in done.stderr
    assert "pip install 'nvtx==0.2.11'" in done.stderr
    assert not (tmp_path / "out").exists()


def ranges_of(db: sqlite3.Connection) -> dict[int, list[tuple[int, int, str]]]:
    """Return (start, end, name) of the default domain's push/pop ranges, per process."""
    text = "coalesce(n.text, s.value)"
    rows = db.execute(
        f"SELECT (n.globalTid >> 24) & 0xFFFFFF, n.start, n.end, {text} FROM NVTX_EVENTS n "
        "LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE n.eventType = 59 AND n.domainId = 0 ORDER BY n.start, n.end DESC"
    )
    found: dict[int, list[tuple[int, int, str]]] = {}
    for pid, *rest in rows:
        found.setdefault(pid, []).append(tuple(rest))
    return found


def check_nesting(ranges: list[tuple[int, int, str]]) -> list[str]:
    """Assert that every range lies in the parent it should have; return the names in order."""
    stack: list[tuple[int, int, str]] = []
    for start, end, name in ranges:
        while stack and stack[-1][1] <= start:
            stack.pop()
        assert (stack[-1][2] if stack else None) == PARENT[name], name
        assert not stack or end <= stack[-1][1], name
        stack.append((start, end, name))
    return [name for _, _, name in ranges]


def check_report(path: Path, ranks: list[int], epochs: int = 3) -> dict[int, dict]:
    """Assert that a report holds all ranges, MPI events and marks of these ranks."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        by_process = ranges_of(db)
        assert len(by_process) == len(ranks)
        for ranges in by_process.values():
            names = check_nesting(ranges)
            assert set(names) == set(PARENT) - ON_GPUS
            assert names.count("batch iteration") == 10 * epochs
            assert names.count("GPU parallel train") == 1
        calls = db.execute(
            "SELECT s.value, count(*), sum(m.size) FROM MPI_COLLECTIVES_EVENTS m "
            "JOIN StringIds s ON s.id = m.textId GROUP BY 1"
        )
        counts = {name: (count, size) for name, count, size in calls}
        assert counts["MPI_Allreduce"][0] >= 4 * 10 * epochs * len(ranks)
        bytes_per_batch = 4 * (784 * 32 + 32 + 10 * 32 + 10)
        assert counts["MPI_Allreduce"][1] >= bytes_per_batch * 10 * epochs * len(ranks)
        assert {r for (r,) in db.execute("SELECT rank FROM MPI_RANKS")} == set(ranks)
        marks = db.execute(
            "SELECT coalesce(n.text, s.value), n.start, (n.globalTid >> 24) & 0xFFFFFF "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 34"
        ).fetchall()
        configs = {}
        for text, at, pid in marks:
            config = json.loads(text)
            if config.get("perfmodel_recorder"):  # what was timed before
                assert 0 < config["low_s"] <= config["step_s"] <= config["high_s"]
                continue
            assert config["perfmodel_config"] == 1
            configs[config["rank"]] = config
            first = next(s for s, _, name in by_process[pid] if name == "batch iteration")
            setup = next(e for _, e, name in by_process[pid] if name == "train setup")
            assert setup <= at <= first
        assert set(configs) == set(ranks)
        return configs


@pytest.mark.slurm
@pytest.mark.nsys
@pytest.mark.mpi
def test_sbatch_profiles_exports_and_says_what_is_next(slurm, nsys, tmp_path):
    tool, directory, env = slurm
    env = {**env, "PERFMODEL_NSYS": nsys, "PYTHON": sys.executable}
    submitted = subprocess.run(
        ["sbatch", "--parsable", f"--output={tmp_path}/slurm-%j.out", "nsys.sh", "--", *FLAGS],
        cwd=ROOT, env={**env, "NSYS_OUT": str(tmp_path / "reports")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    job = submitted.stdout.strip()
    ended = subprocess.run([tool, "wait", str(directory), job, "240"], env=env, check=False)
    output = (tmp_path / f"slurm-{job}.out").read_text()
    assert ended.returncode == 0, output
    report = tmp_path / "reports" / f"job{job}.sqlite"
    assert output.rstrip().endswith(f"perfmodel analyze {report}")
    configs = check_report(report, [0, 1])
    assert configs[0]["run_id"] == configs[1]["run_id"]
    assert {configs[0][k] for k in ("hidden_size", "batch_size")} == {32, 90}
    assert configs[0]["ranks"] == 2
    assert configs[0]["backend"] == "numpy"


@pytest.mark.slurm
@pytest.mark.nsys
@pytest.mark.mpi
def test_jobs_of_the_documentation_run(slurm, nsys, tmp_path):
    """Every sbatch of a page, with small data on the CPU; then what reads the reports."""
    tool, directory, env = slurm
    env = {**env, "PERFMODEL_NSYS": nsys, "PYTHON": sys.executable}
    for name in ("nsys.sh", "trainer"):
        (tmp_path / name).symlink_to(ROOT / name)
    jobs: dict[str, str] = {}
    for page, command in commands_of_jobs():
        words = shlex.split(command, comments=True)
        if words[0] == "sbatch":
            more = FLAGS if "--" in words else ["--", *FLAGS]
            done = subprocess.run(
                [*words, *more], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
            )
            jobs[page] = done.stdout.split()[-1]
    assert set(jobs) == {"tutorial.md"}
    for job in jobs.values():
        ended = subprocess.run([tool, "wait", str(directory), job, "240"], env=env, check=False)
        said = (tmp_path / f"slurm-{job}.out").read_text()
        assert ended.returncode == 0, said
        assert said.splitlines()[-2] == "nsys.sh: now run"
    for page, command in commands_of_jobs():
        words = shlex.split(command.replace("job1", f"job{jobs[page]}"), comments=True)
        if words[0] == "perfmodel":
            run = [sys.executable, "-m", *words]
            shown = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert shown.returncode == 0, shown.stderr
            assert "2 ranks" in shown.stdout.splitlines()[0]


@pytest.mark.nsys
@pytest.mark.mpi
def test_one_report_per_rank_and_none_overwritten(nsys, tmp_path):
    reports = []
    for _ in range(2):
        done = script(
            "--", *FLAGS, PERFMODEL_NSYS=nsys, NSYS_OUT=str(tmp_path), NSYS_PER_RANK="1",
            NSYS_MEMORY="1", SLURM_SUBMIT_DIR="",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert " --cuda-memory-usage=true " in done.stdout
        command = done.stdout.strip().splitlines()[-1]
        assert command.startswith("perfmodel analyze ")
        reports += command.split()[2:]
    assert len(set(reports)) == 4
    for rank, path in enumerate(reports[:2]):
        assert path.endswith(f".rank{rank}.sqlite")
        check_report(Path(path), [rank])


@pytest.mark.nsys
@pytest.mark.mpi
def test_a_trainers_error_ends_the_job_without_retries(nsys, tmp_path):
    done = script(
        "--", *FLAGS, "--learning-rate", "-1",
        PERFMODEL_NSYS=nsys, NSYS_OUT=str(tmp_path), NSYS_PER_RANK="1",
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("expected a finite number > 0") == 1
    assert "ended with code 2" in done.stderr


@pytest.mark.parametrize(
    ("env", "arguments", "words"),
    [
        ({"PERFMODEL_NSYS": "/dev/null/none/nsys"}, [], "expected /dev/null/none/nsys; got none"),
        ({"PYTHON": "/dev/null/none/python"}, [], "expected /dev/null/none/python; got none"),
        ({"PATH": "without mpirun"}, [], "expected mpirun; got none"),
        ({}, ["--", "--backend", "cupy"], "expected CuPy and a GPU"),
        ({"SLURM_SUBMIT_DIR": "/"}, [], "call sbatch in the repository's root"),
    ],
)
def test_what_is_missing_is_named(env, arguments, words, tmp_path):
    need_mpi()
    pytest.importorskip("nvtx")
    if "cupy" in arguments:
        try:
            import cupy

            if cupy.cuda.runtime.getDeviceCount():
                pytest.skip("there is a GPU here")
        except Exception:
            pass
    fake = tmp_path / "bin"
    fake.mkdir()
    for tool in ("bash", "dirname", "date", "hostname", "timeout", "env"):
        (fake / tool).symlink_to(shutil.which(tool))
    (fake / "nsys").write_text("#!/bin/sh\nexit 1\n")
    (fake / "nsys").chmod(0o755)
    path = str(fake) if "PATH" in env else f"{fake}:{os.environ['PATH']}"
    full = {k: v for k, v in environment().items() if not k.startswith("SLURM_")}
    full |= {"PERFMODEL_NSYS": "nsys", "PYTHON": sys.executable, "NSYS_OUT": str(tmp_path / "out")}
    full |= {**env, "PATH": path}
    done = subprocess.run(
        [str(shutil.which("bash")), str(ROOT / "nsys.sh"), *arguments],
        capture_output=True, text=True, env=full, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(re.escape(words), done.stderr), done.stderr
