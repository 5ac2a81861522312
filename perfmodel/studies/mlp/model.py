"""The calibrated model of the trainer's steps, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from perfmodel.programs.mlp.settings import ON_DEVICE, unusual
from perfmodel.studies.calibrated import Calibrated

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.machines.measure.measurement import MachineMeasurement
    from perfmodel.programs.program import Options
    from perfmodel.studies.calibrated import Evidence
    from perfmodel.studies.mlp.case import Case
    from perfmodel.studies.models import terms
    from perfmodel.studies.models.terms import Alone, Microbenchmark, Observation
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.run import Run


class MlpModel(Calibrated):
    """See `perfmodel.studies.calibrated.Calibrated`.

    Most commands do not predict, and are spared the imports of its methods.
    """

    by_mark: bool = True
    unusual = staticmethod(unusual)

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings without a transport."""
        return {**settings, "transport": "none"}

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Whether the GPUs sum among themselves."""
        return config.get("transport") in ON_DEVICE and config.get("backend") != "numpy"

    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Return a run of the trainer, its defaults filled in."""
        from perfmodel.studies.mlp.case import mlp_case

        return mlp_case(sizes, settings)

    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the parts of a run with the trainer's mark."""
        from perfmodel.studies.mlp.observe import observe

        return observe(run)

    def evidence(
        self,
        observed: Observation,
        busy_s: Mapping[str, float],
        collectives: Sequence[CollectiveGroup],
        machine: Machine | None,
    ) -> Evidence:
        """Put together what a report gives."""
        from perfmodel.studies.mlp.bounds import gather

        return gather(observed, busy_s, collectives, machine)

    def microbenchmarks(
        self, found: MachineMeasurement, source: str
    ) -> tuple[Alone | None, Sequence[Microbenchmark]]:
        """Return the trainer's GEMMs, copies, all-reduces and launches alone."""
        from perfmodel.studies.mlp.parts import gemms_alone, microbenchmarks

        return gemms_alone(found, source), microbenchmarks(found, source)

    def separating(self, term: str, amounts: Sequence[str], missing: int) -> str:
        """Name the trainer's flags and sizes."""
        from perfmodel.studies.mlp.parts import separating

        return separating(term, amounts, missing)

    def too_large(self, cases: Sequence[terms.Case], gpu: str, images: int) -> str | None:
        """Count the trainer's allocations."""
        from perfmodel.studies.mlp.capacity import too_large

        return too_large(cases, gpu, images)


MLP_MODEL: Final = MlpModel()
