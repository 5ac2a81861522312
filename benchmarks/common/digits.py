"""Coloured digits on clutter, 3 x 32 x 32: MNIST's handwriting, ten classes, a difficulty to set.

CIFAR-10's sizes where CIFAR-10 itself cannot be fetched. A digit is added to, or taken from, a
background of low-frequency noise, channel by channel, with fragments of other digits beside it.
Difficulty is the contrast of the strokes against the background's, and the fragments' number.
The 50 images of another source are scans of the UCI digits (E. Alpaydin, C. Kaynak, 1998: 43 other
writers, 8 x 8 pixels of 0 to 16), five of each class, coloured in the same way without fragments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.config import Config
from trainer.data import load

SIDE: Final = 32
CLASSES: Final = 10
OTHERS: Final = Path(__file__).with_name("uci_digits.json")
CONTRAST: Final = 0.35
FRAGMENTS: Final = 3
NOISE: Final = 0.06
_CELLS: Final = 6
"""Cells of the background's noise along a side."""
_CHUNK: Final = 2000

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Images(NamedTuple):
    """Images (n, 3, 32, 32) and their classes (n,)."""

    images: Bytes
    labels: npt.NDArray[np.int64]

    def first(self, count: int | None) -> Images:
        """Return the first so many; all of them by default."""
        return Images(self.images[:count], self.labels[:count])


def digits(train: int | None = None, test: int | None = None) -> tuple[Images, Images]:
    """Return the training and test images, made from MNIST; always the same ones.

    Raises
    ------
    DataError
        If MNIST is not at MNIST_DIR and cannot be downloaded.
    """
    source = load(Config(data="mnist" if "MNIST_DIR" in os.environ else "synthetic"))

    def made(seed: int, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Images:
        return Images(cluttered(images.reshape(-1, 28, 28), seed), labels.astype(np.int64))

    return (
        made(0, source.images[:train], source.labels[:train]),
        made(1, source.test_images[:test], source.test_labels[:test]),
    )


def others() -> Images:
    """Return the 50 images of another source, five of each class."""
    read = json.loads(OTHERS.read_text(encoding="utf-8"))
    small = np.array([row["pixels"] for row in read["images"]], np.float32).reshape(-1, 8, 8) / 16
    grow = _stretch(8, 24)
    large = np.zeros((len(small), 28, 28), np.float32)
    large[:, 2:26, 2:26] = grow @ small @ grow.T
    pixels = (255 * (2 * large - 0.5).clip(0, 1)).astype(np.uint8)
    labels = np.array([row["label"] for row in read["images"]], np.int64)
    return Images(cluttered(pixels, 2, fragments=0), labels)


def cluttered(
    strokes: Bytes, seed: int, *, contrast: float = CONTRAST, fragments: int = FRAGMENTS,
    noise: float = NOISE,
) -> Bytes:  # fmt: skip
    """Colour digits and put them on a background.

    Parameters
    ----------
    strokes : uint8, shape (n, 28, 28)
    contrast : float
        Of digit and background, in brightness from 0 to 1.
    fragments : int
        Pieces of 8 x 8 pixels of other digits in every image.
    noise : float
        Standard deviation of every pixel.
    """
    made = np.random.default_rng(seed)
    parts = [
        _made(strokes[at : at + _CHUNK], strokes, made, contrast, fragments, noise)
        for at in range(0, len(strokes), _CHUNK)
    ]
    return np.concatenate(parts)


def _made(
    strokes: Bytes, all_of_them: Bytes, made: np.random.Generator, contrast: float, fragments: int,
    noise: float,
) -> Bytes:  # fmt: skip
    n = len(strokes)
    grow = _stretch(_CELLS, SIDE)
    cells = 0.2 + 0.6 * made.random((n, 3, _CELLS, _CELLS), dtype=np.float32)
    back = grow @ cells @ grow.T
    ink = np.zeros((n, 3, SIDE, SIDE), np.float32)
    _put(ink, strokes, made)
    for _ in range(fragments):
        of = all_of_them[made.integers(len(all_of_them), size=n)]
        _put(ink, of[:, 10:18, 10:18], made)
    light = np.where(back.mean((2, 3), keepdims=True) > 0.5, -1, 1)
    found = back + contrast * light * ink.clip(0, 1)
    found += noise * made.standard_normal(found.shape, dtype=np.float32)
    return (255 * found.clip(0, 1)).astype(np.uint8)


def _put(ink: Floats, pieces: Bytes, made: np.random.Generator) -> None:
    """Add a piece to every image, anywhere; every colour gets the same stroke."""
    n, side = len(pieces), pieces.shape[1]
    corner = made.integers(SIDE - side + 1, size=(2, n, 1)) + np.arange(side)
    rows, columns = corner[0][:, :, None], corner[1][:, None, :]
    image = np.arange(n)[:, None, None]
    for colour in range(3):
        ink[image, colour, rows, columns] += pieces / np.float32(255)


def _stretch(cells: int, side: int) -> Floats:
    """Return the matrix (side, cells) of linear interpolation."""
    at = np.linspace(0, cells - 1, side)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(cells))).astype(np.float32)
