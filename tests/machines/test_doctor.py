"""`perfmodel doctor`: checks against programs that answer, fail, hang and crash."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from benchmarks.common.folders import ROOT
from perfmodel.commands.doctor import doctor
from perfmodel.machines import doctor as checks
from perfmodel.machines.doctor import (
    PURPOSES,
    QUESTIONS,
    SHIPPED_WITH,
    Check,
    Place,
    Probe,
    Question,
    State,
    diagnose,
    driver_with_nsys,
    judge,
    make,
    newest_cuda,
    nvtx_with_nsys,
    parse,
)
from perfmodel.render.machines import checkup, checkup_document, sentences
from support.cli import perfmodel
from support.trainer_runs import need_mpi

Fake = Callable[..., Place]


@pytest.fixture
def place(tmp_path: Path) -> Fake:
    """Make a machine whose programs, kernel files and Python modules are those given."""

    def make(programs: dict[str, str] | None = None, **files: str) -> Place:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for tool in ("sh", "sleep", "test", "true"):
            if not (folder / tool).exists():
                (folder / tool).symlink_to(shutil.which(tool) or tool)
        for name, script in (programs or {}).items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        for name, content in files.items():
            path = tmp_path / "root" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        env = {"PATH": str(folder), "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "modules")}
        return Place(env, tmp_path / "root")

    return make


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str, str], None]:
    """Write a module that the machine's Python finds before its own."""

    def write(name: str, content: str) -> None:
        path = tmp_path / "modules" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    return write


NSYS = 'test "$1" = --version && echo "NVIDIA Nsight Systems version {}-1v0" && exit\n'
RECORDS = 'case "$1" in profile) : > report.nsys-rep;; export) echo made > report.sqlite;; esac'


# --- what goes together


@pytest.mark.parametrize(
    ("nvtx", "nsys", "state"),
    [
        ((0, 2, 11), (2024, 2, 3, 38), "good"), ((0, 2, 12), (2024, 2, 3, 38), "broken"),
        ((0, 2, 13), (2024, 2, 3, 38), "broken"),
        ((0, 2, 15), (2023, 4), "broken"), ((0, 2, 13), (2025, 3, 2), "good"),
        ((0, 2, 13), (2024, 5, 1), "doubtful"), ((0, 3), (2024, 2), "broken"),
    ],
)  # fmt: skip
def test_nvtx_and_nsight_systems(nvtx: tuple[int, ...], nsys: tuple[int, ...], state: str) -> None:
    """Tried: nsys 2024.2.3 records 0.2.11, not 0.2.12, 0.2.13 and 0.2.15; 2025.3 any."""
    probe = nvtx_with_nsys(nvtx, nsys)
    assert probe.state == state
    assert ("nvtx==0.2.11" in probe.advice) == (state != "good")


def test_drivers_and_nsight_systems() -> None:
    assert newest_cuda((2024, 2, 3)) == (12, 5)
    assert newest_cuda((2025, 3, 2)) == (13, 0)
    assert newest_cuda((2021, 1)) is None
    assert driver_with_nsys((12, 4), (2024, 2, 3)).state == "good"
    newer = driver_with_nsys((13, 0), (2024, 2, 3, 38))
    assert newer.state == "doubtful"
    assert "made for CUDA 12.5: reports may hold no CUDA events" in newer.found
    assert newer.advice == "install Nsight Systems 2025.3 or later"
    assert "as new as the driver" in driver_with_nsys((99, 0), (2025, 3)).advice
    assert sorted(SHIPPED_WITH) == list(SHIPPED_WITH)
    assert sorted(cuda for _, cuda in SHIPPED_WITH) == [cuda for _, cuda in SHIPPED_WITH]


@pytest.mark.parametrize(
    ("text", "version"),
    [("2024.2.3.38-2v0", (2024, 2, 3, 38)), ("sympy>=1.12", (1, 12)), ("none", None), ("7", None)],
)
def test_versions_in_what_programs_print(text: str, version: tuple[int, ...] | None) -> None:
    assert parse(text) == version


# --- judging


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize(
    ("state", "if_needed", "else_"),
    [
        ("good", "ok", "ok"), ("doubtful", "warning", "warning"),
        ("broken", "failed", "warning"), ("absent", "failed", "not needed"),
    ],
)  # fmt: skip
def test_only_what_is_needed_can_fail(
    state: State, if_needed: str, else_: str, needed: bool
) -> None:
    question = Question("it", frozenset({"mpi", "gpu"}), lambda _: Probe("good", ""))
    check = judge(
        question, Probe(state, "found", "do"), ["analyze", "gpu"] if needed else ["analyze"]
    )
    assert check.status == (if_needed if needed else else_)
    assert check.needed_for == ("mpi", "gpu")


def test_a_check_that_fails_leaves_the_others_alone() -> None:
    def bad(_: Place) -> Probe:
        raise ZeroDivisionError("oh")

    asked = (
        Question("bad", frozenset({"analyze"}), bad),
        Question("good", frozenset({"analyze"}), lambda _: Probe("good", "fine")),
    )
    checks = diagnose(["analyze"], Place(), asked)
    assert [c.status for c in checks] == ["failed", "ok"]
    assert checks[0].found == "the check itself failed: ZeroDivisionError: oh"


def test_what_hangs_is_ended_with_all_it_started(place: Fake, tmp_path: Path) -> None:
    here = place({"nsys": f"sleep 300 & echo $! > {tmp_path}/child; echo thinking; sleep 300"})
    here = Place(here.environment, here.root, patience=0.05)
    probe = make(Question("nsys", frozenset(), checks.nsys), here)
    assert probe.state == "broken"
    assert "no answer within 0.5 s" in probe.found
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


# --- Nsight


def test_nsight_systems_is_tried(place: Fake) -> None:
    assert checks.nsys(place()).state == "absent"
    assert checks.nsys_exports(place()).state == "absent"
    good = place({"nsys": NSYS.format("2024.2.3.38") + RECORDS})
    assert checks.nsys(good).state == "good"
    assert checks.nsys_exports(good).state == "good"
    old = place({"nsys": NSYS.format("2021.1.1")})
    assert checks.nsys(old).state == "doubtful"
    for script in ("exit 3", "echo Importation failed; exit 1", "kill -SEGV $$"):
        broken = place({"nsys": script})
        assert checks.nsys(broken).state == "broken"
        assert checks.nsys_exports(broken).state == "broken"
    assert (
        "Importation failed"
        in checks.nsys_exports(place({"nsys": "echo Importation failed; exit 1"})).found
    )


@pytest.mark.nsys
def test_the_real_nsight_systems(nsys: str) -> None:
    here = Place({**os.environ, "PATH": f"{Path(nsys).parent}{os.pathsep}{os.environ['PATH']}"})
    assert checks.nsys(here).state == "good"
    assert checks.nsys_exports(here).state == "good"
    assert checks.driver_known(here).state in ("absent", "good", "doubtful")


def test_ranges_of_nvtx(place: Fake, module: Callable[[str, str], None]) -> None:
    module("nvtx", "")
    module("importlib_metadata_", "")
    fake = place().environment["PYTHONPATH"]
    info = Path(fake) / "nvtx-0.2.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvtx\nVersion: 0.2.13\n")
    assert checks.nvtx(place()).found == "nvtx 0.2.13; no nsys to go with it"
    assert checks.nvtx(place({"nsys": NSYS.format("2024.2.3.38")})).state == "broken"
    assert checks.nvtx(place({"nsys": NSYS.format("2025.3.2.1")})).state == "good"
    module("nvtx", "raise ImportError('libnvtx.so: wrong ELF class')")
    assert "wrong ELF class" in checks.nvtx(place()).found


SMI = """
case "$1" in
--query-gpu*) echo "NVIDIA H200, 580.65.06"; echo "NVIDIA H200, 580.65.06";;
*) echo "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06   CUDA Version: 13.0 |";;
esac"""


def test_the_driver(place: Fake) -> None:
    assert checks.driver(place()).state == "absent"
    here = place({"nvidia-smi": SMI, "nsys": NSYS.format("2024.2.3.38")})
    assert checks.driver(here).found == "2 x NVIDIA H200, driver 580.65.06 (CUDA 13.0)"
    assert checks.driver_known(here).state == "doubtful"
    failing = place({"nvidia-smi": "echo NVIDIA-SMI has failed; exit 9"})
    assert checks.driver(failing).found == "nvidia-smi: NVIDIA-SMI has failed"
    assert checks.driver(place({"nvidia-smi": "exit 0"})).found == "nvidia-smi lists no GPU"


def test_permission_to_count(place: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "proc__driver__nvidia__params"
    assert checks.counters(place()).state == "absent"
    free = place(None, **{key: "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n"})
    assert checks.counters(free).state == "good"
    admin = place(None, **{key: "RmProfilingAdminOnly: 1\n"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    probe = checks.counters(admin)
    assert probe.state == "broken"
    assert "ERR_NVGPUCTRPERM" in probe.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in probe.advice
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert checks.counters(admin).state == "good"
    assert checks.counters(place(None, **{key: "Other: 1\n"})).state == "doubtful"


def test_nsight_compute_and_cpu_sampling(place: Fake) -> None:
    assert checks.ncu(place()).state == "absent"
    here = place({"ncu": "echo 'NVIDIA (R) Nsight Compute'; echo 'Version 2025.3.1.0 (build 3)'"})
    assert checks.ncu(here).found.startswith("2025.3.1.0, ")
    assert checks.ncu(place({"ncu": "exit 1"})).state == "broken"
    for value, state in (("2", "good"), ("-1", "good"), ("4", "doubtful"), ("what", "absent")):
        key = {"proc__sys__kernel__perf_event_paranoid": f"{value}\n"}
        assert checks.cpu_sampling(place(None, **key)).state == state


# --- ranks


ALONE = 'test "$1" = --version && echo "mpirun (Fake MPI) 1" && exit\nshift 2\n"$@"; "$@"'


def test_mpirun_of_another_mpi_than_mpi4py(place: Fake) -> None:
    pytest.importorskip("mpi4py")
    fake = place({"mpirun": ALONE})
    path = f"{fake.environment['PATH']}{os.pathsep}{os.environ['PATH']}"
    here = Place({**os.environ, "PATH": path})
    assert checks.mpirun(here).found.startswith("mpirun (Fake MPI) 1, ")
    probe = checks.two_ranks(here)
    assert probe.state == "broken"
    assert "each believes that it is alone" in probe.found


def test_ranks_that_do_not_start(place: Fake, module: Callable[[str, str], None]) -> None:
    assert checks.mpirun(place()).state == "absent"
    assert checks.two_ranks(place()).state == "absent"
    assert checks.cuda_aware(place()).state == "absent"
    root = "echo 'mpirun has detected an attempt to run as root.'; exit 1"
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in checks.two_ranks(place({"mpirun": root})).advice
    orted = "echo 'ORTE was unable to start'; exit 213"
    assert "ORTE was unable to start" in checks.two_ranks(place({"mpirun": orted})).found
    module("mpi4py", "raise ImportError('libmpi.so.40: cannot open shared object file')")
    probe = checks.mpi4py(place())
    assert probe.state == "broken"
    assert "libmpi.so.40: cannot open" in probe.found


@pytest.mark.parametrize(
    ("said", "state"), [("true", "good"), ("false", "absent"), ("null", "absent")]
)
def test_gpu_pointers(place: Fake, said: str, state: str) -> None:
    answer = f'echo \'{{"size": 2, "sum": 3, "cuda_aware": {said}}}\''
    assert checks.cuda_aware(place({"mpirun": answer})).state == state


@pytest.mark.mpi
def test_real_ranks() -> None:
    need_mpi()
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    here = Place({**os.environ, **root})
    assert checks.mpi4py(here).state == "good"
    assert checks.two_ranks(here).state == "good"


def test_slurm(place: Fake) -> None:
    assert checks.slurm(place()).state == "absent"
    assert checks.slurm(place({"srun": "echo MPI plugin types are...; echo pmix"})).state == "good"
    none = checks.slurm(place({"srun": "echo MPI plugin types are...; echo none; echo pmi2"}))
    assert none.state == "doubtful"
    assert "libpmix" in none.advice
    lost = checks.slurm(place({"srun": "echo 'srun: fatal: no configuration' >&2; exit 1"}))
    assert lost.found == "srun: fatal: no configuration"


# --- packages of Python


def test_packages_that_are_broken(place: Fake, module: Callable[[str, str], None]) -> None:
    assert checks.python(place()).state == "good"
    for name in checks.required().keys() - {"sympy"}:  # to import them takes a while
        module(name.replace("-", "_"), "")
    module("sympy", "raise ImportError('half an installation')")
    probe = checks.packages(place())
    assert probe.state == "broken"
    assert probe.found == "sympy: ImportError: half an installation"
    assert probe.advice == "run: pip install --upgrade sympy"


def test_what_is_needed_is_what_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tuple(project["dependencies"]) == checks._WITHOUT_METADATA
    assert set(checks.required()) == {re.split("[>=]", d)[0] for d in project["dependencies"]}


def test_pictures_that_cannot_be_drawn(place: Fake, module: Callable[[str, str], None]) -> None:
    module("matplotlib", "raise ImportError('no freetype')")
    assert checks.pictures(place()).found == "matplotlib: ImportError: no freetype"


CUPY = """
__version__ = "14.2.0"
class cuda:
    class runtime:
        runtimeGetVersion = staticmethod(lambda: 13020)
        getDeviceCount = staticmethod(lambda: 2)
def arange(*_, **__):
    {0}
    import numpy
    return numpy.arange(4)
"""


def test_cupy_computes(place: Fake, module: Callable[[str, str], None]) -> None:
    module("cupy", CUPY.format("pass"))
    assert checks.cupy(place()).found == "CuPy 14.2.0, CUDA 13.2, computes on 2 GPU(s)"
    module("cupy", CUPY.format("raise RuntimeError('cudaErrorInsufficientDriver')"))
    probe = checks.cupy(place())
    assert (probe.state, probe.found) == (
        "broken", "CuPy: RuntimeError: cudaErrorInsufficientDriver"
    )  # fmt: skip
    module("cupy", "import os; os.abort()")
    assert checks.cupy(place()).state == "broken"


# --- the command


@pytest.mark.slow
def test_the_command_here() -> None:
    done = perfmodel("doctor", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["ready"], said["purposes"]) == (True, ["analyze"])
    assert [check["name"] for check in said["checks"]] == [q.name for q in QUESTIONS]
    status = {check["name"]: check["status"] for check in said["checks"]}
    assert set(status.values()) <= {"ok", "warning", "not needed"}
    assert (status["Python"], status["packages"]) == ("ok", "ok")
    assert status["pictures"] in ("ok", "warning")  # a cache of fonts that does not last
    assert all(c["advice"] for c in said["checks"] if c["status"] != "ok")


@pytest.mark.slow
def test_what_is_broken_and_needed_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole command, on a machine without a program and with half of sympy."""
    (tmp_path / "sympy.py").write_text("raise ImportError('half an installation')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = perfmodel("doctor", "--for", "analyze", "--for", "collect")
    assert done.exit_code == 1
    assert done.stderr == ""
    assert "failed: packages: sympy: ImportError: half an installation" in done.stdout
    assert "    -> run: pip install --upgrade sympy" in done.stdout
    assert "failed: Nsight Systems: no nsys on the PATH" in done.stdout
    assert "Not ready, 3 failed (analyze: read reports, print and draw; collect" in done.stdout


def test_what_is_said() -> None:
    checks = (
        Check("one", "ok", "fine", "", ("analyze",)),
        Check("two", "warning", "odd", "fix it", ()),
        Check("three", "failed", "gone", "get it", ("mpi",)),
    )
    assert list(sentences(checks, ["mpi"])) == [
        "failed: three: gone", "    -> get it", "warning: two: odd", "    -> fix it",
        "Not ready, 1 failed (mpi: run several ranks).",
    ]  # fmt: skip
    assert checkup(checks, ["mpi"]).render("csv").splitlines()[:2] == [
        "check,status,found,needed_for", "one,ok,fine,analyze",
    ]  # fmt: skip
    assert checkup_document(checks, ["mpi"])["ready"] is False


def test_purposes_are_those_of_the_command() -> None:
    option = next(o for o in doctor.params if o.name == "purposes")
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == list(PURPOSES)
    assert set().union(*(q.needed_for for q in QUESTIONS)) == set(PURPOSES)
    assert sys.version_info[:2] >= checks._LEAST_PYTHON
