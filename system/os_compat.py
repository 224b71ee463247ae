"""Differences between operating systems: nearly all of the rest is written as if every system were Linux."""

import ctypes
import errno
import math
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

# Signals that ask a program to end: Ctrl-C, kill, a terminal that was closed, and the warning of a cluster.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in ENDING if hasattr(signal, name))  # Windows lacks some


UNSYNCED = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)  # errors of shared folders that cannot be synced


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power failure. Does nothing on Windows, which cannot open
    folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_time(pid: int) -> float | None:
    """Return when a process started, in seconds since 1970; None if no process has this ID, or if the process
    is a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, ValueError, OverflowError):  # the latter two for a number that is no valid ID
        return None


def is_running(pid: int, started: float) -> bool:
    """Return True if the process is still running, and its ID is not that of a process started later."""
    actual = start_time(pid)
    return actual is not None and abs(actual - started) < 10  # seconds, as the clock may have been adjusted


def address_space() -> float:
    """Return how many bytes of address space this process may reserve (ulimit -v); infinity if unlimited."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0] if resource else -1
    return math.inf if limit in (-1, resource and resource.RLIM_INFINITY) else limit


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, since its start or the last
    ``trim_memory_and_reset_peak``."""
    with suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)  # type: ignore[attr-defined]
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def trim_memory_and_reset_peak() -> None:
    """Give freed memory back to the system, and reset what ``peak_memory`` returns. Linux only."""
    glibc("malloc_trim", 0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # 5 resets VmHWM


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for the next step. By default it returns them to the
    system, which zeroes each page again: this takes up to 1/4 of an uncompiled step on a CPU."""
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    glibc("mallopt", M_MMAP_THRESHOLD, 32 * 2**20)
    glibc("mallopt", M_TRIM_THRESHOLD, -1)  # -1: never trim


def let_waiting_threads_sleep() -> None:
    """Let torch's threads sleep after some 0.1 ms of waiting for one another, unless the user's environment
    says otherwise. Call this before torch is imported, which reads the variable once.

    By default GNU's OpenMP waits in a busy loop for several ms, at every operation. Where other processes
    compute, this loop takes cores from them, and from the threads it waits for: beside two processes on two
    cores, a run of 40 steps took 135 s, and now 21 s. Alone, 1,000 steps of a small model take 0.82 to 0.93
    of the time.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc; do nothing with another C library."""
    with suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)
