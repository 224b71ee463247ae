"""system/lock.py: of several processes one holds a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system import lock
from tests.helpers.programs import ROOT

HOLD = "import sys, pathlib; from plain import lock; file = lock.hold(pathlib.Path(sys.argv[1]))"


def held_by_another(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HOLD, path], cwd=ROOT, capture_output=True, text=True)


def test_a_lock_is_one_processs_and_ends_with_it(tmp_path):
    with lock.hold(tmp_path / "lock"):
        other = held_by_another(tmp_path / "lock")
        assert f"BlockingIOError: process {os.getpid()} on " in other.stderr
    assert held_by_another(tmp_path / "lock").returncode == 0


def test_a_lock_that_was_removed_before_it_was_got_is_not_believed(tmp_path, monkeypatch):
    """Else two would hold it: one the file that is gone, and one the file that is there."""
    path, real, opened = tmp_path / "lock", lock.lock, []

    def removed_first(file):
        if not opened:
            path.unlink()
        opened.append(file)
        real(file)

    monkeypatch.setattr(lock, "lock", removed_first)
    with lock.hold(path):
        assert len(opened) == 2
        monkeypatch.undo()
        assert "BlockingIOError" in held_by_another(path).stderr


def test_it_follows_no_link(tmp_path):
    (tmp_path / "precious").write_text("text")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"):
        lock.hold(tmp_path / "lock")
    assert (tmp_path / "precious").read_text() == "text"
