"""Several ranks that train together without torchrun, with the environment variables that torchrun sets."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.helpers.programs import PATIENCE, Program


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
    outputs = [program.communicate() for program in programs]
    return [(program.wait(), *output) for program, output in zip(programs, outputs, strict=True)]


def each(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(*arguments)`` in each of ``count`` ranks. Return the results by rank."""
    context = multiprocessing.get_context("fork")  # a fork needs no second import of torch
    results = context.Queue()

    def call(rank: int, environ: dict[str, str]) -> None:
        os.environ |= environ
        torch.set_num_threads(1)
        try:
            dist.init_process_group("gloo")
            results.put((rank, function(*arguments), None))
            dist.barrier()
            dist.destroy_process_group()
        except BaseException:
            results.put((rank, None, traceback.format_exc()))

    processes = [
        context.Process(target=call, args=(rank, environ), daemon=True)
        for rank, environ in enumerate(environments(count))
    ]
    for process in processes:
        process.start()
    result_of = {}
    try:
        for _ in processes:
            rank, result_of[rank], error = results.get(timeout=PATIENCE)
            assert error is None, f"rank {rank}: {error}"
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    for process in processes:
        process.join()
    return [result_of[rank] for rank in range(count)]
