"""Makes the pictures of the documentation small: `python -m benchmarks.common.pictures`.

Each becomes a PNG of at most `COLORS` colors, a third as large. What is small stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image

from benchmarks.common import folders

COLORS: Final = 128


def is_small(picture: Path) -> bool:
    """Whether a picture has a palette."""
    with Image.open(picture) as image:
        return image.mode == "P"


def make_small(picture: Path) -> None:
    """Write a picture anew with few colors, without dithering: areas stay even."""
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(
            COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
        dpi = image.info.get("dpi", (100, 100))
    small.save(picture, optimize=True, dpi=dpi)


def main() -> None:
    for picture in sorted(folders.IMAGES.glob("*.png")):
        if not is_small(picture):
            make_small(picture)
            print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
