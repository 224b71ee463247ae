"""Lock files: a process that holds one tells the others that a run or a folder is in use."""

import errno
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

HOLDER = b" process"
WAIT = 1  # seconds to wait: another process may be removing the file, or just have been killed


class Lock:
    """A lock file that this process holds until ``release()`` or its end, even if it is killed. The file is
    created if it is missing.

    Raises BlockingIOError, which names the process that holds the file, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hold()

    def hold(self) -> None:
        self.check_file()
        self.file = FileLock(self.path, timeout=WAIT, on_acquired=self.write_holder)
        try:
            self.file.acquire()
        except Timeout:
            raise BlockingIOError(read_holder(self.path)) from None

    def check_file(self) -> None:
        """Raise FileExistsError if the path is of something else than a lock file, whose content would be
        lost."""
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.path.lstat().st_mode) or not is_lock_file(self.path):
                what = "is a folder, a link, a device or another file, not a lock file; remove it"
                raise FileExistsError(errno.EEXIST, what, str(self.path))

    def write_holder(self, descriptor: int) -> None:
        """Write who holds the file, after the first byte, which is locked and unreadable on Windows."""
        self.identity = os.fstat(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, HOLDER + f" {os.getpid()} on {platform.node()}".encode())

    def renew(self) -> None:
        """If someone has removed the lock file, create it and hold it again. Between the removal and this
        call another process may have created and locked a new file; then this raises as the constructor
        does."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self.identity, self.path.stat()):
                return
        removed = self.file
        self.hold()
        removed.release()

    def release(self) -> None:
        self.file.release()


def is_lock_file(path: Path) -> bool:
    """Return whether a file is empty or has what ``write_holder`` writes. One that cannot be read, as it is
    locked on Windows, is a lock file."""
    try:
        with path.open("rb") as file:
            return file.read(len(HOLDER)).strip() in (b"", HOLDER.strip())
    except PermissionError:
        return True


def read_holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(1)
            return file.read(1000).decode("utf-8", "replace") or "another process"
    except OSError:
        return "another process"
