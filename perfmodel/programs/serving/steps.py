"""Engine steps: sequences and tokens of each, read off the names of its ranges."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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
_ANY: Final = re.compile(
    "|".join(
        f"(?:{re.sub(r'[?]P<[a-z_]+>', '?:', pattern.pattern)})" for _, pattern, _ in _PATTERNS
    )
)
"""Matches what any of the patterns does: most names of a report are of no engine."""
_WORD: Final = re.compile(r"(\w+)=(\d+)")
_MOST: Final = 1 << 40
"""Larger numbers no batch has; a name with one is damaged."""
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
    guesses = stage == "verify"
    if max(found.values(), default=0) > _MOST:
        return None
    if stage == "prefill":
        contexts, generations = found["batch"], 0
    elif stage in ("decode", "verify"):
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
    if prompts < contexts or generated < generations or min(contexts, generations) < 0:
        return None
    if not prompts + generated:
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
        all(exact for _, _, exact in parts) and not guesses, guesses,
    )  # fmt: skip


def _sums(found: Mapping[str, int], of: str, count: int, tokens: int) -> tuple[int, int, bool]:
    """Return tokens whose keys are read, pairs of queries and keys, and whether both are exact.

    Each of the sq computed tokens of a sequence sees the sk - sq before, itself and the computed
    ones before it, in all sq sk - (sq^2 - sq) / 2. Where the name lacks a sum, or has impossible
    ones, the least is taken: sequences of one length, with nothing before them.
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
    if cached is not None and cached < tokens:  # no cache lacks what is computed
        cached = None
    least = tokens * tokens / count  # squares of parts that are equal
    if squares is None or products is None or not least <= squares <= min(tokens**2, products):
        return tokens if cached is None else cached, (int(least) + tokens) // 2, False
    pairs = products - (squares - tokens) // 2
    return tokens if cached is None else cached, pairs, cached is not None


def engine_of(name: str) -> str | None:
    """Return the engine that names its steps so, whatever the name says of them."""
    if _ANY.match(name) is None:
        return None
    return next((engine for engine, pattern, _ in _PATTERNS if pattern.match(name)), None)


def _untold(name: str) -> bool:
    """Whether the name is of a step of sequences, but does not say how many tokens it computes."""
    for _, pattern, _ in _PATTERNS:
        if match := pattern.match(name):
            said = match.groupdict()
            counts = (said.get(key) or "0" for key in ("batch", "contexts", "generations"))
            known = said.get("context_tokens") is not None or engine_step(name) is not None
            model = said.get("mode") is None or said["mode"] in _MODES
            return model and not known and any(count.strip("0") for count in counts)
    return False


def is_serving(trace: Trace) -> bool:
    """Whether a range of a trace is a step of an engine."""
    return any(map(_ANY.match, trace.range_labels))


def engine_steps(trace: Trace, steps: Steps) -> tuple[EngineStep | None, ...]:
    """Return what each step computes, of the engine's ranges that begin in it or hold it.

    Where several do, the one that says most, with the engine that wraps it.
    """
    said = ([engine_step(label) for label in labels] for labels in _labels(trace, steps))
    return tuple(_joined([one for one in found if one is not None]) for found in said)


def untold_steps(trace: Trace, steps: Steps) -> list[str]:
    """Return a label of each step of sequences whose names do not say how many tokens."""
    found = []
    for labels in _labels(trace, steps):
        if not any(engine_step(label) is not None for label in labels):
            found += [label for label in labels if _untold(label)][:1]
    return found


def _labels(trace: Trace, steps: Steps) -> Iterator[list[str]]:
    """Yield the labels of an engine's ranges that begin in each step or hold it."""
    codes = [i for i, label in enumerate(trace.range_labels) if engine_of(label) is not None]
    rows = np.flatnonzero(np.isin(trace.ranges.name, codes))
    process = trace.thread_process[trace.ranges.thread[rows]]
    order = np.lexsort((trace.ranges.start_ns[rows], process))
    rows, process = rows[order], process[order]
    start, ends = trace.ranges.start_ns[rows], closed_ends(trace.ranges)[rows]
    for i in range(len(steps)):
        first, last = np.searchsorted(process, [steps.process[i], steps.process[i] + 1])
        mine = slice(first, last)
        begin, end = np.searchsorted(start[mine], [steps.start_ns[i], steps.end_ns[i]])
        before = first + np.flatnonzero(ends[first : first + begin] >= steps.end_ns[i])
        inside = rows[[*before.tolist(), *range(first + begin, first + end)]]
        yield [trace.range_labels[code] for code in trace.ranges.name[inside].tolist()]


def _joined(said: Sequence[EngineStep]) -> EngineStep | None:
    """Return the step that says most, called after the outermost engine."""
    if not said:
        return None
    best = max(said, key=lambda one: (one.exact, one.tokens))
    engine = next((one.engine for one in said if one.engine != _HOST), best.engine)
    return EngineStep(
        engine, best.contexts, best.context_tokens, best.generations, best.generation_tokens,
        best.cached, best.pairs, best.exact, best.guesses,
    )  # fmt: skip
