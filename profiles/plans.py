"""What launches visit: configurations of the trainer by ranks, first and fresh ones."""

from __future__ import annotations

from typing import Any

SMALL, USUAL, LARGE = (128, 3000), (512, 3000), (2048, 12000)
WIDE, TALL, MIDDLE, DEEP = (512, 12000), (2048, 3000), (1024, 6000), (4096, 12000)
_GRAPH = {"transport": "nccl", "data_on": "device", "graph": True}
_FUSED = {**_GRAPH, "gemm": "fused"}
_X3 = {**_FUSED, "math": "tf32x3"}
_PEER = {**_X3, "transport": "peer"}

Plan = dict[int, tuple[tuple[dict[str, Any], tuple[tuple[int, int], ...]], ...]]

LAUNCHES: Plan = {
    1: (
        ({"transport": "host"}, (SMALL, (512, 1500), USUAL, WIDE, TALL, LARGE)),
        ({"transport": "pinned"}, (USUAL, WIDE, LARGE)),
        ({"transport": "none", "data_on": "device"}, (SMALL, USUAL, LARGE)),
        ({**_GRAPH, "transport": "none"}, (SMALL, USUAL, LARGE)),
        ({**_X3, "transport": "none"}, (SMALL, USUAL, LARGE)),
    ),
    2: (
        ({"transport": "host"}, (
            (128, 1500), SMALL, (128, 12000), (256, 6000), (512, 1500), USUAL, WIDE,
            (1024, 3000), MIDDLE, (2048, 1500), TALL, LARGE, (4096, 3000), DEEP,
        )),
        ({"transport": "pinned"}, (SMALL, (512, 1500), USUAL, WIDE, TALL, LARGE, (4096, 6000))),
        ({"transport": "host-flat", "data_on": "pinned"}, (USUAL, WIDE, TALL, LARGE)),
        ({"transport": "host-flat", "data_on": "device"}, (SMALL, USUAL, TALL, LARGE)),
        ({"transport": "host-flat", "data_on": "prefetch"}, (USUAL, WIDE, LARGE)),
        ({"transport": "chunked", "data_on": "device"}, (USUAL, TALL, LARGE)),
        ({"transport": "nccl", "data_on": "device"}, (SMALL, USUAL, WIDE, TALL, LARGE, DEEP)),
        (_GRAPH, (SMALL, USUAL, WIDE, TALL, LARGE, MIDDLE)),
        (_X3, (SMALL, USUAL, WIDE, TALL, LARGE, MIDDLE)),
        (_PEER, (SMALL, USUAL, WIDE, TALL, LARGE, MIDDLE)),
        ({**_FUSED, "math": "tf32"}, (USUAL, WIDE, TALL, LARGE)),
        ({**_GRAPH, "gemm": "thin"}, (SMALL, USUAL, LARGE)),
        ({"transport": "host", "dtype": "float64"}, (USUAL, TALL)),
        ({"transport": "nccl", "data_on": "device", "parallel": "model"}, (SMALL, USUAL, LARGE)),
    ),
    4: (
        ({"transport": "host"}, (SMALL, USUAL, WIDE, MIDDLE, TALL, LARGE)),
        ({"transport": "pinned"}, (USUAL, TALL, LARGE)),
        ({"transport": "nccl", "data_on": "device"}, (USUAL, WIDE, TALL, LARGE)),
        (_GRAPH, (USUAL, WIDE, TALL, LARGE)),
        (_X3, (USUAL, WIDE, TALL, LARGE)),
        (_PEER, (USUAL, WIDE, TALL, LARGE)),
    ),
}  # fmt: skip
"""By ranks: settings of the trainer, and the (H, B) at which they are visited."""

FRESH: Plan = {
    1: (
        ({"transport": "host"}, ((1024, 6000), (1536, 5000))),
        ({"transport": "none", "data_on": "device"}, ((1024, 6000),)),
        ({**_GRAPH, "transport": "none"}, ((1024, 6000), (4096, 12000))),
        ({**_X3, "transport": "none"}, ((1024, 6000),)),
    ),
    2: (
        ({"transport": "host"}, ((768, 4000), (1536, 7500), (3072, 6000), (512, 20000), USUAL)),
        ({"transport": "pinned"}, ((768, 4000), (1536, 7500), (3072, 10000))),
        ({"transport": "host-flat", "data_on": "device"}, ((1024, 5000),)),
        ({"transport": "nccl", "data_on": "device"}, ((1024, 5000), (1536, 10000), (8192, 12000))),
        (_GRAPH, ((256, 6000), (1536, 7500), (4096, 6000), (2048, 20000), USUAL)),
        (_X3, ((256, 6000), (1536, 7500), (4096, 6000), USUAL)),
        (_PEER, ((256, 6000), (1536, 7500))),
    ),
    4: (
        ({"transport": "host"}, ((768, 4000), (1536, 7500))),
        (_GRAPH, ((256, 6000), (1536, 7500), (4096, 6000))),
        (_X3, ((1536, 7500), (4096, 6000))),
        (_PEER, ((1536, 7500),)),
    ),
}  # fmt: skip
"""Sizes that no other collection has, inside its grid (H 128 to 4096, B 1500 to 12000) and one step
beyond it (H = 8192, B = 20000); those at `USUAL` were visited before, and tell how much faster or
slower this host is."""

_SCALED = (USUAL, (1024, 8000), LARGE)

SCALE: Plan = {
    ranks: tuple(
        (settings, _SCALED)
        for settings in (
            {"transport": "host"}, {"transport": "pinned"},
            {"transport": "nccl", "data_on": "device"}, _GRAPH, _X3, _PEER,
        )
    )
    for ranks in (2, 4, 8)
}  # fmt: skip
"""Six settings at three sizes on 4 and 8 GPUs, predicted from launches on one and two of them; on
two GPUs, they tell how much faster or slower this host is."""

_FEW = (
    (300, 900),
    (600, 2400),
    (1100, 5100),
    (2300, 2700),
    (3700, 9900),
    (512, 12000),
    (1024, 3000),
)
_MORE = ((100, 900), (200, 7200), (700, 3300), (900, 11400), (1700, 5100), (2600, 1500),
         (3300, 11100), (3900, 6300), (1200, 1800))  # fmt: skip
_NONE = {"transport": "none"}

HOSTS: Plan = {
    1: (
        ({"transport": "host"}, ((300, 900), (1100, 5100), (3700, 9900), (1024, 3000))),
        ({"transport": "pinned"}, ((600, 2400), (2300, 2700))),
        ({**_NONE, "data_on": "device"}, ((100, 900), (700, 3300), (1700, 5100))),
        ({**_GRAPH, **_NONE}, ((100, 900), (700, 3300), (1700, 5100), (3300, 11100))),
        ({**_X3, **_NONE}, ((100, 900), (700, 3300), (1700, 5100), (2600, 1500), (3300, 11100))),
    ),
    2: (
        ({"transport": "host"}, _FEW),
        ({"transport": "pinned"}, _FEW[:5]),
        ({"transport": "nccl", "data_on": "device"}, _MORE[:7]),
        (_GRAPH, _MORE[:7]),
        (_X3, _MORE),
        (_PEER, _MORE),
    ),
}  # fmt: skip
"""More of the calibration, on one more host and at sizes that are mostly not round."""

BLIND: Plan = {
    1: (
        ({"transport": "host"}, ((2048, 6000), (800, 4200), (3100, 1300))),
        ({"transport": "pinned"}, ((1500, 3600),)),
        ({**_NONE, "data_on": "device"}, ((256, 3000), (1900, 7700))),
        ({**_GRAPH, **_NONE}, ((256, 1500), (1300, 5500), (3600, 8100))),
        ({**_X3, **_NONE}, ((1024, 1500), (400, 10300), (2900, 4700))),
    ),
    2: (
        ({"transport": "host"}, ((256, 12000), (1024, 12000), (4096, 6000), (400, 5300),
                                 (1400, 1900), (2700, 8300))),
        ({"transport": "pinned"}, ((1024, 1500), (256, 3000), (900, 6700), (3400, 4100))),
        ({"transport": "nccl", "data_on": "device"}, ((256, 1500), (2048, 6000), (300, 8900),
                                                      (1300, 2300), (3800, 10700))),
        (_GRAPH, ((1024, 12000), (4096, 3000), (256, 1500), (500, 700), (1900, 4300),
                  (2800, 9700))),
        (_X3, ((1024, 3000), (256, 12000), (4096, 12000), (400, 1700), (1600, 8500),
               (3700, 5900))),
        (_PEER, ((1024, 12000), (2048, 6000), (300, 2900), (1500, 7900), (4000, 3100))),
    ),
}  # fmt: skip
"""What no model has seen: 44 configurations, half of them at multiples of 100."""

PLANS: dict[str, Plan] = {
    "launches": LAUNCHES, "fresh": FRESH, "scale": SCALE, "hosts": HOSTS, "blind": BLIND,
}  # fmt: skip


def configurations(ranks: int, plan: Plan = LAUNCHES) -> list[dict[str, Any]]:
    """Return what one launch visits: a name and fields of the trainer's Config each."""
    found = []
    for settings, sizes in plan[ranks]:
        words = [str(v) for k, v in settings.items() if k != "graph"]
        words += ["graph"] if settings.get("graph") else []
        for hidden, batch in sizes:
            name = "_".join([f"p{ranks}", *words, f"H{hidden}", f"B{batch}"])
            found.append({"name": name, "hidden_size": hidden, "batch_size": batch, **settings})
    return found
