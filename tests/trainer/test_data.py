import gzip
import http.server
import shutil
import threading
import tracemalloc

import numpy as np
import pytest

from support.trainer_runs import mnist_dir, small
from trainer import data
from trainer.config import Config
from trainer.errors import DataError


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def directory(tmp_path):
    """Make a tiny data set of 3 x 4 pixels in MNIST's four files."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 6), ("t10k", 4)):
        images = idx(rng.integers(0, 256, (count, 3, 4)))
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(images)
        labels = gzip.compress(idx(np.arange(count) % 4))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(labels)
    return tmp_path


def test_reads_plain_and_gzipped_files(directory):
    got = data.load(small(data=str(directory), train_size=5, test_size=None))
    assert got.images.shape == (5, 12)
    assert got.test_images.shape == (4, 12)
    np.testing.assert_array_equal(got.labels, [0, 1, 2, 3, 0])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got nothing"),
        (b"\x1f\x8b\x08\x00rest", "another kind of file"),
        (idx(np.zeros((2, 3, 4)))[:9], "inside its 16-byte header"),
        (
            idx(np.zeros((2, 3, 4)))[:-1],
            "truncated: expected 40 bytes for 2 x 3 x 4 values; got 39",
        ),
        (idx(np.zeros((2, 3, 4))) + b"!", "too long"),
    ],
)
def test_a_damaged_file_is_refused(content, words, directory):
    (directory / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match="train-images-idx3-ubyte") as caught:
        data.read_directory(directory)
    assert words in str(caught.value)


def header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 28, 28), r"expected train images with pixels; got \(0, 28, 28\)"),
        ((6, 0, 28), r"expected train images with pixels; got \(6, 0, 28\)"),
        ((1 << 31, 1 << 31, 4), "expected at most 2 GiB; got a header"),  # 2^64 wraps to 0
        ((6, 1 << 16, 1 << 16), "expected at most 2 GiB; got a header"),
    ],
)
def test_sizes_that_hold_nothing_or_wrap_are_refused(shape, words, directory):
    (directory / "train-images-idx3-ubyte").write_bytes(header(*shape))
    if shape[0] == 0:
        (directory / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header(0)))
    with pytest.raises(DataError, match=words):
        data.read_directory(directory)


def test_a_gzip_bomb_is_read_as_far_as_its_header_says(directory):
    (directory / "train-images-idx3-ubyte").unlink()
    bomb = gzip.compress(header(6, 3, 4) + bytes(64 << 20))
    (directory / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"too long: expected 88 bytes .* got 89 or more"):
        data.read_directory(directory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_truncated_gzip_is_refused(directory):
    path = directory / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged or truncated"):
        data.read_directory(directory)


def test_a_missing_file_is_named(directory):
    (directory / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"expected t10k-images-idx3-ubyte or .*\.gz; got neither"):
        data.read_directory(directory)


def test_labels_of_another_set_are_refused(directory):
    (directory / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(3))))
    with pytest.raises(DataError, match="do not belong together"):
        data.read_directory(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_size": 13}, "say --input-size 12"),
        ({"num_classes": 3}, "say --num-classes 4"),
        ({"train_size": 7}, "expected 7 images"),
    ],
)
def test_a_set_that_does_not_fit_is_refused(changes, words, directory):
    with pytest.raises(DataError, match=words):
        data.load(small(**{"data": str(directory), "train_size": 6, "test_size": 4, **changes}))


@pytest.mark.slow
def test_mnist_is_whole_and_an_altered_copy_is_refused(tmp_path):
    source = mnist_dir()
    whole = data.load(Config(data=str(source)))
    assert whole.images.shape == (60000, 784)
    assert np.bincount(whole.labels).min() == 5421  # fives
    assert whole.images.mean() == pytest.approx(33.318, abs=1e-3)
    for file in source.iterdir():
        shutil.copy(file, tmp_path)
    altered = tmp_path / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(altered.read_bytes()))
    content[100] ^= 1
    altered.write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(DataError, match="expected MNIST"):
        data.read_directory(tmp_path)
    data.read_directory(tmp_path, checksum=False)


def test_synthetic_is_repeatable_and_its_own():
    a, b, c = (data.synthetic(small(seed=s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.images, b.images)
    assert (a.images != c.images).any()
    assert a.fingerprint() == b.fingerprint() != c.fingerprint()
    assert a.images.shape == (100, 12)
    assert data.synthetic(Config(input_size=5, train_size=7)).test_images.shape == (10000, 5)


def test_one_hot_has_a_column_per_image():
    np.testing.assert_array_equal(
        data.one_hot(np.array([1, 0], np.uint8), 3, "f4"), [[0, 1], [1, 0], [0, 0]]
    )


@pytest.fixture
def server(directory, tmp_path_factory, monkeypatch):
    """Serve the tiny set on localhost in place of MNIST's mirror; yield the served directory."""
    import hashlib

    pytest.importorskip("pooch")
    served = tmp_path_factory.mktemp("served")
    sums = {}
    for name in data.FILES:
        packed = served / f"{name}.gz"
        packed.write_bytes(gzip.compress(data._content(directory, name), mtime=0))
        sums[name] = hashlib.md5(packed.read_bytes()).hexdigest()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(served))

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    monkeypatch.setattr(data, "URL", f"http://127.0.0.1:{httpd.server_port}/")
    monkeypatch.setattr(data, "MD5_GZ", sums)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("MNIST_DIR", raising=False)
    yield served
    httpd.shutdown()


def test_downloads_once_checks_and_fetches_damaged_files_again(server, monkeypatch):
    config = small(data="mnist", train_size=6, test_size=4)
    first = data.load(config)
    cached = data.download() / "train-images-idx3-ubyte.gz"
    cached.write_bytes(b"damaged")
    np.testing.assert_array_equal(data.load(config).images, first.images)
    for file in server.iterdir():
        file.unlink()
    np.testing.assert_array_equal(data.load(config).images, first.images)  # from the cache


def test_a_download_with_another_checksum_is_refused(server):
    (server / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match="could not fetch"):
        data.load(small(data="mnist"))


def test_no_network_says_what_to_do(server):
    for file in server.iterdir():
        file.unlink()
    with pytest.raises(DataError, match="--data synthetic"):
        data.load(small(data="mnist"))
