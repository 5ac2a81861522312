"""Images and labels: MNIST's IDX files (given, or downloaded and checked), or synthetic ones."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer.config import MNIST, SYNTHETIC, Config
from trainer.errors import DataError
from trainer.mpi import Communicator

Bytes = npt.NDArray[np.uint8]

FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MD5: Final = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MD5_GZ: Final = {  # of the packed files at `URL`
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
URL: Final = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_BROADCAST_BYTES: Final = 1 << 30  # MPI counts are 32-bit
_HEADER_BYTES: Final = 16  # of an IDX file with three dimensions
_LARGEST_BYTES: Final = 2 << 30  # 45 times MNIST's images
_MNIST_SHAPES: Final = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test images with their labels, as bytes.

    Attributes
    ----------
    images, test_images : uint8, shape (N, D)
        One image per row, pixels 0..255.
    labels, test_labels : uint8, shape (N,)
        Class of each image.
    """

    images: Bytes
    labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def fingerprint(self) -> str:
        """SHA-256 of all images and labels: tells whether a resumed run sees the same ones."""
        found = hashlib.sha256()
        for part in (self.images, self.labels, self.test_images, self.test_labels):
            found.update(f"{part.shape}\n".encode())
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()


def load(config: Config) -> Dataset:
    """Read or make the data set that `config` names, cut to its sizes.

    Raises
    ------
    DataError
        If files are missing, truncated or altered, or do not fit D, C or the sizes asked for.
    """
    if config.data == SYNTHETIC:
        return synthetic(config)
    if config.data == MNIST:
        given = os.environ.get("MNIST_DIR")
        directory = Path(given) if given else download()
    else:
        directory = Path(config.data)
    return _fit(read_directory(directory, checksum=config.checksum), config, str(directory))


def read_directory(directory: Path, *, checksum: bool = True) -> Dataset:
    """Read MNIST's four IDX files, gzipped or not, from a directory."""
    contents = [_content(directory, name) for name in FILES]
    arrays = [parse_idx(c, f"{directory / n}") for c, n in zip(contents, FILES, strict=True)]
    for content, array, name, shape in zip(contents, arrays, FILES, _MNIST_SHAPES, strict=True):
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if checksum and array.shape == shape and found != MD5[name]:
            raise DataError(
                f"{directory / name}: expected MNIST (md5 {MD5[name]}); got other bytes "
                f"(md5 {found}); fetch it again, or say --no-checksum for another data set of "
                "the same size"
            )
    images, labels, test_images, test_labels = arrays
    for kind, some, of in (("train", images, labels), ("t10k", test_images, test_labels)):
        if some.ndim != 3 or of.ndim != 1 or len(some) != len(of):
            raise DataError(
                f"{directory}: expected as many {kind} labels as images (n x rows x columns); got "
                f"images {some.shape} and labels {of.shape}; the files do not belong together"
            )
        if some.size == 0:
            raise DataError(
                f"{directory}: expected {kind} images with pixels; got {some.shape}, which holds "
                "none; fetch the files again"
            )
    return Dataset(
        images.reshape(len(images), -1), labels,
        test_images.reshape(len(test_images), -1), test_labels,
    )  # fmt: skip


def _content(directory: Path, name: str) -> bytes:
    for path in (directory / name, directory / f"{name}.gz"):
        if not path.is_file():
            continue
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
                return header + file.read(_body_bytes(header, str(path)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}: expected a whole gzip file; got a damaged or truncated one ({error}); "
                "fetch it again"
            ) from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
    raise DataError(
        f"{directory}: expected {name} or {name}.gz; got neither; point --data or $MNIST_DIR to "
        "a directory with MNIST's four IDX files, or say --data synthetic"
    )


def _body_bytes(header: bytes, source: str) -> int:
    """Return how many bytes to read behind an IDX file's first ones: one more than there should be.

    A few kB of gzip may unpack to many GB: the header says how much of that is needed.
    """
    size = _idx_bytes(header, source)
    if size > _LARGEST_BYTES:
        raise DataError(
            f"{source}: expected at most {_LARGEST_BYTES >> 30} GiB; got a header that announces "
            f"{size} bytes; the file is damaged, or too large for this trainer"
        )
    return max(0, size + 1 - len(header))


def parse_idx(content: bytes, source: str) -> Bytes:
    """Parse an IDX file of unsigned bytes (http://yann.lecun.com/exdb/mnist, "IDX format").

    Big-endian: two zero bytes, the type (8: unsigned byte), the number of dimensions, each
    dimension as 4 bytes, then the bytes, last dimension fastest.
    """
    wanted = _idx_bytes(content, source)
    shape = _idx_shape(content)
    if len(content) != wanted:
        state = "truncated" if len(content) < wanted else "too long"
        raise DataError(
            f"{source}: {state}: expected {wanted} bytes for {' x '.join(map(str, shape))} values; "
            f"got {len(content)}{' or more' * (len(content) > wanted)}; fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _idx_bytes(content: bytes, source: str) -> int:
    """Return the size that an IDX file's header announces, in bytes, with the header."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or not 1 <= content[3] <= 3:
        raise DataError(
            f"{source}: expected an IDX file of unsigned bytes (beginning 00 00 08); got "
            f"{content[:4].hex(' ') or 'nothing'}; this is another kind of file"
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{source}: ends inside its {start}-byte header; fetch it again")
    return start + math.prod(_idx_shape(content))  # Python's integers do not wrap


def _idx_shape(content: bytes) -> tuple[int, ...]:
    return tuple(int(n) for n in np.frombuffer(content, ">u4", content[3], 4))


def download() -> Path:
    """Return the user's cache directory, filled with MNIST by pooch on first use.

    Every file is checked against its MD5, on each run; a damaged one is fetched again.
    """
    try:
        import pooch
    except ImportError:
        raise DataError(
            "MNIST: expected the package pooch to download it; got none; run pip install pooch, "
            "or point --data or $MNIST_DIR to its IDX files, or say --data synthetic"
        ) from None
    cache = Path(pooch.os_cache("perfmodel")) / "mnist"
    pooch.get_logger().setLevel("WARNING")
    for name in FILES:
        try:
            pooch.retrieve(
                URL + name + ".gz", f"md5:{MD5_GZ[name]}", fname=name + ".gz", path=cache
            )
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise DataError(
                f"MNIST: could not fetch {URL}{name}.gz into {cache}: {error}; point --data or "
                "$MNIST_DIR to a directory with its IDX files, or say --data synthetic"
            ) from error
    return cache


def _fit(data: Dataset, config: Config, source: str) -> Dataset:
    """Check D and C against the data and cut it to the sizes asked for."""
    pixels = data.images.shape[1]
    if not pixels == data.test_images.shape[1] == config.input_size:
        raise DataError(
            f"{source}: expected images of --input-size {config.input_size} pixels; got "
            f"{pixels} (train) and {data.test_images.shape[1]} (test); say --input-size {pixels}"
        )
    classes = int(max(data.labels.max(initial=0), data.test_labels.max(initial=0))) + 1
    if classes > config.num_classes:
        raise DataError(
            f"{source}: expected labels below --num-classes {config.num_classes}; got label "
            f"{classes - 1}; say --num-classes {classes}"
        )
    train, test = config.train_size, config.test_size
    for flag, wanted, found in (
        ("train", train, len(data.images)),
        ("test", test, len(data.test_images)),
    ):
        if found == 0 or (wanted is not None and wanted > found):
            raise DataError(
                f"{source}: expected {wanted or 'some'} images (--{flag}-size); got {found}; "
                "ask for fewer"
            )
    return Dataset(
        data.images[:train], data.labels[:train], data.test_images[:test], data.test_labels[:test]
    )


def synthetic(config: Config) -> Dataset:
    """Make a data set that can be learned, of any D and C, the same for the same seed.

    Each class has a random pattern of bright pixels (a fifth of them, as in MNIST); an image is
    its class's pattern under noise.
    """
    rng = np.random.default_rng([config.seed, 0x5EED])
    shape = (config.num_classes, config.input_size)
    pattern = rng.integers(64, 256, shape, np.uint8) * (rng.random(shape) < 0.2)

    def some(count: int) -> tuple[Bytes, Bytes]:
        labels = rng.integers(0, config.num_classes, count, np.uint8)
        images = pattern[labels].astype(np.uint8)
        images ^= rng.integers(0, 64, images.shape, np.uint8)
        return images, labels

    train = some(config.train_size or 60000)
    return Dataset(*train, *some(config.test_size or 10000))


def one_hot(labels: Bytes, classes: int, dtype: Any) -> npt.NDArray[Any]:
    """Return labels as columns of zeros with a one: shape (C, n), row-major."""
    return np.equal(np.arange(classes)[:, None], labels).astype(dtype)


def distribute(comm: Communicator, dataset: Dataset | None) -> Dataset:
    """Give every rank rank 0's data set (MPI_Bcast of bytes)."""
    if comm.size == 1:
        assert dataset is not None
        return dataset
    parts = (
        ()
        if dataset is None
        else (dataset.images, dataset.labels, dataset.test_images, dataset.test_labels)
    )
    sizes = np.array([part.size for part in parts] or [0] * 4, np.int64)
    comm.broadcast(sizes)
    received = []
    for index, size in enumerate(sizes):
        flat = np.ascontiguousarray(parts[index]).ravel() if parts else np.empty(size, np.uint8)
        for start in range(0, flat.size, _BROADCAST_BYTES):
            comm.broadcast(flat[start : start + _BROADCAST_BYTES])
        received.append(flat)
    images, labels, test_images, test_labels = received
    return Dataset(
        images.reshape(len(labels), -1), labels,
        test_images.reshape(len(test_labels), -1), test_labels,
    )  # fmt: skip
