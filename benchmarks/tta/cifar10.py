"""CIFAR-10's binary archive, given or downloaded and checked, and a folder of images of others.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009).
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.common.digits import SIDE, Images

URL: Final = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5: Final = "c32a1d4ab5d03f1284b67883e8d87530"
NAMES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_ROW: Final = 1 + 3 * SIDE * SIDE
"""A label and three planes of pixels."""


def cifar10() -> tuple[Images, Images]:
    """Return the training and test images, of the archive at CIFAR10 or downloaded.

    Raises
    ------
    SystemExit
        If it cannot be read or downloaded, or holds other bytes.
    """
    given = os.environ.get("CIFAR10")
    try:
        content = Path(given).read_bytes() if given else _downloaded()
    except OSError as error:
        raise SystemExit(
            f"expected CIFAR-10 from {given or URL}; got {error}; download it elsewhere and set "
            f"CIFAR10 to the file"
        ) from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5:
        raise SystemExit(f"expected CIFAR-10 (md5 {MD5}); got other bytes; download it again")
    return read_archive(content)


def read_archive(content: bytes) -> tuple[Images, Images]:
    """Return the training and test images of an archive."""
    parts: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".bin") else None
            if file is not None:
                parts[Path(member.name).name] = file.read()
    train = b"".join(parts[name] for name in sorted(parts) if name.startswith("data_batch"))
    return _images(train), _images(parts["test_batch.bin"])


def folder_of_images(folder: Path) -> Images:
    """Return the images below a folder, each in one that is called like its class."""
    from PIL import Image

    found = [(path, label) for label, name in enumerate(NAMES)
             for path in sorted((folder / name).glob("*.png"))]  # fmt: skip
    if not found:
        raise SystemExit(f"expected {folder}/CLASS/*.png, CLASS like {NAMES[0]}; got none")
    pixels = [Image.open(path).convert("RGB").resize((SIDE, SIDE)) for path, _ in found]
    images = np.stack([np.asarray(p, np.uint8).transpose(2, 0, 1) for p in pixels])
    return Images(images, np.array([label for _, label in found], np.int64))


def _downloaded() -> bytes:
    with urllib.request.urlopen(URL, timeout=60) as answer:
        return bytes(answer.read())


def _images(content: bytes) -> Images:
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    return Images(rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].astype(np.int64))
