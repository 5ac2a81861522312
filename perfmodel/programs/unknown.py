"""A program of which nothing is known: its steps are found, its formulas are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.programs.findings import Actions, Facts, Finding, general
from perfmodel.programs.identify import Identity, read_mark
from perfmodel.programs.losses import find_losses
from perfmodel.readers.trace import Trace
from perfmodel.timing.steps import Steps, find_steps, with_steps
from perfmodel.workloads.work import Workload

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.machines.measure.measurement import MachineMeasurement
    from perfmodel.models.terms import Alone, Case, Microbenchmark, Observation
    from perfmodel.programs.program import Evidence, Options, StepClock
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.operator_times import OperatorTimes
    from perfmodel.timing.run import Run
    from perfmodel.timing.step_report import StepReport

_STEP: Final = "step"
"""What steps are called that nothing names."""


class UnknownProgram:
    """See `perfmodel.programs.program.Program`."""

    name: str = "unknown"
    step_clock: StepClock = "gpu"
    replay: str = ""
    modelled: bool = False

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Any report."""
        return True

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace with the ranges that say what the program itself does."""
        return trace

    def find(self, trace: Trace, asked: str | None) -> Steps:
        """Find the steps in the program's own ranges, or in the sequence of its operations."""
        return find_steps(trace, asked)

    def steps(self, trace: Trace, options: Options) -> tuple[Trace, Steps]:
        """Find the steps, and show each as a range of one name."""
        own = self.own_ranges(trace)
        return with_steps(own, self.find(own, options.batch_label), _STEP)

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """No operators are named."""
        return None

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Nothing is known but the number of ranks, and whether it used a GPU and MPI."""
        known = Identity(
            {"p": len(run.ranks), **given},
            "the report",
            {},
            uses_gpu=any(len(t.ops) for t in run.traces),
            uses_mpi=any(len(t.mpi) for t in run.traces),
        )
        return known, self.warnings(run)

    def warnings(self, run: Run) -> list[str]:
        """What such a report cannot show, and the flag that shows it."""
        return []

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """No formulas."""
        return None

    def workload_of(self, kernels: Mapping[str, Collection[str]]) -> Workload:
        """No formulas."""
        return Workload("unknown", "no", "", "", {}, {})

    def missing(self, label: str, symbols: Sequence[str], *, marked: bool) -> str:
        """No symbols, so that none is missing."""
        return ""

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return the tensor cores' peak for single precision where kernels use them."""
        return "tf32_tensor" if seen_tf32 else "float32"

    def actions(self, identity: Identity) -> Actions:
        """Return everything: the program says nothing of what it does."""
        return Actions()

    def advice(self, facts: Facts) -> Iterable[Finding]:
        """Find what any program may lose."""
        actions = self.actions(Identity({}, "", {}))
        if facts.steps is None:
            return general(facts, actions)
        return find_losses(facts, facts.steps, actions)

    def settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """No settings are known."""
        return {}

    def unusual(self, settings: Mapping[str, str]) -> Sequence[str]:
        """No settings are known."""
        return ()

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str] | None:
        """No settings are known."""
        return None

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Its steps are timed on the GPU where the host queues them."""
        return False

    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Refuse: no parts are known."""
        raise ModelError(
            f"expected a program whose batch is predicted; got {self.name}; describe it with "
            f"--workload FILE.toml"
        )

    def observe(self, run: Run, options: Options) -> Observation:
        """Refuse: nothing says what a batch consists of."""
        raise not_modelled(run)

    def evidence(
        self,
        observed: Observation,
        busy_s: Mapping[str, float],
        collectives: Sequence[CollectiveGroup],
        machine: Machine | None,
    ) -> Evidence:
        """Refuse: no changes are known."""
        raise ModelError(
            f"expected a program whose changes are known; got {self.name}; leave --model out for "
            f"bounds by the report alone"
        )

    def microbenchmarks(
        self, found: MachineMeasurement, source: str
    ) -> tuple[Alone | None, Sequence[Microbenchmark]]:
        """No parts, so that nothing is measured alone."""
        return None, ()

    def separating(self, term: str, amounts: Sequence[str], missing: int) -> str:
        """Other sizes separate what a workload's formulas do not make proportional."""
        return (
            "a report at sizes that change their proportions would separate them; if by the "
            "workload's formulas no sizes do, nothing is missing"
        )

    def too_large(self, cases: Sequence[Case], gpu: str, images: int) -> str | None:
        """What it allocates is not known."""
        return None


def not_modelled(run: Run) -> ModelError:
    """Say why nothing is known of the parts of a run's batches, and what to do."""
    config = next((c for t in run.traces if (c := read_mark(t))), {})
    if not config:
        return ModelError(
            f"{run.label}: expected a configuration mark, which says how the batch ran; got none; "
            f"profile with python -m trainer, or calibrate with --workload and the sizes"
        )
    return ModelError(
        f"{run.label}: expected a run of the trainer's MLP; got one of the workload "
        f"{printable(str(config.get('workload')))!r}, by its configuration mark; perfmodel "
        f"calibrate takes it with its formulas, --workload FILE.toml"
    )


UNKNOWN_PROGRAM: Final = UnknownProgram()
