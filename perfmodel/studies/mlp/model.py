"""The calibrated model of the trainer's steps, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.programs.mlp.settings import ON_DEVICE, unusual
from perfmodel.programs.program import Options
from perfmodel.studies.calibrated import Calibrated
from perfmodel.studies.mlp.bounds import gather
from perfmodel.studies.mlp.case import Case, mlp_case, too_large
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.mlp.parts import gemms_alone, microbenchmarks, separating
from perfmodel.studies.models.terms import Alone, Microbenchmark, Observation
from perfmodel.timing.run import Run


class MlpModel(Calibrated):
    """See `perfmodel.studies.calibrated.Calibrated`."""

    by_mark: bool = True
    unusual = staticmethod(unusual)
    evidence = staticmethod(gather)
    separating = staticmethod(separating)
    too_large = staticmethod(too_large)

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Return the settings without a transport."""
        return {**settings, "transport": "none"}

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Whether the GPUs sum among themselves."""
        return config.get("transport") in ON_DEVICE and config.get("backend") != "numpy"

    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Return a run of the trainer, its defaults filled in."""
        return mlp_case(sizes, settings)

    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the parts of a run with the trainer's mark."""
        return observe(run)

    def microbenchmarks(
        self, found: MachineMeasurement, source: str
    ) -> tuple[Alone | None, Sequence[Microbenchmark]]:
        """Return the trainer's GEMMs, copies, all-reduces and launches alone."""
        return gemms_alone(found, source), microbenchmarks(found, source)


MLP_MODEL: Final = MlpModel()
