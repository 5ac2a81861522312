"""What is wrong in the ResNet study, each with the arithmetic that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.base.units import si
from studies.resnet import (
    Memory,
    Trial,
    flops_in_1x1,
    least_flops,
    machine_of,
    pthflops,
    roof,
    roof_share,
    study,
    training,
)

_DIGITS = re.compile(r"[-+]?(?:[0-9]*[0-9]+|[-+])")
"""The pattern that the study gives to `grep -Eo`."""

_SECTOR_BYTES = 32


@dataclass(frozen=True, slots=True)
class Erratum:
    """What the study says, and what its own numbers say."""

    claim: str
    finding: str


def errata() -> tuple[Erratum, ...]:
    """Return every error, the weightiest first."""
    return tuple(Erratum(claim, finding) for claim, finding in _errata())


def grepped(lines: Iterable[str]) -> float:
    """Return the sum that the study's pipeline makes of ncu's lines.

    ``grep sum | grep dram__bytes_read | grep Kbyte | grep -Eo '[-+]?([0-9]*[0-9]+|[-+])' | awk '{
    SUM += $1 }'``: lines in another unit are dropped, and "1,208.97" is 1, 208 and 97.
    """
    kept = [x for x in lines if all(word in x for word in ("sum", "dram__bytes_read", "Kbyte"))]
    return float(sum(int(n) for line in kept for n in _DIGITS.findall(line) if n[-1].isdigit()))


def _errata() -> Iterator[tuple[str, str]]:
    v18, v50, a18, a50 = study().trials
    yield from _about_flops(v18, v50, a18, a50)
    yield from _about_the_roof(v18, v50, a18, a50)
    yield from _about_time(v18, v50, a18, a50)
    yield from _about_memory()
    yield (
        "32 bytes floating point; points (22, 117) and (1.44, 17.50); throughput in b/s",
        f"float32 has 32 bits. The table's points are ({v18.flops / v18.bytes:.2f}, "
        f"{v18.flops / v18.time_s / 1e9:.2f}) and ({a50.flops / a50.bytes:.2f}, "
        f"{a50.flops / a50.time_s / 1e9:.2f}). The column is bytes per second: "
        f"{v18.bytes / v18.time_s:.0f}.",
    )


def _about_flops(v18: Trial, v50: Trial, a18: Trial, a50: Trial) -> Iterator[tuple[str, str]]:
    yield (
        f"the theoretical FLOP are {v18.theoretical_flops:,} and {v50.theoretical_flops:,}",
        f"These are one forward pass of two images, a multiply-accumulate counted once: the "
        f"study's tool gives {pthflops(v18.net, 2):,} and {pthflops(v50.net, 2):,} at batch 2. "
        f"Training on ten images takes {si(training(v18).flops, 'FLOP')} and "
        f"{si(training(v50).flops, 'FLOP')} at 2 FLOP each, "
        f"{training(v18).flops / v18.theoretical_flops:.1f} times as many.",
    )
    yield (
        "the A100 finishes with fewer FLOP than expected, as it optimizes multiply+add",
        f"Its products can only have run on tensor cores (TF32 is the default for convolutions), "
        f"which counters of FADD, FMUL and FFMA do not see. ResNet-50's 1x1 convolutions alone "
        f"take {si(flops_in_1x1(a50.net), 'FLOP')} forward for one image, which no algorithm "
        f"lowers; counted were {si(a50.flops, 'FLOP')} for {study().images} images, forward and "
        f"backward, {100 * a50.flops / training(a50).flops:.1f} % of the work. ResNet-18: "
        f"{100 * a18.flops / training(a18).flops:.1f} %, and Winograd's F(6x6, 3x3) in every 3x3 "
        f"convolution would leave {100 * least_flops(a18.net, 10) / training(a18).flops:.0f} %.",
    )
    yield (
        "the V100's actual FLOP are 6.5 and 8.7 times the theoretical ones: overhead",
        f"The two do not count the same. Of what {study().images} images take, "
        f"{100 * v18.flops / training(v18).flops:.0f} % and "
        f"{100 * v50.flops / training(v50).flops:.0f} % were counted: too few, not too many. "
        f"ResNet-50's 1x1 convolutions alone take {si(3 * flops_in_1x1(v50.net, 10), 'FLOP')} to "
        f"train on; {si(v50.flops, 'FLOP')} were counted. Fewer images, an FMA counted once, or "
        f"lines lost when summing would each do that; the study does not tell.",
    )
    yield (
        "on the A100 the flop decreases by more than 90 percent",
        f"By {100 * (1 - a18.flops / v18.flops):.1f} % for ResNet-18, "
        f"{100 * (1 - a50.flops / v50.flops):.1f} % for ResNet-50.",
    )


def _about_the_roof(v18: Trial, v50: Trial, a18: Trial, a50: Trial) -> Iterator[tuple[str, str]]:
    v100, a100 = roof(machine_of(v18)), roof(machine_of(a18))
    at_ridge = v100.ridge_flops_per_byte * v100.bandwidth_bytes_per_s / 1e9
    yield (
        "the V100's ridge is at (17.44, 15.7x10^4 GFLOPS)",
        f"{v100.ridge_flops_per_byte:.2f} FLOP/byte times "
        f"{si(v100.bandwidth_bytes_per_s, 'B/s')} is {at_ridge:,.0f} GFLOP/s, 1.57x10^4: drawn ten "
        f"times too high.",
    )
    right = ", ".join(f"{t.flops / t.bytes:.1f}" for t in (v18, v50))
    shares = ", ".join(f"{100 * roof_share(t):.1f} %" for t in (v18, v50, a18, a50))
    moved = [
        t.bytes / t.time_s / machine_of(t).bandwidth_bytes_per_s["hbm"]
        for t in (v18, v50, a18, a50)
    ]
    yield (
        "all four points are closer to memory bound",
        f"The V100's lie right of its ridge ({right} against "
        f"{v100.ridge_flops_per_byte:.2f} FLOP/byte): a roofline calls them compute bound. None is "
        f"near its roof: the FLOPs and bytes need {shares} of the time, and the memory moves "
        f"{100 * min(moved):.1f} to {100 * max(moved):.1f} % of what it could. They are bound by "
        f"overhead: start-up, launches, data.",
    )
    tf32 = roof(machine_of(a18), "tf32_tensor")
    real = [training(t).flops / t.bytes for t in (a18, a50)]
    yield (
        "the A100's points, at 4.4 and 1.4 FLOP/byte, lie under the fp32 roof",
        f"With the FLOPs of the work itself they would lie at {real[0]:.0f} and {real[1]:.0f} "
        f"FLOP/byte, right of the fp32 ridge ({a100.ridge_flops_per_byte:.2f}); the roof of TF32 "
        f"has its ridge at {tf32.ridge_flops_per_byte:.1f} FLOP/byte and "
        f"{si(tf32.flops_per_s, 'FLOP/s')}.",
    )
    less = [t.bytes / training(t).moved_bytes for t in (v18, v50, a18, a50)]
    lines = ("dram__bytes_read.sum Kbyte 1,208.97", "dram__bytes_read.sum Mbyte 11.06")
    yield (
        "bytes: grep Kbyte | grep -Eo '[-+]?([0-9]*[0-9]+|[-+])' | awk '{ SUM += $1 }'",
        f'It drops every kernel that ncu shows in another unit, and adds "1,208.97" as 1, 208 and '
        f"97: two kernels that read 1,208.97 kB and 11.06 MB sum to {grepped(lines):.0f} kB. The "
        f"bytes of the table are {100 * min(less):.0f} to {100 * max(less):.0f} % of what a step "
        f"of {study().images} images moves if every layer reads and writes memory once; the first, "
        f"{v18.bytes:,}, is {v18.bytes / _SECTOR_BYTES:,.1f} of the sectors that memory moves: "
        f"rounded.",
    )


def _about_time(v18: Trial, v50: Trial, a18: Trial, a50: Trial) -> Iterator[tuple[str, str]]:
    slower = [100 * (b.time_s / a.time_s - 1) for a, b in ((v18, v50), (a18, a50))]
    yield (
        "ResNet-50's runtime is much larger than ResNet-18's in all cases",
        f"By {slower[0]:.1f} % on the V100 and {slower[1]:.1f} % on the A100, for "
        f"{training(v50).flops / training(v18).flops:.2f} times the FLOPs: a constant dominates.",
    )
    behind = [100 * (a.time_s / v.time_s - 1) for v, a in ((v18, a18), (v50, a50))]
    yield (
        "the A100 is expected to outperform the V100 (not taken up again)",
        f"It took {behind[0]:.1f} % and {behind[1]:.1f} % longer.",
    )


def _about_memory() -> Iterator[tuple[str, str]]:
    runs = study().memory
    printed = ", ".join(f"{m.parameter_megabytes}" for m in runs[:2])
    binary = ", ".join(f"{4 * m.parameters / 2**20:.2f} MiB" for m in runs[:2])
    decimal = ", ".join(f"{4 * m.parameters / 1e6:.2f} MB" for m in runs[:2])
    yield (
        f"four bytes a parameter are {printed} MB",
        f"They are {binary} ({decimal}).",
    )
    share = [100 * 12 * m.parameters / 1e6 / m.used_megabytes for m in runs[:2]]
    change = [100 * (b.used_megabytes / a.used_megabytes - 1) for a, b in _by_gpus()]
    yield (
        "two GPUs use the memory of one because PyTorch avoids duplicating data",
        f"Weights, gradients and momenta are on both GPUs, but they are only {share[0]:.1f} % of "
        f"the memory in use ({share[1]:.1f} % for ResNet-50). Activations are most of the rest and "
        f"are split with the batch: the sum over two GPUs changes little "
        f"({change[0]:+.1f} % and {change[1]:+.1f} % measured).",
    )


def _by_gpus() -> list[tuple[Memory, Memory]]:
    runs = sorted(study().memory, key=lambda m: (m.net, m.gpus))
    return [(a, b) for a, b in pairwise(runs) if a.net == b.net]
