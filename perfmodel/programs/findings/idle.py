"""Time in which the GPU idles: kernel launches, synchronization, Python, allocation, copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, Spent
from perfmodel.programs.findings import WORTH, Finding, finding, share_of_step
from perfmodel.programs.findings.host import (
    BESIDE,
    advice_by_words,
    against_host_work,
    in_gaps,
    sleeps,
)
from perfmodel.programs.findings.ranks import slow_launches, straggler
from perfmodel.timing.copies import pinned_rate
from perfmodel.timing.step_facts import DISPATCH

if TYPE_CHECKING:
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.timing.point_to_point import RangeOfRank
    from perfmodel.timing.step_facts import StepFacts

_OFFLOADED: Final = 0.1
"""Share of a step from which copies between host and GPU are more than those of inputs: 0.3 to 6 %
in the recorded trainings that offload nothing."""
_EITHER_WAY: Final = 0.5
"""Copies that bring back at least this share of what they take away hold what is kept."""
_ONE_PIECE: Final = 0.1
"""A pause of the host from this share of a step is a piece of work of its own: doing it at another
time saves so much. The longest pauses of healthy programs take 3 to 5 %, that of a data loader in
the main process 75 % (docs/findings.md)."""
_REPLAYED: Final = 0.5
"""Above this share of the kernels' time a step is a replay of CUDA graphs."""
_MUCH: Final = 0.2
"""Input and output of all ranks with a smaller share of a step are what a program needs: 11 to 12 %
in healthy MPI programs, 33 % and more where it was made a fault (benchmarks/diagnosis)."""
_OFTEN: Final = 2
"""Of fewer steps nobody knows whether every step does the same."""
_WHILE: Final = {
    "launch_bound": "while the host launches",
    "blocking_sync": "while the host waits for the GPU, and after it",
    "allocation": "while the host allocates or frees memory",
    "host_compute": "while the host is outside CUDA",
    "pageable_copy": "while the host copies from pageable memory",
}


@finding("launch_bound", needs=("busy_s",), unless=("steps",))
def idle_gpu(facts: Facts, actions: Actions, busy_s: float) -> Iterator[Finding]:
    """Time in which neither the GPU nor a collective works: launches, synchronizations, Python."""
    mpi = float(np.median(facts.waiting.seconds)) if facts.waiting else 0.0
    mpi = max(mpi, facts.polled_s)
    idle = facts.batch.value - busy_s - mpi
    if idle <= 0:
        return
    mpi_said = f", collectives take {si(mpi, 's')}" if facts.waiting or mpi else ""
    evidence = (
        f"the GPU is busy {'at least ' * bool(facts.lacking)}{share_of_step(facts, busy_s)}"
        f"{mpi_said}; "
        f"{facts.gpu_ops:.0f} GPU operation{'s' * (round(facts.gpu_ops) != 1)}"
    )
    if facts.synchronizations:
        evidence += (
            f" and {facts.synchronizations:.0f} synchronizing calls "
            f"({si(facts.synchronize_s, 's')} inside them)"
        )
    evidence += " per step"
    action = actions.launch_less(synchronizes=facts.synchronizations > 0)
    if facts.lacking:
        evidence += f"; {facts.lacking} operations of the run are in no range, and not counted"
        action = f"count these first, as the warning says; then {action}"
    yield Finding("launch_bound", "the GPU waits for the host", idle, evidence, action)


@finding("pageable_copy", needs=("copies",), unless=("steps",))
def pageable_copies(
    facts: Facts, actions: Actions, copies: Sequence[CopyGroup]
) -> Iterator[Finding]:
    """Copies from and to pageable memory, against pinned ones."""
    for group in copies:
        if group.memory != "pageable":
            continue
        pinned = _pinned(facts)
        if pinned is None:
            continue
        rate, source = pinned
        spent = max(facts.copying_s.get(group.direction, 0.0), group.seconds)
        yield Finding(
            "pageable_copy",
            f"{group.direction} copies use pageable memory",
            spent - group.bytes / rate,
            f"{group.count:.0f} copies, {si(group.bytes, 'B')} per step at "
            f"{si(group.bytes_per_s, 'B/s')} on the copy engine, "
            f"{share_of_step(facts, spent)} on the host; {source}",
            actions.pin(group.direction),
            subject=group.direction,
        )


def _pinned(facts: Facts) -> tuple[float, str] | None:
    """Rate of pinned copies, and words on where it is from; None where it is not known."""
    link = facts.machine.bandwidth_bytes_per_s.get("pcie") if facts.machine else None
    found = pinned_rate(facts.copies, link)
    if found is None:
        return None
    rate, recorded = found
    said = "pinned copies in this report reach" if recorded else "pinned ones should reach about"
    return rate, f"{said} {si(rate, 'B/s')}"


@finding("offloading", needs=("copies",))
def offloading(facts: Facts, actions: Actions, copies: Sequence[CopyGroup]) -> Iterator[Finding]:
    """Copies between host and GPU that are much of a step: parameters, states or a cache.

    The saving is that of a replay without copies; without one, all their time. What does not come
    back must come, as inputs do: what pinned memory would save of that is another finding's.
    """
    there, back = (
        [group for group in copies if group.direction == direction]
        for direction in ("Host-to-Device", "Device-to-Host")
    )
    seconds = sum(group.seconds for group in (*there, *back))
    whole = max(facts.batch.value, facts.mean_s)
    if not seconds >= _OFFLOADED * whole > 0:
        return
    into, out = (sum(group.bytes for group in groups) for groups in (there, back))
    steps = facts.steps
    held = min(into, out) >= _EITHER_WAY * max(into, out)
    exposed, pinned = seconds, 0.0
    if steps and "copy" in steps.free_s:  # of the median step; others may have more of them
        exposed = min(seconds, whole * steps.saved_s("copy") / steps.step_s)
        pinned = 0.0 if held else whole * steps.saved_s("pageable_copy") / steps.step_s
    what = "what is offloaded returns" if held else "parameters, states or inputs are on the host"
    link = facts.machine.bandwidth_bytes_per_s.get("pcie") if facts.machine else None
    rate = (into + out) / seconds
    reached = f", {percent(rate / link)} of the link's {si(link, 'B/s')}" if link else ""
    hidden = max(seconds - exposed, 0.0)
    beside = (
        f"{si(hidden, 's')} of it runs beside kernels"
        if hidden > WORTH * whole
        else "no kernel hides it"
    )
    yield Finding(
        "offloading",
        "the GPU waits for copies between it and the host",
        max(exposed - pinned, 0.0),
        f"{si(into, 'B')} to the GPU and {si(out, 'B')} back per step at {si(rate, 'B/s')}"
        f"{reached}: {si(seconds, 's')} of {si(whole, 's')}, {percent(seconds / whole)}; "
        f"{beside}; {what}",
        actions.advise("offload_less"),
        of_mean=bool(steps and steps.long),
        change="copy",
    )


@finding(*_WHILE, needs=("steps",))
def long_steps(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Steps in which the GPU idles much longer than in the median one."""
    long = steps.long
    if long is None or long.cause not in _WHILE:  # their GPU does more: a warning says what
        return
    where = f" in '{long.gap.range}'" if long.gap and long.gap.range else ""
    gap = f"; the longest gap is {si(long.gap.seconds, 's')}{where}" if long.gap else ""
    which = f"{long.count} of {long.steps} steps"
    paused = long.paused == long.count
    take = f"{long.count} take {si(long.longer_s, 's')} more than the median one"
    later = f"after {long.count} the next one begins {si(long.longer_s, 's')} later"
    yield Finding(
        long.cause,
        f"other work follows {which}" if paused else f"{which} take much longer than the others",
        long.saving_s,
        f"the median step takes {si(long.median_s, 's')}, the mean one {si(long.mean_s, 's')}: "
        f"{later if paused else take}, in the mean; per "
        f"step of all the GPU idles {si(long.saving_s, 's')} more {_WHILE[long.cause]}{gap}",
        _against(long.cause, where, long.gap.call if long.gap else "", steps, actions),
        of_mean=True,
        subject="long steps",
    )


def _against(cause: str, where: str, call: str, steps: StepFacts, actions: Actions) -> str:
    """What to do against a cause of idle time, most of it in a call."""
    if cause == "launch_bound":
        return actions.launch_less(synchronizes=False)
    if cause == "pageable_copy":
        return actions.pin("Host-to-Device")
    if cause == "host_compute":
        recorder = steps.recorder.name if steps.recorder else ""
        return against_host_work(steps.most_idle(cause), where, recorder, actions)
    what = "wait_less" if cause == "blocking_sync" else "allocate_less"
    return actions.advise(what, where=where, call=call or "a blocking call")


def _slowed(facts: Facts) -> str:
    """Say where times of the host are too long."""
    if not facts.sizes_recorded:
        return ""
    return "; recording sizes slows the host down"


@finding("many_small_kernels", needs=("steps",))
def small_kernels(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Ranges that launch many short kernels."""
    for small in steps.small:
        where = f" of '{small.range}'" if small.range else ""
        yield Finding(
            "many_small_kernels",
            f"the host launches {small.count:.0f} small kernels{where.replace(' of ', ' in ')}",
            small.saving_s,
            f"kernels under {si(small.under_s, 's', 2)}, {si(small.gpu_s, 's')} of GPU time per "
            f"step, which the host takes {si(small.host_s, 's')} to launch{_slowed(facts)}",
            actions.advise("fuse_small", where=where),
            subject=small.range,
            change=small.change,
        )


@finding("launch_bound", needs=("steps",))
def launches(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """Time in which the queue is empty while the host launches."""
    whole = is_dispatch(steps)
    causes = ("launch_bound", "host_compute") if whole else ("launch_bound",)
    idle, change = steps.idle_s(*causes), DISPATCH if whole else "launch_bound"
    known = sum(small.saving_s for small in steps.small)
    count = max(round(facts.gpu_ops), 1)
    between = ", and works between launches" if whole else ""
    again = max((one.replayed for one in facts.serving if one.of_time >= _REPLAYED), default=0.0)
    graphs = again >= _REPLAYED
    said = f"; CUDA graphs replay {percent(again)} of the kernels' time" if graphs else ""
    each = f"{count} launch{'es' * (count != 1)} per step"
    yield Finding(
        "launch_bound",
        f"the GPU waits for {'the host beside graph replays' if graphs else each}",
        min(steps.saved_s(change), idle) - known,
        f"the GPU idles {si(idle, 's')} per step with an empty queue while the host launches "
        f"{count} operation{'s' * (count != 1)}, one every {si(facts.batch.value / count, 's')}"
        f"{between}{said}{slow_launches(steps)}{_slowed(facts)}",
        actions.advise("prepare_ahead") if graphs else actions.launch_less(synchronizes=False),
        change=change,
    )


def is_dispatch(steps: StepFacts) -> bool:
    """Whether the host's own work that the GPU waits for is that of launching.

    It is Python between operators then, in many short pauses, which is shorter where less is
    launched; not one piece of work that could be done at another time, such as loading data.
    """
    longest = steps.longest("host_compute")
    if DISPATCH not in steps.changes or longest is None:
        return False
    where = advice_by_words(steps.mostly_in("host_compute"))
    whole_s = steps.ledger.recorded_s  # as the gap is
    return longest.seconds < _ONE_PIECE * whole_s and where not in BESIDE


@finding("blocking_sync", "host_compute", "allocation", "pageable_copy", needs=("steps",))
def host(facts: Facts, actions: Actions, steps: StepFacts) -> Iterator[Finding]:
    """What the host does while the GPU idles, and copies that keep it busy."""
    titles = {
        "blocking_sync": _waits_title(facts),
        "host_compute": _host_title(steps),
        "allocation": "the host allocates and frees GPU memory in every step",
        "pageable_copy": f"the host copies {_directions(_pageable(facts))} pageable memory",
    }
    if not _recurs(facts):  # whether the next step does so, too, is unknown
        del titles["allocation"]
    late = straggler(steps)
    if is_dispatch(steps):
        del titles["host_compute"]
    for kind, title in titles.items():
        idle, gap = steps.idle_s(kind), steps.longest(kind)
        most_idle = steps.most_idle(kind)
        call = most_idle.call if most_idle else ""
        where = f" in '{gap.range}'" if gap and gap.range else ""
        most = steps.saved_s(kind)
        if kind == "host_compute":
            most = min(most, idle)
        else:  # what copies take less themselves, and what the GPU may idle less since
            most = min(most, steps.idle_s() + _sooner_s(facts) * (kind == "pageable_copy"))
        if late is not None and late.excess is not None and late.excess.kind == kind:
            most -= steps.straggler_saving_s
        longest = f"; the longest gap is {si(gap.seconds, 's')}{where}" if gap else ""
        said = {
            "blocking_sync": f"{_waits(facts)} per step; "
            f"the GPU idles {si(idle, 's')} right after them{longest}",
            "host_compute": f"the GPU idles {si(idle, 's')} per step while the host is outside "
            f"CUDA{longest}{in_gaps(steps.most_idle(kind))}{_slowed(facts)}",
            "allocation": f"the GPU idles {si(idle, 's')} per step in {call or 'cudaMalloc'}"
            f"{longest}",
            "pageable_copy": _copies(facts),
        }[kind]
        mostly = steps.mostly_in(kind)
        within = f" in '{mostly}'" if mostly else ""
        if kind == "pageable_copy":
            action = actions.pin(_pageable(facts)[0].direction) if _pageable(facts) else ""
        else:
            action = _against(kind, within, call, steps, actions)
        yield Finding(kind, title, most, said, action)


def _recurs(facts: Facts) -> bool:
    """Whether so many steps were recorded that what they do is what every step does."""
    return facts.batch.instances >= _OFTEN


def _host_title(steps: StepFacts) -> str:
    """Say that the host works or sleeps meanwhile, and in which range."""
    idle = steps.most_idle("host_compute")
    where = f" in '{idle.range}'" if idle and idle.range else ""
    does = "sleeps" if sleeps(idle) else "works"
    return f"the GPU waits while the host {does}{where}"


def _waits_title(facts: Facts) -> str:
    """Count what waits for the GPU per step, where that is more than once."""
    copies = sum(g.count for g in facts.copies if g.direction == "Device-to-Host")
    count = max(round(facts.synchronizations), round(copies))  # a call waits for each copy
    often = (
        f"{count} times per step" if count > 1 else "in every step" if _recurs(facts) else "once"
    )
    return f"the host waits for the GPU {often}"


def _waits(facts: Facts) -> str:
    """Count what waits for the GPU: blocking calls, and copies to the host."""
    copies = [g for g in facts.copies if g.direction == "Device-to-Host"]
    count, seconds = sum(g.count for g in copies), sum(g.seconds for g in copies)
    found = []
    if round(facts.synchronizations) or not round(count):
        call, plural = facts.synchronizes_in, "s" * (round(facts.synchronizations) != 1)
        said = f", {call}" if call else ""
        found.append(
            f"{facts.synchronizations:.0f} blocking call{plural} "
            f"({si(facts.synchronize_s, 's')} inside them{said})"
        )
    if round(count):
        said = "1 copy" if round(count) == 1 else f"{count:.0f} copies"
        found.append(f"{said} to the host ({si(seconds, 's')} on the GPU)")
    return " and ".join(found)


_BOTH: Final = 0.1
"""A direction with a smaller share of the time of pageable copies is not named: reading a number
back takes pageable memory, too."""


def _pageable(facts: Facts) -> list[CopyGroup]:
    """Copies from and to pageable memory that take time, most first."""
    ways = ("Host-to-Device", "Device-to-Host")
    groups = [g for g in facts.copies if g.memory == "pageable" and g.direction in ways]
    groups.sort(key=lambda group: -group.seconds)
    whole = sum(group.seconds for group in groups)
    return [group for group in groups if group.seconds > _BOTH * whole]


def _directions(groups: Sequence[CopyGroup]) -> str:
    """Say whether copies are from or to the host's memory, most first."""
    words = ["to" if group.direction == "Device-to-Host" else "from" for group in groups]
    return " and ".join(words) or "from"


def _sooner_s(facts: Facts) -> float:
    """What pageable copies take less with pinned memory; all of it where its rate is not known."""
    pinned = _pinned(facts)
    least = [group.bytes / pinned[0] if pinned else 0.0 for group in _pageable(facts)]
    pairs = zip(_pageable(facts), least, strict=True)
    return sum(max(group.seconds - least_s, 0.0) for group, least_s in pairs)


def _copies(facts: Facts) -> str:
    """Describe the copies from and to pageable memory."""
    groups, pinned = _pageable(facts), _pinned(facts)
    if not groups:
        return "copies from pageable memory"
    each = " and ".join(
        f"{si(g.bytes, 'B')} {'back' if g.direction == 'Device-to-Host' else 'to the GPU'} at "
        f"{si(g.bytes / g.seconds, 'B/s')}"
        for g in groups
    )
    spent = sum(group.seconds for group in groups)
    source = f"; {pinned[1]}" if pinned else ""
    return f"{each} per step, {si(spent, 's')} in which the host waits, too{source}"


@finding("host_compute", needs=("ranges_by_rank", "host_ranks"))
def alike(
    facts: Facts,
    actions: Actions,
    ranges: Sequence[RangeOfRank],
    host_ranks: Mapping[int, tuple[float, float]],
) -> Iterator[Finding]:
    """Input, output and checks that all ranks of a program without a GPU do beside computing."""
    told: list[str] = []
    for path in sorted({one.path for one in ranges if "/" in one.path}, key=len):
        rows = [one for one in ranges if one.path == path]
        what = advice_by_words(f" in '{rows[0].range}'")
        within = any(path.startswith(f"{outer}/") for outer in told)
        if what not in BESIDE or len(rows) < len(host_ranks) or within:
            continue
        usual_s, of_steps = (
            float(np.median(column))
            for column in ([r.seconds for r in rows], [r.of_steps for r in rows])
        )
        if usual_s * of_steps < _MUCH * facts.batch.value:
            continue
        told.append(path)
        some = of_steps < 1.0
        often = f"in {percent(of_steps)} of the steps" if some else "in every step"
        yield Finding(
            "host_compute",
            f"all ranks spend time in '{rows[0].range}' {often}",
            usual_s * of_steps,
            f"the median rank is {si(usual_s, 's')} in '{rows[0].range}' {often}, beside its own "
            f"computing and MPI",
            actions.advise(what, where=f" in '{rows[0].range}'"),
            of_mean=some,
            range=rows[0].range,
            subject=path,
        )


@finding("input_copy", needs=("input_copy",))
def copied_inputs(facts: Facts, actions: Actions, copy: Spent) -> Iterator[Finding]:
    """Copies of a step's inputs, in a range of their own, for which the host waits."""
    yield Finding(
        "input_copy",
        "the inputs are copied in every step",
        copy.seconds,
        f"{copy.label} takes {share_of_step(facts, copy.seconds)}",
        actions.keep_inputs(),
    )
