"""Run a program as a child process, and measure its wall time, peak memory and the time of each line."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


class BenchError(ValueError):
    """A reason why a benchmark cannot be measured, as one line for the user."""


@dataclass(frozen=True)
class Child:
    """A program that has run to its end."""

    seconds: float  # from the start of the process to its end
    peak_memory: int  # bytes; the largest among the process and the children that it waited for
    lines: list[tuple[float, str]] = field(repr=False)  # (seconds since the start, line)
    own_memory: int = 0  # bytes; the largest anonymous memory of the process; Linux only

    def find(self, pattern: str) -> list[tuple[float, str]]:
        """Return the time and the group of each line that matches. Raises BenchError if none does."""
        matches = [(seconds, re.search(pattern, line)) for seconds, line in self.lines]
        groups = [(seconds, match[1]) for seconds, match in matches if match]
        if not groups:
            raise BenchError(f"the program printed no line with {pattern!r}")
        return groups

    def numbers(self, pattern: str) -> list[float]:
        """Return the group of each line that matches, as a number. Raises BenchError if none does."""
        return [float(text.replace(",", "")) for _, text in self.find(pattern)]


def run(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Run a program to its end, with ``environment`` added to ours. Raises BenchError if it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    own_memory = [0]
    ended = threading.Event()
    threading.Thread(target=sample_memory, args=(process.pid, ended, own_memory), daemon=True).start()
    lines: list[tuple[float, str]] = []
    try:
        assert process.stdout
        with process.stdout as output:
            lines += ((time.perf_counter() - start, line.rstrip("\n")) for line in output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    except KeyboardInterrupt:
        process.terminate()  # the program ends its own children
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        ended.set()
    if process.returncode:
        last = next((line for _, line in reversed(lines) if line.strip()), "it printed nothing")
        raise BenchError(f"{Path(command[1]).name}: failed with status {process.returncode}: {last.strip()}")
    # At the fork the kernel counts this process's memory as the child's; without torch, that is little here.
    peak_memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Child(seconds, peak_memory, lines, max(own_memory))


def sample_memory(pid: int, ended: threading.Event, own_memory: list[int]) -> None:
    """Append the anonymous memory of a process, in bytes, ten times a second until it has ended."""
    while not ended.wait(0.1):
        with suppress(OSError):  # not Linux, or the process has just ended
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            own_memory += [1024 * int(kilobytes) for kilobytes in re.findall(r"RssAnon:\s+(\d+)", status)]
