"""Writes docs/trainer.md's section on CUDA-aware MPI: python -m benchmarks.cuda_aware.report."""

from __future__ import annotations

import itertools
import statistics
from typing import Any, Final

import numpy as np

import perfmodel
from benchmarks.common import folders, results
from benchmarks.common.arguments import report
from benchmarks.common.pages import microseconds, percent, put, table
from benchmarks.cuda_aware.__main__ import RESULTS, SUMMED, TRAINED
from benchmarks.cuda_aware.predicted import (
    PROFILED,
    PROFILES,
    SEEN,
    UNSEEN,
    command,
    model,
    observed,
    predicted,
)
from perfmodel.base.units import si
from perfmodel.readers.trace import TO_GPU, TO_HOST, Trace

PAGE: Final = folders.DOCS / "trainer.md"
SCRIPT: Final = "benchmarks.cuda_aware.report"
REDUCE: Final = "MPI_Allreduce"
COPYING: Final = ("cuMemcpy", "cuStreamSynchronize")
"""What the names of the calls begin with in which the library copies and waits for it."""
COPIED: Final = (512, 2048)
"""Hidden sizes whose copies are shown."""

Row = dict[str, Any]


def medians(rows: list[Row], **which: Any) -> list[float]:
    """Return the median of every launch of what is asked for, sorted."""
    return sorted(
        r["median_s"] for r in rows
        if "median_s" in r and all(r.get(name) == value for name, value in which.items())
    )  # fmt: skip


def ranged(found: list[float]) -> str:
    """Write the median of launches, and their range."""
    if not found:
        return "–"
    middle = microseconds(statistics.median(found))
    return f"{middle} ({microseconds(found[0])} to {microseconds(found[-1])})"


def batches(rows: list[Row], ranks: int = 2) -> str:
    """Return the table of batches on so many ranks, by transport and hidden size."""
    rows = [r for r in rows if r["what"] == "batch" and r["p"] == ranks]
    sizes = sorted({r["H"] for r in rows})
    head = ["transport", *(f"H = {h}, µs" for h in sizes), "parameters after 20 batches"]
    lines = []
    for name in TRAINED:
        checked = [r for r in rows if r["transport"] == name and "bits_equal" in r]
        if not checked:
            continue
        error = max(r["max_relative_error"] for r in checked)
        alike = "the same bits" if all(r["bits_equal"] for r in checked) else f"within {error:.0e}"
        cells = (ranged(medians(rows, transport=name, H=h)) for h in sizes)
        lines.append([f"`{name}`", *cells, alike])
    return table(head, lines)


def messages(rows: list[Row], ranks: int = 2) -> str:
    """Return the table of sums on so many ranks, by transport and bytes."""
    rows = [r for r in rows if r["what"] == "message" and r["p"] == ranks]
    names = [*SUMMED, "exchange"]
    lines = []
    for size in sorted({r["message_bytes"] for r in rows}):
        found = [medians(rows, transport=n, message_bytes=size) for n in names]
        cells = [microseconds(statistics.median(f)) if f else "–" for f in found]
        lines.append([si(size, "B"), *cells])
    return table(["message, µs", *(f"`{n}`" for n in SUMMED), "MPI_Sendrecv alone"], lines)


def other_host(found: dict[str, Any]) -> str:
    """Return the batches of another host, one launch, and where its order is another one."""
    other = found["other_host"]
    new = [r for r in other["rows"] if "median_s" in r]
    old = [r for r in found["rows"] if "median_s" in r and r["p"] == new[0]["p"]]
    sizes = sorted({r["H"] for r in new if r["what"] == "batch"})
    times = {
        (name, h): tuple(
            statistics.median(medians(rows, what="batch", transport=name, H=h))
            for rows in (old, new)
        )
        for name in TRAINED for h in sizes if medians(new, what="batch", transport=name, H=h)
    }  # fmt: skip
    pairs = [
        (times[a, h], times[b, h])
        for h in sizes for a, b in itertools.combinations(TRAINED, 2)
        if (a, h) in times and (b, h) in times
    ]  # fmt: skip
    alike = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    lines = [
        [f"`{name}`", *(microseconds(times[name, h][1]) for h in sizes)]
        for name in dict.fromkeys(name for name, _ in times)
    ]
    shown = table(["transport", *(f"H = {h}, µs" for h in sizes)], lines)
    return (
        f"Another host, {other['date'][:10]}, one launch (`{other['command']}`): {alike} of "
        f"{len(pairs)} pairs of transports at one size are in the same order. The ring beats the "
        f"library's all-reduce from {_from(new, 'cuda-aware')} on and staged buffers from "
        f"{_from(new, 'host-flat')}.\n\n{shown}"
    )


def _from(rows: list[Row], transport: str) -> str:
    """Return the smallest message that the ring sums sooner than another transport."""
    sizes = sorted({r["message_bytes"] for r in rows if r["what"] == "message"})
    ring, other = (
        {n: statistics.median(medians(rows, what="message", transport=t, message_bytes=n))
         for n in sizes}
        for t in ("ring", transport)
    )  # fmt: skip
    return si(min(n for n in sizes if ring[n] < other[n]), "B")


def copies() -> str:
    """Return the table of what the reports hold of one sum: copies, calls, time."""
    head = [
        "H", "transport", "batch", f"range `{REDUCE}`", "copies of a batch, on the copy engine",
        f"calls that copy, in `{REDUCE}`",
    ]  # fmt: skip
    lines = []
    for hidden in COPIED:
        for name, transport in PROFILED.items():
            report = perfmodel.read(PROFILES / f"{name}_H{hidden}_1.sqlite.xz")
            host_s = report.analyze().ranges.set_index("range")["host_s"]
            kinds = "; ".join(
                f"{row.count:.0f} {row.direction}, {row.memory}, {si(float(row.seconds), 's')}"
                for row in report.analyze().copies.sort_values("direction").itertuples()
            )
            lines.append([
                str(hidden), f"`{transport}`", si(host_s["batch iteration"], "s"),
                si(host_s[REDUCE], "s"), kinds, si(calling_s(report.trace), "s"),
            ])  # fmt: skip
    return f"{table(head, lines)}\n{larger_copies()}"


def larger_copies() -> str:
    """Return what the library's copies of the largest size take beyond page-locked ones."""
    largest = COPIED[-1]
    out, back, batch = (dict[str, float]() for _ in range(3))
    for name, transport in (("resident", "host-flat"), ("cuda-aware", "cuda-aware")):
        path = PROFILES / f"{name}_H{largest}_1.sqlite.xz"
        trace = perfmodel.read(path).trace
        out[transport], back[transport] = (copy_s(trace, kinds) for kinds in (TO_HOST, TO_GPU))
        batch[transport] = observed(path).batch_s
    longer = {n: t["cuda-aware"] - t["host-flat"] for n, t in
              (("out", out), ("back", back), ("batch", batch))}  # fmt: skip
    return (
        f"Medians of a copy on the engine at H = {largest}: {si(out['cuda-aware'], 's')} out and "
        f"{si(back['cuda-aware'], 's')} back by the library, {si(out['host-flat'], 's')} and "
        f"{si(back['host-flat'], 's')} page-locked. That is "
        f"{si(longer['out'] + longer['back'], 's')} of the {si(longer['batch'], 's')} by which the "
        f"library's batch is longer."
    )


def copy_s(trace: Trace, kinds: tuple[int, ...]) -> float:
    """Return the median time on the engine of the copies of the gradients in one direction."""
    ops = trace.ops
    mine = np.isin(ops.copy_kind, kinds)
    size = statistics.mode(ops.bytes[mine & (ops.bytes > 1 << 20)].tolist())
    found = (ops.end_ns - ops.start_ns)[mine & (ops.bytes == size)]
    return float(statistics.median(found.tolist())) * 1e-9


def predictions(found: dict[str, Any]) -> str:
    """Return what a model that has not seen H = 512 predicts of it, beside what was measured."""
    calibrated = model()
    lines, told, seen = [], {}, {}
    for name, transport in PROFILED.items():
        said = predicted(calibrated, transport)
        told[transport] = said.batch_s
        launches = [observed(PROFILES / f"{name}_H{UNSEEN}_{n}.sqlite.xz").batch_s for n in (1, 2)]
        bare = statistics.median(
            medians(found["rows"], what="batch", transport=transport, H=UNSEEN, p=2)
        )
        seen[transport] = bare
        lines.append([
            f"`{transport}`", f"{si(said.batch_s, 's')} ({si(said.low_s, 's')} to "
            f"{si(said.high_s, 's')})", " and ".join(si(s, "s") for s in launches),
            " and ".join(percent(said.batch_s / s - 1, 0, signed=True) for s in launches),
            si(bare, "s"), percent(said.batch_s / bare - 1, 0, signed=True),
        ])  # fmt: skip
    others = {
        h: (
            predicted(calibrated, "ring", h).batch_s,
            statistics.median(medians(found["rows"], what="batch", transport="ring", H=h, p=2)),
        )
        for h in SEEN
    }
    elsewhere = " and ".join(
        f"{si(said, 's')} at H = {h} ({si(bare, 's')} without the profiler)"
        for h, (said, bare) in others.items()
    )
    same = sorted(told, key=told.__getitem__) == sorted(seen, key=seen.__getitem__)
    head = [
        "transport", f"predicted, H = {UNSEEN} (90 %)", "two reports of it", "error",
        "without the profiler", "error",
    ]  # fmt: skip
    return (
        f"```text\n{command()}\nperfmodel study predict --model mpi.json -H {UNSEEN} -B 3000 -p 2 "
        f"--transport ring --data-on device\n```\n\n{table(head, lines)}\n"
        f"The order is {'the' if same else 'not the'} measured one. At the sizes of the "
        f"calibration the ring is predicted to take {elsewhere}."
    )


def calling_s(trace: Trace) -> float:
    """Return the median host time of the calls that copy inside a range of the sum."""
    api, ranges = trace.api, trace.ranges
    known = [code for code, text in enumerate(trace.strings) if text.startswith(COPYING)]
    mine = [i for i in range(len(api)) if api.name[i] in known]
    spent = []
    for at in range(len(ranges)):
        if trace.range_labels[ranges.name[at]] != REDUCE:
            continue
        first, last = ranges.start_ns[at], ranges.end_ns[at]
        spent.append(sum(
            int(api.end_ns[i] - api.start_ns[i]) for i in mine
            if api.thread[i] == ranges.thread[at]
            and first <= api.start_ns[i]
            and api.end_ns[i] <= last
        ))  # fmt: skip
    return statistics.median(spent) * 1e-9


def main() -> None:
    """Write the page's parts."""
    report(__doc__)
    found = results.read(RESULTS)
    rows, said = found["rows"], found["versions"]
    parts = {}
    for ranks in sorted({r["p"] for r in rows}):
        launches = len({r["launch"] for r in rows if r["p"] == ranks})
        about = (
            f"{ranks} {said['gpu']}s of one host, {said['mpi']} built with CUDA, CuPy "
            f"{said['cupy']}, {found['date'][:10]}; medians and ranges of {launches} launches:"
        )
        parts[f"batches {ranks}"] = f"{about}\n\n{batches(rows, ranks)}"
        parts[f"messages {ranks}"] = messages(rows, ranks)
    parts["copies"] = copies()
    parts["other host"] = other_host(found)
    parts["predictions"] = predictions(found)
    for name, made in parts.items():
        put(PAGE, SCRIPT, made, name)
    print(f"docs/{PAGE.name}: {', '.join(parts)}")


if __name__ == "__main__":
    main()
