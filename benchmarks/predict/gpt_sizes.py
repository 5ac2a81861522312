"""Sizes of the GPTs that were timed: those whose times chose usual values, and those kept back."""

from __future__ import annotations

WORDS = {"d_model": "width", "n_layer": "layers", "heads": "heads", "seq": "length",
         "batch": "batch", "vocab": "vocabulary"}  # fmt: skip
"""Symbols of the model, and flags of profiles/programs/train.py."""
SYMBOLS = tuple(WORDS)

EAGER = (
    (384, 3, 6, 256, 6, 8192),
    (768, 4, 12, 512, 16, 16384),
    (1024, 6, 8, 768, 12, 20480),
    (512, 5, 8, 384, 10, 12288),
    (1280, 3, 20, 640, 20, 32768),
    (640, 7, 10, 320, 28, 10240),
)
"""No size of one is that of another by chance: the reports separate dimensions."""
BLIND = (
    (512, 6, 8, 256, 16, 8192),
    (1024, 4, 16, 512, 8, 16384),
    (768, 6, 12, 384, 24, 16384),
    (896, 5, 14, 448, 14, 14336),
    (1536, 3, 12, 512, 12, 24576),
    (640, 8, 10, 256, 8, 10000),
    (1152, 4, 12, 640, 10, 20000),
    (768, 10, 12, 256, 12, 12288),
    (2048, 2, 16, 512, 8, 16384),
    (448, 4, 7, 192, 4, 9000),
    (1024, 8, 16, 1024, 6, 16384),
    (704, 7, 11, 300, 18, 11000),
    (512, 12, 8, 512, 20, 8192),
    (1280, 6, 10, 400, 16, 30000),
)
"""None of them was run before the model was frozen."""
SETS = {
    "eager": EAGER,
    "compiled": tuple(EAGER[i] for i in (0, 2, 1)),
    "two": tuple(EAGER[i] for i in (0, 1, 2)),
    "compiled_two": tuple(EAGER[i] for i in (0, 2)),
    "blind": BLIND,
    "blind_even": BLIND[::2],
    "blind_odd": BLIND[1::2],
    "ranks": tuple(BLIND[i] for i in (2, 10)),
    "try": ((64, 2, 2, 32, 2, 128), (96, 3, 3, 16, 4, 160)),
}
