"""Running a whole program and what that costs; medians and ratios of rounds. Nothing to run here."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypedDict

POLL = 0.01  # seconds between looks at what a program has written
PATIENCE = 10.0  # seconds that a program has to end itself when it is told to


class BenchError(ValueError):
    """What keeps a benchmark from being measured, in one line for the user."""


@dataclass(frozen=True)
class Child:
    """A program that has run to its end."""

    seconds: float  # from the start of its process to the end of it
    peak_memory: int  # bytes of the largest process among it and those it waited for
    lines: list[tuple[float, str]] = field(
        repr=False
    )  # what it printed, and how many seconds after its start

    def seconds_to(self, beginning: str) -> float:
        """Seconds from its start to the first line with this beginning. Raises BenchError without one."""
        for seconds, line in self.lines:
            if line.startswith(beginning):
                return seconds
        raise BenchError(f"it printed no line that begins with {beginning!r}")


def run(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Child:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        cwd: the folder it runs in.
        environment: variables that it has besides ours.
        watch: called each POLL seconds with the process's id and the seconds since its start.

    Raises:
        BenchError: it could not be started, or failed.
    """
    variables = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {})
    start = time.perf_counter()
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BenchError(f"{command[0]}: {error.strerror}; check the path") from None
    over = threading.Event()
    watcher = threading.Thread(target=watching, args=(process.pid, start, watch, over), daemon=True)
    lines: list[tuple[float, str]] = []
    try:
        assert process.stdout
        with process.stdout as output:
            if watch:
                watcher.start()
            lines += ((time.perf_counter() - start, line.rstrip("\n")) for line in output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:  # Ctrl-C: what was started is ended
        end(process)
        raise
    finally:
        over.set()
        if watcher.ident:
            watcher.join()
    if process.returncode:
        said = next((line for _, line in reversed(lines) if line.strip()), "it printed nothing")
        program = " ".join(Path(part).name for part in command[1:3])
        raise BenchError(f"{program}: failed with status {process.returncode}: {said.strip()}")
    # At its start a child has our memory, which counts as its own: there is no torch in it, it is small.
    return Child(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), lines)


def watching(pid: int, start: float, watch: Callable[[int, float], None], over: threading.Event) -> None:
    while not over.wait(POLL):
        watch(pid, time.perf_counter() - start)


def end(process: "subprocess.Popen[str]") -> None:
    """Ask it to end; it takes those with it that it started. Kill it where it does not."""
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Ratio(TypedDict):
    """Of two quantities that were measured in turn: the median of the rounds' ratios, and their range."""

    median: float
    min: float
    max: float
    rounds: int


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Each round's value over the same round's baseline."""
    each = [value / base for value, base in zip(values, baseline, strict=True)]
    return {"median": median(each), "min": min(each), "max": max(each), "rounds": len(each)}


def settled(values: Sequence[float], warm_up: int = 10) -> Sequence[float]:
    """Without the first ones: caches and allocators are warm by then. Of few values, without a third."""
    return values[min(warm_up, (len(values) + 2) // 3) :]
