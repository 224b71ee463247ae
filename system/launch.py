"""The processes that torchrun started together, as far as the environment tells of them. No torch here."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def rank() -> int:
    """The number of this process among those that were started together; 0 where it is the only one."""
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


def count() -> int:
    """How many processes were started together."""
    told = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(os.environ.get(name, "").strip() for name in told) else 1


def quiet() -> None:
    """Of several ranks the first alone prints. Where another one has to tell of an error, ``together`` lets
    it."""
    if rank():
        sys.stdout = sys.stderr = nowhere()


@contextmanager
def leaving() -> Iterator[None]:
    """A program. Ranks end with it at once: what torch's threads do as an interpreter ends may abort it (seen
    in 1 of 80), and one rank's failure is that of all."""
    try:
        yield
    except SystemExit as end:
        if count() > 1 and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(end.code)
        raise


def nowhere() -> TextIO:
    """A stream of which nothing is seen."""
    return open(os.devnull, "w", encoding="utf-8")
