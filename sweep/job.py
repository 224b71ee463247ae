"""One run of a sweep, as the launching process sees it."""

import math
from dataclasses import dataclass
from pathlib import Path

from cli import job_record
from cli.schema import RunConfig
from rundir.folder import ended_folder, read_status
from rundir.identity import run_folder


@dataclass
class Job:
    """One run of a sweep, as the launching process sees it."""

    overrides: tuple[str, ...]
    label: str  # what sets it apart from the others
    folder: Path  # where its record is kept
    config: RunConfig | None = None
    run: Path | None = None  # where its run is, or will be
    work: float = 0.0  # roughly the floating-point operations that it takes
    error: str | None = None  # why it cannot be done
    done: bool = False  # before this sweep

    @property
    def name(self) -> str:
        return self.run.name if self.run else self.label

    def is_over(self) -> bool:
        return self.done or self.error is not None or job_record.read(self.folder).get("state") == "ended"

    def part_done(self) -> float:
        """From 0 to 1."""
        if self.is_over():
            return 1.0
        if not self.run or not self.config or self.config.fresh:
            return 0.0
        return read_status(self.run).get("step", 0) / max(1, self.config.train.steps)

    def outcome(self) -> tuple[str, float, str]:
        """How it ended: a state of status.json, its loss (infinity but for a finished one), and why."""
        error = self.error or job_record.read(self.folder).get("error")
        if error or not self.run:
            return "failed", math.inf, error or "it has no run"
        status = read_status(self.run)
        state = status.get("state", "not begun")
        loss = float(status.get("final") or math.nan) if state == "finished" else math.inf
        return state, loss, status.get("reason") or ""


def folder_of(config: RunConfig, fingerprint: str) -> Path:
    """The run's folder. Torch is asked only where nothing else can tell the precision. Raises ConfigError."""
    if not config.fresh and (folder := ended_folder(config, fingerprint)):
        return folder
    from training import device

    return run_folder(config, device.choose(config.device, config.precision).precision, fingerprint)
