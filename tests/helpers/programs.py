"""Start the project's programs as a user does, each in its own process.

Each program is a fork of tests/helpers/program_server.py, which has already imported torch; this saves two
seconds per program. ``from_scratch`` starts a program slowly, with a new interpreter, as a user does.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
PATIENCE = 900  # seconds after which a program hangs; without a fault nothing takes so long on a busy machine
started: list["Program"] = []  # by the current test


class Program:
    """A running program, with the part of subprocess.Popen that the tests need. Its text is UTF-8.

    Args:
        program: its file, relative to the project's folder.
        cwd: the folder it is started in.
        stdout, stderr: file descriptors; by default a pipe, and a file that ``communicate`` reads.
        environ: variables that differ from those of this process. TEST_MEMORY limits the bytes of memory that
            the program may allocate, TEST_FILE_SIZE the bytes of each file that it may write.
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
        self.peak = 0  # bytes of memory; known when the program has ended
        self.stdout: IO[str] | None = None
        self.stderr_file: IO[str] | None = None
        pipe_ends = []
        if stdout is None:
            read_end, stdout = os.pipe()
            pipe_ends.append(stdout)
            self.stdout = os.fdopen(read_end, encoding="utf-8")
        if stderr is None:
            self.stderr_file = temporary_file()
            stderr = self.stderr_file.fileno()
        read_end, report = os.pipe()
        pipe_ends.append(report)
        self.reports = os.fdopen(read_end)  # two lines: the process; then its status and its memory in KiB
        request = {"argv": self.args, "cwd": str(cwd), "environ": dict(os.environ) | environ}
        socket.send_fds(server(), [json.dumps(request).encode()], [stdout, stderr, report])
        for descriptor in pipe_ends:
            os.close(descriptor)
        self.pid = int(self.reports.readline())
        started.append(self)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit status, -n if signal n ended the program. Raise TimeoutExpired while it runs."""
        if self.returncode is None:
            if not select.select([self.reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            status, kilobytes = map(int, self.reports.readline().split())
            self.returncode, self.peak = os.waitstatus_to_exitcode(status), 1024 * kilobytes
            self.reports.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(timeout=0)
        return None

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the value of a condition, which the running program makes true within PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < deadline, f"not met in {PATIENCE} s"
            time.sleep(0.01)
        return value

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Return what the program prints until its end. It is killed after ``timeout`` seconds."""
        assert self.stdout
        killer = threading.Timer(timeout, self.kill)
        killer.start()
        with self.stdout:
            out = self.stdout.read()
        self.wait()
        killer.cancel()
        return out, content(self.stderr_file) if self.stderr_file else ""

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the program has just ended
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program and all that it has started, and wait for its end: its locks are free then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        deadline = time.monotonic() + 2
        while group_exists(self.pid) and time.monotonic() < deadline:  # what the program started ends later
            time.sleep(0.01)
        for file in (self.stdout, self.stderr_file):
            if file:
                file.close()


def group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(program: str, *arguments: str, cwd: Path, timeout: float = PATIENCE, **environ: str) -> Any:
    """Run a program to its end. Return a subprocess.CompletedProcess with the ``peak`` of Program. The
    program is killed after ``timeout`` seconds."""
    with temporary_file() as out, temporary_file() as err:
        descriptors = {"stdout": out.fileno(), "stderr": err.fileno()}
        with Program(program, *arguments, cwd=cwd, **descriptors, **environ) as process:
            status = process.wait(timeout)
        done: Any = subprocess.CompletedProcess(process.args, status, content(out), content(err))
    done.peak = process.peak
    return done


def succeed(program: str, *arguments: str, cwd: Path, **options: Any) -> Any:
    """Run a program that must end with status 0. Return the result of ``run``."""
    done = run(program, *arguments, cwd=cwd, **options)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done


def temporary_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def from_scratch(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """Run a program with a new interpreter. Return a subprocess.CompletedProcess."""
    command = [sys.executable, str(ROOT / program), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=PATIENCE
    )


def saved(folder: Path) -> list[Path]:
    """Return all checkpoints below a folder, in which files may appear and vanish meanwhile."""
    return [
        Path(path, name)
        for path, _, names in os.walk(folder)
        for name in names
        if name.startswith("step-") and name.endswith(".safetensors")
    ]


@functools.cache
def server() -> socket.socket:
    """Start the server, which ends with this process. Return the socket for requests."""
    client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server_end:
        number = server_end.fileno()
        command = [sys.executable, "-m", "tests.helpers.program_server", str(number)]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[number], start_new_session=True)
    atexit.register(process.wait)
    atexit.register(client_end.close)  # before the wait
    return client_end
