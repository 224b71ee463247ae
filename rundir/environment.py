"""Where and how a run was made. It is recorded beside the run and is no part of its identity."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from data.token_files import Prepared
from interop.pretrained import pretrained

ROOT = Path(__file__).parents[1]
PARTS = ("model", "data", "diagnostics", "interop", "cli", "rundir", "training", "system")
LISTED = 5  # changed files that are printed by name
PACKAGES = ("torch", "numpy", "hydra-core", "pydantic", "safetensors")


def environment(config: RunConfig, data: Prepared, computed: dict[str, Any]) -> dict[str, Any]:
    """Versions, commit, processor, threads, command; what was trained on; what ``auto`` became: device,
    precision, what was settled by norm and placement, and which weights ``init_from`` named."""
    return {
        "machine": machine(),
        "asked": asked_for(config),
        **computed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "git": git_state(),
        "code": code(),
        "init_from": pretrained(config.init_from).digest if config.init_from else None,
        "data": {
            "fingerprint": data.fingerprint,
            "vocab_size": data.tokenizer.vocab_size,
            "train_tokens": len(data.train),
            "val_tokens": len(data.val),
        },
        "command": [sys.executable, *sys.argv],
    }


@cache
def code() -> dict[str, str]:
    """Each file of ours that takes part in a run, and the beginning of its SHA-256, as they were when first
    asked for."""
    files = [ROOT / "train.py", *(file for part in PARTS for file in sorted((ROOT / part).rglob("*.py")))]
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What bears on a run's numbers and is not as it was before, in words."""
    found = [
        f"{key} {before[key]} → {now[key]}"
        for key in ("device", "ranks", "distributed", "threads", "compile", "python", "processor")
        if before.get(key, now[key]) != now[key]
    ]
    old, new = before.get("packages", {}), now["packages"]
    found += [f"{name} {old[name]} → {new.get(name)}" for name in old if old[name] != new.get(name)]
    changed = changed_code(before)
    return found + ([f"changed code: {shortened(changed)}"] if changed else [])


def shortened(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def changed_code(before: dict[str, Any]) -> list[str]:
    """The files of ours that are not as they were in that environment."""
    now = code()
    old = before.get("code", now)
    return sorted(name for name in old.keys() | now.keys() if old.get(name) != now.get(name))


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
    return cpuinfo("model name") or platform.processor()


def cpuinfo(key: str) -> str | None:
    """What Linux says of the first core."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(values, None)


@cache
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
