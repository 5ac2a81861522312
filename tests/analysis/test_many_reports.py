"""Many reports: the same numbers in one process, in several and on Dask; errors name the report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.folders import BASE, PROFILES, ROOT, TESTS
from perfmodel.analysis.analyze import analyze, analyze_reports
from perfmodel.base import parallel as engines
from perfmodel.base.errors import PerfmodelError, ReportError
from perfmodel.base.parallel import Engine, over_reports
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.html import page
from perfmodel.timing.nsys_stats.collect import summarize_reports
from perfmodel.timing.nsys_stats.tables import Counted, to_csv, to_table
from perfmodel.timing.run import time_report, time_run
from perfmodel.timing.trim import trim
from profiles.grow import grow_ranks
from support.cli import perfmodel as run_cli
from support.foreign_reports import SHIPPED
from support.nsys_cases import CASES, STATISTICS

REPORTS = sorted(
    [
        *SHIPPED,
        *ROOT.glob("tests/reports/*.sqlite"),
        *(PROFILES / "ladder" / f"{rung}_1.sqlite.xz" for rung in ("graph", "nccl", "peer-x3")),
    ]
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return grow_ranks(BASE, tmp_path_factory.mktemp("job"), 10)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return grow_ranks(BASE, tmp_path_factory.mktemp("pair"), 2)


def document(paths: list[Path], engine: Engine | None = None) -> str:
    return json.dumps(analysis_document(analyze_reports(paths, Options({}), engine)))


def csvs(paths: list[Path], engine: Engine | None = None) -> dict[str, str]:
    found = summarize_reports(paths, STATISTICS, engine)
    return {
        name: to_csv(to_table(name, part)) if isinstance(part, Counted) else str(part)
        for name, part in found.items()
    }


# --- what a worker leaves out is not missed


@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_a_trimmed_report_is_analyzed_like_a_whole_one(path: Path) -> None:
    whole: Any
    try:
        whole = analysis_document(analyze([read(path)], Options({})))
    except PerfmodelError as error:
        with pytest.raises(type(error), match=r"wanted|found|no "):
            analyze_reports([path], Options({}))
        return
    assert analysis_document(analyze_reports([path], Options({}))) == whole


@pytest.mark.parametrize("case", ["document_2025.3.2", "random_borders", "random_timelines"])
@pytest.mark.parametrize("by_time", [False, True])
def test_awkward_reports_are_trimmed_without_loss(case: str, by_time: bool, tmp_path: Path) -> None:
    path = CASES[case](tmp_path / "r.sqlite")
    options = Options({}, batch_label=next(iter(read(path).range_labels), None), by_time=by_time)
    try:
        whole = analysis_document(analyze([read(path)], options))
    except PerfmodelError as error:
        with pytest.raises(type(error)):
            analyze_reports([path], options)
        return
    assert analysis_document(analyze_reports([path], options)) == whole


def test_thinning_keeps_few_rows() -> None:
    observed = time_report(read(BASE), "batch iteration")
    trimmed = trim(observed)
    kept = [len(getattr(trimmed.trace, t)) for t in ("ops", "api", "ranges")]
    had = [len(getattr(observed.trace, t)) for t in ("ops", "api", "ranges")]
    assert all(3 * k < h for k, h in zip(kept, had, strict=True))
    assert len(trimmed.trace.strings) < len(observed.trace.strings)
    for field, values in asdict(trimmed.range_times).items():
        assert np.array_equal(values, getattr(observed.range_times, field)) or field == "paths"


def test_a_trimmed_report_is_not_measured_again() -> None:
    run = analyze_reports([BASE], Options({})).fitted
    with pytest.raises(ValueError, match="expected a whole trace"):
        time_run(run.traces, run.batch.label, label=run.label)
    run = analyze_reports([BASE], Options({}), whole=True).fitted
    assert time_run(run.traces, run.batch.label, label=run.label).ranks == (0, 1)


@pytest.mark.slow
def test_the_page_of_the_command_is_that_of_whole_reports(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert run_cli("report", str(BASE), "-o", str(out), "-q").exit_code == 0
    text = out.read_text(encoding="utf-8")
    wanted = page(analyze([read(BASE)], Options({})))
    pictures = re.compile(r"<svg.*?</svg>", re.DOTALL)
    assert len(pictures.findall(text)) == len(pictures.findall(wanted))
    assert len(text) == pytest.approx(len(wanted), rel=0.01)


# --- engines


@pytest.mark.slow
def test_processes_give_the_same_numbers(job: list[Path]) -> None:
    """Bit for bit: the JSON documents and the CSVs are equal as texts."""
    assert document(job, Engine(jobs=2)) == document(job)
    assert csvs(job, Engine(jobs=2)) == csvs(job)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Dask scheduler and two workers, each a process of its own."""
    pytest.importorskip("distributed", reason="no Dask: pip install 'perfmodel[dask]'")
    folder = tmp_path_factory.mktemp("dask")
    told = folder / "scheduler.json"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
    }
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
             "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]  # fmt: skip
    work = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(told),
            "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    processes = [subprocess.Popen(c, cwd=folder, **quiet) for c in (start, work, work)]
    try:
        for _ in range(600):
            if told.exists() and told.read_text().strip().endswith("}"):
                break
            time.sleep(0.1)
        yield json.loads(told.read_text())["address"]
    finally:
        for process in processes[::-1]:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.slow
def test_dask_gives_the_same_numbers(job: list[Path], scheduler: str) -> None:
    assert document(job, Engine(scheduler=scheduler)) == document(job)
    assert csvs(job, Engine(scheduler=scheduler)) == csvs(job)


@pytest.mark.slow
def test_the_command_line_reads_on_dask(
    job: list[Path], scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths, too: workers have folders of their own."""
    monkeypatch.chdir(job[0].parent)
    names = [path.name for path in job]
    here = run_cli("analyze", *names, "--json")
    there = run_cli("analyze", *names, "--json", "--scheduler", scheduler)
    assert here.exit_code == there.exit_code == 0
    assert here.stdout == there.stdout
    there = run_cli("stats", *names, "--format", "csv", "--scheduler", scheduler)
    assert there.stdout == run_cli("stats", *names, "--format", "csv").stdout
    broken = run_cli("analyze", *names, "missing.sqlite", "--scheduler", scheduler)
    assert broken.exit_code == 3
    assert "missing.sqlite: cannot be read" in broken.stderr


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engines, "_PATIENCE_S", 4)
    with pytest.raises(PerfmodelError, match="no Dask scheduler answers there"):
        analyze_reports([BASE], Options({}), Engine(scheduler="tcp://127.0.0.1:9"))


@pytest.mark.slow
@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:8787/status", "tcp://h:port"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    """By a process, as what Dask says at its end is nobody's exception."""
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "perfmodel", "stats", str(BASE), "--scheduler", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"--scheduler {address}: no Dask scheduler answers there" in done.stderr


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PerfmodelError, match=r"pip install 'perfmodel\[dask\]'"):
        analyze_reports([BASE], Options({}), Engine(scheduler="tcp://127.0.0.1:9"))


def test_jobs_and_scheduler_exclude_each_other() -> None:
    done = run_cli("stats", str(BASE), "-j", "2", "--scheduler", "tcp://127.0.0.1:9")
    assert done.exit_code == 2
    assert "leave it out with --scheduler" in done.stderr


# --- what goes wrong


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_broken_reports_among_many_are_named(job: list[Path], tmp_path: Path, jobs: int) -> None:
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(job[3].read_bytes()[:50_000])
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    paths = [*job[:6], cut, *job[6:], empty]
    found = analyze_reports(paths, Options({}), Engine(jobs=jobs))
    assert ["cut.sqlite: the file is truncated" in str(e) for e in found.failed] == [True, False]
    assert "empty.sqlite" in str(found.failed[1])
    assert found.runs[0].ranks == analyze_reports(job, Options({})).runs[0].ranks
    with pytest.raises(ReportError, match=r"2 of 2 reports cannot be read; the others: .*empty"):
        analyze_reports([cut, empty], Options({}), Engine(jobs=jobs))
    with pytest.raises(ReportError, match=r"cut\.sqlite: the file is truncated"):
        summarize_reports([*job, cut], ["cuda_api_sum"], Engine(jobs=jobs))


@pytest.mark.slow
def test_reports_given_twice_count_once_where_they_came_first(job: list[Path]) -> None:
    once, twice = analyze_reports(job, Options({})), analyze_reports([*job, job[0]], Options({}))
    assert twice.fitted.label == once.fitted.label
    assert "1 of the reports were given before and are left out" in twice.fitted.warnings
    assert [t.source for t in twice.fitted.traces] == [t.source for t in once.fitted.traces]
    options = ("--report", "cuda_gpu_kern_sum", "--format", "csv")
    alone = run_cli("stats", str(job[0]), *options)
    again = run_cli("stats", str(job[0]), str(job[0].parent / "." / job[0].name), *options)
    assert again.stdout == alone.stdout
    assert "1 of the reports were given before and are left out" in again.stderr


def kill(path: Path, source: Path) -> int:
    if source.name == "rank0005.sqlite":
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path.name)


@pytest.mark.slow
def test_a_killed_worker_is_told(job: list[Path]) -> None:
    with pytest.raises(PerfmodelError, match=r"was killed.*try again with --jobs 1"):
        over_reports(kill, job, Engine(jobs=2))


def dally(path: Path, source: Path) -> int:
    time.sleep(30)
    return 0


@pytest.fixture
def slow(job: list[Path], tmp_path: Path, interruptible: None) -> Iterator[subprocess.Popen[str]]:
    """`perfmodel analyze` with two workers that take very long, at work."""
    code = (
        "import perfmodel.analysis.analyze as f, test_many_reports, perfmodel.cli as c\n"
        "if __name__ == '__main__':\n"
        "    f._read = test_many_reports.dally_as_observer\n"
        "    c.main(prog_name='perfmodel')\n"
    )
    script, here = tmp_path / "slow.py", Path(__file__).parent
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script), "analyze", *map(str, job), "-j", "2"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS, here)))},
    )  # fmt: skip
    for _ in range(400):
        if len(children(process.pid)) >= 3:  # two workers and what tracks their resources
            break
        time.sleep(0.05)
    time.sleep(1.0)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers, too: they hold the pipes open
    process.communicate(timeout=20)


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_workers(slow: subprocess.Popen[str]) -> None:
    """SIGINT to the whole group, as a terminal sends it: no traceback, nobody left."""
    workers = children(slow.pid)
    begin = time.perf_counter()
    os.killpg(slow.pid, signal.SIGINT)
    _, said = slow.communicate(timeout=20)
    assert time.perf_counter() - begin < 10
    assert slow.returncode == 130
    assert said.strip() == ""
    assert len(workers) >= 2
    assert all_end(workers)


@pytest.mark.parametrize("number", ["SIGINT", "SIGALRM"])
def test_an_interrupt_waits_until_processes_have_started(
    number: str, tmp_path: Path, interruptible: None
) -> None:
    """SIGALRM is how an interrupt comes that came in the middle of an import."""
    code = (
        "import os, signal, time\n"
        "from multiprocessing import util\n"
        "from pathlib import Path\n"
        "import perfmodel.__main__ as program\n"
        "from perfmodel.base.parallel import Engine, over_reports\n"
        "def dally(path, source):\n"
        "    time.sleep(30)\n"
        "def start(*given, start=util.spawnv_passfds):\n"
        "    pid = start(*given)\n"
        "    if 'spawn_main' in str(given):\n"
        f"        os.killpg(0, signal.SIGINT) if '{number}' == 'SIGINT' else "
        "os.kill(os.getpid(), signal.SIGALRM)\n"
        "    return pid\n"
        "if __name__ == '__main__':\n"
        "    util.spawnv_passfds = start\n"
        "    signal.signal(signal.SIGALRM, program._interrupt)\n"
        "    signal.signal(signal.SIGINT, program._interrupt)\n"
        "    try:\n"
        f"        over_reports(dally, [Path({str(BASE)!r})] * 10, Engine(2))\n"
        "    except KeyboardInterrupt:\n"
        "        raise SystemExit(130)\n"
    )
    script = tmp_path / "interrupted.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, start_new_session=True,
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_a_killed_command_leaves_no_worker_behind(slow: subprocess.Popen[str]) -> None:
    workers = children(slow.pid)
    assert len(workers) >= 2
    slow.kill()
    assert all_end(workers)


def all_end(processes: list[int]) -> bool:
    """Whether they do, long before a worker that is left alone (`dally`)."""
    for _ in range(400):
        if not any(map(runs, processes)):
            return True
        time.sleep(0.05)
    return False


def dally_as_observer(path: Path, source: Path, **_: Any) -> int:
    return dally(path, source)


def runs(pid: int) -> bool:
    """Whether a process is there, and more than a dead one that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(p) for p in text.read_text().split()] if text.exists() else []


def test_few_small_reports_need_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_in_processes", None)
    assert over_reports(lambda path, source: source.name, [BASE, BASE], Engine()) == [
        BASE.name, BASE.name,
    ]  # fmt: skip


# --- summaries of several reports


def test_summaries_of_several_reports_are_of_all_events(pair: list[Path]) -> None:
    """Two ranks' reports together say what the report of both says."""
    apart = csvs(pair)
    both = csvs([BASE])
    for name in ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum", "nvtx_pushpop_sum",
                 "nvtx_gpu_proj_sum"):  # fmt: skip
        assert apart[name] == both[name]


def test_stats_takes_several_reports(pair: list[Path]) -> None:
    done = run_cli("stats", str(pair[0]), str(pair[1]), "--report", "cuda_gpu_kern_sum",
                   "--format", "csv")  # fmt: skip
    assert done.exit_code == 0
    assert done.stdout == csvs([BASE])["cuda_gpu_kern_sum"]
