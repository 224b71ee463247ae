"""Runs that are killed at random moments until they end, each in a process of its own."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rundir import checkpoint_file
from rundir.folder import read_status
from system import errors
from tests.conftest import LETTERS, ROOT, TINY
from tests.helpers import programs

ARGUMENTS = ("data=text", "data.path=text.txt", "data.cache=cache", *TINY)
DRAW = random.Random(0)
Start = Callable[..., Any]  # program, arguments, cwd= -> like subprocess.Popen


def by_python(program: str, *arguments: str, cwd: Path) -> "subprocess.Popen[bytes]":
    """The real start, of which the first two seconds are imports."""
    command = [sys.executable, str(ROOT / program), *arguments]
    with (cwd / "said.txt").open("ab") as said:
        return subprocess.Popen(command, cwd=cwd, stdout=said, stderr=said)


def forked(program: str, *arguments: str, cwd: Path) -> programs.Program:
    with (cwd / "said.txt").open("ab") as said:
        return programs.Program(program, *arguments, cwd=cwd, stdout=said.fileno(), stderr=said.fileno())


@dataclass
class Killed:
    """What became of a run that was killed again and again."""

    kills: int = 0
    after_a_save: int = 0  # of these
    lost: int = 0  # steps that were done since the newest checkpoint, at most
    unreadable: list[Path] = field(default_factory=list)  # checkpoints that are there and cannot be loaded


def until_it_ends(
    folder: Path,
    arguments: Sequence[str],
    seconds: float,
    start: Start = forked,
    numbers: Sequence[int] = (signal.SIGKILL,),
    at_most: int = 1000,
) -> Killed:
    """Start a program in ``folder``, kill it by one of some signals after a random time of about ``seconds``,
    and again, until it ends by itself, or was killed ``at_most`` times. Each time it has a bit longer."""
    found = Killed()
    folder.mkdir()
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    while found.kills < at_most:
        number = DRAW.choice(numbers)
        process = start(*arguments, cwd=folder)
        try:
            process.wait(timeout=seconds * (0.2 + DRAW.random()))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        code = process.wait()
        if code == 0:
            return found
        if code == 1 and found.unreadable:  # and none that is older
            return found
        assert code in (-number, 128 + number), (folder / "said.txt").read_text(encoding="utf-8")
        found.kills += 1
        seconds *= 1.02
        saved = programs.saved(folder)
        found.after_a_save += bool(saved)
        found.lost = max(found.lost, steps_done(folder) - max([0, *map(step_of, saved)]))
        for path in saved:
            try:
                checkpoint_file.load(path)
            except errors.CheckpointError:
                found.unreadable.append(path)
    return found


def steps_done(folder: Path) -> int:
    """By the newest whole row of the run's metrics, which has a row for each step."""
    rows = [
        json.loads(line)["step"] + 1
        for file in folder.glob("runs/*/metrics.jsonl")
        for line in file.read_text(encoding="utf-8").split("\n")[:-1]
    ]
    return max(rows, default=0)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").split(".")[0])


def end_of(folder: Path) -> Path:
    """Its last checkpoint."""
    [run] = (folder / "runs").iterdir()
    assert read_status(run)["state"] == "finished"
    return sorted((run / "checkpoints").iterdir())[-1]
