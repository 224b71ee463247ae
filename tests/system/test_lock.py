"""One of several processes holds a lock file."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from system.lock import Lock
from tests.helpers.programs import ROOT

HOLD = "import sys, pathlib; from system.lock import Lock; lock = Lock(pathlib.Path(sys.argv[1])); "


def held_by_another(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HOLD, path], cwd=ROOT, capture_output=True, text=True)


@contextmanager
def held_for_a_line(path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Context manager: a process holds the lock until it is killed or reads a line."""
    wait = [sys.executable, "-c", HOLD + "print(flush=True); input()", path]
    with subprocess.Popen(wait, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process


def test_a_lock_is_one_processs_until_it_is_released(tmp_path):
    (tmp_path / "lock").write_text("process 1 on a host of a very long name")  # left by an ended process
    lock = Lock(tmp_path / "lock")
    assert (
        f"BlockingIOError: process {os.getpid()} on {os.uname().nodename}\n"
        in held_by_another(tmp_path / "lock").stderr
    )
    lock.release()
    assert held_by_another(tmp_path / "lock").returncode == 0


@pytest.mark.parametrize("kind", ["a folder", "a hard link", "a symbolic link", "a pipe", "a text"])
def test_what_is_no_lock_file_is_named_and_left_alone(tmp_path, kind):
    (thesis := tmp_path / "thesis.txt").write_text("precious")
    lock = tmp_path / "lock"
    {
        "a folder": lock.mkdir,
        "a hard link": lambda: lock.hardlink_to(thesis),
        "a symbolic link": lambda: lock.symlink_to(thesis),
        "a pipe": lambda: os.mkfifo(lock),
        "a text": lambda: lock.write_text("precious"),
    }[kind]()
    with pytest.raises(OSError, match="not a lock file; remove it: .*lock"):
        Lock(lock)
    assert thesis.read_text() == "precious"
    assert kind != "a text" or lock.read_text() == "precious"


def test_lock_files_of_copied_folders_are_lock_files(tmp_path):
    Lock(tmp_path / "lock").release()
    (tmp_path / "copy").hardlink_to(tmp_path / "lock")
    Lock(tmp_path / "copy").release()


def test_a_lock_ends_with_its_process_also_when_that_is_killed(tmp_path):
    with held_for_a_line(tmp_path / "lock") as process:
        with pytest.raises(BlockingIOError, match=f"process {process.pid} on "):
            Lock(tmp_path / "lock")
        process.send_signal(signal.SIGKILL)
    Lock(tmp_path / "lock").release()


def test_a_lock_file_removed_before_it_was_locked_does_not_count(tmp_path, monkeypatch):
    """Otherwise two processes would hold the lock: one the removed file, the other the file that exists."""
    path, flock, calls = tmp_path / "lock", fcntl.flock, []

    def removed_first(*arguments):
        if not calls:
            path.unlink()
        calls.append(arguments)
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    lock = Lock(path)
    assert len(calls) == 2
    assert "BlockingIOError" in held_by_another(path).stderr
    lock.release()


@pytest.mark.slow
def test_a_removed_lock_file_is_locked_again_unless_another_process_was_faster(tmp_path):
    lock = Lock(tmp_path / "lock")
    (tmp_path / "lock").unlink()
    lock.renew()
    assert "BlockingIOError" in held_by_another(tmp_path / "lock").stderr
    (tmp_path / "lock").unlink()
    with (
        held_for_a_line(tmp_path / "lock") as process,
        pytest.raises(BlockingIOError, match=f"{process.pid}"),
    ):
        lock.renew()


def test_a_process_that_is_just_ending_is_waited_for(tmp_path):
    with held_for_a_line(tmp_path / "lock") as process:
        threading.Timer(0.3, process.kill).start()
        Lock(tmp_path / "lock").release()
