"""A file or folder is there whole or not at all, with the permissions of any other."""

import os
import stat

import pytest

from data.files import jsonable, new_folder, write_atomically


def test_a_write_that_fails_keeps_the_old_file_and_names_it(tmp_path, monkeypatch):
    file = tmp_path / "file.json"
    write_atomically(file, "old\r\n", sync=True)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{file}'"):
        write_atomically(file, "new", sync=True)
    assert file.read_bytes() == b"old\r\n"
    assert [*tmp_path.iterdir()] == [file]


def test_a_folder_that_fails_is_not_there_and_another_is_like_any_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "failed") as folder:
        (folder / "file").write_text("x" * (1 // 0))
    assert [*tmp_path.iterdir()] == []
    with new_folder(tmp_path / "parent" / "new"):
        pass
    (tmp_path / "other").mkdir()
    new, other = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("parent/new", "other"))
    assert new == other


def test_numbers_that_json_lacks_become_strings():
    values = {"a": [float("nan"), (float("inf"), 1.5)], "b": -float("inf")}
    assert jsonable(values) == {"a": ["NaN", ["Infinity", 1.5]], "b": "-Infinity"}
