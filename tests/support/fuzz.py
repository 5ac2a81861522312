"""Fuzzes everything that perfmodel reads, with atheris where it is installed.

    PYTHONPATH=tests python -m support.fuzz FLAGS

    --seconds 900                   every target, atheris
    --engine random --seconds 10    mutations alone, needs nothing
    --target formula --input FILE   one input again

Results are added up by target in benchmarks/results/fuzz.json. Inputs that broke something lie in
tests/fuzz, where tests/benchmarks/test_fuzz.py runs them always; fuzz_targets.py has the targets.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results

RESULTS = folders.RESULTS / "fuzz.json"
_LONGEST_S = 10
_MOST_BYTES = 2 * 10**9
TOKENS = (
    b"__import__('os')", b"**", b"9" * 400, b"1e999", b"-1", b"null", b"NaN", b"[" * 2000,
    b"(" * 99, b'"', b"\0", b"\xff", b"\x1b[2J", b"true", b"{}", b"Infinity", b"0.5", b"1e-400",
    b"18446744073709551616", b", sizes = [[", b", op_id = ", b"[[1, 2], [3]]", b"(1,0)", b"\n",
    b"1000000000000000000", "\u0663".encode(), b"*", b"?", b"/", b"(a+)+$", b"]", b"nan%", b"=",
)  # fmt: skip


class Late(BaseException):
    """A case takes too long; nothing that catches errors passes it over."""


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
    """Mutate seeds until the time is over; stop at the first input that breaks something."""
    from support.fuzz_targets import run, seeds

    def late(*_: Any) -> None:
        raise Late(f"longer than {_LONGEST_S} s")

    signal.signal(signal.SIGALRM, late)
    draw, pool, done = random.Random(seed), seeds(name), 0
    begin = time.monotonic()
    for data in pool:
        signal.alarm(_LONGEST_S)
        run(name, data)
    while time.monotonic() - begin < seconds:
        data = mutated(draw.choice(pool), draw)
        try:
            signal.alarm(_LONGEST_S)
            run(name, data)
            signal.alarm(0)
        except (Exception, Late):
            path = Path(tempfile.gettempdir()) / f"{name}-crash"
            path.write_bytes(data)
            print(f"{name}: {path}\n{traceback.format_exc()}", flush=True)
            return {"executions": done, "seed": seed, "crash": str(path)}
        done += 1
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
    corpus = Path(arguments[-1])
    for i, data in enumerate(fuzz_targets.seeds(name)):
        (corpus / f"seed-{i}").write_bytes(data)
    atheris.Setup([sys.argv[0], *arguments], lambda data: fuzz_targets.run(name, data))
    atheris.Fuzz()


def record(name: str, engine: str, seconds: float, found: dict[str, Any]) -> None:
    """Add a run's counts to those before it."""
    result = results.read(RESULTS)
    old = result.setdefault(name, {}).get(engine, {"seconds": 0, "executions": 0, "crashes": 0})
    result[name][engine] = {
        "seconds": old["seconds"] + round(seconds),
        "executions": old["executions"] + found["executions"],
        "crashes": old["crashes"] + (found["crash"] is not None),
        "corpus": found.get("corpus", old.get("corpus")),
    }
    if "seed" in found:
        result[name][engine]["seeds"] = sorted({*old.get("seeds", []), found["seed"]})
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
    parser.add_argument("--record", action="store_true", help=f"Add the counts to {RESULTS.name}.")
    options = parser.parse_args()
    crashes = 0
    for name in options.target or list(TARGETS):
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
            record(name, options.engine, time.monotonic() - begin, found)
    sys.exit(1 if crashes else 0)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "random" in sys.argv:
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    main()
