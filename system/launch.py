"""The processes that torchrun started together, as the environment describes them. No torch here."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank() -> int:
    """Return the rank of this process; 0 if it is alone."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


def world_size() -> int:
    """Return how many processes were started together."""
    by_torchrun = all(os.environ.get(name, "").strip() for name in VARIABLES)
    return int(os.environ["WORLD_SIZE"]) if by_torchrun else 1


def silence_other_ranks() -> None:
    """Let rank 0 alone print. training/parallel/process_group.py lets another rank report an error."""
    if rank():
        sys.stdout = sys.stderr = devnull()


@contextmanager
def exit_together() -> Iterator[None]:
    """Context manager around a program: end a rank at once, without the interpreter's clean-up, in which
    torch's threads may abort it (seen in 1 of 80): one rank's failure is that of all."""
    try:
        yield
    except SystemExit as end:
        if world_size() > 1 and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code)
        raise


def devnull() -> TextIO:
    """Return a stream that drops what is written."""
    return open(os.devnull, "w", encoding="utf-8")
