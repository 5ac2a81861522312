"""Fuzzes everything that perfmodel reads, with atheris where it is installed.

    PYTHONPATH=tests python -m support.fuzz FLAGS

    --seconds 900                   every target, atheris
    --engine random --seconds 10    mutations alone, needs nothing
    --target formula --input FILE   one input again
    --cores 48 --out FOLDER         all targets side by side; what breaks something is kept there
    --add FOLDER                    add the counts of such a run to the results

Results are added up by target in benchmarks/results/fuzz.json. Inputs that broke something lie in
tests/fuzz, where tests/benchmarks/test_fuzz.py runs them always; fuzz_targets.py has the targets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results

RESULTS = folders.RESULTS / "fuzz.json"
ROOT = str(folders.ROOT)
KEEP = "PERFMODEL_FUZZ_KEEP"
"""The variable that names the folder in which a child keeps inputs, and goes on."""
_LONGEST_S = 10
_MOST_BYTES = 2 * 10**9
DRAWN = (
    "operators", "program_cells", "options", "onnx_graph", "columnar_tables", "operator_prediction",
)  # fmt: skip
"""Targets whose cases are drawn from bytes: any bytes are a whole case."""
TOKENS = (
    b"__import__('os')", b"**", b"9" * 400, b"1e999", b"-1", b"null", b"NaN", b"[" * 2000,
    b"(" * 99, b'"', b"\0", b"\xff", b"\x1b[2J", b"true", b"{}", b"Infinity", b"0.5", b"1e-400",
    b"18446744073709551616", b", sizes = [[", b", op_id = ", b"[[1, 2], [3]]", b"(1,0)", b"\n",
    b"1000000000000000000", "\u0663".encode(), b"*", b"?", b"/", b"(a+)+$", b"]", b"nan%", b"=",
)  # fmt: skip


class Late(BaseException):
    """A case takes too long; nothing that catches errors passes it over."""


def limited(*_: Any) -> None:
    """End a case whose time is over."""
    raise Late(f"longer than {_LONGEST_S} s")


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Change an input in one to four places."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(out) + 1)
        end = min(len(out), at + draw.choice((0, 1, 1, 4, 20)))
        new = draw.choice((
            bytes([draw.randrange(256)]), draw.choice(TOKENS), bytes(out[at : at + 30]), b"",
            draw.randbytes(4),
        ))  # fmt: skip
        out[at:end] = new
    return bytes(out)


def fuzz_random(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Mutate seeds until the time is over; stop at the first input that breaks something.

    Where the variable `KEEP` names a folder, inputs that break something are kept there instead.
    """
    from support.fuzz_targets import run, seeds

    keep = os.environ.get(KEEP)
    signal.signal(signal.SIGALRM, limited)
    draw, pool, done = random.Random(seed), seeds(name), 0
    begin = time.monotonic()
    for data in pool if not keep else ():
        signal.alarm(_LONGEST_S)
        run(name, data)
    while time.monotonic() - begin < seconds:
        whole = name in DRAWN and draw.random() < 0.7
        data = draw.randbytes(200) if whole else mutated(draw.choice(pool), draw)
        done += 1
        if keep:
            kept(name, data, Path(keep))
            continue
        try:
            signal.alarm(_LONGEST_S)
            run(name, data)
            signal.alarm(0)
        except (Exception, Late):
            path = Path(tempfile.gettempdir()) / f"{name}-crash"
            path.write_bytes(data)
            print(f"{name}: {path}\n{traceback.format_exc()}", flush=True)
            return {"executions": done, "seed": seed, "crash": str(path)}
    signal.alarm(0)
    return {"executions": done, "corpus": len(pool), "seed": seed, "crash": None}


def fuzz_atheris(name: str, seconds: float, corpus: Path) -> dict[str, Any]:
    """Run libFuzzer in a process of its own, which a crash ends."""
    corpus.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "support.fuzz", "--atheris-child", name,
        f"-max_total_time={seconds:.0f}", "-timeout=60", "-rss_limit_mb=4096",
        "-print_final_stats=1", f"-artifact_prefix={corpus.parent}/{name}-", str(corpus),
    ]  # fmt: skip
    paths = f"{folders.ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, cwd=folders.ROOT, capture_output=True, text=True, errors="replace", env=env
    )
    said = done.stdout + done.stderr
    count = re.search(r"number_of_executed_units: (\d+)", said)
    crash = re.search(r"Test unit written to (\S+)", said)
    if crash:
        print(f"{name}: {crash[1]}\n{said[-6000:]}", flush=True)
    return {
        "executions": int(count[1]) if count else 0,
        "corpus": len(list(corpus.iterdir())),
        "crash": crash[1] if crash else None,
    }


def atheris_child(name: str, arguments: list[str]) -> None:
    """Run in the child: instrument perfmodel, hand over to libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["perfmodel"]):
        from support import fuzz_targets

        for data in fuzz_targets.seeds(name):  # imports what functions import
            with contextlib.suppress(Exception, Late), within_limit():
                fuzz_targets.run(name, data)
    keep, corpus = os.environ.get(KEEP), Path(arguments[-1])
    for i, data in enumerate(fuzz_targets.seeds(name)):
        (corpus / f"seed-{i}").write_bytes(data)
    case = (lambda data: kept(name, data, Path(keep))) if keep else (
        lambda data: fuzz_targets.run(name, data)
    )  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments], case)
    atheris.Fuzz()


@contextlib.contextmanager
def within_limit() -> Iterator[None]:
    """Limit a case's CPU time; processes side by side share the cores."""
    signal.signal(signal.SIGPROF, limited)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_S, 1)  # again where a destructor swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def kept(name: str, data: bytes, folder: Path) -> None:
    """Run a case; keep the first input that breaks something at one place, and go on."""
    from support.fuzz_targets import run

    before = peak_bytes()
    try:
        with within_limit():
            run(name, data)
        if peak_bytes() - before > _MOST_BYTES:
            raise MemoryError(f"more than {_MOST_BYTES} bytes")
    except (Exception, Late) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if ROOT in f.filename]
        place = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "nowhere"
        path = folder / f"{name}-{type(error).__name__}-{place}"
        if not path.exists():
            path.write_bytes(data)
            path.with_name(f"{path.name}.txt").write_text(traceback.format_exc()[-6000:])
    if peak_bytes() > _MOST_BYTES:  # code that atheris instruments loses memory in every case
        os._exit(0)


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def worker(name: str, engine: str, seed: int, ends: float, out: Path) -> dict[str, Any]:
    """Fuzz a target until a time of the clock; begin again where the process ends before."""
    corpus, found = out / "corpus" / name, out / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    begin, row = time.monotonic(), {"executions": 0, "features": 0, "ended": 0}
    log = out / f"{name}-{engine}-{seed}.log"
    env = {**os.environ, KEEP: str(found), "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    seeds = [seed]
    while (left := ends - time.monotonic()) > 10:
        child = [
            "--atheris-child", name, "-timeout=60", "-rss_limit_mb=6000", f"-seed={seeds[-1]}",
            f"-max_total_time={left:.0f}", "-print_final_stats=1", "-len_control=0",
            f"-artifact_prefix={found}/{name}-{seeds[-1]}-", str(corpus),
        ]  # fmt: skip
        if engine == "random":
            child = ["--engine", "random", "--target", name, "--seed", str(seeds[-1])]
            child += ["--seconds", f"{left:.0f}"]
        command = [sys.executable, "-m", "support.fuzz", *child]
        with log.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, cwd=folders.ROOT, stdout=file, stderr=file, env=env, timeout=left + 10
            )
        said = log.read_text("utf-8", "replace")
        counts = re.findall(r"(?:executed_units: |'executions': )(\d+)", said) or re.findall(
            r"^#(\d+)", said, re.MULTILINE
        )
        row["executions"] += int(counts[-1]) if counts else 0
        row["features"] = max(map(int, re.findall(r" ft: (\d+)", said)), default=row["features"])
        if ends - time.monotonic() > 10:
            row["ended"] += 1
            log.with_suffix(f".{seeds[-1]}.log").write_text(said[-20_000:])
            seeds.append(seeds[-1] + 1)
            time.sleep(1)
    seconds = round(time.monotonic() - begin, 1)
    return {"target": name, "engine": engine, "seconds": seconds, "seeds": seeds, **row}


def side_by_side(names: list[str], options: argparse.Namespace) -> None:
    """Fuzz targets at the same time, so many processes in all; keep counts and inputs in a folder.

    Every process of a target has seeds of its own: 100 times its number, and those that follow.
    """
    ends, out, cores = time.monotonic() + options.seconds, options.out, options.cores
    out.mkdir(parents=True, exist_ok=True)
    chosen = [names[i % len(names)] for i in range(cores)]
    seeds = [options.seed + 100 * (chosen[:i].count(name) + 1) for i, name in enumerate(chosen)]
    with ThreadPoolExecutor(cores) as pool:
        waiting = [
            pool.submit(worker, name, options.engine, seed, ends, out)
            for name, seed in zip(chosen, seeds, strict=True)
        ]
        rows = [one.result() for one in waiting]
    for row in rows:
        row["corpus"] = len(list((out / "corpus" / row["target"]).iterdir()))
    results.write(out / f"statistics-{options.engine}.json", rows)


def add(out: Path) -> None:
    """Add the counts of processes side by side, and of places where inputs broke something."""
    broken = [path.name for path in (out / "found").glob("*.txt")]
    for path in sorted(out.glob("statistics-*.json")):
        for row in results.read(path):
            many = sum(name.startswith(f"{row['target']}-") for name in broken)
            broken = [name for name in broken if not name.startswith(f"{row['target']}-")]
            record(row["target"], row["engine"], row["seconds"], {**row, "crashes": many})


def record(name: str, engine: str, seconds: float, found: dict[str, Any]) -> None:
    """Add a run's counts to those before it."""
    result = results.read(RESULTS)
    old = result.setdefault(name, {}).get(engine, {"seconds": 0, "executions": 0, "crashes": 0})
    result[name][engine] = {
        "seconds": old["seconds"] + round(seconds),
        "executions": old["executions"] + found["executions"],
        "crashes": old["crashes"] + found["crashes"],
        "corpus": found.get("corpus") or old.get("corpus"),
    }
    if seeds := sorted({*old.get("seeds", []), *found["seeds"]}):
        result[name][engine]["seeds"] = seeds
    results.write(RESULTS, result)


def main() -> None:
    if sys.argv[1:2] == ["--atheris-child"]:
        atheris_child(sys.argv[2], sys.argv[3:])
        return
    from support.fuzz_targets import TARGETS, run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--engine", choices=("atheris", "random"), default="atheris")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--corpus", type=Path, default=Path(tempfile.gettempdir()) / "perfmodel-fuzz"
    )
    parser.add_argument("--input", type=Path, help="Run one input again.")
    parser.add_argument("--cores", type=int, help="Fuzz side by side, so many processes.")
    parser.add_argument("--out", type=Path, help="Folder for what came of it.")
    parser.add_argument("--add", type=Path, help="Add such a folder's counts to the results.")
    parser.add_argument("--record", action="store_true", help=f"Add the counts to {RESULTS.name}.")
    options = parser.parse_args()
    names, crashes = options.target or list(TARGETS), 0
    if options.add or options.cores:
        if options.add:
            add(options.add)
        else:
            side_by_side(names, options)
        return
    for name in names:
        if options.input:
            run(name, options.input.read_bytes())
            continue
        begin = time.monotonic()
        if options.engine == "random":
            found = fuzz_random(name, options.seconds, options.seed)
        else:
            found = fuzz_atheris(name, options.seconds, options.corpus / name)
        crashes += found["crash"] is not None
        print(f"{name}: {found}", flush=True)
        if options.record:
            found |= {"crashes": int(found["crash"] is not None), "seeds": []}
            found["seeds"] += [options.seed] if options.engine == "random" else []
            record(name, options.engine, time.monotonic() - begin, found)
    sys.exit(1 if crashes else 0)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "random" in sys.argv:
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    main()
