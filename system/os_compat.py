"""What operating systems do differently, with what takes its place (locks: system/lock.py): the rest of the
project is written as if every system were Linux."""

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

# That ask a program to end: Ctrl-C, kill, and a cluster's warning, which Windows does not know.
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
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def began(process: int) -> float | None:
    """When a process began, in seconds since 1970; None where there is none of that number."""
    try:
        return float(psutil.Process(process).create_time())
    except (psutil.Error, ValueError, OverflowError):  # or a number that none has
        return None


def exists(process: int, since: float) -> bool:
    """Whether that process is there, and not another by now that was given its number."""
    now = began(process)
    return now is not None and abs(now - since) < 10  # the clock may have been set


def peak_memory() -> int:
    """The most bytes that this process had in memory since it began, or since ``forget_peak``."""
    with suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)  # type: ignore[attr-defined]
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def forget_peak() -> None:
    """Give back to the system what C's memory allocator keeps, and forget the peak. Linux alone can."""
    glibc("malloc_trim", 0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees, of up to 32 MiB at once, for the next one. By default it goes back to
    the system, which then zeroes each page anew: up to a quarter of an uncompiled step's time on a CPU."""
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    glibc("mallopt", M_MMAP_THRESHOLD, 32 * 2**20)
    glibc("mallopt", M_TRIM_THRESHOLD, -1)  # never


def glibc(function: str, *arguments: int) -> None:
    """Call it; with another C library nothing is done."""
    with suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)
