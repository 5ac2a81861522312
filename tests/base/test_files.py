from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from perfmodel.base import files
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import staged_folder, write_bytes, write_text

UNPRIVILEGED = hasattr(os, "geteuid") and os.geteuid() != 0


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"<folder>"
        for p in sorted(folder.rglob("*"))
    }


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def stage_files(out: Path, contents: dict[str, str], error: BaseException | None = None) -> None:
    with staged_folder(out) as stage:
        for name, text in contents.items():
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_text(text)
        if error is not None:
            raise error


class Unwritable:
    """Stands in for `Path.open`: writes half of the data, then fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, path: Path, mode: str) -> Unwritable:
        self.stream = open(path, mode)  # noqa: PTH123, SIM115
        return self

    def __enter__(self) -> Unwritable:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, data: bytes) -> None:
        self.stream.write(data[: len(data) // 2])
        raise self.error


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_text(path, "ä\r\nb\n")
    assert path.read_bytes() == "ä\r\nb\n".encode()
    write_bytes(str(path), b"\x00new")
    assert tree(tmp_path) == {"a.csv": b"\x00new"}


def test_text_with_a_lone_surrogate_is_written_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x\udc80y")
    assert (tmp_path / "a").read_bytes() == rb"x\udc80y"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), PerfmodelError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    opener = Unwritable(error)
    monkeypatch.setattr(Path, "open", lambda self, mode: opener(self, mode))
    with pytest.raises(raised):
        write_text(path, "new and longer")
    monkeypatch.undo()
    assert tree(tmp_path) == {"a.csv": b"old"}


def test_a_text_whose_parts_end_in_an_error_is_not_written(tmp_path: Path) -> None:
    def parts() -> Iterator[str]:
        yield "new"
        raise KeyError("part 2")

    path = tmp_path / "a.csv"
    path.write_text("old")
    with pytest.raises(KeyError):
        write_text(path, parts())
    assert tree(tmp_path) == {"a.csv": b"old"}
    write_text(path, ["new", " é"])
    assert tree(tmp_path) == {"a.csv": "new é".encode()}


def test_modes(tmp_path: Path) -> None:
    fresh, plain, private = tmp_path / "fresh", tmp_path / "plain", tmp_path / "private"
    plain.write_text("")
    private.write_text("")
    private.chmod(0o600)
    write_text(fresh, "x")
    write_text(private, "x")
    assert fresh.stat().st_mode == plain.stat().st_mode, "the umask decides"
    assert private.stat().st_mode & 0o777 == 0o600, "an existing file keeps its mode"


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "file")
    write_text(link, "x")
    assert link.is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "x"


def test_device_is_written_to_not_replaced() -> None:
    code = "from perfmodel.base.files import write_text; write_text('/dev/stdout', 'hello')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == "hello"
    write_text("/dev/null", "x")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("name", "found", "advice"),
    [
        ("missing/a.csv", "there is no folder", "create the folder first"),
        ("folder", "it is a folder", "name of a file"),
        ("file/a.csv", "Not a directory", "choose another path"),
        ("n" * 300, "File name too long", "shorter name"),
        ("/proc/new.csv", "no file can be made in", "choose another folder"),
    ],
)
def test_errors_say_wanted_found_and_what_to_do(
    tmp_path: Path, name: str, found: str, advice: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    with pytest.raises(PerfmodelError) as caught:
        write_text(tmp_path / name, "x")
    message = str(caught.value)
    assert message.startswith("expected to write ")
    assert found in message
    assert advice in message
    assert "\n" not in message
    assert tree(tmp_path) == before


@pytest.mark.skipif(not UNPRIVILEGED, reason="root may write anywhere")
def test_read_only_folder_and_file(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    protected = tmp_path / "protected"
    protected.write_text("mine")
    protected.chmod(0o400)
    locked.chmod(0o500)
    with pytest.raises(PerfmodelError, match="Permission denied; change its permissions"):
        write_text(locked / "a", "x")
    with pytest.raises(PerfmodelError, match="write-protected"):
        write_text(protected, "x")
    assert protected.read_text() == "mine"
    locked.chmod(0o700)


def test_read_only_folder_whoever_runs_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with (
        pytest.raises(PerfmodelError, match=r"got: Permission denied; change its permissions"),
        staged_folder(tmp_path / "out"),
    ):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("where", ["out", "deep/er/out"])
def test_staged_folder_creates_the_folder_at_the_end(tmp_path: Path, where: str) -> None:
    out = tmp_path / where
    with staged_folder(out) as stage:
        (stage / "a").write_text("1")
        (stage / "sub").mkdir()
        (stage / "sub" / "b").write_text("2")
        assert not out.exists()
    assert tree(out) == {"a": b"1", "sub": b"<folder>", "sub/b": b"2"}
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_staged_folder_merges_into_an_existing_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "other").write_text("mine")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine").write_text("mine")
    with staged_folder(str(tmp_path)) as stage:
        (stage / "a").write_text("new")
        (stage / "sub").mkdir()
        (stage / "sub" / "b").write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    assert tree(tmp_path) == {
        "a": b"new", "other": b"mine", "sub": b"<folder>", "sub/b": b"new", "sub/mine": b"mine",
    }  # fmt: skip


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
@pytest.mark.parametrize("exists", [True, False])
def test_failing_block_leaves_everything_as_it_was(
    tmp_path: Path, error: BaseException, exists: bool
) -> None:
    out = tmp_path / "deep" / "out"
    if exists:
        out.mkdir(parents=True)
        (out / "a").write_text("old")
    before = tree(tmp_path)
    with pytest.raises(type(error)):
        stage_files(out, {"a": "new"}, error)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("failure", [full_disk, interrupt])
@pytest.mark.parametrize("moves", [0, 1, 2, 3])
@pytest.mark.parametrize("links", [True, False])
def test_failing_move_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: object, moves: int, links: bool
) -> None:
    (tmp_path / "b").write_text("old b")
    (tmp_path / "d").write_text("old d")
    before = tree(tmp_path)
    real, count = Path.replace, iter(range(10))

    def replace(self: Path, target: Path) -> object:
        if next(count) == moves:
            failure()  # type: ignore[operator]
        return real(self, target)

    if not links:
        monkeypatch.setattr(os, "link", full_disk)
    monkeypatch.setattr(Path, "replace", replace)
    expected = PerfmodelError if failure is full_disk else KeyboardInterrupt
    with pytest.raises(expected):
        stage_files(tmp_path, {"a": "new", "b": "new", "d": "new", "new/c": "new"})
    monkeypatch.undo()
    assert tree(tmp_path) == before


def test_folder_in_the_way_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    before = tree(tmp_path)
    with pytest.raises(PerfmodelError, match="got: a folder 'b' in its place"):
        stage_files(tmp_path, {"a": "1", "b": "1"})
    assert tree(tmp_path) == before


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with (
        pytest.raises(PerfmodelError, match="got: a file of that name"),
        staged_folder(tmp_path / "out"),
    ):
        pytest.fail("the block must not run")


def test_disk_full_in_the_block_is_explained_and_other_errors_pass(tmp_path: Path) -> None:
    with (
        pytest.raises(PerfmodelError, match=r"No space left on device; free some space"),
        staged_folder(tmp_path / "out"),
    ):
        full_disk()
    with pytest.raises(FileNotFoundError), staged_folder(tmp_path / "out"):
        (tmp_path / "input.sqlite").read_bytes()
    assert tree(tmp_path) == {}


def test_no_temporary_name_is_used_twice() -> None:
    assert len({files._temporary_name() for _ in range(100)}) == 100
