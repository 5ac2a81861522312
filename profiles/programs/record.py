"""Records reports of PyTorch programs: `python -m profiles.programs.record OUT NAME [NAME ...]`.

Each NAME is a recording of `RECORDINGS` or a group of them. A report is exported with NCCL's
payloads, trimmed, compressed to OUT/NAME.sqlite.xz, and OUT/NAME.truth.json says what it is of.
Those of `BOTH` are recorded by torch.profiler, too. All programs run one after the other; the
reports are exported and compressed after that, so that this does not slow the programs down
(`python -m profiles.pack` makes them half as large, in minutes). No
program starts after the minutes that the environment variable RECORD_MINUTES gives.
"""

from __future__ import annotations

import json
import lzma
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from profiles.trim import trim

HERE = Path(__file__).parent
NSYS = ("nsys", "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none",
        "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop", "-f", "true")  # fmt: skip
EXPORT = ("nsys", "export", "-q", "true", "-t", "sqlite", "-f", "true",
          "--include-json", "true", "--include-blobs", "true")  # fmt: skip
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum",
           "lts__t_bytes.sum", "sm__inst_executed_pipe_tensor.sum")  # fmt: skip

FAULTS = ("healthy", "item", "pageable", "loop_optimizer", "dataloader", "empty_cache")
RANKED = ("healthy", "straggler", "late_allreduce")
SMALL = ["gpt", "--width", "512", "--layers", "4", "--heads", "8", "--length", "256", "--batch",
         "8", "--vocabulary", "10000"]  # fmt: skip
COMPILED = ["gpt", "--width", "768", "--layers", "4", "--heads", "12", "--length", "512", "--batch",
            "16", "--vocabulary", "16000", "--compile"]  # fmt: skip
EIGHT = ["gpt", "--width", "1024", "--layers", "8", "--heads", "16", "--length", "512", "--batch",
         "16", "--vocabulary", "16384", "--steps", "4"]  # fmt: skip
DEEP = ["gpt", "--width", "384", "--layers", "10", "--heads", "6", "--length", "192", "--batch",
        "12", "--vocabulary", "6000"]  # fmt: skip
THIN = {
    "gpt_deep": DEEP,
    "llama_thin": ["llama", "--width", "320", "--layers", "12", "--heads", "10", "--length", "128",
                   "--batch", "6", "--vocabulary", "9000"],
    "mobilenet": ["mobilenet_v3_large", "--length", "128", "--batch", "24"],
    "efficientnet": ["efficientnet_b0", "--length", "160", "--batch", "16"],
    "swin": ["swin_t", "--length", "224", "--batch", "12"],
    "densenet": ["densenet121", "--length", "96", "--batch", "16"],
    "vit": ["vit_b_16", "--length", "224", "--batch", "64"],
}  # fmt: skip
"""Programs that the CPU limits, but for the last one."""
WIDE = ["gpt", "--width", "768", "--layers", "6", "--heads", "12", "--length", "384", "--batch",
        "24", "--vocabulary", "12000"]  # fmt: skip
BLIND = {
    "gpt_wide": WIDE,
    **{f"gpt_wide_{fault}": [*WIDE, "--fault", fault] for fault in (*FAULTS[1:], "fp32")},
    "regnet": ["regnet_y_800mf", "--length", "160", "--batch", "32"],
    "shufflenet": ["shufflenet_v2_x1_0", "--length", "128", "--batch", "32"],
    "llama_wide": ["llama", "--width", "1024", "--layers", "6", "--heads", "16", "--kv-heads", "4",
                   "--length", "256", "--batch", "24", "--vocabulary", "16000"],
    "maxvit": ["maxvit_t", "--length", "224", "--batch", "16"],
}  # fmt: skip
"""Programs that no constant was fitted to, recorded after the last change of the estimate."""
HOSTS = {
    "gpt_small": ["gpt", "--width", "512", "--layers", "6", "--heads", "8", "--length", "256",
                  "--batch", "20", "--vocabulary", "16000"],
    "gpt_large": ["gpt", "--width", "1024", "--layers", "5", "--heads", "16", "--length", "512",
                  "--batch", "24", "--vocabulary", "16000"],
    "llama_small": ["llama", "--width", "512", "--layers", "5", "--heads", "8", "--kv-heads", "4",
                    "--length", "384", "--batch", "6", "--vocabulary", "12000"],
    "llama_large": ["llama", "--width", "1280", "--layers", "4", "--heads", "20", "--kv-heads",
                    "10", "--length", "640", "--batch", "18", "--vocabulary", "12000"],
    "bert_small": ["bert", "--width", "576", "--layers", "5", "--heads", "9", "--length", "192",
                   "--batch", "22", "--vocabulary", "14000"],
    "vit_b": ["vit_b_16", "--length", "224", "--batch", "20"],
    "convnext_s": ["convnext_small", "--length", "160", "--batch", "24"],
    "resnet50": ["resnet50", "--length", "192", "--batch", "40"],
}  # fmt: skip
"""Programs that are recorded on a host whose steps of other sizes are timed, too."""
FAULTY = [name for name in BLIND if name.startswith("gpt_wide_")]
RECORDINGS: dict[str, tuple[int, list[str]]] = {
    **{name: (1, words) for name, words in BLIND.items()},
    **{f"{name}_shapes": (1, [*words, "--shapes"]) for name, words in BLIND.items()},
    **{f"{name}_trace": (1, words) for name, words in BLIND.items()},
    **{name: (1, words) for name, words in THIN.items()},
    **{f"{name}_shapes": (1, [*words, "--shapes"]) for name, words in THIN.items()},
    **{f"{name}_trace": (1, words) for name, words in THIN.items()},
    **{f"{name}_shapes_trace": (1, [*words, "--shapes"]) for name, words in THIN.items()},
    **{name: (1, [*words, "--steps", "4", "--shapes", "--timed"]) for name, words in HOSTS.items()},
    "gpt_deep_timed": (1, [*DEEP, "--timed"]),
    "gpt_deep_shapes_timed": (1, [*DEEP, "--shapes", "--timed"]),
    **{f"gpt_deep_{fault}": (1, [*DEEP, "--fault", fault]) for fault in FAULTS[1:]},
    **{
        f"{fault}_b{batch}": (1, ["gpt", "--fault", fault, "--batch", str(batch)])
        for fault in FAULTS
        for batch in (32, 160)
    },
    **{
        f"{fault}_p2_b{batch}": (2, ["gpt", "--fault", fault, "--batch", str(batch)])
        for fault in RANKED
        for batch in (32, 160)
    },
    "gpt_ddp": (2, ["gpt", "--width", "768", "--layers", "8", "--heads", "12", "--length", "512",
                    "--batch", "16", "--vocabulary", "16384", "--name", "train batch %d"]),
    "gpt_shapes": (1, ["gpt", "--width", "640", "--layers", "5", "--heads", "10", "--length",
                       "384", "--batch", "12", "--vocabulary", "12000", "--steps", "4",
                       "--shapes"]),
    "llama_shapes": (1, ["llama", "--width", "768", "--layers", "4", "--heads", "12", "--kv-heads",
                         "4", "--length", "512", "--batch", "8", "--vocabulary", "16000",
                         "--steps", "4", "--shapes"]),
    "llama_heads_shapes": (1, ["llama", "--width", "768", "--layers", "4", "--heads", "12",
                               "--length", "512", "--batch", "8", "--vocabulary", "16000",
                               "--steps", "4", "--shapes"]),
    "bert_shapes": (1, ["bert", "--width", "512", "--layers", "4", "--heads", "8", "--length",
                        "256", "--batch", "24", "--vocabulary", "10000", "--steps", "4",
                        "--shapes"]),
    "resnet34_shapes": (1, ["resnet34", "--length", "160", "--batch", "48", "--steps", "4",
                            "--shapes"]),
    "convnext_shapes": (1, ["convnext_tiny", "--length", "128", "--batch", "32", "--steps", "4",
                            "--shapes"]),
    "gpt_modules": (1, [*SMALL, "--steps", "4", "--shapes", "--annotate"]),
    "gpt_modules_timing": (1, [*SMALL, "--steps", "4"]),
    "gpt_compiled_shapes": (1, [*COMPILED, "--steps", "4", "--shapes"]),
    "gpt_fp32_shapes": (1, [*SMALL, "--steps", "4", "--shapes", "--fault", "fp32"]),
    "gpt_ddp8": (8, [*EIGHT]),
    "gpt_fsdp8": (8, [*EIGHT, "--fsdp"]),
    **{f"gpt_tensor{ranks}": (ranks, [*EIGHT, "--layers", "4", "--tensor-parallel", "--shapes"])
       for ranks in (2, 4, 8)},
    "gpt_straggler8": (8, [*EIGHT, "--fault", "straggler"]),
    "gpt_both": (1, ["gpt", "--width", "768", "--layers", "4", "--heads", "12", "--length", "512",
                     "--batch", "128", "--vocabulary", "8192", "--shapes"]),
    "resnet34_both": (1, ["resnet34", "--length", "224", "--batch", "384", "--steps", "6",
                          "--shapes"]),
    "ddp_both": (2, ["gpt", "--width", "768", "--layers", "4", "--heads", "12", "--length", "512",
                     "--batch", "64", "--vocabulary", "16384", "--name", "train batch %d"]),
    "gpt_unnamed": (1, ["gpt", "--batch", "16", "--name", "none", "--layers", "4"]),
}  # fmt: skip
BOTH = {"gpt_both": ["--name", "none"], "resnet34_both": ["--name", "none"],
        "ddp_both": ["--shapes"]}  # fmt: skip
"""Recorded by torch.profiler, too, into NAME_rankN.json.xz, with these words beside."""
COUNTED = {
    "resnet50_ncu": ["resnet50", "--length", "224", "--batch", "32", "--steps", "1", "--shapes"],
    "llama_ncu": ["llama", "--width", "768", "--layers", "2", "--heads", "12", "--kv-heads", "4",
                  "--length", "512", "--batch", "8", "--vocabulary", "16000", "--steps", "1",
                  "--shapes"],
    "gpt_compiled_ncu": [*COMPILED, "--steps", "1", "--shapes"],
}  # fmt: skip
GROUPS = {
    "pairs": [n for n in RECORDINGS if n.split("_b")[0] in FAULTS],
    "ranked": [n for n in RECORDINGS if "_p2_" in n],
    "modules": ["gpt_modules", "gpt_modules_timing"],
    "compiled": ["gpt_compiled_shapes", "gpt_compiled_ncu"],  # the second finds what was compiled
    "shapes": [n for n in RECORDINGS if n.endswith("_shapes")],
    "counters": [*COUNTED],
    "twins": [f"{name}{how}" for how in ("", "_shapes") for name in THIN],
    "traces": [f"{name}{how}" for how in ("_trace", "_shapes_trace") for name in THIN],
    "blind": [
        *BLIND,
        *(f"{name}_shapes" for name in BLIND if name not in FAULTY),
        *(f"{name}_trace" for name in BLIND if name not in FAULTY),
    ],
    "hosts": [*HOSTS],
    "timed": ["gpt_deep_timed", "gpt_deep_shapes_timed"],
    "faults": [f"gpt_deep_{fault}" for fault in FAULTS[1:]],
}


def run(command: Sequence[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)  # type: ignore[call-overload]
    if done.returncode:
        print(done.stdout[-1500:], done.stderr[-3000:], file=sys.stderr)
    return done


def program(ranks: int, words: Sequence[str]) -> list[str]:
    """The command of a training program."""
    return started(ranks, [sys.executable, str(HERE / "train.py"), *words])


def started(ranks: int, command: list[str]) -> list[str]:
    """The command of so many ranks: one process each, started by a shell."""
    if ranks == 1:
        return command
    port = os.environ.get("MASTER_PORT", "29500")
    shared = f"WORLD_SIZE={ranks} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
    each = f"RANK=$r LOCAL_RANK=$r {shared} {shlex.join(command)} &"
    return ["bash", "-c", f"for r in $(seq 0 {ranks - 1}); do {each} done; wait"]


def recorded(command: Sequence[str], report: Path) -> None:
    """Record a program by Nsight Systems."""
    run([*NSYS, "-o", str(report), *command])


def export(report: Path) -> Path:
    """Export a report to SQLite."""
    run([*EXPORT, "-o", f"{report}.sqlite", f"{report}.nsys-rep"])
    return Path(f"{report}.sqlite")


def exported(command: Sequence[str], report: Path) -> Path:
    """Record a program, and return the report's export to SQLite."""
    recorded(command, report)
    return export(report)


def record(name: str, out: Path, folder: Path) -> Callable[[], None]:
    """Record a program, and return what compresses its report."""
    ranks, words = RECORDINGS[name]
    truth, report = out / f"{name}.truth.json", folder / name
    train = program(ranks, [*words, "--truth", str(truth)])
    if by_trace := name.endswith("_trace"):
        run([*train, "--kineto", f"{report}.json"])
    else:
        recorded(train, report)
    shown = " ".join(["python", "profiles/programs/train.py", *words])
    said = {"command": shown, "ranks": ranks, "date": datetime.now(UTC).isoformat()[:19]}
    truth.write_text(json.dumps(json.loads(truth.read_text()) | said, indent=1) + "\n")

    def finish() -> None:
        if by_trace:
            compress_traces(name, out, folder)
            return
        trimmed = folder / f"{name}.trimmed"
        trim(export(report), trimmed)
        packed = lzma.compress(trimmed.read_bytes(), preset=3)
        (out / f"{name}.sqlite.xz").write_bytes(packed)

    return finish


def record_trace(name: str, out: Path, folder: Path) -> Callable[[], None]:
    """Record a program by torch.profiler, and return what compresses the traces."""
    ranks, words = RECORDINGS[name]
    run(program(ranks, [*words, *BOTH[name], "--kineto", f"{folder}/{name}.json"]))
    return lambda: compress_traces(name, out, folder)


def compress_traces(name: str, out: Path, folder: Path) -> None:
    """Compress the traces of all ranks of a program."""
    for trace in folder.glob(f"{name}_rank*.json"):
        (out / f"{trace.name}.xz").write_bytes(lzma.compress(trace.read_bytes(), preset=3))


def count(name: str, out: Path) -> None:
    """Count one step's kernels with Nsight Compute."""
    train = program(1, COUNTED[name])
    done = run(["ncu", "--nvtx", "--profile-from-start", "off", "--clock-control", "none",
                "--target-processes", "all", "--csv", "--metrics", ",".join(METRICS),
                *train])  # fmt: skip
    (out / f"{name}.csv.xz").write_bytes(lzma.compress(done.stdout.encode(), preset=4))


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * float(os.environ.get("RECORD_MINUTES", "inf"))
    failed: list[str] = []
    left: list[tuple[str, Callable[[], None]]] = []
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        for name in [name for word in sys.argv[2:] for name in GROUPS.get(word, [word])]:
            if time.monotonic() > until:
                failed.append(name)
                continue
            start = time.monotonic()
            try:
                if name in COUNTED:
                    count(name, out)
                else:
                    left.append((name, record(name, out, folder)))
                if name in BOTH:
                    left.append((name, record_trace(name, out, folder)))
            except (OSError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
            print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        with ThreadPoolExecutor() as threads:
            done = [(name, threads.submit(finish)) for name, finish in left]
        for name, one in done:
            if (error := one.exception()) is not None:
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
    if failed:
        sys.exit(f"not recorded: {', '.join(failed)}")


if __name__ == "__main__":
    main()
