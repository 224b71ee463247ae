"""A run's folder. Plain files, written here and read by sample.py, compare.py and anyone else.

    runs/<norm>-<placement>-s<seed>-<hash>/
        config.yaml         the resolved config
        metrics.jsonl       one line for each logged step; wandb gets a copy
        status.json         running, finished, diverged, interrupted or failed; step, best, final loss
        certificate.json    whether the model is causal, at the start and at the end: probe/causality.py
        environment.json    machine, versions, commit, what auto became
        checkpoints/        step-*.safetensors
        .lock               held by the process that trains the run

Torch is not imported here, so that compare.py and ablate.py start at once.
"""

import json
import math
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml
from filelock import FileLock, Timeout

from cli.schema import RunConfig
from data.errors import ConfigError, described
from data.files import jsonable, write_atomically
from training.environment import differences
from training.signals import Interrupted

STATUS_EVERY = 0.5  # seconds: writing a file takes longer than a short step
SELECT, REPORT = "val/select_loss", "val/report_loss"  # the losses on the halves of the validation split


class Diverged(Exception):  # noqa: N818 it is a result
    """A run has diverged after ``step``: a result that ends the run, not an error."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


# ---------------------------------------------------------------------------------------------------
# Reading


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a small JSON file; {} if it is missing or damaged."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):  # RecursionError: too many nested brackets
        return {}


def read_status(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json")


def has_ended(folder: Path) -> bool:
    """Return whether the run has finished or diverged, so that the same command has nothing left to do."""
    return read_status(folder).get("state") in ("finished", "diverged")


def read_rows(file: Path, before: float = math.inf) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl whose step is below ``before``. Damaged lines are left out, and their
    number is printed. A damaged last line does not count: a killed process may have cut it."""
    rows, damaged = [], []
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for line in lines:
        try:
            if (row := json.loads(line))["step"] < before:
                rows.append(row)
        except (ValueError, TypeError, LookupError, RecursionError):
            damaged.append(line)
    if count := len(damaged) - (lines[-1:] == damaged[-1:] != []):
        print(f"{file}: {count} damaged rows are left out", file=sys.stderr)
    return rows


def last_row(file: Path) -> dict[str, Any]:
    """Return the last row of metrics.jsonl; {} if there is none."""
    return next(iter(read_rows(file)[-1:]), {})


def leaking(certificate: Mapping[str, Any]) -> bool:
    """Return whether a certificate says that logits depend on later tokens or on other rows."""
    answers = [answer for answer in certificate.values() if answer]
    return any(False in (answer["causal"], answer["independent_rows"]) for answer in answers)


def leaking_losses(certificate: Mapping[str, Any]) -> list[str]:
    """Return which losses, train/loss or val/loss, are invalid because the model leaks in that mode."""
    answers = [answer for answer in certificate.values() if answer]
    losses = {"train": "train/loss", "eval": "val/loss"}
    return [name for mode, name in losses.items() if any(any(a.get(mode, {}).values()) for a in answers)]


# ---------------------------------------------------------------------------------------------------
# Writing


class Run:
    """The folder of a run that this process trains. ``with`` locks an existing folder at once, so that a
    second process is refused before it builds a model; ``claim`` creates and locks a new one.

    Args:
        writes: False on all ranks but the first: they only read the folder.
    """

    def __init__(self, folder: Path, config: RunConfig, writes: bool = True) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl" if writes else Path(os.devnull)
        self.certificate = folder / "certificate.json"
        self.lock = FileLock(folder / ".lock", timeout=0)
        self.written = 0.0  # when status.json was written, in seconds of time.monotonic
        self.status: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self.folder.is_dir():
            self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def claim(self) -> None:
        """Create the folder and lock it. Raises ConfigError if another process trains the run, or if the
        folder cannot be written."""
        if not self.writes or self.lock.is_locked:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
        except Timeout:
            holder = f"process {read_status(self.folder).get('process')}"
            raise ConfigError(f"{self.folder}: {holder} trains this run; wait for it or end it") from None
        except OSError as error:
            why = f"{self.folder}: {error.strerror or error}"
            raise ConfigError(f"runs_dir: {why}; choose a folder that can be written") from None

    def begin(
        self, environment: dict[str, Any], certificate: dict[str, Any], best: dict[str, Any] | None, step: int
    ) -> None:
        """Write status.json and the files that describe the run, which begins at step 0 or resumes from
        ``step``.

        Args:
            environment, certificate: the content of environment.json and certificate.json.
            best: the run's best evaluation so far.
        """
        previous, status = read_json(self.folder / "environment.json"), read_status(self.folder)
        # first: status.json must not say "finished" of a run whose checkpoints are gone
        self.write_status(state="running", reason=None, step=step, saved=step or None, best=best)
        self.write_status(process=os.getpid(), host=platform.node())
        if not self.writes:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        environment["began"] = previous.get("began", now) if step else now
        if step:
            earlier = previous.pop("earlier", [])
            if changes := differences(previous, environment):
                print(f"{self.folder}: resumes in another environment: {'; '.join(changes)}")
                earlier.append(previous)
            environment |= {"earlier": earlier} if earlier else {}
        else:
            if status:
                print(
                    f"{self.folder}: starts over; it was {status.get('state')} at step {status.get('step')}"
                )
            shutil.rmtree(self.checkpoints)
            self.checkpoints.mkdir()
        for leftover in (*self.folder.glob(".*.tmp"), *self.checkpoints.glob(".*")):  # of a killed process
            leftover.unlink()
        settings = self.config.model_dump(by_alias=True)
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        write_atomically(self.folder / "config.yaml", text)
        self.write(self.folder / "environment.json", environment)
        self.write(self.certificate, certificate)

    def write(self, file: Path, content: Mapping[str, Any]) -> None:
        """Write a small JSON file of the folder atomically."""
        if self.writes:
            write_atomically(file, json.dumps(jsonable(content), indent=1, allow_nan=False))

    def write_status(self, *, at_once: bool = True, **changes: Any) -> None:
        """Change keys of status.json. If not ``at_once``, write the file at most every STATUS_EVERY s."""
        self.status |= changes
        if at_once or time.monotonic() - self.written >= STATUS_EVERY:
            self.write(self.folder / "status.json", self.status)
            self.written = time.monotonic()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Context manager: record at the end that the run is finished, diverged, interrupted or failed.
        Diverged is suppressed."""
        try:
            yield
            self.write_status(state="finished")
        except Diverged as divergence:  # a result, not an error
            self.write_status(state="diverged", step=divergence.step, reason=divergence.reason)
        except (Interrupted, KeyboardInterrupt) as interruption:  # KeyboardInterrupt: a second Ctrl-C
            name = getattr(interruption, "signal_name", "SIGINT")
            self.write_status(state="interrupted", reason=name)
            command = "the same command" + " without fresh=true" * self.config.fresh
            resumes = f"{command} resumes from step {self.status['saved'] or 0:,}"
            print(f"{self.folder}: interrupted by {name}; {resumes}", file=sys.stderr)
            raise
        except BaseException as error:
            with suppress(OSError):  # a full disk must not hide the first error
                self.write_status(state="failed", reason=described(error))
            raise

    def report(self, had_ended: bool) -> None:
        """Print how the run ended, and how to sample from it."""
        status = read_status(self.folder)
        note = "; nothing left to do (fresh=true starts over)" if had_ended else ""
        if status["state"] == "diverged":
            print(f"{self.folder}: diverged by step {status['step']:,} ({status['reason']}){note}")
            return
        guess = "; it collapsed: no better than guessing each token by its frequency"
        losses = " and ".join(leaking_losses(read_json(self.certificate)))
        leak = f"; it LEAKS: do not compare its {losses}" if losses else ""
        loss = f"val/full_loss {status['final']:.4f}"
        print(f"{self.folder}: finished, {loss}{guess * status['collapsed']}{leak}{note}")
        if not had_ended and status["saved"] is not None:
            trust = "".join(f" trust={','.join(names)}" for names in [self.config.packages()] if names)
            print(f"sample from it: python sample.py run={shlex.quote(str(self.folder))}{trust}")
