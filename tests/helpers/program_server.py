"""The server behind tests/helpers/programs.py: it imports torch once, and forks itself for every program.

Python needs two seconds to import torch, most of the time of a tiny run. Each process of pytest has one
server. The forked program runs as if it had been started anew: its own folder, environment, signals and exit
status, from the first line of its file to the end of the interpreter.
"""

import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from cli.compose import choices

ROOT = Path(__file__).parents[2]
IMPORTED = ("torch._dynamo", "train", "training.setup", "sample", "compare", "findings")


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a watcher for each request. Return, in the process of the program, what was requested."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 2**20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return watched(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def watched(request: dict[str, Any], out: int, err: int, report: int) -> dict[str, Any]:
    """Fork the program, in a session of its own. This process outlives it, and reports its end."""
    pid = os.fork()
    if pid:
        for descriptor in (1, 2, out, err):  # readers wait until every process has closed its copy
            os.close(descriptor)
        _, status, usage = os.wait4(pid, 0)
        os.write(report, f"{status} {usage.ru_maxrss}\n".encode())
        os._exit(0)
    os.setsid()
    os.write(report, f"{os.getpid()}\n".encode())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 2**16)
    return request


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    choices([])  # the first composition is slow
    gc.collect()
    gc.freeze()  # else each program would spend a second at its end on collecting these objects
    # nohup is meant for pytest, not for the programs
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    program, *arguments = request["argv"]
    sys.argv = [str(ROOT / program), *arguments]
    if memory := os.environ.pop("TEST_MEMORY", ""):
        mapped = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (mapped + int(memory), resource.RLIM_INFINITY))
    if file_size := os.environ.pop("TEST_FILE_SIZE", ""):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_size), resource.RLIM_INFINITY))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
