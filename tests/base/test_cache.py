"""Kept results are trusted only where this user wrote them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from perfmodel.base import cache
from perfmodel.base.cache import Cache
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.files import read_private

RESULT = {"a": (1.5, None), "b": "é"}


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "kept")
    assert made.put("key", RESULT) == ""
    assert made.get("key") == RESULT
    return made


def test_the_folder_and_its_files_are_the_users_alone(kept: Cache) -> None:
    modes = [kept.folder.stat().st_mode & 0o777]
    modes += [file.stat().st_mode & 0o777 for file in kept.folder.iterdir()]
    assert modes == [0o700, 0o600]


def test_a_link_is_replaced_and_its_target_stays(kept: Cache, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    link = kept.folder / "other.perfmodel"
    link.symlink_to(target)
    assert kept.get("other") is None
    assert kept.put("other", RESULT) == ""
    assert target.read_text() == "untouched"
    assert not link.is_symlink()
    assert kept.get("other") == RESULT


def test_a_link_to_a_result_is_none(kept: Cache) -> None:
    (kept.folder / "link.perfmodel").symlink_to(kept.folder / "key.perfmodel")
    assert kept.get("link") is None


def test_a_fifo_is_none(kept: Cache) -> None:
    os.mkfifo(kept.folder / "fifo.perfmodel")
    assert kept.get("fifo") is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_to_which_others_write_is_refused(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PerfmodelError, match="only you can write"):
        Cache(tmp_path)
    tmp_path.chmod(0o700)


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PerfmodelError, match="got a link"):
        Cache(tmp_path / "link")


def test_files_of_another_user_are_none(kept: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert kept.get("key") is None
    with pytest.raises(PermissionError):
        read_private(kept.folder / "key.perfmodel")
    with pytest.raises(PerfmodelError, match="another user's"):
        Cache(kept.folder)


def test_a_result_with_the_checksum_of_an_earlier_version_is_none(kept: Cache) -> None:
    file = kept.folder / "key.perfmodel"
    held = file.read_bytes()[cache._HEAD :].replace(b"1.5", b"9.5")
    file.write_bytes(b"perfmod2" + zlib.crc32(held).to_bytes(8, "little") + held)
    assert kept.get("key") is None


def test_a_result_with_the_digest_of_another_user_is_none(
    kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    cache.secret.cache_clear()
    assert kept.get("key") is None
    assert kept.put("key", RESULT) == ""
    assert kept.get("key") == RESULT
    monkeypatch.undo()
    cache.secret.cache_clear()
    assert kept.get("key") is None


def test_without_a_secret_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    cache.secret.cache_clear()
    made = Cache(tmp_path / "kept")
    assert "set XDG_STATE_HOME" in made.put("key", RESULT)
    assert made.get("key") is None
    assert [*made.folder.iterdir()] == []
    cache.secret.cache_clear()
