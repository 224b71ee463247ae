"""Record the environment of a run in the run's folder; it is not part of the run's identity."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from data.token_files import Prepared
from interop.pretrained import pretrained

ROOT = Path(__file__).parents[1]
PARTS = ("model", "data", "diagnostics", "interop", "cli", "rundir", "training", "system")
LISTED = 5  # number of changed files that are printed by name
PACKAGES = ("torch", "numpy", "hydra-core", "pydantic", "safetensors")


CONDITIONS = (
    "device gpu ranks distributed threads compile deterministic python processor eval_windows".split()
)


def environment(config: RunConfig, data: Prepared, computed: dict[str, Any]) -> dict[str, Any]:
    """Return the content of environment.json: machine, requested device and precision, versions, commit,
    hashes of the code, fingerprint and sizes of the data, hash of the weights of ``init_from``, and
    ``computed``, which has the command and the values to which ``auto`` was resolved."""
    return {
        "machine": auto_conditions(),
        "asked": asked_for(config),
        **computed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_generation(),
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
        "eval_windows": config.train.eval_windows,
    }


@cache
def code() -> dict[str, str]:
    """Return the first digits of the SHA-256 of each file that takes part in a run, read once per process."""
    files = [ROOT / "train.py", *(file for part in PARTS for file in sorted((ROOT / part).rglob("*.py")))]
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences between two environments that can change a run's numbers, one line each."""
    changes = [
        f"{key} {before[key]} → {now[key]}" for key in CONDITIONS if before.get(key, now[key]) != now[key]
    ]
    old, new = before.get("packages", {}), now["packages"]
    changes += [f"{name} {old[name]} → {new.get(name)}" for name in old if old[name] != new.get(name)]
    files = changed_code(before)
    return changes + ([f"changed code: {files}"] if files else [])


def changed_code(before: dict[str, Any]) -> str:
    """Return the files of the project that have changed since the environment ``before``: the first few names
    and the number of other files; "" if no file has changed."""
    now = code()
    old = before.get("code", now)
    names = sorted(name for name in old.keys() | now.keys() if old.get(name) != now.get(name))
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def auto_conditions() -> dict[str, Any]:
    """Return what, if unchanged, means that ``auto`` resolves as before: host, torch version, visible GPUs.
    Does not import torch."""
    return {
        "host": platform.node(),
        "torch": importlib.metadata.version("torch"),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def asked_for(config: RunConfig) -> dict[str, str]:
    return {"device": config.device, "precision": config.precision}


def processor() -> str:
    """Return the processor's model, from /proc/cpuinfo on Linux, else from Python."""
    return cpuinfo("model name") or platform.processor()


def processor_generation() -> str:
    """Return the processor's name with its family and model numbers, such as "AMD EPYC 25 17": on virtual
    machines several generations share one name; they differ in these numbers, and their results in the last
    bits. The numbers exist on x86 only."""
    return " ".join(filter(None, [processor(), cpuinfo("cpu family"), cpuinfo("model")]))


def cpuinfo(key: str) -> str | None:
    """Return a value of the first core in /proc/cpuinfo."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(values, None)


@cache
def git_state() -> dict[str, str] | None:
    """Return the project's commit and a hash of the changes since (of a new file, of its name), except in
    published results, which training does not read; None outside a git checkout."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=10
        ).stdout

    try:
        paths = ("--", ".", ":!results", ":!bench/results")
        difference = git("status", "--porcelain", *paths) + git("diff", "HEAD", *paths)
        return {
            "commit": git("rev-parse", "HEAD").decode().strip(),
            "diff": hashlib.sha256(difference).hexdigest()[:12] if difference else "",
        }
    except (OSError, subprocess.SubprocessError):
        return None
