"""A run of the trainer to predict: its sizes and settings, and the parts of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perfmodel.programs.mlp.rules import accepted
from perfmodel.programs.mlp.settings import ON_DEVICE, SETTINGS, TRANSPORTS, Transport, parameters
from perfmodel.studies.models import terms

if TYPE_CHECKING:
    from perfmodel.studies.models.terms import Alone, Part, Route

MLP: Final = "mlp"
"""Name of the trainer's own workload."""


class Case(terms.Case):
    """A run of the trainer: sizes D, H, C, B, p and b, and a value for every key of `SETTINGS`."""

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return MLP

    @property
    def label(self) -> str:
        """A short name: sizes, and the settings that are not the default."""
        default = {name: values[0] for name, values in SETTINGS.items()}
        said = [
            v if name in ("transport", "gemm", "math") else f"{name}={v}"
            for name, v in self.settings.items()
            if v != default.get(name) or name == "transport"
        ]
        return " ".join([super().label, *said])

    @property
    def route(self) -> Route:
        """Return the mode in which host and GPU take turns."""
        if self.settings["graph"] == "yes":
            return "replayed"
        return "queued" if self.settings["transport"] in ON_DEVICE else "blocking"

    @property
    def streamed(self) -> bool:
        """Whether every batch copies its images from the host."""
        return self.settings["data_on"] != "device"

    @property
    def transport(self) -> Transport:
        """Return the way that sums gradients."""
        return TRANSPORTS[self.settings["transport"]]

    @property
    def shares(self) -> tuple[float, float]:
        """Hidden units and images of the rank with the most images (of the mean rank by units)."""
        h, images, p = float(self.sizes["H"]), self.sizes["B"], self.sizes["p"]
        if self.settings["parallel"] == "model":
            return h / p, float(images)
        return h, float(-(-images // p))

    @property
    def parameters(self) -> int:
        """Return n, elements of the gradients of one rank."""
        return round(parameters(self.sizes["D"], self.shares[0], self.sizes["C"]))

    @property
    def message_bytes(self) -> float:
        """Bytes of a batch that are summed: gradients, or z2 in model parallelism."""
        z = self.sizes
        apart = self.settings["parallel"] == "model"
        return float((z["C"] * z["B"] if apart else self.parameters) * z["b"])

    @property
    def command(self) -> str:
        """Return the command that runs the program."""
        s = self.settings
        words = ["--dtype float64"] if self.sizes["b"] == 8 else []
        words += [f"--{n.replace('_', '-')} {s[n]}" for n in ("transport", "data_on", "gemm")]
        switches = ("graph", "--graph"), ("overlap", "--overlap"), ("sync", "--sync-ranges")
        words += [flag for name, flag in switches if s[name] == "yes"]
        words += [f"--math {s['math']}"] if s["math"] != "ieee" else []
        words += ["--parallel model"] if s["parallel"] == "model" else []
        words += ["with nsys's --cuda-graph-trace=node"] if s["graph"] == "yes" else []
        return " ".join(["python -m trainer", *words])

    def parts(self, alone: Alone | None = None) -> tuple[Part, ...]:
        """Return the parts of one rank's batch; see `perfmodel.studies.mlp.parts.mlp_parts`."""
        from perfmodel.studies.mlp.parts import mlp_parts

        return mlp_parts(self, alone)

    def having(self, **settings: str) -> Case:
        """Return the case with other settings, those that are given."""
        return replace(self, settings={**self.settings, **settings})


def mlp_case(sizes: Mapping[str, int], settings: Mapping[str, str]) -> Case:
    """Return a case of the MLP, defaults filled in.

    Raises
    ------
    WorkloadError
        If a size is missing, not positive or impossible, or a setting is unknown or goes with
        no other.
    """
    return Case(*accepted(sizes, settings))
