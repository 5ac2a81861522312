"""Engine steps: sequences and tokens of each, read off the names of its ranges."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np

from perfmodel.readers.trace import Trace
from perfmodel.timing.engine_steps import EngineStep
from perfmodel.timing.nesting import closed_ends
from perfmodel.timing.spans import Steps

_FILE: Final = tomllib.loads(
    files("perfmodel.programs.serving").joinpath("engines.toml").read_text(encoding="utf-8")
)
_PATTERNS: Final = tuple(
    (row["engine"], re.compile(row["pattern"]), row.get("fields", {})) for row in _FILE["range"]
)
_WORD: Final = re.compile(r"(\w+)=(\d+)")
_MODES: Final = {word: mode for mode, words in _FILE["mode"].items() for word in words}
_HOST: Final = "vllm"
"""The engine whose names others take over: of nested ranges another one's says the engine."""


@cache
def engine_step(name: str) -> EngineStep | None:
    """Return what the name of a range says of an engine's step; None if it is of none.

    None, too, where the step computes no token, as of a rank without requests, or where the name
    does not say how many.

    >>> engine_step("step[DECODE bs=32]").generations
    32
    """
    for engine, pattern, fields in _PATTERNS:
        if match := pattern.match(name):
            groups = match.groupdict()
            found = {key: int(v) for key, v in groups.items() if v and v.isdecimal()}
            said = _WORD.findall(name) if fields else ()
            found |= {fields[key]: int(v) for key, v in said if key in fields}
            return _step(engine, groups.get("mode"), found)
    return None


def _step(engine: str, mode: str | None, found: Mapping[str, int]) -> EngineStep | None:
    """Divide sequences and tokens into those of prompts and of answers."""
    contexts, generations = found.get("contexts"), found.get("generations")
    stage = None if mode is None else _MODES.get(mode, "")
    if stage == "prefill":
        contexts, generations = found["batch"], 0
    elif stage == "decode":
        contexts = contexts or 0
        generations = found["batch"] - contexts
    if stage == "" or contexts is None or generations is None:
        return None
    tokens = found.get("tokens")
    generated = found.get("generation_tokens")
    if generated is None:
        whole = tokens is not None and not contexts
        generated = tokens if whole else generations * (1 + found.get("drafts", 0))
    prompts = found.get("context_tokens")
    if prompts is None and contexts:
        prompts = None if tokens is None else tokens - (generated or 0)
    if generated is None or (prompts is None and contexts):
        return None
    prompts = prompts if contexts and prompts else 0
    generated = generated if generations else 0
    if prompts < contexts or generated < generations or not prompts + generated:
        return None
    if "products" in found:
        parts = [_sums(found, "", contexts + generations, prompts + generated)]
    else:
        parts = [
            _sums(found, "context_", contexts, prompts),
            _sums(found, "generation_", generations, generated),
        ]
    return EngineStep(
        engine, contexts, prompts, generations, generated,
        sum(cached for cached, _, _ in parts), sum(pairs for _, pairs, _ in parts),
        all(exact for _, _, exact in parts),
    )  # fmt: skip


def _sums(found: Mapping[str, int], of: str, count: int, tokens: int) -> tuple[int, int, bool]:
    """Return tokens whose keys are read, pairs of queries and keys, and whether both are exact.

    Each of the sq computed tokens of a sequence sees the sk - sq before, itself and the computed
    ones before it, in all sq sk - (sq^2 - sq) / 2. Where the name lacks a sum, the least is taken:
    sequences of one length, with nothing before them.
    """
    if not count:
        return 0, 0, True
    cached, products, squares = (
        found.get(f"{of}{what}") for what in ("cached", "products", "squares")
    )
    one = count == 1
    if squares is None and (one or tokens == count):
        squares = tokens * tokens if one else tokens
    if products is None and cached is not None and (one or tokens == count):
        products = cached * tokens if one else cached
    if cached is None and products is not None and one:
        cached = products // tokens
    if cached is None or products is None or squares is None:
        least = (tokens * tokens // count + tokens) // 2
        if products is not None and squares is not None:
            least = products - (squares - tokens) // 2
        return tokens if cached is None else cached, least, False
    return cached, products - (squares - tokens) // 2, True


def is_serving(trace: Trace) -> bool:
    """Whether a range of a trace is a step of an engine."""
    return any(engine_step(label) is not None for label in trace.range_labels)


def engine_steps(trace: Trace, steps: Steps) -> tuple[EngineStep | None, ...]:
    """Return what each step computes, of the engine's ranges that begin in it or hold it.

    Where several do, the one that says most, with the engine that wraps it.
    """
    known = [engine_step(label) for label in trace.range_labels]
    codes = np.array([i for i, one in enumerate(known) if one is not None], np.int64)
    rows = np.flatnonzero(np.isin(trace.ranges.name, codes))
    ends = closed_ends(trace.ranges)[rows]
    process = trace.thread_process[trace.ranges.thread[rows]]
    start = trace.ranges.start_ns[rows]
    found: list[EngineStep | None] = []
    for i in range(len(steps)):
        mine = process == steps.process[i]
        begins = (start >= steps.start_ns[i]) & (start < steps.end_ns[i])
        holds = (start <= steps.start_ns[i]) & (ends >= steps.end_ns[i])
        names = trace.ranges.name[rows[mine & (begins | holds)]].tolist()
        found.append(_joined([one for code in names if (one := known[code]) is not None]))
    return tuple(found)


def _joined(said: Sequence[EngineStep]) -> EngineStep | None:
    """Return the step that says most, called after the outermost engine."""
    if not said:
        return None
    best = max(said, key=lambda one: (one.exact, one.tokens))
    engine = next((one.engine for one in said if one.engine != _HOST), best.engine)
    return EngineStep(
        engine, best.contexts, best.context_tokens, best.generations, best.generation_tokens,
        best.cached, best.pairs, best.exact,
    )  # fmt: skip
