"""Report to the user how a run has ended."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from rundir.environment import changed_code
from rundir.folder import leaks, read_status
from rundir.run_files import read_json
from system.launch import world_size


def report(folder: Path, had_ended: bool = False, packages: Sequence[str] = ()) -> float:
    """Print how a run ended. Returns its val/full_loss, or infinity if it diverged, as Hydra's own
    sweepers would expect. ``packages``: those of the user that its model needs."""
    status = read_status(folder)
    note = ""
    if had_ended:
        note = "; nothing left to do (fresh=true starts over)"
        environment = read_json(folder / "environment.json")
        if changed := changed_code(environment):
            note += f"; code changed since: {changed}"
        if (ranks := environment.get("ranks", 1)) != (now := world_size()):
            note += f"; it was trained by {ranks} rank{'s' * (ranks > 1)}, not {now}"
    if status["state"] == "diverged":
        print(f"{folder}: diverged by step {status['step']:,} ({status['reason']}){note}")
        return math.inf
    leak = "; it LEAKS: some of its losses are not those of a causal model" if leaks(folder) else ""
    print(f"{folder}: finished, val/full_loss {status['final']:.4f}{leak}{note}")
    if not had_ended and status.get("saved") is not None:
        trust = f" trust={','.join(packages)}" if packages else ""
        print(f"sample from it: python sample.py run={shlex.quote(str(folder))}{trust}")
    return float(status["final"])
