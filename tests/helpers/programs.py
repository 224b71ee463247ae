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
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 900  # seconds after which a program hangs; without a fault nothing takes so long on a busy machine
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
        self.returncode: int | None = None
        self.output = tempfile.TemporaryDirectory()
        everything = dict(os.environ) | environ
        self.process = FORKS.Process(target=become, args=(self.args, cwd, everything, self.output.name))
        self.process.start()
        self.pid = self.process.pid
        started.append(self)

    def poll(self) -> int | None:
        """Return the exit status, -n if signal n ended the program, None while it runs."""
        self.returncode = self.process.exitcode
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit status. Raises TimeoutExpired if the program runs for longer than ``timeout``."""
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def until(self, condition: Callable[[], Any]) -> Any:
        """Return the value of a condition, which the running program makes true within PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < deadline, f"not met in {PATIENCE} s"
            time.sleep(0.01)
        return value

    def printed(self) -> str:
        """Return what the program has printed on stdout so far."""
        file = Path(self.output.name, "out")
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Return stdout and stderr when the program has ended. It is killed after ``timeout`` seconds."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
        return self.printed(), Path(self.output.name, "err").read_text(encoding="utf-8")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program and all that it has started, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        self.wait()
        self.output.cleanup()


def become(argv: list[str], cwd: Path, environ: dict[str, str], output: str) -> None:
    """In a new fork: run a program of the project as a new interpreter would, and end the process."""
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a fork server ignores it
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = [str(ROOT / argv[0]), *argv[1:]]
        sys.path[1:1] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
        if file_size := os.environ.pop("TEST_FILE_SIZE", ""):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_size), resource.RLIM_INFINITY))
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def run(program: str, *arguments: str, cwd: Path, timeout: float = PATIENCE, **environ: str) -> Any:
    """Run a program to its end. Return a subprocess.CompletedProcess. The program is killed after ``timeout``
    seconds."""
    with Program(program, *arguments, cwd=cwd, **environ) as process:
        out, err = process.communicate(timeout)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def succeed(program: str, *arguments: str, cwd: Path, **options: Any) -> Any:
    """Run a program that must end with status 0. Return the result of ``run``."""
    done = run(program, *arguments, cwd=cwd, **options)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done


def from_scratch(program: str, *arguments: str, cwd: Path, **environ: str) -> Any:
    """Run a program with a new interpreter. Return a subprocess.CompletedProcess."""
    command = [sys.executable, str(ROOT / program), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=PATIENCE
    )
