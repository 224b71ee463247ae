"""A run's identity and folder.

    runs/<norm>-<placement>-s<seed>-<hash>/
        config.yaml         the resolved config, plain
        metrics.jsonl       one line a log: the source of truth
        status.json         running, finished, diverged, interrupted or failed; step; reason; best
        environment.json    where it ran: versions, commit, processor, threads, command line
        checkpoints/        step-*.safetensors

The hash is over what changes the result and nothing else, so the same command finds its run again, and
another norm, rate or number of steps is another folder. Torch is not imported here: a finished run is skipped
at once.
"""

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from training.config import ConfigError, RunConfig
from training.environment import asked_for, machine
from training.source import source

# Keys of train.* that only watch, or say where.
WATCHING = {"eval_every", "eval_windows", "checkpoint_every", "log_every", "threads"}


def identity(config: RunConfig, precision: str, fingerprint: str) -> dict[str, Any]:
    """What determines the result. ``precision`` is what auto became, ``fingerprint`` that of the tokens."""
    same = config.model_dump(
        by_alias=True, include={"seed", "model", "norm", "placement", "optim", "schedule"}
    )
    return same | {
        "train": config.train.model_dump(exclude=WATCHING),
        "precision": precision,
        "tokens": fingerprint,
        "source": {group: source(getattr(config, group).target) for group in ("norm", "placement")},
    }


def run_folder(config: RunConfig, precision: str, fingerprint: str) -> Path:
    """Where this run is or will be."""
    canonical = json.dumps(identity(config, precision, fingerprint), sort_keys=True, separators=(",", ":"))
    short = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    return Path(config.runs_dir) / f"{config.norm.name}-{config.placement.name}-s{config.seed}-{short}"


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


def read_json(file: Path) -> dict[str, Any]:
    """The file's content, or nothing where there is no such file or it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_status(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json")


def jsonable(value: Any) -> Any:
    """JSON has no NaN or infinity: they are the strings NaN, Infinity, -Infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def write_atomically(file: Path, text: str) -> None:
    """Readers see the old content or the new, never a part."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


class Run:
    """A run's folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.status: dict[str, Any] = {"state": "running", "step": 0, "reason": None, "best": None}

    def create(self, config: RunConfig, environment: dict[str, Any]) -> None:
        """Make the folder anew. Raises ConfigError where it cannot be written."""
        try:
            if self.folder.exists():
                before = read_status(self.folder)
                print(
                    f"{self.folder}: starts over; it was {before.get('state')} at step {before.get('step')}"
                )
                shutil.rmtree(self.folder)
            self.checkpoints.mkdir(parents=True)
            resolved = config.model_dump(by_alias=True)
            write_atomically(
                self.folder / "config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
            )
            write_atomically(self.folder / "environment.json", json.dumps(environment, indent=1))
            self.write_status()
        except OSError as error:
            raise ConfigError(
                f"runs_dir: {self.folder}: {error.strerror}; name a folder that can be written"
            ) from None

    def write_status(self, **changes: Any) -> None:
        self.status |= {key: jsonable(value) for key, value in changes.items()}
        write_atomically(self.folder / "status.json", json.dumps(self.status, indent=1, allow_nan=False))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """However the run ends, its status says so."""
        try:
            yield
        except KeyboardInterrupt:
            self.write_status(state="interrupted", reason="keyboard interrupt")
            print(f"interrupted at step {self.status['step']}: {self.folder}", file=sys.stderr)
            raise
        except BaseException as error:
            self.write_status(state="failed", reason=f"{type(error).__name__}: {error}")
            raise
        if self.status["state"] == "running":
            self.write_status(state="finished")
