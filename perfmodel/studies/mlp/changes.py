"""The changes of the optimization ladder: what each sets, what it needs, which term it removes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.settings import ON_DEVICE, OWN_GEMMS
from perfmodel.studies import calibrated
from perfmodel.studies.calibrated import Offer
from perfmodel.studies.mlp.case import Case, mlp_case

_HOST: Final = ("host", "pinned", "host-flat", "chunked")
_GPU_MEMORY: Final = ("cuda-aware", "ring")
_MANY: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Change(calibrated.Change):
    """One step up the ladder, or one size doubled: names and terms are those of docs/ladder.md.

    Attributes
    ----------
    sets : mapping of str to str
        Settings (`perfmodel.programs.mlp.settings.SETTINGS`) and their new values.
    replaces : mapping of str to tuple of str
        By setting, the values that the new one is a step from; others stay as they are.
    needs : mapping of str to tuple of str
        Values that other settings must have first.
    ranks : (int, int)
        Fewest and most ranks it is for.
    removes_of : mapping of str to str
        By transport, what it removes where that is not `removes`.
    """

    sets: Mapping[str, str] = field(default_factory=dict)
    replaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: tuple[int, int] = (1, _MANY)
    removes_of: Mapping[str, str] = field(default_factory=dict)

    def made(self, case: Case) -> bool:
        """Whether nothing is left to change, or it is not for so many ranks."""
        if not self.ranks[0] <= case.sizes["p"] <= self.ranks[1]:
            return True
        return not self.doubles and not self._steps(case)

    def missing(self, case: Case) -> dict[str, tuple[str, ...]]:
        """Return the settings that must change first, with the values needed."""
        return {
            name: values for name, values in self.needs.items() if case.settings[name] not in values
        }

    def apply(self, case: Case) -> Case:
        """Return the changed case.

        Raises
        ------
        WorkloadError
            If such a run cannot be: more ranks than images, say.
        """
        sizes = dict(case.sizes)
        if self.doubles:
            sizes[self.doubles] *= 2
        return mlp_case(sizes, {**case.settings, **self._steps(case)})

    def _steps(self, case: Case) -> dict[str, str]:
        return {
            name: value for name, value in self.sets.items()
            if case.settings[name] in self.replaces[name]
        }  # fmt: skip


CHANGES: Final = (
    Change("no sync", "no barriers, and no waiting for the GPU between ranges",
           "the CME 213 assignment's waits at the end of every range",
           {"sync": "no"}, {"sync": ("yes",)}),
    Change("pinned", "images and gradients in page-locked memory", "the driver's staging copies",
           {"data_on": "pinned", "transport": "pinned"},
           {"data_on": ("host",), "transport": ("host",)}),
    Change("host-flat", "one flat buffer: one copy each way and one all-reduce",
           "three of four copies, all-reduces and waits",
           {"transport": "host-flat"}, {"transport": ("host", "pinned", "cuda-aware")},
           {"parallel": ("data",)},
           removes_of={"cuda-aware": "the MPI library's host memory: pageable, new in every call"}),
    Change("prefetch", "the next batch's images are copied while this one is computed",
           "the copy of images from the step's chain",
           {"data_on": "prefetch"}, {"data_on": ("host", "pinned")}),
    Change("resident", "the training set stays on the GPU",
           "the copy of images: b D B' bytes a batch",
           {"data_on": "device"}, {"data_on": ("host", "pinned", "prefetch")}),
    Change("chunked", "copies and all-reduces of chunks in a pipeline",
           "the sum of copy out, all-reduce and copy back: the largest remains",
           {"transport": "chunked"}, {"transport": ("host", "pinned", "host-flat")},
           {"parallel": ("data",)}, (2, _MANY)),
    Change("ring", "a ring of MPI_Sendrecv on GPU memory, summed by the GPU",
           "the MPI library's copies to the host and its sum there",
           {"transport": "ring"}, {"transport": (*_HOST, "cuda-aware")}, {}, (2, _MANY),
           dict.fromkeys(_HOST, "both copies over PCIe, and MPI's sum on the host")),
    Change("nccl", "NCCL sums the gradients over NVLink",
           "both copies over PCIe, MPI on the host, and the host's waits",
           {"transport": "nccl"}, {"transport": (*_HOST, *_GPU_MEMORY)}, {}, (2, _MANY),
           {"cuda-aware": "the MPI library's copies to the host, MPI there, and the host's waits",
            "ring": "MPI_Sendrecv on the host, and the host's waits"}),
    Change("alone", "no all-reduce", "what one rank need not sum",
           {"transport": "none"}, {"transport": (*_HOST, *_GPU_MEMORY, "nccl")}, {}, (1, 1)),
    Change("overlap", "the gradients of W2, b2 are summed while W1's is computed",
           "the small tensors' part of the all-reduce",
           {"overlap": "yes"}, {"overlap": ("no",)},
           {"transport": ("chunked", "nccl"), "parallel": ("data",)}, (2, _MANY)),
    Change("graph", "the whole step is one CUDA graph",
           "the host's launches and the gaps between kernels",
           {"graph": "yes"}, {"graph": ("no",)},
           {"transport": ON_DEVICE, "data_on": ("device",)}),
    Change("thin", "own kernels for the GEMMs of C columns",
           "cuBLAS's launch-bound small GEMMs", {"gemm": "thin"}, {"gemm": ("cublas",)},
           {"math": ("ieee", "tf32")}),
    Change("hierarchical", "one own kernel for all GEMMs, large and small",
           "nothing yet (small GEMMs fit its tiles badly): fused is made of its tiles",
           {"gemm": "hierarchical"}, {"gemm": ("cublas", "thin")}),
    Change("fused", "bias, sigmoid, softmax and sums inside the GEMMs",
           "element-wise passes over memory and their launches",
           {"gemm": "fused"}, {"gemm": ("cublas", "thin", "hierarchical")},
           {"parallel": ("data",)}),
    Change("tf32x3", "a float32 GEMM as TF32 ones of split factors, on tensor cores",
           "the ordinary units' rate: float32's accuracy at a multiple of it",
           {"math": "tf32x3"}, {"math": ("ieee",)}, {"gemm": OWN_GEMMS}),
    Change("tf32", "factors of GEMMs rounded to TF32, on tensor cores",
           "the ordinary units' rate, and float32's accuracy",
           {"math": "tf32"}, {"math": ("ieee", "tf32x3")},
           {"gemm": ("cublas", "thin", *OWN_GEMMS)}, exact=False),
    Change("peer", "own all-reduce over NVLink, fused with the step",
           "NCCL's latency, and one pass over gradients and parameters",
           {"transport": "peer"}, {"transport": ("nccl",)},
           {"parallel": ("data",), "overlap": ("no",)}, (2, 8)),
    Change("model parallel", "ranks share the hidden neurons; z2 summed",
           "the all-reduce of the gradients: C B b bytes remain",
           {"parallel": "model"}, {"parallel": ("data",)},
           {"overlap": ("no",), "transport": ("host", "pinned", "host-flat", "nccl"),
            "gemm": ("cublas", "thin", "hierarchical")}, (2, _MANY)),
    Change("batch x 2", "twice the batch, per image",
           "half of what a batch costs whatever its size",
           doubles="B"),
    Change("ranks x 2", "twice the ranks for the same batch",
           "half of each rank's images and GEMMs", {}, {},
           {"transport": (*_HOST, *_GPU_MEMORY, "nccl", "peer")}, doubles="p"),
)  # fmt: skip
"""In the ladder's order; steps of benchmarks.ladder, and the sizes that a user may choose."""


def offers(case: Case) -> Iterator[Offer]:
    """Yield the changes that a run of this case has not made, in the ladder's order."""
    for change in CHANGES:
        if change.made(case) or (case.sizes["b"] != 4 and "math" in change.sets):
            continue
        removes = change.removes_of.get(case.settings["transport"], change.removes)
        change = replace(change, removes=removes)
        missing = change.missing(case)
        if missing:
            said = [f"{_flag(k)} {' or '.join(v)}" for k, v in missing.items()]
            yield Offer(change, None, f"needs {' and '.join(said)} first")
            continue
        try:
            yield Offer(change, change.apply(case))
        except WorkloadError as error:
            yield Offer(change, None, str(error))


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"
