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
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from training.components import source
from training.config import ConfigError, RunConfig

ROOT = Path(__file__).parents[1]
DONE = ("finished", "diverged")  # the same command has nothing left to do
WATCHING = {
    "eval_every",
    "eval_windows",
    "checkpoint_every",
    "log_every",
    "threads",
}  # keys of train.* that only watch


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


def machine() -> dict[str, Any]:
    """What decides here what ``device=auto precision=auto`` become, as far as it can be told without
    torch."""
    return {
        "host": platform.node(),
        "torch": importlib.metadata.version("torch"),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def finished_run(config: RunConfig, fingerprint: str) -> Path | None:
    """The folder of this very run where it has ended, else None.

    Which precision ``auto`` is here costs an import of torch, so the runs that it was resolved for are asked.
    """
    asked = [config.precision] if config.precision != "auto" else ["bf16", "fp32"]
    for precision in asked:
        folder = run_folder(config, precision, fingerprint)
        if read_status(folder).get("state") in DONE:
            environment = read_json(folder / "environment.json")
            here = environment.get("machine") == machine() and environment.get("asked") == asked_for(config)
            if config.precision != "auto" or here:
                return folder
    return None


def asked_for(config: RunConfig) -> dict[str, str]:
    return {"device": config.device, "precision": config.precision}


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
        self.status |= changes
        write_atomically(self.folder / "status.json", json.dumps(self.status, indent=1))

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


def environment(config: RunConfig, device: str, precision: str, threads: int) -> dict[str, Any]:
    """Where and how a run was made: recorded, and not part of its identity."""
    packages = ("torch", "numpy", "hydra-core", "pydantic", "safetensors")
    return {
        "machine": machine(),
        "asked": asked_for(config),
        "device": device,
        "precision": precision,
        "threads": threads,
        "compile": config.compile,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "git": git_state(),
        "command": [sys.executable, *sys.argv],
    }


def processor() -> str:
    """The processor's model, from where Linux says it, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def git_state() -> dict[str, str] | None:
    """The project's commit, and a hash of what differs from it; None outside a git checkout."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=10
        ).stdout

    try:
        difference = git("diff", "HEAD")
        return {
            "commit": git("rev-parse", "HEAD").decode().strip(),
            "diff": hashlib.sha256(difference).hexdigest()[:12] if difference else "",
        }
    except (OSError, subprocess.SubprocessError):
        return None
