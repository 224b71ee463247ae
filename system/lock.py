"""Lock files: a process that holds one tells the others that a run or a folder is in use."""

import os
import platform
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

WAIT = 0.1  # seconds to wait, as another process may be removing the file right now


def hold(path: Path) -> BaseFileLock:
    """Create a file and lock it until ``release()`` or the end of this process, even if it is killed. Raises
    BlockingIOError, which names the process that holds the file, and OSError."""
    lock = FileLock(path, timeout=WAIT, on_acquired=write_holder)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(read_holder(path)) from None
    return lock


def write_holder(descriptor: int) -> None:
    """Write who holds the file, after the first byte, which is locked and unreadable on Windows."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f" process {os.getpid()} on {platform.node()}".encode())


def read_holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(1)
            return file.read(1000).decode("utf-8", "replace") or "another process"
    except OSError:
        return "another process"
