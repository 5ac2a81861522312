"""Fit the weights of `perfmodel.timing.evidence` by maximum likelihood, and print them.

    python -m benchmarks.steps [--seeds 0 20] [--leave-out]

The programs are those of `tests/support/structured` at the seeds for tuning, and the recordings of
`profiles/programs` whose steps are declared, searched without their names. A program's likelihood
is the sum of P over the levels with the right number of repetitions, or P(none) where it has one
step only (`perfmodel.timing.evidence.chain`). Weights are shrunk towards 0 by a ridge, so that a
column that decides nothing weighs nothing. With `--leave-out`, every kind of programs is scored by
the weights that all other kinds give.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize

from benchmarks.common.folders import PROGRAMS
from perfmodel.base.arrays import Bool, Floats
from perfmodel.programs.pytorch.ranges import is_pytorch, own_ranges
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.readers.trace import rows as select
from perfmodel.timing.candidates import find_steps
from perfmodel.timing.evidence import FEATURES, WEIGHTS, chain, kind_of
from perfmodel.timing.launched import launched
from perfmodel.timing.nest import Level, alike, most_whole, nest_on_gpu, nest_on_host

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.structured import KINDS, program

FIRST_GUESS: Final = {
    "one": 2.0, "covered": 3.0, "explained": 1.0, "always": 0.5, "in_a_row": -1.0, "replaced": 1.0,
    "irregular": -3.0, "regular": -3.0, "own": -3.0, "alternating": -3.0, "update_in_each": 3.0,
    "update_in_some": -5.0, "several_updates": -2.0, "copy_in_each": 1.0, "copy_in_some": -2.0,
    "batches_between": 2.0, "result_in_each": 0.5, "size": 0.2,
}  # fmt: skip
"""Where the search for weights begins, by reason alone."""
MORE: Final = range(100, 140)
"""Seeds that are in the fit beside those for tuning."""
TIMES: Final = 31
"""How often a recording counts, which a program of the generator does once."""
RIDGE: Final = {"updates": 0.00005, "no_updates": 0.00005, "host": 0.003}
"""Of the squared weights of columns that are scaled to a standard deviation of 1, per program; more
for the one kind of programs without a GPU, whose steps nearly any weights tell."""
UNNAMED: Final = {"gan_shapes": 6, "graph_epochs": 123, "cupy_cg": 303, "cupy_streams": 33,
                  "lstm_shapes": 8, "gpt_unnamed": 8, "pipeline": 6, "video": 9}  # fmt: skip
"""Steps of the recordings without names, by their truth files, with those before the timed ones."""


@dataclass(frozen=True)
class Example:
    """The levels of one program, and which are right; no level is where it has one step."""

    kind: str
    features: Floats
    right: Bool
    groups: tuple[tuple[int, ...], ...]
    whole: tuple[int, ...]

    @property
    def table(self) -> str:
        """Which weights it has."""
        return kind_of(self.features[0]) if len(self.features) else "no_updates"

    @property
    def of_use(self) -> bool:
        """Whether the right answer is among the candidates."""
        return bool(self.right.any())


def example(kind: str, nest: Sequence[Level], answers: frozenset[int]) -> Example:
    """Return the levels with what is right: counts within one, or none of them for one step."""
    one = answers == frozenset({1})
    counts = np.array([level.count for level in nest], np.int64)
    near = [not one and min(abs(int(n) - a) for a in answers) <= 1 for n in counts]
    features = np.array([level.features for level in nest]).reshape(-1, len(FEATURES))
    groups = tuple(tuple(group) for group in alike(nest))
    whole = tuple(level.whole for level in nest)
    return Example(kind, features, np.array([*near, one], np.bool_), groups, whole)


def nest_of(trace: Trace) -> list[Level]:
    """Return the levels of a report."""
    everything = [(trace, launched(trace))]
    return nest_on_gpu(trace, everything.copy) if len(trace.ops) else nest_on_host(trace)


def generated(seeds: range) -> Iterator[Example]:
    """Yield the programs of the generator."""
    for kind in KINDS:
        for seed in seeds:
            one = program(kind, seed)
            yield example(kind, nest_of(one.to_trace()), one.truth.answers)


def recorded() -> Iterator[Example]:
    """Yield the recordings, without the ranges that name their steps."""
    for path in sorted(PROGRAMS.glob("*.sqlite.xz")):
        trace = read(path)
        own = own_ranges(trace) if is_pytorch(trace) else trace
        name = path.name.split(".")[0]
        if name in UNNAMED:
            yield example("recorded", nest_of(own), frozenset({UNNAMED[name]}))
            continue
        found = find_steps(own)
        if found.found_by != "declared" or "Xla" in found.label:
            continue
        optimizer = [label.startswith("Optimizer.step#") for label in own.range_labels]
        kept = np.array([*optimizer, False])[own.ranges.name]
        bare = replace(own, ranges=select(own.ranges, kept))
        if len(bare.ops):
            count = int(np.bincount(found.process).max())
            yield example("recorded", nest_of(bare), frozenset({count}))


def log_likelihood(
    weights: Floats, features: Floats, right: Bool, misled: float
) -> tuple[float, Floats]:
    """Return log P of the right answer of a program, and its gradient.

    With r_i the share of level i in the probability of the right answers, d log P / d z_j is r_j
    less s(z_j) times the shares of j and of all later ones.
    """
    z = features @ weights
    log_not = -np.logaddexp(0.0, z)
    before = np.concatenate([[0.0], np.cumsum(log_not)])
    log_p = before + np.append(z + log_not, 0.0)  # log s(z) = z + log(1 - s(z))
    if not right.any():
        return float(np.log(misled)), np.zeros(len(weights))
    total = float(np.logaddexp.reduce(log_p[right]))
    share = np.where(right, np.exp(log_p - total), 0.0)
    likely = misled + (1 - misled) * np.exp(total)
    later = np.cumsum(share[::-1])[::-1]
    by_z = share[:-1] - later[:-1] / (1 + np.exp(-z))
    return float(np.log(likely)), (1 - misled) * np.exp(total) / likely * (by_z @ features)


_TURNS: Final = 12
_NONE: Final = 1e-5
"""In the first turns all programs pull."""
MISLED: Final = 0.03
"""Share of the programs whose evidence misleads: so none of them pulls at all weights."""


def _best(weights: Floats, one: Example) -> list[int]:
    """Return the best level of every group."""
    z = (one.features @ weights).tolist()
    return [most_whole(group, z, one.whole) for group in one.groups]


def fit(examples: Sequence[Example], ridge: float) -> Floats:
    """Return the weights that make the right answers likeliest.

    Which level of a group is best depends on the weights: both are found in turn.
    """
    used = [one for one in examples if one.of_use]
    scale = np.maximum(np.concatenate([one.features for one in used]).std(axis=0), 0.05)
    scale[0] = 1.0
    penalty = np.full(len(scale), ridge)
    penalty[0] = 0.0
    scaled = np.array([FIRST_GUESS.get(name, 0.0) for name in FEATURES]) * scale
    for turn in range(_TURNS):
        misled = MISLED if turn >= _TURNS // 2 else _NONE
        chosen = [_best(scaled / scale, one) for one in used]
        tables = [
            (one.features[at], one.right[[*at, -1]]) for one, at in zip(used, chosen, strict=True)
        ]

        def loss(x: Floats, tables: Any = tables, misled: float = misled) -> tuple[float, Floats]:
            found = [log_likelihood(x / scale, *table, misled) for table in tables]
            value = sum(v for v, _ in found) / len(used)
            gradient = np.sum([g for _, g in found], axis=0) / len(used) / scale
            return float((penalty * x**2).sum()) - value, 2 * penalty * x - gradient

        scaled = minimize(loss, scaled, jac=True, method="L-BFGS-B").x
    result: Floats = scaled / scale
    return result


def answered(weights: Floats, one: Example) -> tuple[bool, float]:
    """Return whether the likeliest answer is right, and how likely it is."""
    chosen = _best(weights, one)
    p = chain((one.features[chosen] @ weights).tolist())
    best = int(np.argmax(p))
    return bool(one.right[[*chosen, -1]][best]), float(p[best])


Weights = dict[str, Floats]


def fit_all(examples: Sequence[Example]) -> Weights:
    """Fit each kind of programs by itself."""
    return {
        name: fit([one for one in examples if one.table == name], RIDGE[name]) for name in WEIGHTS
    }


def score(weights: Weights, examples: Sequence[Example]) -> str:
    """Say how many programs are right, by kind, and by how likely the answer is."""
    lines = []
    for kind in dict.fromkeys(one.kind for one in examples):
        mine = [answered(weights[one.table], one)[0] for one in examples if one.kind == kind]
        lines.append(f"{kind:24}{sum(mine):5} of {len(mine)}")
    every = [answered(weights[one.table], one) for one in examples]
    lines.append(f"{'all':24}{sum(right for right, _ in every):5} of {len(every)}")
    for least, most in ((0.9, 1.1), (0.7, 0.9), (0.0, 0.7)):
        bucket = [right for right, p in every if least <= p < most]
        lines.append(f"P from {least}: {sum(bucket)} of {len(bucket)} right")
    return "\n".join(lines)


def main() -> None:
    """Fit, and print the weights and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 20])
    parser.add_argument("--leave-out", action="store_true")
    arguments = parser.parse_args()
    first, after = arguments.seeds
    examples = [*generated(range(first, after)), *generated(MORE), *(list(recorded()) * TIMES)]
    weights = fit_all(examples)
    print(score(weights, examples))
    print(json.dumps({name: np.round(found, 2).tolist() for name, found in weights.items()}))
    if arguments.leave_out:
        for kind in dict.fromkeys(one.kind for one in examples):
            others = fit_all([one for one in examples if one.kind != kind])
            mine = [answered(others[one.table], one)[0] for one in examples if one.kind == kind]
            print(f"left out: {kind:24}{sum(mine):5} of {len(mine)}")


if __name__ == "__main__":
    main()
