"""Start the project's programs as a user does, each in its own process, folder and environment.

A program is forked by the fork server of Python's multiprocessing, which has imported torch: this saves two
seconds a program. ``from_scratch`` starts a program with a new interpreter.
"""

import atexit
import contextlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
started: list["Program"] = []  # by the current test
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "train", "training.setup", "sample", "compare"])


class Program:
    """A running program, with the part of subprocess.Popen that the tests need. Its text is UTF-8.

    Args:
        program: its file, relative to the project's folder.
        cwd: the folder it is started in.
        environ: variables that differ from those of this process. TEST_FILE_SIZE limits the bytes of each
            file that the program may write.
    """

    def __init__(self, program: str, *arguments: str, cwd: Path, **environ: str) -> None:
        self.args = [program, *map(str, arguments)]
        self.output = tempfile.TemporaryDirectory()
        everything = dict(os.environ) | environ
        self.process = FORKS.Process(target=become, args=(self.args, cwd, everything, self.output.name))
        self.process.start()
        started.append(self)

    @property
    def returncode(self) -> int | None:
        """The exit status, -n if signal n ended the program, None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit status. Raises TimeoutExpired if the program runs for longer than ``timeout``."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the value of a condition, which the running program makes true."""

        def met() -> Any:
            value = condition()
            assert value or self.returncode is None, self.communicate()
            return value

        return until(met)

    def printed(self, stream: str = "out") -> str:
        """Return what the program has printed on stdout, or on stderr (err), so far."""
        file = Path(self.output.name, stream)
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Return stdout and stderr when the program has ended."""
        self.wait(timeout)
        return self.printed(), self.printed("err")

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program and all that it has started, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.wait()
        self.output.cleanup()


def become(argv: list[str], cwd: Path, environ: dict[str, str], output: str) -> None:
    """In a new fork: run a program of the project as a new interpreter would."""
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a fork server ignores it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [str(ROOT / argv[0]), *argv[1:]]
    sys.path[1:1] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    if file_size := os.environ.pop("TEST_FILE_SIZE", ""):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_size), resource.RLIM_INFINITY))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:  # what multiprocessing leaves out
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def run(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """Run a program to its end. Return a subprocess.CompletedProcess."""
    with Program(program, *arguments, cwd=cwd, **environ) as process:
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def succeed(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """Run a program that must end with status 0. Return the result of ``run``."""
    done = run(program, *arguments, cwd=cwd, **environ)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done


def from_scratch(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """Run a program with a new interpreter. Return a subprocess.CompletedProcess."""
    command = [sys.executable, str(ROOT / program), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=PATIENCE
    )
