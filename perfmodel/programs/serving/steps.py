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
_PATTERNS: Final = tuple((row["engine"], re.compile(row["pattern"])) for row in _FILE["range"])
_MODES: Final = {word: mode for mode, words in _FILE["mode"].items() for word in words}
_HOST: Final = "vllm"
"""The engine whose names others take over: of nested ranges another one's says the engine."""


@cache
def engine_step(name: str) -> EngineStep | None:
    """Return what the name of a range says of an engine's step; None if it is of none.

    The pairs of a prompt: each of the sq computed tokens sees the sk - sq before and itself with
    the computed ones before it, in all sq sk - (sq^2 - sq) / 2.

    >>> engine_step("step[DECODE bs=32]").generations
    32
    """
    for engine, pattern in _PATTERNS:
        if match := pattern.match(name):
            found = {key: int(v) for key, v in match.groupdict().items() if v and v.isdecimal()}
            return _step(engine, match.groupdict().get("mode"), found)
    return None


def _step(engine: str, mode: str | None, found: Mapping[str, int]) -> EngineStep | None:
    if mode is not None:
        stage, batch = _MODES.get(mode), found.get("batch", 0)
        tokens = found.get("tokens", batch)
        if stage is None:
            return None
        key = "generation" if stage == "decode" else "context"
        found = {f"{key}s": batch, f"{key}_tokens": tokens}
    contexts, tokens = found.get("contexts", 0), found.get("context_tokens", 0)
    generations = found.get("generations", 0)
    generated = found.get("generation_tokens", generations)
    products, squares = found.get("context_products"), found.get("context_squares")
    if contexts == 1 and squares is None:
        squares = tokens * tokens
    cached = found.get("context_cached")
    if cached is None and contexts == 1 and products is not None and tokens:
        cached = products // tokens
    before = found.get("generation_cached")
    known_context = not contexts or (products is not None and squares is not None)
    known = known_context and (not contexts or cached is not None)
    known &= not generations or before is not None
    if products is not None and squares is not None:
        pairs = products - (squares - tokens) // 2
    else:  # least if all prompts are equally long and have nothing before them
        pairs = (tokens * tokens // max(contexts, 1) + tokens) // 2
    before = generated if before is None else before
    seen = found.get("generation_products", before if generated == generations else generated)
    return EngineStep(
        engine, contexts, tokens, generations, generated,
        (tokens if cached is None else cached) + before, pairs + seen, known,
    )  # fmt: skip


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
