"""wandb follows metrics.jsonl from a process of its own."""

import importlib.util
import json
import math
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cli.schema import RunConfig
from rundir import wandb_process
from rundir.checkpoint_file import path_of
from rundir.folder import leaks, read_status
from rundir.schema import read_json
from system.errors import ConfigError
from system.files import write_atomically
from system.os_compat import SIGNALS

CONNECT = 8  # seconds that wandb's server may take to answer
LAST = 15  # seconds that wandb may take after a run's end, besides those of a checkpoint
SLOWEST = 10**6  # bytes of a checkpoint that wandb may take a second for
WITHOUT = "the run goes on without it, and metrics.jsonl has every row"
MODES = ("auto", "online", "offline", "disabled")


def wandb_mode(config: RunConfig) -> str:
    """One of MODES. ``auto`` is what WANDB_MODE says, where that is set; it is disabled, and that is said,
    where wandb is not installed.

    Raises:
        ConfigError: another mode is asked for, and wandb is not installed; or WANDB_MODE is no mode.
    """
    asked = config.wandb.mode
    mode = (os.environ.get("WANDB_MODE") or asked).lower() if asked == "auto" else asked
    mode = {"dryrun": "offline"}.get(mode, mode)  # its old name
    if mode not in MODES:
        raise ConfigError(f"WANDB_MODE: should be one of {', '.join(MODES)}, not {mode!r}")
    if mode == "disabled":
        return mode
    found = importlib.util.find_spec("wandb")
    if found is not None and found.origin is not None:  # a mere folder of that name has no origin
        return mode
    if asked == "auto":
        print("wandb: it is not installed; the run's folder has all that it would show", flush=True)
        return "disabled"
    raise ConfigError(f"wandb.mode: {mode} needs wandb; pip install wandb, or wandb.mode=disabled")


@contextmanager
def copied_to_wandb(mode: str, config: RunConfig, folder: Path, group: str, step: int) -> Iterator[None]:
    """Inside, a process copies the rows of metrics.jsonl to wandb as they come: see wandb_sink.py. At the end
    it is waited for, as long as ``wandb_end`` says at most.

    Args:
        mode: what ``wandb_mode`` said.
        folder: the run's; its name begins the id of the wandb run.
        group: of runs that differ in their seed alone; wandb.group goes before.
        step: that the run goes on from; from 0 it is a new wandb run.
    """
    if mode == "disabled":
        yield
        return
    job = wandb_job(config, folder, group, step) | {"mode": mode}
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", wandb_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for us
            env={"WANDB_ERROR_REPORTING": "false"} | os.environ,
        )
    except OSError as error:
        print(f"wandb: {error}; {WITHOUT}", flush=True)
        yield
        return
    relay = threading.Thread(target=relayed, args=(child,), daemon=True)
    relay.start()
    assert child.stdin
    try:
        with suppress(OSError):  # that it has ended already is heard from the relay
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        yield
    finally:
        end = wandb_end(config, folder)
        with suppress(OSError):
            child.stdin.write(json.dumps(end))
            child.stdin.close()  # says that the run has ended
        relay.join(2)
        if relay.is_alive():
            why = f": the checkpoint at {SLOWEST / 1e6:g} MB/s, and {LAST}" if end["artifact"] else ""
            print(f"wandb: waiting for it, {end['last']} seconds at most{why}", flush=True)
            relay.join(end["last"])
            child.kill()  # it has not kept to that
            relay.join()


def wandb_job(config: RunConfig, folder: Path, group: str, step: int) -> dict[str, Any]:
    """What wandb_sink.py is told. The run's wandb.json knows its id, and how much of metrics.jsonl is
    copied."""
    known = read_json(folder / "wandb.json") if step else {}
    # the folder's name alone would not do: wandb's server takes no step of an id twice
    new: dict[str, Any] = {"id": f"{folder.name}-{secrets.token_hex(3)}", "copied": 0}
    known = new | known
    write_atomically(folder / "wandb.json", json.dumps(known))
    settings = config.wandb
    return {
        "pid": os.getpid(),
        "signals": [*map(int, SIGNALS)],
        "connect": CONNECT,
        "last": LAST,
        "artifact": None,
        "folder": str(folder.resolve()),
        "offset": min(known["copied"], (folder / "metrics.jsonl").stat().st_size),
        "init": {
            "id": known["id"],
            "resume": "allow",
            "name": folder.name,
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group or group,
            "tags": [*settings.tags, *["leaks"] * leaks(folder), *["tuned"] * bool(config.tuned)],
            "dir": settings.dir,
            "config": config.model_dump(by_alias=True)
            | {"certificate": read_json(folder / "certificate.json")},
        },
    }


def wandb_end(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What wandb_sink.py is told when the run has ended: ``artifact``, what to upload, None for nothing; and
    ``last``, the seconds that it may take.

    Uploaded is the last step's checkpoint, so that of a run that finished: an interrupted one goes on, and
    what a diverged one has saved is of some step before.
    """
    status = read_status(folder)
    if not config.wandb.artifact or status.get("state") != "finished":
        return {"last": LAST, "artifact": None}
    file, size = path_of(folder / "checkpoints", config.train.steps), 0
    with suppress(OSError):  # wandb_sink.py says so
        size = file.stat().st_size
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.name)[-128:]  # as wandb permits it; its end is the hash
    losses = {"val/full_loss": status.get("final"), "best": status.get("best")}
    metadata = {"step": config.train.steps, "leaks": leaks(folder)} | losses
    artifact = {"file": str(file.absolute()), "name": name, "metadata": metadata}
    return {"last": LAST + math.ceil(size / SLOWEST), "artifact": artifact}


def relayed(child: "subprocess.Popen[str]") -> None:
    """Print what the process says, until it ends."""
    assert child.stdout
    with child.stdout as lines:
        for line in lines:
            tell(line.rstrip("\n"))
    if child.wait() < 0:
        tell(f"wandb: its process was ended; {WITHOUT}")


def tell(line: str) -> None:
    with suppress(OSError):  # whoever read our output has gone; the main thread hears of that itself
        print(line, flush=True)
