"""Where and how a run was made. It is recorded beside the run and is no part of its identity."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from training.config import RunConfig

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "numpy", "hydra-core", "pydantic", "safetensors")


def environment(config: RunConfig, device: str, precision: str, threads: int) -> dict[str, Any]:
    """Versions, commit, processor, threads, command; device and precision as ``auto`` was resolved."""
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
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "git": git_state(),
        "command": [sys.executable, *sys.argv],
    }


def machine() -> dict[str, Any]:
    """What decides what ``device=auto precision=auto`` become here, as far as it is known without torch."""
    return {
        "host": platform.node(),
        "torch": importlib.metadata.version("torch"),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def asked_for(config: RunConfig) -> dict[str, str]:
    return {"device": config.device, "precision": config.precision}


def processor() -> str:
    """The processor's model, from where Linux says it, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def git_state() -> dict[str, str] | None:
    """The project's commit, and a hash of what differs from it; None outside of a git checkout."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=10
        ).stdout

    try:
        difference = git("status", "--porcelain") + git("diff", "HEAD")
        return {
            "commit": git("rev-parse", "HEAD").decode().strip(),
            "diff": hashlib.sha256(difference).hexdigest()[:12] if difference else "",
        }
    except (OSError, subprocess.SubprocessError):
        return None
