"""A file that one process holds, so that others know that what the file stands for is in use."""

import os
import platform
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

WAIT = 0.1  # seconds; another process may be removing the file at this moment


def hold(path: Path) -> BaseFileLock:
    """Create the file and lock it until it is released or this process ends, in whatever way. Raises
    BlockingIOError, which names the process that holds it, and OSError."""
    lock = FileLock(path, timeout=WAIT, on_acquired=write_holder)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(read_holder(path)) from None
    return lock


def write_holder(descriptor: int) -> None:
    """Write who holds the file, behind its first byte: Windows lets nobody else read that one."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f" process {os.getpid()} on {platform.node()}".encode())


def read_holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(1)
            return file.read(1000).decode("utf-8", "replace") or "another process"
    except OSError:
        return "another process"
