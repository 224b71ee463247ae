"""A run's folder.

    runs/<norm>-<placement>-s<seed>-<hash>/
        config.yaml         the resolved config, plain
        metrics.jsonl       one line a log: the source of truth
        status.json         running, finished, diverged, interrupted or failed; step; saved; reason; best
        certificate.json    whether its model is causal at the start; see diagnostics/causality.py
        environment.json    where it ran: versions, commit, code, processor, threads, command line
        checkpoints/        step-*.safetensors
        .lock               held by the process that trains it

Its name, from rundir/identity.py, is a hash over what changes the result and nothing else, so the same
command finds its run again. Torch is not imported here: a finished run is skipped at once.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import yaml
from filelock import BaseFileLock

from cli.schema import RunConfig
from rundir import run_files
from rundir.environment import asked_for, differences, machine
from rundir.identity import run_folder
from rundir.run_files import read_json
from system.errors import ConfigError
from system.files import jsonable, write_atomically
from system.lock import hold
from system.signals import Interrupted


def has_ended(folder: Path) -> bool:
    """Return whether the same command has nothing left to do there."""
    return read_status(folder).get("state") in ("finished", "diverged")


def ended_folder(config: RunConfig, fingerprint: str) -> Path | None:
    """Return the folder of this run if it has ended and torch is not needed to find it, else None.

    Resolving ``precision=auto`` on this machine would import torch, so earlier runs of this machine are asked
    what it became.
    """
    is_auto = config.precision == "auto"
    for precision in ("bf16", "fp32") if is_auto else (config.precision,):
        folder = run_folder(config, precision, fingerprint)
        before = read_json(folder / "environment.json")
        same = before.get("machine") == machine() and before.get("asked") == asked_for(config)
        if has_ended(folder) and (same or not is_auto):
            return folder
    return None


def newest_run(runs_dir: str) -> Path:
    """Return the run that last wrote its status. Raises ConfigError where there is none."""
    files = list(Path(runs_dir).glob("*/status.json"))
    if not files:
        raise ConfigError(f"runs_dir: {runs_dir} has no run; train one, or name one with run=FOLDER")
    return max(files, key=lambda file: file.stat().st_mtime).parent


def read_status(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json")


def leaks(folder: Path) -> bool:
    """Return whether the run's certificate says that its model depends on what it must not see."""
    return run_files.leaks(read_json(folder / "certificate.json"))


def unwritable(folder: Path, error: OSError) -> ConfigError:
    why = error.strerror or error
    return ConfigError(f"runs_dir: {folder}: {why}; name a folder that can be written")


class Diverged(Exception):  # noqa: N818 a result
    """A run has diverged after ``step``: a result, which ends the run, not an error."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


class AlreadyEndedError(Exception):
    """Another process ended this run while this one waited to train it."""


class Run:
    """A run's folder. From ``claim`` to the end of ``with`` it is this process's alone; ``with`` claims a
    folder that exists at once, so that a second process is refused before it builds anything.

    Args:
        writes: false on all ranks but the first: they read the folder and write nothing.
        had_ended: the run has ended before; the same command has nothing left to do.
    """

    def __init__(self, folder: Path, config: RunConfig, writes: bool = True, had_ended: bool = False) -> None:
        self.folder, self.config, self.writes, self.had_ended = folder, config, writes, had_ended
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl" if writes else Path(os.devnull)
        self.certificate = folder / "certificate.json"
        self.status: dict[str, Any] = {
            "state": "interrupted",  # until ``recording`` is entered
            "step": 0,
            "saved": None,
            "reason": "before its first step",
            "best": None,
        }
        self.held: BaseFileLock | None = None

    def __enter__(self) -> Self:
        if self.folder.is_dir():
            self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        if self.held:
            self.held.release()

    def claim(self) -> None:
        """Make the folder and lock it until this process ends. Raises ConfigError if another process has
        locked it, or it cannot be written."""
        if self.held or not self.writes:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if self.checkpoints.is_symlink():
                raise ConfigError(f"{self.checkpoints}: a link, which leads elsewhere; name another runs_dir")
            self.held = hold(self.folder / ".lock")
        except BlockingIOError as holder:
            raise ConfigError(
                f"{self.folder}: {holder} is training this run; wait for it or end it"
            ) from None
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def begin(
        self, environment: dict[str, Any], certificate: dict[str, Any], best: dict[str, Any] | None, step: int
    ) -> None:
        """Write what the run is as it begins, at step 0, or resumes from ``step``, with the best evaluation
        until then. Raises ConfigError if the folder cannot be written."""
        if not self.writes:
            self.status |= {"step": step, "saved": step or None, "best": best}  # all ranks know what to save
            return
        before = read_json(self.folder / "environment.json")
        earlier = before.pop("earlier", [])  # environments of the run's earlier processes
        status = read_status(self.folder)
        if step and (changes := differences(before, environment)):
            earlier.append(before)
            print(f"{self.folder}: resumes in another environment: {'; '.join(changes)}")
        if not step and status:
            earlier = []
            print(f"{self.folder}: starts over; it was {status.get('state')} at step {status.get('step')}")
        try:
            self.write_status(step=step, saved=step or None, best=best)
            self.remove_leftovers(keep_checkpoints=step > 0)
            resolved = self.config.model_dump(by_alias=True)
            settings = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
            write_atomically(self.folder / "config.yaml", settings)
            self.write(self.folder / "environment.json", environment | {"earlier": earlier})
            self.write(self.certificate, certificate)
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def remove_leftovers(self, keep_checkpoints: bool) -> None:
        """Remove temporary files of processes that were killed, and checkpoints of an earlier start."""
        ours, of_safetensors = self.folder.rglob(".*.tmp"), self.checkpoints.glob(".tmp*")
        for file in (*ours, *of_safetensors):
            file.unlink()
        if not keep_checkpoints:
            shutil.rmtree(self.checkpoints)
            self.checkpoints.mkdir()

    def write_status(self, **changes: Any) -> None:
        """Change keys of status.json."""
        self.status |= jsonable(changes)
        self.write(self.folder / "status.json", self.status)

    def write(self, file: Path, content: dict[str, Any]) -> None:
        """Write a small JSON file of the folder, whole or not at all."""
        if self.writes:
            write_atomically(file, json.dumps(jsonable(content), indent=1, allow_nan=False))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record that the run is running, and in the end how it ended: finished, diverged, interrupted or
        failed."""
        self.write_status(state="running", reason=None)
        try:
            yield
        except Diverged as divergence:  # a result, not an error
            self.write_status(state="diverged", step=divergence.step, reason=divergence.reason)
        except Interrupted as signal:
            self.write_status(state="interrupted", reason=signal.signal)
            command = "the same command" + (" without fresh=true" if self.config.fresh else "")
            step = self.status["saved"] or 0
            print(
                f"{self.folder}: interrupted by {signal.signal}; {command} resumes from step {step:,}",
                file=sys.stderr,
            )
            raise
        except SystemExit:  # submitit ends a job that the cluster takes back
            self.write_status(state="interrupted", reason="taken back by the cluster")
            raise
        except BaseException as error:
            with suppress(OSError):  # a full disk is one error to report, not two
                self.write_status(state="failed", reason=f"{type(error).__name__}: {error}")
            raise
        else:
            self.write_status(state="finished")
