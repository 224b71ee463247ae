"""A run's identity and folder.

    runs/<norm>-<placement>-s<seed>-<hash>/
        config.yaml         the resolved config, plain
        metrics.jsonl       one line a log: the source of truth
        status.json         running, finished, diverged, interrupted or failed; step; saved; reason; best
        certificate.json    whether its model, at the start, keeps to the past; see diagnostics/causality.py
        environment.json    where it ran: versions, commit, code, processor, threads, command line
        checkpoints/        step-*.safetensors
        .lock               held by the process that trains it

The hash is over what changes the result and nothing else, so the same command finds its run again, and
another norm, rate or number of steps is another folder. Torch is not imported here: a finished run is skipped
at once.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

import yaml

from cli.schema import RunConfig
from rundir.environment import asked_for, differences, machine
from rundir.identity import run_folder
from rundir.schema import read_json
from system.errors import ConfigError
from system.files import jsonable, write_atomically
from system.lock import hold
from system.signals import Interrupted


def has_ended(folder: Path) -> bool:
    """Whether the same command has nothing left to do there."""
    return read_status(folder).get("state") in ("finished", "diverged")


def ended_here(config: RunConfig, fingerprint: str) -> Path | None:
    """The folder of this very run where it has ended and that can be told without torch, else None.

    What ``precision=auto`` is on this machine costs an import of torch, so the runs that were
    made of it here are asked.
    """
    if config.precision != "auto":
        folder = run_folder(config, config.precision, fingerprint)
        return folder if has_ended(folder) else None
    for precision in ("bf16", "fp32"):
        folder = run_folder(config, precision, fingerprint)
        before = read_json(folder / "environment.json")
        if has_ended(folder) and (before.get("machine"), before.get("asked")) == (
            machine(),
            asked_for(config),
        ):
            return folder
    return None


def newest_run(runs_dir: str) -> Path:
    """The run that last wrote its status. Raises ConfigError where there is none."""
    found = list(Path(runs_dir).glob("*/status.json"))
    if not found:
        raise ConfigError(f"runs_dir: {runs_dir} has no run; train one, or name one with run=FOLDER")
    return max(found, key=lambda file: file.stat().st_mtime).parent


def read_status(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json")


def leaks(folder: Path) -> bool:
    """Whether its certificate says that the run's model looks where it must not."""
    certificate = read_json(folder / "certificate.json")
    return certificate.get("causal") is False or certificate.get("independent_rows") is False


def unwritable(folder: Path, error: OSError) -> ConfigError:
    why = error.strerror or error
    return ConfigError(f"runs_dir: {folder}: {why}; name a folder that can be written")


class Run:
    """A run's folder. From ``lock`` to the end of ``with`` it is this process's alone; ``with`` locks one
    that is there already, so that a second process is refused at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.certificate = folder / "certificate.json"
        self.status: dict[str, Any] = {
            "state": "interrupted",  # until it is inside ``recording``
            "step": 0,
            "saved": None,
            "reason": "before its first step",
            "best": None,
        }
        self.held: IO[str] | None = None
        self.without_fresh = ""

    def __enter__(self) -> Self:
        if self.folder.is_dir():
            self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        if self.held:
            self.held.close()

    def lock(self) -> None:
        """Make the folder and refuse it to other processes. However this one ends, the lock ends with it.

        Raises:
            ConfigError: another process has it, or the folder cannot be written.
        """
        if self.held:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if self.checkpoints.is_symlink():
                raise ConfigError(f"{self.checkpoints}: a link, which leads elsewhere; name another runs_dir")
            self.held = hold(self.folder / ".lock")
        except BlockingIOError as who:
            raise ConfigError(f"{self.folder}: {who} is training this run; wait for it or end it") from None
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def open(
        self, config: RunConfig, environment: dict[str, Any], step: int, best: dict[str, Any] | None
    ) -> None:
        """Write what the run is as it goes on from ``step``, its best evaluation until then, or begins at 0.

        Raises:
            ConfigError: the folder cannot be written.
        """
        before = read_json(self.folder / "environment.json")
        earlier = before.pop("earlier", [])  # environments that the run was in
        status = read_status(self.folder)
        if step and (changes := differences(before, environment)):
            earlier.append(before)
            print(f"{self.folder}: goes on in another environment: {'; '.join(changes)}")
        if not step and status:
            earlier = []
            print(f"{self.folder}: starts over; it was {status.get('state')} at step {status.get('step')}")
        self.without_fresh = " without fresh=true" if config.fresh else ""
        try:
            self.write_status(step=step, saved=step or None, best=best)
            for left in (*self.folder.rglob(".*.tmp"), *self.checkpoints.glob(".tmp*")):  # ours; safetensors'
                left.unlink()  # of a process that was killed
            if not step:
                shutil.rmtree(self.checkpoints)
                self.checkpoints.mkdir()
            resolved = config.model_dump(by_alias=True)
            settings = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
            write_atomically(self.folder / "config.yaml", settings)
            self.write(self.folder / "environment.json", environment | {"earlier": earlier})
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def write_status(self, **changes: Any) -> None:
        self.status |= jsonable(changes)
        self.write(self.folder / "status.json", self.status)

    def write(self, file: Path, content: dict[str, Any]) -> None:
        write_atomically(file, json.dumps(jsonable(content), indent=1, allow_nan=False))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """The run is running; however it ends, its status says so."""
        self.write_status(state="running", reason=None)
        try:
            yield
        except Interrupted as signal:
            self.write_status(state="interrupted", reason=signal.signal)
            going_on = f"the same command{self.without_fresh} goes on from step {self.status['saved'] or 0:,}"
            print(f"{self.folder}: interrupted by {signal.signal}; {going_on}", file=sys.stderr)
            raise
        except SystemExit:
            self.write_status(state="interrupted", reason="taken back by the cluster")
            raise
        except BaseException as error:
            with suppress(OSError):  # of a full disk there is one error to tell of: that one
                self.write_status(state="failed", reason=f"{type(error).__name__}: {error}")
            raise
        if self.status["state"] == "running":
            self.write_status(state="finished")


class OthersRun(Run):
    """A run as its ranks but the first see it: they read its folder, and write nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metrics = Path(os.devnull)

    def lock(self) -> None:
        pass

    def open(
        self, config: RunConfig, environment: dict[str, Any], step: int, best: dict[str, Any] | None
    ) -> None:
        self.write_status(step=step, saved=step or None, best=best)  # by which all ranks know what to save

    def write(self, file: Path, content: dict[str, Any]) -> None:
        pass

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.write_status(state="running")
        yield
