"""Report to the user how a run has ended."""

import math
import shlex
from pathlib import Path

from rundir.environment import changed_code
from rundir.folder import leaks, read_status
from rundir.run_files import read_json


def report(folder: Path, already: bool = False) -> float:
    """Print how a run ended. Returns its val/full_loss, or infinity if it diverged, as Hydra's sweepers
    expect."""
    status = read_status(folder)
    again = ""
    if already:
        again = "; nothing left to do (fresh=true starts over)"
        if changed := changed_code(read_json(folder / "environment.json")):
            again += f"; code changed since: {changed}"
    if status["state"] == "diverged":
        print(f"{folder}: diverged by step {status['step']:,} ({status['reason']}){again}")
        return math.inf
    note = "; it LEAKS: not all of its losses are a language model's" if leaks(folder) else ""
    print(f"{folder}: finished, val/full_loss {status['final']:.4f}{note}{again}")
    if not already:
        print(f"sample from it: python sample.py run={shlex.quote(str(folder))}")
    return float(status["final"])
