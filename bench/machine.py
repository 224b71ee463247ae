"""What a benchmark ran on: the machine, versions, commits. No path and no host name. Nothing to run here."""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.measure import run
from rundir.environment import ROOT, cpuinfo, git_state, processor

PEER_FILES = ("train.py", "model.py", "sample.py")


def torchs_view(*arguments: str) -> dict[str, Any]:
    """What bench/ceiling.py finds in a process of its own; torch is not imported into ours."""
    child = run([sys.executable, "-m", "bench.ceiling", *arguments], ROOT)
    found: dict[str, Any] = json.loads(child.lines[-1][1])
    return found


@functools.cache
def info() -> dict[str, Any]:
    """Torch's version, threads and GPU."""
    return torchs_view("--info")


def machine(seen: dict[str, Any]) -> dict[str, Any]:
    """``seen`` is ``info``'s. A virtual machine's processor is often named by its series alone, as AMD EPYC;
    by family and model, as 25 and 17, it is known as a Zen 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor(),
        "family_model": [cpuinfo("cpu family"), cpuinfo("model")],  # of x86
        "cores": cores,
        "threads": seen["threads"],  # torch's, in both programs
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": seen["gpu"],
        "system": platform.system(),
    }


def slug(about: dict[str, Any]) -> str:
    """A name for files: of the GPU, else of the processor."""
    name = about["gpu"] or " ".join([about["processor"], *filter(None, about["family_model"])])
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def versions(seen: dict[str, Any], peer: Path | None) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": seen["torch"],
        "numpy": importlib.metadata.version("numpy"),
        "ours": git_state(),
        "peer": peer_version(peer) if peer else None,
    }


def peer_version(peer: Path) -> dict[str, Any]:
    """The peer's commit, where it is a git checkout, and in any case digests of its files."""
    found = subprocess.run(
        ["git", "rev-parse", "--show-toplevel", "HEAD"], cwd=peer, capture_output=True, text=True, check=False
    )
    top, commit = found.stdout.split("\n")[:2] if found.returncode == 0 else ("", "")
    files = {name: hashlib.sha256((peer / name).read_bytes()).hexdigest()[:12] for name in PEER_FILES}
    return {"commit": commit if top and Path(top).samefile(peer) else None, "files": files}
