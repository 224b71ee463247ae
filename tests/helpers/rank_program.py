"""Several ranks that train together without torchrun, with the environment variables that torchrun sets."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from tests.helpers.programs import Program


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def environments(count: int) -> list[dict[str, str]]:
    """Return the variables that torchrun sets for each rank."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def started(count: int, *arguments: str, cwd: Path, **environ: str) -> list[Program]:
    """Start train.py once for each rank."""
    return [Program("train.py", *arguments, cwd=cwd, **environ, **rank) for rank in environments(count)]


def trained(count: int, *arguments: str, cwd: Path, **environ: str) -> list[tuple[int, str, str]]:
    """Return the status, output and errors of each rank, when all have ended."""
    programs = started(count, *arguments, cwd=cwd, **environ)
    return [(program.wait(), *program.communicate()) for program in programs]


def each(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` in each of ``count`` ranks. Return the results by rank."""
    variables = environments(count)

    def call(rank: int) -> None:
        os.environ |= variables[rank]
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        torch.save(function(*arguments), f"{folder}/{rank}")
        dist.barrier()
        dist.destroy_process_group()

    with tempfile.TemporaryDirectory() as folder:
        start_processes(call, nprocs=count, start_method="fork")  # a fork needs no second import of torch
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(count)]
