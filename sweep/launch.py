"""The processes of a sweep, without torch."""

import errno
import multiprocessing
import os
import re
import socket
import sys
from functools import cache
from itertools import count

import psutil

ADDRESSES: list[socket.socket] = []  # of this process, until it ends


@cache
def worker() -> int:
    """Return the number of this process among the living workers of a sweep on one machine, from 0; 0
    elsewhere. A worker that takes the place of an ended one has its number, where take_number works."""
    name = re.fullmatch(r"LokyProcess-(\d+)", multiprocessing.current_process().name)  # joblib's name
    if not name:
        return 0
    try:
        return take_number()
    except OSError:
        return int(name[1]) - 1  # the number of workers that were started before this one


def take_number() -> int:
    """Return the lowest number that no living worker has, and take it until this process ends. Raises OSError
    where there are no abstract socket addresses: outside Linux, and in some sandboxes."""
    if sys.platform != "linux":
        raise OSError("abstract socket addresses exist on Linux only")
    for number in count():
        address = socket.socket(socket.AF_UNIX)
        try:
            address.bind(f"\0normgpt worker {number} of {os.getppid()}")
        except OSError as error:
            address.close()
            if error.errno != errno.EADDRINUSE:  # no worker has it: addresses are refused
                raise
        else:
            ADDRESSES.append(address)
            return number
    raise AssertionError  # for mypy: the numbers do not end


def gpus_for(device: str) -> int:
    """Return how many GPUs the workers of a sweep on this device take in turn; 0 if it runs on CPUs. Torch is
    imported only where there is a driver: of Linux, or of Windows for Linux."""
    has_driver = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
    if not device.startswith(("auto", "cuda")) or not has_driver:
        return 0
    if ":" in device:  # this GPU only
        return 1
    import torch

    return torch.cuda.device_count()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_time(pid: int) -> float | None:
    """Return when a process started, in seconds since 1970; None if no living process has this ID."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_running(pid: int, started: float) -> bool:
    """Return whether the process is still running, and its ID is not that of a process started later."""
    actual = start_time(pid)
    return actual is not None and abs(actual - started) < 10  # seconds, as the clock may have been adjusted
