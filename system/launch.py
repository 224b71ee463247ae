"""The processes that torchrun or joblib started, without torch."""

import errno
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from typing import TextIO

from system.errors import ConfigError
from system.terminal import announced

ADDRESSES: list[socket.socket] = []  # of this process, until it ends
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank() -> int:
    """Return the rank of this process; 0 without torchrun. Raises ConfigError."""
    count = world_size()
    number = as_number("RANK") if count > 1 else 0
    if number >= count:
        raise ConfigError(f"RANK: is {number}, but WORLD_SIZE is {count}; start the program by torchrun")
    return number


def world_size() -> int:
    """Return how many processes were started together. Raises ConfigError."""
    by_torchrun = all(os.environ.get(name, "").strip() for name in VARIABLES)
    return as_number("WORLD_SIZE") if by_torchrun else 1


def as_number(name: str) -> int:
    """Return the number in a variable of torchrun. Raises ConfigError."""
    if not (text := os.environ[name].strip()).isdecimal():
        raise ConfigError(f"{name}: is {text!r}, not a number; start the program by torchrun")
    return int(text)


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
    with announced("importing torch"):
        import torch

    return torch.cuda.device_count()


def silence_other_ranks() -> None:
    """Let only rank 0 print. training/parallel/process_group.py lets other ranks report errors."""
    if rank():
        sys.stdout = sys.stderr = devnull()


@contextmanager
def exit_together() -> Iterator[None]:
    """Context manager around a program: end a rank without the interpreter's clean-up, during which torch's
    threads may abort the process (in 1 of 80 runs); torchrun then counts the whole run as failed."""
    try:
        yield
    except SystemExit as end:
        is_rank = False
        with suppress(ConfigError):  # it has been reported
            is_rank = world_size() > 1
        if is_rank and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code)
        raise


def devnull() -> TextIO:
    """Return a stream that discards all output."""
    return open(os.devnull, "w", encoding="utf-8")
