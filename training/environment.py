"""Where and how a run is trained: environment.json. It is not part of the run's identity."""

import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from cli.schema import RunConfig

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "numpy", "hydra-core", "pydantic", "safetensors")
# what may change a run's numbers without changing its name
CONDITIONS = (
    "device gpu ranks threads compile deterministic python processor packages git eval_windows".split()
)


def environment(config: RunConfig, computed: dict[str, Any]) -> dict[str, Any]:
    """Return the content of environment.json: the machine, versions, the commit, and ``computed``: the values
    to which ``auto`` was resolved, the data, the command."""
    return {
        **computed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "git": git_state(),
        "eval_windows": config.train.eval_windows,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the conditions that differ between two environments, as ``threads 1 → 2``."""

    def flat(environment: dict[str, Any]) -> dict[str, Any]:
        values = {key: environment[key] for key in CONDITIONS if key in environment}
        for key in ("packages", "git"):
            values |= {f"{key} {name}": value for name, value in (values.pop(key, None) or {}).items()}
        return values

    old, new = flat(before), flat(now)
    return [f"{key} {old[key]} → {new[key]}" for key in old if key in new and old[key] != new[key]]


def processor() -> str:
    """Return the processor's name, on x86 with its family and model numbers: virtual machines use one name
    for several generations of processors, and their results differ in the last bits."""
    name = cpuinfo("model name") or platform.processor()
    return " ".join(filter(None, [name, cpuinfo("cpu family"), cpuinfo("model")]))


def cpuinfo(key: str) -> str | None:
    """Return a value of the first core in /proc/cpuinfo."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(values, None)


@cache
def git_state() -> dict[str, Any] | None:
    """Return the project's commit and whether its files were as committed; None outside a git checkout."""
    try:
        status, head = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, timeout=10, text=True)
            for words in (["status", "--porcelain", "--untracked-files=no"], ["rev-parse", "HEAD"])
        )
        return {"commit": head.stdout.strip(), "clean": not status.stdout}
    except (OSError, subprocess.SubprocessError):
        return None


def duration(seconds: float) -> str:
    """Return a duration as 42 s, 17 min or 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
