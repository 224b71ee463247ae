"""A run's folder.

    runs/<norm>-<placement>-s<seed>-<hash>/
        config.yaml         the resolved config
        metrics.jsonl       one line for each log step
        status.json         running, finished, diverged, interrupted or failed; step; saved; reason; best
        certificate.json    whether the model is causal, at the start and at the end: diagnostics/causality.py
        environment.json    versions, commit, code, processor, threads, command line
        checkpoints/        step-*.safetensors
        wandb.json          the run's ID at wandb, and how much of metrics.jsonl was copied to it
        .lock               held by the process that trains the run

The hash, from rundir/identity.py, covers the settings that change the result by more than rounding and no
others, so that the same command finds the same folder. It leaves out train.eval_every, although that may
decide when a run ends as diverged (train.hopeless_after). Torch is not imported here: a finished run is
skipped at once.
"""

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import yaml

from cli import job_record
from cli.schema import RunConfig
from rundir import checkpoint_file, run_files
from rundir.environment import differences
from rundir.role_record import with_role
from rundir.run_files import read_json
from system.errors import ConfigError
from system.files import jsonable, write_atomically
from system.lock import WAIT, Lock
from system.signals import Interrupted

PREEMPTED = -1  # with which submitit ends a job that the cluster preempts
MOST_EARLIER = 50  # environments of some 6 kB each that environment.json keeps; above 1 MB it is not read
STATUS_EVERY = 0.5  # seconds; a file takes longer than a short step


def has_ended(folder: Path) -> bool:
    """Return True if the run has finished or diverged, so that the same command has nothing left to do."""
    return read_status(folder).get("state") in ("finished", "diverged")


def read_status(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json")


def leaks(folder: Path) -> bool:
    """Return True if the run's certificate says that its logits depend on later tokens or on other rows."""
    return run_files.leaks(read_json(folder / "certificate.json"))


def unwritable(folder: Path, error: OSError) -> ConfigError:
    why = error.strerror or error
    return ConfigError(f"runs_dir: {folder}: {why}; choose a folder that can be written")


class Diverged(Exception):  # noqa: N818 it is a result
    """A run has diverged after ``step``: a result that ends the run, not an error."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


class AlreadyEndedError(Exception):
    """Another process ended this run while this process waited to train it."""


class Run:
    """A run's folder. From ``claim`` to the end of ``with``, only this process may write to it; ``with``
    claims an existing folder at once, so that a second process is refused before it builds a model.

    Args:
        writes: False on all ranks but rank 0, which only read the folder.
        had_ended: the run had ended before; the same command has nothing left to do.
    """

    def __init__(self, folder: Path, config: RunConfig, writes: bool = True, had_ended: bool = False) -> None:
        self.folder, self.config, self.writes, self.had_ended = folder, config, writes, had_ended
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl" if writes else Path(os.devnull)
        self.certificate = folder / "certificate.json"
        self.written = 0.0  # when status.json was written, in seconds of time.monotonic
        self.status: dict[str, Any] = {
            "state": "interrupted",  # until ``recording`` is entered
            "step": 0,
            "saved": None,
            "reason": "before its first step",
            "best": None,
            "process": job_record.this_process(),
            "host": platform.node(),
        }
        self.lock: Lock | None = None

    def __enter__(self) -> Self:
        if self.folder.is_dir():
            self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock:
            self.lock.release()

    def claim(self) -> None:
        """Create the folder and lock it until the end of ``with``. Raises ConfigError if another process
        trains the run, even if someone has removed its lock file, or if the folder cannot be written."""
        if self.lock or not self.writes:
            return
        deadline = time.monotonic() + WAIT
        while job_record.is_running(status := read_status(self.folder)):
            if time.monotonic() > deadline:
                raise self.trained_by(f"process {status['process'][0]} on {status['host']}")
            time.sleep(0.05)
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if self.checkpoints.is_symlink():
                raise ConfigError(f"{self.checkpoints}: is a symbolic link to another folder; remove it")
            self.lock = Lock(self.folder / ".lock")
        except BlockingIOError as holder:
            raise self.trained_by(holder) from None
        except FileExistsError as error:  # its place is taken
            raise ConfigError(f"{error.filename}: {error.strerror}") from None
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def trained_by(self, holder: object) -> ConfigError:
        """Return the error for a run that ``holder``, such as "process 7 on HOST", is training."""
        return ConfigError(f"{self.folder}: {holder} is training this run; wait for that process or end it")

    def begin(
        self, environment: dict[str, Any], certificate: dict[str, Any], best: dict[str, Any] | None, step: int
    ) -> None:
        """Write the files that describe the run, which begins at step 0 or resumes from ``step``; ``best`` is
        the run's best evaluation so far. Raises ConfigError if the folder cannot be written."""
        previous, status = read_json(self.folder / "environment.json"), read_status(self.folder)
        earlier = previous.pop("earlier", []) if step else []  # environments of the run's earlier processes
        if step and not previous:
            lost = "what it said of the run's earlier processes, and of the sweep, is lost"
            print(f"{self.folder}: environment.json is missing or damaged; {lost}")
        elif step and (changes := differences(previous, environment)):
            earlier.append(previous)
            print(f"{self.folder}: resumes in another environment: {'; '.join(changes)}")
        if not step and status:
            print(f"{self.folder}: starts over; it was {status.get('state')} at step {status.get('step')}")
        self.status |= {"step": step, "saved": step or None, "best": best}  # on all ranks, as all save
        if not self.writes:
            return
        try:
            self.write_status()
            self.remove_leftovers(keep_checkpoints=step > 0)
            resolved = self.config.model_dump(by_alias=True)
            settings = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
            write_atomically(self.folder / "config.yaml", settings)
            # the first plan, which was written before there was a result
            plan = previous.get("plan") or (None if step else environment["plan"])
            roles = previous.get("roles", [])
            for role in environment["roles"]:
                roles = with_role(roles, role)
            environment |= {"earlier": earlier[-MOST_EARLIER:], "plan": plan, "roles": roles}
            self.write(self.folder / "environment.json", environment)
            self.write(self.certificate, certificate)
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def remove_leftovers(self, keep_checkpoints: bool) -> None:
        """Remove what killed processes left: temporary files and superfluous checkpoints; or, unless
        ``keep_checkpoints``, all checkpoints."""
        for file in (*self.folder.rglob(".*.tmp"), *self.checkpoints.glob(".tmp*")):  # ours, safetensors'
            file.unlink(missing_ok=True)  # a process that copies to wandb may just have renamed its own
        if keep_checkpoints:
            checkpoint_file.prune(self.checkpoints, (self.status["best"] or {}).get("step"))
        else:
            shutil.rmtree(self.checkpoints)
            self.checkpoints.mkdir()

    def keep_lock(self) -> None:
        """Lock the folder again if someone has removed the lock file. Raises ConfigError if meanwhile another
        process has begun to train the run."""
        try:
            if self.lock:
                self.lock.renew()
        except BlockingIOError as holder:
            raise self.trained_by(holder) from None

    def write_status(self, *, at_once: bool = True, **changes: Any) -> None:
        """Change keys of status.json: at once, or only if the file was last written
        STATUS_EVERY seconds ago or more."""
        self.status |= jsonable(changes)
        if at_once or time.monotonic() - self.written >= STATUS_EVERY:
            self.keep_lock()
            self.write(self.folder / "status.json", self.status)
            self.written = time.monotonic()

    def write(self, file: Path, content: dict[str, Any]) -> None:
        """Write a small JSON file of the folder atomically."""
        if self.writes:
            write_atomically(file, json.dumps(jsonable(content), indent=1, allow_nan=False))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context manager: record that the run is running, and at the end that it is finished, diverged,
        interrupted or failed."""
        self.write_status(state="running", reason=None)
        try:
            yield
        except Diverged as divergence:  # a result, not an error
            self.write_status(state="diverged", step=divergence.step, reason=divergence.reason)
        except Interrupted as interruption:
            reason = interruption.signal_name
            self.write_status(state="interrupted", reason=reason)
            command = "the same command" + (" without fresh=true" if self.config.fresh else "")
            step = self.status["saved"] or 0
            print(
                f"{self.folder}: interrupted by {reason}; {command} resumes from step {step:,}",
                file=sys.stderr,
            )
            raise
        except SystemExit as end:
            if end.code == PREEMPTED and "SUBMITIT_EXECUTOR" in os.environ:
                self.write_status(state="interrupted", reason="preempted by the cluster")
                raise
            reason = f"a module called sys.exit({end.code!r})"
            with suppress(OSError):
                self.write_status(state="failed", reason=reason)
            advice = "let it raise an error; --debug shows where"
            raise ConfigError(f"{self.folder}: {reason} while it was trained; {advice}") from end
        except BaseException as error:
            with suppress(OSError):  # a full disk must not hide the first error
                self.write_status(state="failed", reason=f"{type(error).__name__}: {error}")
            raise
        else:
            self.write_status(state="finished")
