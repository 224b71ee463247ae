"""Programs of ours as their users start them, each a process of its own that begins with torch imported.

Python with torch takes two seconds to start, most of what a tiny run takes. So a server, one for each process
that tests, imports it once and forks itself for every program. From there on that is as if it had been
started by itself: its own folder, environment, signals and exit status, the program's file from the first
line to the interpreter's end. But all have one order of hashed sets, and all have torch; ``from_scratch`` is
the start that a user knows.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import psutil

from cli.app import choices
from cli.schema import RunConfig

ROOT = Path(__file__).parents[2]
running: set["Program"] = set()
IMPORTED = (
    "torch",
    "torch.optim",
    "torch._dynamo",
    "train",
    "sample",
    "compare",
    "findings",
    "training.device",
    "training.dry_run",
)


class Program:
    """One that runs, with what of subprocess.Popen the tests need. Its text is UTF-8.

    Args:
        program: its file, from the project's folder.
        cwd: the folder it is started in.
        stdout, stderr: file descriptors for these; by default a pipe, and a file that ``communicate`` reads.
        environ: the variables that differ from this process's. TEST_MEMORY is how many bytes of memory it may
            ask for, TEST_FILE_SIZE how many a file of its may have.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        cwd: Path,
        stdout: int | None = None,
        stderr: int | None = None,
        **environ: str,
    ) -> None:
        self.args = [program, *map(str, arguments)]
        self.returncode: int | None = None
        self.peak = 0  # bytes of memory, when it has ended
        self.stdout: IO[str] | None = None
        self.stderr = -1  # a file without a name
        theirs = []
        if stdout is None:
            read, stdout = os.pipe()
            theirs.append(stdout)
            self.stdout = os.fdopen(read, encoding="utf-8")
        if stderr is None:
            self.stderr = stderr = unnamed()
        self.report, told = os.pipe()
        theirs.append(told)
        asked = {"argv": self.args, "cwd": str(cwd), "environ": dict(os.environ) | environ}
        socket.send_fds(server(), [json.dumps(asked).encode()], [stdout, stderr, told])
        for descriptor in theirs:
            os.close(descriptor)
        pid = self.told(timeout=60)
        if pid is None:
            server.cache_clear()
            raise RuntimeError("the server that starts programs is gone")
        self.pid = pid
        running.add(self)

    def told(self, timeout: float | None) -> int | None:
        """The next number that the server says of this program: its process; then its status and, in KiB, the
        most memory that it had. None where whoever should say it is gone."""
        if not select.select([self.report], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        said = os.read(self.report, 8)
        return int(struct.unpack("q", said)[0]) if said else None

    def poll(self) -> int | None:
        """Its exit status, -n where signal n ended it; None while it runs."""
        if self.returncode is None and select.select([self.report], [], [], 0)[0]:
            running.discard(self)
            status = self.told(0)
            self.returncode = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
            self.peak = 1024 * (self.told(0) or 0)
            os.close(self.report)
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        if self.returncode is None:
            select.select([self.report], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """All that it prints until it has ended."""
        assert self.stdout
        killer = threading.Timer(timeout, self.kill)
        killer.start()
        with self.stdout:
            out = self.stdout.read()
        self.wait()
        killer.cancel()
        err, self.stderr = read_all(self.stderr), -1
        return out, err

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever became of the test, neither it nor what it has started goes on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(self.pid), signal.SIGKILL)
        self.wait()
        if self.stdout:
            self.stdout.close()
        if self.stderr >= 0:
            os.close(self.stderr)


def run(program: str, *arguments: str, cwd: Path, timeout: float = 120, **environ: str) -> Any:
    """It, to its end: a subprocess.CompletedProcess with what it printed, and in ``peak`` the most bytes that
    it had in memory. It is killed after ``timeout`` seconds."""
    out, err = unnamed(), unnamed()
    with Program(program, *arguments, cwd=cwd, stdout=out, stderr=err, **environ) as started:
        code = started.wait(timeout)
    done: Any = subprocess.CompletedProcess(started.args, code, read_all(out), read_all(err))
    done.peak = started.peak
    return done


def from_scratch(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """The same, by the start that its user knows: Python begins, and imports what the program imports."""
    command = [sys.executable, str(ROOT / program), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=120
    )


def saved(folder: Path) -> list[Path]:
    """All checkpoints in it, while others may come and go."""
    return [
        Path(path, name)
        for path, _, names in os.walk(folder)
        for name in names
        if name.startswith("step-") and name.endswith(".safetensors")
    ]


def unnamed() -> int:
    """An empty file that nobody else finds."""
    descriptor, name = tempfile.mkstemp()
    os.unlink(name)
    return descriptor


def read_all(descriptor: int) -> str:
    """The text in such a file, which is then gone."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.read()


@functools.cache
def server() -> socket.socket:
    """Where it is asked for programs. It ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.helpers.programs", str(its.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()], start_new_session=True)
    atexit.register(process.wait)
    atexit.register(ours.close)  # before it
    return ours


# --------------------------------------------------------------------------------------------------
# The server


def serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each program that is asked for. Returns what is asked, in the process that shall be it."""
    while True:
        message, (*descriptors,), _, _ = socket.recv_fds(connection, 2**20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            return kept(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        while waited():
            pass


def waited() -> bool:
    """Whether a child had ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def kept(asked: dict[str, Any], out: int, err: int, told: int) -> dict[str, Any]:
    """Start the program, in a session of its own, and say its process, and in the end its status, into
    ``told``."""
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(told, struct.pack("q", pid))
        for descriptor in (1, 2, out, err):  # whoever reads them waits for their end
            os.close(descriptor)
        _, status, used = os.wait4(pid, 0)
        os.write(told, struct.pack("qq", status, used.ru_maxrss))
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 2**16)
    return asked


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    choices("config", RunConfig, [])  # Hydra's parsers and ours are slow at first
    gc.collect()
    gc.freeze()  # a program would else look through all of this when it ends, for a second
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    program, *arguments = asked["argv"]
    sys.argv = [str(ROOT / program), *arguments]
    if more := os.environ.pop("TEST_MEMORY", ""):  # bytes, besides what is mapped already
        mapped = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (mapped + int(more), resource.RLIM_INFINITY))
    if most := os.environ.pop("TEST_FILE_SIZE", ""):  # bytes of any file
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
