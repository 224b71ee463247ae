"""A file that one process holds, so that others know that they are not alone with what it stands for."""

import os
import platform
from pathlib import Path
from typing import IO, Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# An offset that none of our locked files reaches: Windows keeps others from reading what is locked.
BEYOND = 2**30


def hold(path: Path) -> IO[str]:
    """Make the file and lock it, until it is closed or this process has ended in whatever way.

    Raises:
        BlockingIOError: another process holds it; its text says which.
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # a link would lead elsewhere
    while True:
        file = os.fdopen(os.open(path, flags, 0o666), "r+", encoding="utf-8")
        try:
            lock(file)
        except BlockingIOError:
            with file:
                raise BlockingIOError(file.read() or "another process") from None
        if is_at(path, file):
            break
        file.close()  # who held it has removed it since it was opened
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def lock(file: IO[str]) -> None:
    """Until it is closed, or the process has ended in whatever way, nobody else can lock this file.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    where = file.tell()
    file.seek(BEYOND)
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        raise BlockingIOError from None
    finally:
        file.seek(where)
