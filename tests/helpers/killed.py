"""Runs, each in its own process, that are killed at random moments and restarted until they end."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import errors
from tests.conftest import LETTERS, ROOT
from tests.helpers import programs
from training import checkpoint as checkpoint_file
from training.run_folder import read_status

DRAW = random.Random(0)
Start = Callable[..., Any]  # program, arguments, cwd= -> like subprocess.Popen


def by_python(program: str, *arguments: str, cwd: Path) -> "subprocess.Popen[bytes]":
    """Start a program as a user does, with a new interpreter: the first two seconds are imports."""
    command = [sys.executable, str(ROOT / program), *arguments]
    with (cwd / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=cwd, stdout=output, stderr=output)


def forked(program: str, *arguments: str, cwd: Path) -> programs.Program:
    with (cwd / "output.txt").open("ab") as output:
        return programs.Program(program, *arguments, cwd=cwd, stdout=output.fileno(), stderr=output.fileno())


@dataclass
class Killed:
    """Kills of one or several runs, and what was lost."""

    kills: int = 0
    after_a_save: int = 0  # kills of a run that had a checkpoint
    lost: int = 0  # the most steps done since the newest checkpoint
    unreadable: list[Path] = field(default_factory=list)  # checkpoints that cannot be loaded


def until_it_ends(
    folder: Path,
    arguments: Sequence[str],
    seconds: float,
    killed: Killed,
    start: Start = forked,
) -> None:
    """Start a program in ``folder`` and kill it after a random time of about ``seconds``, a bit longer each
    time, until it ends by itself. The kills are added to ``killed``."""
    folder.mkdir()
    (folder / "text.txt").write_text(LETTERS, encoding="utf-8")
    while True:
        process = start(*arguments, cwd=folder)
        try:
            process.wait(timeout=seconds * (0.2 + DRAW.random()))
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        if code == 0:
            return
        assert code == -signal.SIGKILL, (folder / "output.txt").read_text(encoding="utf-8")
        killed.kills += 1
        seconds *= 1.02
        checkpoints = programs.saved(folder)
        killed.after_a_save += bool(checkpoints)
        killed.lost = max(killed.lost, steps_done(folder) - max([0, *map(step_of, checkpoints)]))
        for path in checkpoints:
            try:
                checkpoint_file.load(path)
            except errors.CheckpointError:
                killed.unreadable.append(path)


def steps_done(folder: Path) -> int:
    """Count the complete rows of the run's metrics, one for each step."""
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("runs/*/metrics.jsonl")]
    return max((json.loads(line)["step"] + 1 for text in texts for line in text.split("\n")[:-1]), default=0)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").split(".")[0])


def end_of(folder: Path) -> Path:
    """Return the last checkpoint of the folder's only run, which has finished."""
    [run] = (folder / "runs").iterdir()
    assert read_status(run)["state"] == "finished"
    return sorted((run / "checkpoints").iterdir())[-1]
