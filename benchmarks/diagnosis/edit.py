"""Puts a fault into a recording of torch.profiler, by a replay of its launches.

    python -m benchmarks.diagnosis.edit

prints what the steps of edited.toml take with the fault and without it. The host's events move
where the fault delays the host. An operation of the GPU begins after its launch, after the one
before it on its stream, and after the operation that it waited for in the recording; a collective
ends when its last rank has come, after the shortest of its ranks' times. Nothing of an edited
recording is kept: it is made again whenever it is scored.
"""

from __future__ import annotations

import json
import lzma
import tempfile
import tomllib
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.common.folders import PROFILES
from perfmodel.timing.recorder import Recorder

EDITED: Final = Path(__file__).parent / "edited.toml"
_HOST: Final = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "overhead")
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_BLOCKED_US: Final = 500.0
"""A launch that takes longer waits for room in the queue; how long is the replay's to say."""
_LAUNCH_US: Final = 5.0
"""From a launch to the begin of its operation on an idle GPU."""
_COPIED: Final = {"pageable": 8e3, "offload": 50e3}
"""Bytes that a copy moves in a microsecond, of pageable and of pinned memory."""
_LOADER: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_NEW_ID: Final = 10_000_000
Event = dict[str, Any]
Replay = Generator[tuple[float, float], float, None]


@contextmanager
def reports_of(
    case: Mapping[str, Any], folder: Path, made: Path | None = None
) -> Iterator[list[Path]]:
    """Return the reports of a case; those of an edited one are made in `made`, and go away.

    The steps of an edited one are analyzed as recorded: it never ran without a profiler.
    """
    reports = [folder / name for name in case["reports"]]
    if "edit" not in case:
        yield reports
        return
    as_recorded = mock.patch.object(Recorder, "matters", False)
    with tempfile.TemporaryDirectory(dir=made) as temporary, as_recorded:
        yield edited(reports, case["edit"], Path(temporary))


def edited(reports: Sequence[Path], edit: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the reports of a run with a fault, `rank0.json` and so on.

    Parameters
    ----------
    reports : sequence of Path
        A trace of each rank, by rank.
    edit : mapping
        `fault`: loader (the host pauses before every step), pause (it does in the forward pass),
        pageable (a copy of pageable memory before every step, for which the host waits), offload
        (a copy of pinned memory each way, for which it does not), host (all of the host's work
        takes longer), link (collectives do), gpu (kernels do), none. `ms` is how long, `times` how
        many times as long, `rank` whose fault it is; without one all ranks have it.
    folder : Path
    """
    written = []
    for rank, document in enumerate(_documents(reports, edit)[0]):
        written.append(folder / f"rank{rank}.json")
        written[-1].write_text(json.dumps(document))
    return written


def step_s(reports: Sequence[Path], edit: Mapping[str, Any]) -> float:
    """Return the seconds of a step: from the last operation of one to that of the next, on average.

    The first step is left out: nothing waits before it.
    """
    _, ranks = _documents(reports, edit)
    return max(rank.step_us() for rank in ranks) / 1e6


def linked(document: dict[str, Any]) -> dict[str, Any]:
    """Return a trace with the arrows from launches to operations, which these recordings lack."""
    events = document["traceEvents"]
    launches = _launches(events)
    arrows = []
    for event in events:
        number = event.get("args", {}).get("correlation")
        if event.get("cat") in _GPU and number in launches:
            for one, phase in ((launches[number], "s"), (event, "f")):
                ends = {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e"}
                arrows.append({**ends, **{key: one[key] for key in ("pid", "tid", "ts")}})
    return {**document, "traceEvents": events + arrows}


def _documents(
    reports: Sequence[Path], edit: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[_Rank]]:
    documents = [json.loads(lzma.decompress(path.read_bytes())) for path in reports]
    ranks = [_Rank(one["traceEvents"], edit, rank) for rank, one in enumerate(documents)]
    running = [rank.replay() for rank in ranks]
    waiting = [next(one, None) for one in running]
    while come := [one for one in waiting if one is not None]:
        end = max(start for start, _ in come) + min(length for _, length in come)
        waiting = [_sent(run, end) for run in running]
    moved = zip(documents, ranks, strict=True)
    return [{**document, "traceEvents": rank.moved()} for document, rank in moved], ranks


def _sent(run: Replay, end: float) -> tuple[float, float] | None:
    try:
        return run.send(end)
    except StopIteration:
        return None


def _launches(events: Sequence[Event]) -> dict[int, Event]:
    return {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat", "").startswith("cuda_") and "correlation" in e.get("args", {})
    }


class _Rank:
    """The events of a rank, and where they move; times are in microseconds."""

    def __init__(self, events: list[Event], edit: Mapping[str, Any], rank: int) -> None:
        self._fault = edit["fault"] if edit.get("rank", rank) == rank else "none"
        self._us, self._times = 1e3 * edit.get("ms", 0.0), edit.get("times", 1.0)
        self._events = events
        self._host = [e for e in events if e.get("cat") in _HOST]
        self._begin = min(e["ts"] for e in self._host)
        launches = _launches(self._host)
        known = [
            (launches[e["args"]["correlation"]], e)
            for e in events
            if e.get("cat") in _GPU and e["args"].get("correlation") in launches
        ]
        self._launched = sorted(known, key=lambda pair: (pair[0]["ts"], pair[1]["ts"]))
        steps = [e for e in self._host if e["name"].startswith("ProfilerStep#")]
        self._steps = sorted(steps, key=lambda e: float(e["ts"]))
        self._placed: dict[int, tuple[float, float]] = {}
        self._shifts: list[tuple[float, float]] = [(float("-inf"), 0.0)]
        self._added: list[Event] = []

    def step_us(self) -> float:
        """Return the time from one step's last operation to the next one's, on average."""
        ends = [0.0] * len(self._steps)
        begins = [e["ts"] for e in self._steps]
        for launch, op in self._launched:
            step = bisect_right(begins, launch["ts"]) - 1
            if step >= 0:
                ends[step] = max(ends[step], self._placed[id(op)][1])
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def _delays(self) -> list[tuple[float, str, float]]:
        """Return when the host is delayed, by what, and how long it took in the recording."""
        calls = [e for e in self._host if e["cat"].startswith("cuda_") and e["dur"] > _BLOCKED_US]
        found = [(e["ts"] + e["dur"], "blocked", e["dur"]) for e in calls
                 if "Synchronize" not in e["name"]]  # fmt: skip
        if self._fault in ("loader", "pageable", "offload"):
            found += [(e["ts"] + 1.0, self._fault, 0.0) for e in self._steps]
        if self._fault == "pause":  # at the first product of a step
            products = sorted(op["ts"] for op in self._host if op["name"] == "aten::linear")
            found += [(products[bisect_right(products, e["ts"])], "pause", 0.0)
                      for e in self._steps]  # fmt: skip
        return sorted(found)

    def _at(self, host_us: float) -> float:
        """Return where a moment of the host moves."""
        i = bisect_right(self._shifts, (host_us, float("inf"))) - 1
        stretch = self._times if self._fault == "host" else 1.0
        return self._begin + (host_us - self._begin) * stretch + self._shifts[i][1]

    def replay(self) -> Replay:
        """Place the operations; yields start and length of collectives, and is sent their end."""
        delays = self._delays()
        last: dict[Any, float] = {}
        done: list[tuple[float, float]] = []  # end in the recording, and in the replay
        for launch, op in self._launched:
            while delays and delays[0][0] <= launch["ts"]:
                self._delay(*delays.pop(0), last)
            stream = op["args"]["stream"]
            waited = bisect_right(done, (op["ts"] + 1e-3, float("inf"))) - 1
            start = max(
                self._at(launch["ts"]) + _LAUNCH_US,
                last.get(stream, 0.0),
                done[waited][1] if waited >= 0 else 0.0,
            )
            collective = "ncclDevKernel" in op["name"]
            slow = {"gpu": op["cat"] == "kernel" and not collective, "link": collective}
            length = op["dur"] * (self._times if slow.get(self._fault) else 1.0)
            end = (yield start, length) if collective else start + length
            self._placed[id(op)] = start, end
            last[stream] = end
            pair = (op["ts"] + op["dur"], end)
            done.insert(bisect_right(done, pair), pair)

    def _delay(self, at: float, kind: str, took_us: float, last: dict[Any, float]) -> None:
        """Move what the host does from a moment on."""
        now, shift = self._at(at), self._shifts[-1][1]
        if kind == "blocked":
            self._shifts.append((at, shift - took_us + _LAUNCH_US))
        elif kind == "pageable":
            end = self._copy(now, "Memcpy HtoD (Pageable -> Device)", last)
            self._added[-2]["dur"] = end - now
            self._shifts.append((at, shift + end - now))
        elif kind == "offload":
            for name in ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"):
                self._copy(now, name, last)
                now += 2 * _LAUNCH_US
            self._shifts.append((at, shift + 4 * _LAUNCH_US))
        else:
            if kind == "loader":
                self._added.append(self._call("user_annotation", _LOADER, now, self._us))
            self._shifts.append((at, shift + self._us))

    def _call(self, category: str, name: str, at: float, length: float) -> Event:
        where = {key: self._steps[0][key] for key in ("pid", "tid")}
        return {"ph": "X", "cat": category, "name": name, **where, "ts": at, "dur": length,
                "args": {}}  # fmt: skip

    def _copy(self, now: float, name: str, last: dict[Any, float]) -> float:
        """Add a copy and the call that launches it; return its end."""
        sample = self._launched[0][1]
        stream = sample["args"]["stream"]
        start = max(now + _LAUNCH_US, last.get(stream, 0.0))
        last[stream] = start + self._us
        args = {"correlation": _NEW_ID + len(self._added), "External id": 0}
        call = self._call("cuda_runtime", "cudaMemcpyAsync", now, _LAUNCH_US)
        moved = round(self._us * _COPIED[self._fault])
        device = {key: sample["args"][key] for key in ("device", "context", "stream")}
        self._added += [
            {**call, "args": {"cbid": 41, **args}},
            {**sample, "cat": "gpu_memcpy", "name": name, "ts": start, "dur": self._us,
             "args": {**args, **device, "bytes": moved}},
        ]  # fmt: skip
        return start + self._us

    def moved(self) -> list[Event]:
        """Return all events where they are after the replay."""
        found = [*self._added]
        gpu_end = max(end for _, end in self._placed.values())
        for event in self._events:
            if event.get("cat") in _HOST:
                start, end = self._at(event["ts"]), self._at(event["ts"] + event["dur"])
                if "Synchronize" in event["name"] and event["ts"] > self._steps[0]["ts"]:
                    end = max(end, gpu_end)
                found.append({**event, "ts": start, "dur": max(end - start, 1e-3)})
            elif id(event) in self._placed:
                start, end = self._placed[id(event)]
                found.append({**event, "ts": start, "dur": end - start})
            elif event.get("ph") == "M":
                found.append(event)
        return found


def main() -> None:
    """Print the times of the cases."""
    for case in tomllib.loads(EDITED.read_text())["case"]:
        reports = [PROFILES / name for name in case["reports"]]
        times = (step_s(reports, case["edit"]), step_s(reports, {"fault": "none"}))
        print(f"{case['name']}: step_s = {times[0]:.6f}, without_s = {times[1]:.6f}")


if __name__ == "__main__":
    main()
