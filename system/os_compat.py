"""Differences between operating systems: the rest of the project is written as if every system were Linux."""

import ctypes
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

# Signals that ask a program to end: Ctrl-C, kill, and a cluster's warning, which Windows does not have.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power failure. Windows does not let a folder be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_time(process: int) -> float | None:
    """Return when a process started, in seconds since 1970; None if no process has that number."""
    try:
        return float(psutil.Process(process).create_time())
    except (psutil.Error, ValueError, OverflowError):  # the last two: a number that no process can have
        return None


def exists(process: int, started: float) -> bool:
    """Return true if the process still runs, and its number has not been given to another."""
    now = start_time(process)
    return now is not None and abs(now - started) < 10  # the clock may have been set


def peak_memory() -> int:
    """Return the most bytes that this process had in memory since it started or since ``forget_peak``."""
    with suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)  # type: ignore[attr-defined]
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def forget_peak() -> None:
    """Return freed memory to the system and reset the peak. Linux only."""
    glibc("malloc_trim", 0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for the next step. By default they go back to the system,
    which zeroes each page again: up to a quarter of an uncompiled step's time on a CPU."""
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    glibc("mallopt", M_MMAP_THRESHOLD, 32 * 2**20)
    glibc("mallopt", M_TRIM_THRESHOLD, -1)  # never


def glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc; do nothing with another C library."""
    with suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)
